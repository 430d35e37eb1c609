// SPDX-License-Identifier: Apache-2.0
// Ours of the group `model` of compare.py: transformer blocks made of the library's parts, as plain functions in a
// shared library, and what each of their stages takes.
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include <mha/block.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "../measure.hpp"
#include "../patterns.hpp"
#include "peer.hpp"

namespace {

/// Seconds of one call by stage. Products have their biases, residuals and copies in them, attention its rotation.
struct Stages {
  double attention = 0, products = 0, activation = 0, norm = 0;
};

template <class I> constexpr bool is_epilogue = false;
template <class T, class F> constexpr bool is_epilogue<mha::detail::EpilogueItems<T, F>> = true;
template <class I> constexpr bool is_copy = false;
template <class T> constexpr bool is_copy<mha::detail::CopyElements<T>> = true;

/// A backend that, if asked, notes what each stage of a block takes. An activation that a product does on the way takes
/// what the product takes more than without it, both by weights and rows that a call before has read.
template <class Base> struct Noting : Base {
  using typename Base::Workspace;
  static inline Stages* noted = nullptr;
  static inline bench::Clock clock = bench::wall_seconds;

  template <class Call>
  requires requires(const Base base, const Call& call, Workspace& w) { base.gemm(call, w); }
  void gemm(const Call& call, Workspace& workspace) const {
    note(&Stages::products, [&] { Base::gemm(call, workspace); });
  }
  template <class Call, class T, class F>
  requires requires(const Base base, const Call& call, const mha::Epilogue<T, F>& e, Workspace& w) {
    base.gemm(call, e, w);
  }
  void gemm(const Call& call, const mha::Epilogue<T, F>& epilogue, Workspace& workspace) const {
    const auto whole = [&] { Base::gemm(call, epilogue, workspace); };
    using Plain = std::conditional_t<mha::detail::is_gated<F>, mha::Gated<mha::Identity>, mha::Identity>;
    if constexpr (std::same_as<F, Plain>) {
      note(&Stages::products, whole);
    } else {
      if (noted == nullptr) return whole();
      const mha::Epilogue<T, Plain> without{{}, epilogue.residual};
      whole();
      const double plain = seconds([&] { Base::gemm(call, without, workspace); });
      noted->products += plain;
      noted->activation += seconds(whole) - plain;
    }
  }
  template <class Call> void attend(const Call& call, Workspace& workspace) const {
    note(&Stages::attention, [&] { Base::attend(call, workspace); });
  }
  template <class T>
  requires mha::detail::Normalizes<Base, T>
  void normalize(const mha::NormCall<T>& call, Workspace& workspace) const {
    note(&Stages::norm, [&] { Base::normalize(call, workspace); });
  }
  template <mha::Items I> void for_each_item(const I& items, Workspace& workspace) const {
    note(is_epilogue<I> ? &Stages::activation
         : is_copy<I>   ? &Stages::products
                        : &Stages::attention,
         [&] { Base::for_each_item(items, workspace); });
  }

 private:
  template <class F> static double seconds(F&& f) { return bench::seconds_per_call(clock, 1, f); }
  template <class F> static void note(double Stages::*stage, F&& f) {
    if (noted == nullptr) return f();
    noted->*stage += seconds(f);
  }
};

using Backend = Noting<mha::CpuWith<bench::OneOrAll>>;
using OnUnit = Noting<mha::Systolic<mha::AmxArray, mha::DefaultPrecision, bench::OneOrAll>>;

/// In the order of blocks.py. Matrices (out, in), as PyTorch stores them; null for what a block has not.
struct BlockSizes {
  int batch, length, model, heads, kv_heads, hidden;
  float eps;
};
struct BlockWeights {
  const void *qkv, *qkv_bias, *out, *out_bias, *up, *up_bias, *gate, *down, *down_bias, *norm1, *norm1_bias, *norm2,
      *norm2_bias;
};

/// y = block(x), both (batch, length, model).
struct Block {
  virtual ~Block() = default;
  virtual void run(bool all_threads, const void* x, void* y) = 0;
  virtual Stages stages(bool all_threads, const void* x, void* y) = 0;
};

template <class T, class B, class Norm, class Attention, class F, bool norms_first> class BlockOf final : public Block {
 public:
  BlockOf(const BlockSizes& s, const BlockWeights& w)
      : sizes_(s),
        norm1_({.width = s.model, .eps = s.eps}),
        norm2_({.width = s.model, .eps = s.eps}),
        attention_(
            {.d_model = s.model, .num_heads = s.heads, .num_kv_heads = s.kv_heads, .bias = w.qkv_bias != nullptr}),
        feed_forward_({.d_model = s.model, .d_hidden = s.hidden, .bias = w.up_bias != nullptr}),
        h_(s.batch, s.length, s.model),
        r_(s.batch, s.length, s.model) {
    const int queries = s.model, keys = s.model / s.heads * s.kv_heads;
    const auto rows_of_qkv = [&](int first, int rows) { return matrix(w.qkv, rows, s.model, first); };
    const auto bias_of_qkv = [&](int first, int count) { return vector(w.qkv_bias, count, first); };
    attention_.borrow({.query = rows_of_qkv(0, queries),
                       .key = rows_of_qkv(queries, keys),
                       .value = rows_of_qkv(queries + keys, keys),
                       .output = matrix(w.out, s.model, s.model),
                       .query_bias = bias_of_qkv(0, queries),
                       .key_bias = bias_of_qkv(queries, keys),
                       .value_bias = bias_of_qkv(queries + keys, keys),
                       .output_bias = vector(w.out_bias, s.model)});
    if constexpr (mha::detail::is_gated<F>)
      feed_forward_.up().borrow({.weight = matrix(w.up, s.hidden, s.model), .gate = matrix(w.gate, s.hidden, s.model)});
    else
      feed_forward_.up().borrow({.weight = matrix(w.up, s.hidden, s.model), .bias = vector(w.up_bias, s.hidden)});
    feed_forward_.down().borrow({.weight = matrix(w.down, s.model, s.hidden), .bias = vector(w.down_bias, s.model)});
    norm1_.borrow({.weight = vector(w.norm1, s.model), .bias = vector(w.norm1_bias, s.model)});
    norm2_.borrow({.weight = vector(w.norm2, s.model), .bias = vector(w.norm2_bias, s.model)});
  }

  void run(bool all_threads, const void* from, void* to) override {
    bench::OneOrAll::all = all_threads;
    const auto x = rows(static_cast<const T*>(from));
    const auto y = rows(static_cast<T*>(to));
    if constexpr (norms_first) {
      norm1_(x, mha::into(h_), workspace_);
      attention_(h_, mha::into(r_), workspace_);
      norm2_(x, mha::residual(r_), mha::sum_into(y), mha::into(h_), workspace_);
      feed_forward_(h_, mha::residual(y), mha::into(y), workspace_);
    } else {
      attention_(x, mha::into(r_), workspace_);
      norm1_(x, mha::residual(r_), mha::into(h_), workspace_);
      feed_forward_(h_, mha::residual(h_), mha::into(r_), workspace_);
      norm2_(r_, mha::into(y), workspace_);
    }
  }
  Stages stages(bool all_threads, const void* x, void* y) override {
    Stages spent;
    B::clock = all_threads ? bench::wall_seconds : bench::thread_seconds;
    const struct Reset {
      ~Reset() { B::noted = nullptr; }
    } when_it_returns_or_throws;
    B::noted = &spent;
    run(all_threads, x, y);
    return spent;
  }

 private:
  static auto matrix(const void* data, int rows, int columns, int first = 0) {
    return mha::transposed(mha::view(static_cast<const T*>(data) + std::ptrdiff_t{first} * columns, rows, columns));
  }
  static mha::TensorView<const T, 1> vector(const void* data, int count, int first = 0) {
    if (data == nullptr) return {};
    return mha::view(static_cast<const T*>(data) + first, count);
  }
  template <class U> auto rows(U* data) const { return mha::view(data, sizes_.batch, sizes_.length, sizes_.model); }

  BlockSizes sizes_;
  Norm norm1_, norm2_;
  Attention attention_;
  mha::FeedForward<T, B, F> feed_forward_;
  mha::Tensor<T, 3> h_, r_;
  mha::Workspace workspace_;
};

template <class T, class B> Block* make(const std::string& kind, const BlockSizes& s, const BlockWeights& w) {
  using LayerNorm = mha::LayerNorm<T, B>;
  using Full = mha::MultiHeadAttention<T, B>;
  using Causal = mha::MultiHeadAttention<T, B, mha::Causal>;
  using Llama = mha::MultiHeadAttention<T, B, mha::Causal, mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>>;
  if (kind == "GPT-2") return new BlockOf<T, B, LayerNorm, Causal, mha::GeluTanh, true>(s, w);
  if (kind == "ViT") return new BlockOf<T, B, LayerNorm, Full, mha::Gelu, true>(s, w);
  if (kind == "BERT") return new BlockOf<T, B, LayerNorm, Full, mha::Gelu, false>(s, w);
  return new BlockOf<T, B, mha::RmsNorm<T, B>, Llama, mha::SwiGlu, true>(s, w);
}

}  // namespace

/// Of float32 on Cpu, of bfloat16 on the matrix unit.
MHA_PEER const char* peer_block(Block** block, const char* kind, const char* scalar, const BlockSizes* sizes,
                                const BlockWeights* weights) {
  return bench::attempt([&] {
    const auto made = std::strcmp(scalar, "bfloat16") == 0 ? make<mha::bfloat16, OnUnit> : make<float, Backend>;
    *block = made(kind, *sizes, *weights);
  });
}
MHA_PEER const char* peer_block_run(Block* block, int all_threads, const void* x, void* y) {
  return bench::attempt([&] { block->run(all_threads != 0, x, y); });
}
/// Seconds of attention, products, activation and norms in one call.
MHA_PEER const char* peer_block_stages(Block* block, int all_threads, const void* x, void* y, double* seconds) {
  return bench::attempt([&] {
    const Stages s = block->stages(all_threads != 0, x, y);
    const double each[] = {s.attention, s.products, s.activation, s.norm};
    std::memcpy(seconds, each, sizeof each);
  });
}
MHA_PEER void peer_block_end(Block* block) { delete block; }
