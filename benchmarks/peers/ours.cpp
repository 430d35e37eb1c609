// SPDX-License-Identifier: Apache-2.0
// What compare.py measures of ours and of Eigen, as plain functions in a shared library, so that all of them run in one
// process on the same arrays. Built twice: plain, and with -march=native for Eigen, which takes its instructions from
// the flags.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <Eigen/Core>
#include <span>
#include <string>
#include <utility>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "../eigen_baseline.hpp"
#include "../measure.hpp"
#include "../patterns.hpp"
#include "../unit_peak.hpp"
#include "peer.hpp"

namespace {

using Backend = mha::CpuWith<bench::OneOrAll>;
using OnUnit = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, bench::OneOrAll>;

/// q, out (1, Hq, Lq, D) and k, v (1, Hkv, Lk, D) in memory, as PyTorch has them.
struct Shape {
  int queries, keys, heads, kv_heads, dim;
};

template <class B, class T, class Mask, class Score>
void attend(const Shape& s, const void* q, const void* k, const void* v, void* out, const Mask& mask,
            const Score& score) {
  static mha::Workspace workspace;
  const auto read = [&](const void* data, int heads, int length) {
    return mha::view_bhld(static_cast<const T*>(data), 1, heads, length, s.dim);
  };
  mha::attention_into<B>(mha::view_bhld(static_cast<T*>(out), 1, s.heads, s.queries, s.dim),
                         read(q, s.heads, s.queries), read(k, s.kv_heads, s.keys), read(v, s.kv_heads, s.keys), mask,
                         score, workspace);
}

template <class B, class T, class Mask>
void attend_ragged(const Shape& s, const void* q, const void* k, const void* v, void* out, const mha::Ragged& ragged,
                   const Mask& mask) {
  static mha::Workspace workspace;
  const auto read = [&](const void* data, int rows, int heads) {
    return mha::view(static_cast<const T*>(data), rows, heads, s.dim);
  };
  mha::attention_into<B>(mha::view(static_cast<T*>(out), s.queries, s.heads, s.dim), read(q, s.queries, s.heads),
                         read(k, s.keys, s.kv_heads), read(v, s.keys, s.kv_heads), ragged, mask, workspace);
}

/// y (rows, …) from x (rows, …), weights prepared before.
struct Module {
  virtual ~Module() = default;
  virtual void run(int rows, const void* x, void* y) = 0;
  /// Those of the last run, one after another, matrices as PyTorch stores them.
  virtual void gradients(float*) const {}
};

/// The last rows of k, v (1, Hkv, Lk, D) appended to a cache that has those before, and their queries (1, Hq, Lq, D).
/// The step is not committed, so that every call does the same.
template <class T> class CacheModule final : public Module {
 public:
  CacheModule(const Shape& s, const T* k, const T* v)
      : shape_(s),
        key_(mha::view_bhld(k, 1, s.kv_heads, s.keys, s.dim)),
        value_(mha::view_bhld(v, 1, s.kv_heads, s.keys, s.dim)),
        cache_({s.kv_heads, s.dim, s.dim}, mha::Contiguous{.length = s.keys}),
        sequence_(cache_.add()) {
    auto step = cache_.step(sequence_, s.keys - s.queries);
    append(step, 0, s.keys - s.queries);
    step.commit();
  }

  void run(int, const void* q, void* out) override {
    const auto& s = shape_;
    auto step = cache_.step(sequence_, s.queries);
    append(step, s.keys - s.queries, s.queries);
    mha::attention_into<Backend>(mha::view_bhld(static_cast<T*>(out), 1, s.heads, s.queries, s.dim),
                                 mha::view_bhld(static_cast<const T*>(q), 1, s.heads, s.queries, s.dim), step.source(0),
                                 mha::Causal{}, workspace_);
  }

 private:
  using Cache = mha::KvCache<mha::Contiguous, T>;

  void append(const typename Cache::Step& step, int begin, int count) const {
    const auto rows = [&](mha::TensorView<const T, 4> v) {
      v.data += begin * v.stride[1];
      v.extent[1] = count;
      return v;
    };
    step.append(0, rows(key_), rows(value_));
  }

  Shape shape_;
  mha::TensorView<const T, 4> key_, value_;
  Cache cache_;
  mha::SequenceId sequence_;
  mha::Workspace workspace_;
};

/// A layer with weights and biases as PyTorch stores them: in (3·E, E) and (3·E), out (E, E) and (E).
template <class T, class B, class... Policies> class LayerModule final : public Module {
 public:
  LayerModule(int d_model, int heads, const T* in, const T* in_bias, const T* out, const T* out_bias)
      : layer_({.d_model = d_model, .num_heads = heads, .bias = true}) {
    const auto matrix = [&](const T* w) { return mha::transposed(mha::view(w, d_model, d_model)); };
    const auto part = [&](int i) { return matrix(in + std::ptrdiff_t{i} * d_model * d_model); };
    const auto bias = [&](int i) { return mha::view(in_bias + std::ptrdiff_t{i} * d_model, d_model); };
    layer_.borrow({.query = part(0),
                   .key = part(1),
                   .value = part(2),
                   .output = matrix(out),
                   .query_bias = bias(0),
                   .key_bias = bias(1),
                   .value_bias = bias(2),
                   .output_bias = mha::view(out_bias, d_model)});
  }
  void run(int rows, const void* x, void* y) override {
    const int d_model = layer_.config().d_model;
    layer_(mha::view(static_cast<const T*>(x), rows, d_model), workspace_,
           mha::into(mha::view(static_cast<T*>(y), rows, d_model)));
  }

 private:
  mha::MultiHeadAttention<T, B, Policies...> layer_;
  mha::Workspace workspace_;
};

/// The backward pass of attention, or with `both` the forward pass before it, given q and d_out (1, H, L, D) as
/// PyTorch has them. Without dropout for −length rows, to check the gradients. Keeps the arrays.
template <class T, class B, class Mask> class BackwardModule final : public Module {
 public:
  BackwardModule(const Shape& s, bool both, float dropout, const T* k, const T* v)
      : shape_(s), both_(both), dropout_{.p = dropout}, k_(k), v_(v) {
    for (auto* t : {&out_, &dq_, &dk_, &dv_}) *t = mha::Tensor<T, 4>(1, s.heads, s.keys, s.dim);
  }
  void run(int rows, const void* q, void* d_out) override {
    const bool drops = rows > 0 && dropout_.p > 0;
    if (both_ || rows < 0 || !recorded_) record(q, drops);
    recorded_ = true;
    const auto backward = [&](const auto&... extra) {
      mha::attention_backward_into({seen(dq_.data()), seen(dk_.data()), seen(dv_.data())},
                                   seen(static_cast<const T*>(d_out)), seen(static_cast<const T*>(q)), seen(k_),
                                   seen(v_), seen(std::as_const(out_).data()), tape_, Mask{}, extra..., workspace_);
    };
    drops ? backward(dropout_, seed_) : backward();
  }
  void gradients(float* to) const override {
    for (const auto* t : {&dq_, &dk_, &dv_})
      to = std::transform(t->begin(), t->end(), to, [](T x) { return static_cast<float>(x); });
  }

 private:
  template <class E> mha::TensorView<E, 4> seen(E* data) const {
    return mha::view_bhld(data, 1, shape_.heads, shape_.keys, shape_.dim);
  }
  void record(const void* q, bool drops) {
    const auto forward = [&](const auto&... extra) {
      mha::attention_into(seen(out_.data()), seen(static_cast<const T*>(q)), seen(k_), seen(v_), Mask{}, extra..., B{},
                          mha::record(tape_), workspace_);
    };
    ++seed_.offset;
    drops ? forward(dropout_, seed_) : forward();
  }

  Shape shape_;
  bool both_, recorded_ = false;
  mha::Dropout dropout_;
  mha::DropoutSeed seed_{7, 0};
  const T *k_, *v_;
  mha::Tensor<T, 4> out_{0, 0, 0, 0}, dq_{out_}, dk_{out_}, dv_{out_};
  mha::Workspace workspace_;
  mha::AttentionTape<T, B> tape_;
};

/// A layer's forward and backward pass; dy is x. Without dropout for −rows rows, to check the result and the gradients.
template <class Mask> class StepModule final : public Module {
 public:
  StepModule(int d_model, int heads, float dropout, const float* in, const float* in_bias, const float* out,
             const float* out_bias)
      : layer_({.d_model = d_model, .num_heads = heads, .bias = true}, mha::Dropout{.p = dropout}),
        gradients_(layer_.gradients()),
        dropout_(dropout) {
    layer_.update([&](const mha::ParameterViews<float>& p) {
      mha::HeadWeights<float> parts[] = {p.query, p.key, p.value};
      for (int n = 0; n < 3; ++n)
        for (int i = 0; i < d_model; ++i) {
          const std::ptrdiff_t row = std::ptrdiff_t{n} * d_model + i;
          for (int e = 0; e < d_model; ++e) parts[n].matrix()(e, i) = in[row * d_model + e];
          parts[n].bias_row()(i) = in_bias[row];
        }
      for (int i = 0; i < d_model; ++i) {
        for (int e = 0; e < d_model; ++e) p.output.weight(e, i) = out[std::ptrdiff_t{i} * d_model + e];
        p.output.bias(i) = out_bias[i];
      }
    });
  }
  void run(int rows, const void* x, void* y) override {
    const int d_model = layer_.config().d_model;
    const auto from = mha::view(static_cast<const float*>(x), std::abs(rows), d_model);
    const auto to = mha::view(static_cast<float*>(y), std::abs(rows), d_model);
    if (dx_.extent(0) != from.extent[0]) dx_ = mha::Tensor<float, 2>(from.extent[0], d_model);
    gradients_.clear();
    if (dropout_ > 0 && rows > 0)
      layer_(from, tape_, mha::DropoutSeed{7, ++step_}, mha::into(to), workspace_);
    else
      layer_(from, tape_, mha::into(to), workspace_);
    layer_.backward(from, tape_, gradients_, mha::into(dx_), workspace_);
  }
  /// dx, in and in_bias, out and out_bias.
  void gradients(float* to) const override {
    const auto put = [&](const mha::TensorView<const float, 2>& w) {  // (in, out)
      for (int i = 0; i < w.extent[1]; ++i)
        for (int e = 0; e < w.extent[0]; ++e) *to++ = w(e, i);
    };
    const auto put_row = [&](const mha::TensorView<const float, 1>& b) {
      for (int i = 0; i < b.extent[0]; ++i) *to++ = b(i);
    };
    to = std::copy(dx_.begin(), dx_.end(), to);
    const mha::HeadWeights<float> parts[] = {gradients_.query, gradients_.key, gradients_.value};
    for (const auto& part : parts) put(part.matrix());
    for (const auto& part : parts) put_row(part.bias_row());
    put(gradients_.output.weight);
    put_row(gradients_.output.bias);
  }

 private:
  using Layer = mha::MultiHeadAttention<float, Backend, Mask, mha::Dropout>;
  Layer layer_;
  typename Layer::Tape tape_;
  typename Layer::Gradients gradients_;
  mha::Tensor<float, 2> dx_{0, 0};
  mha::Workspace workspace_;
  float dropout_;
  std::uint32_t step_ = 0;
};

/// y (M, N) = x (M, K) · wᵀ + bias, w (N, K) as PyTorch stores it, packed as a layer packs its weights.
template <class T, class B> class LinearModule final : public Module {
 public:
  LinearModule(int k, int n, const T* w, const T* bias)
      : k_(k), n_(n), packed_(pack({mha::transposed(mha::view(w, n, k)), mha::view(bias, n)})) {}
  void run(int rows, const void* x, void* y) override {
    const mha::TensorView<T, 2> to = mha::view(static_cast<T*>(y), rows, n_);
    B{}.gemm(mha::PackedGemmCall<T, Packed>{mha::view(static_cast<const T*>(x), rows, k_), packed_, 0, {&to, 1}},
             workspace_);
  }

 private:
  static auto pack(const mha::DenseWeights<T>& w) { return B{}.pack(std::span<const mha::DenseWeights<T>>(&w, 1)); }
  using Packed = decltype(pack({}));

  int k_, n_;
  Packed packed_;
  mha::Workspace workspace_;
};

template <class T, class B>
Module* make_layer(int d_model, int heads, bool causal, const void* in, const void* in_bias, const void* out,
                   const void* out_bias) {
  const auto make = [&]<class... Policies>() -> Module* {
    return new LayerModule<T, B, Policies...>(d_model, heads, static_cast<const T*>(in), static_cast<const T*>(in_bias),
                                              static_cast<const T*>(out), static_cast<const T*>(out_bias));
  };
  return causal ? make.template operator()<mha::Causal>() : make.template operator()<>();
}
template <class T, class B> Module* make_linear(int k, int n, const void* w, const void* bias) {
  return new LinearModule<T, B>(k, n, static_cast<const T*>(w), static_cast<const T*>(bias));
}

bool is_bfloat16(const char* scalar) { return std::strcmp(scalar, "bfloat16") == 0; }

}  // namespace

MHA_PEER const char* peer_machine() {
  static const std::string text = bench::machine();
  return text.c_str();
}
MHA_PEER int peer_threads() { return mha::ThreadPool{}.workers(); }
MHA_PEER double peer_peak(int threads) { return bench::peak_gflops_of(threads); }

/// The matrix unit that bfloat16 is multiplied on: amx, dot_product, or portable for none.
MHA_PEER const char* peer_unit() { return mha::to_string(mha::current_unit()); }
MHA_PEER const char* peer_missing_unit() { return mha::missing(mha::MatrixUnit::amx).c_str(); }
MHA_PEER double peer_unit_peak(int threads) {
  return bench::unit_peak_gflops_of(mha::detail::systolic::dense_unit<mha::AmxArray>(), threads);
}

/// GB/s of reading two arrays of so many floats again and again.
MHA_PEER double peer_read(int all_threads, const float* one, const float* other, std::size_t count) {
  bench::OneOrAll::all = all_threads != 0;
  const auto read = [&] {
    for (const float* from : {one, other}) bench::read_all<bench::OneOrAll>(from, count);
  };
  const bench::Clock clock = all_threads != 0 ? bench::wall_seconds : bench::thread_seconds;
  const int calls = bench::calls_per_sample(clock, read);
  return 2e-9 * static_cast<double>(count * sizeof(float)) / bench::seconds_per_call(clock, calls, read);
}

/// Pairs that the pattern shows, per head.
MHA_PEER double peer_visible_pairs(const char* pattern, int queries, int keys) {
  return bench::with_pattern(pattern, keys, [&](const auto& mask, const auto&) {
    return mha::visible_pairs(mask, {1, 1, queries, keys, keys - queries});
  });
}

/// Attention with the pattern's mask and score; scalar is float32 or bfloat16.
MHA_PEER const char* peer_attention(const Shape* shape, const char* pattern, const char* scalar, int all_threads,
                                    const void* q, const void* k, const void* v, void* out) {
  return bench::attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    bench::with_pattern(pattern, shape->keys, [&](const auto& mask, const auto& score) {
      is_bfloat16(scalar) ? attend<Backend, mha::bfloat16>(*shape, q, k, v, out, mask, score)
                          : attend<Backend, float>(*shape, q, k, v, out, mask, score);
    });
  });
}
/// Attention of bfloat16 on the matrix unit, full or causal.
MHA_PEER const char* peer_unit_attention(const Shape* shape, int causal, int all_threads, const void* q, const void* k,
                                         const void* v, void* out) {
  return bench::attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    const mha::NoScore none;
    causal != 0 ? attend<OnUnit, mha::bfloat16>(*shape, q, k, v, out, mha::Causal{}, none)
                : attend<OnUnit, mha::bfloat16>(*shape, q, k, v, out, mha::Full{}, none);
  });
}

/// Attention of a ragged batch, full or causal, on Cpu or on the matrix unit: shape has the rows of all sequences, in
/// memory (ΣL, H, D), and offsets where each begins.
MHA_PEER const char* peer_ragged(const Shape* shape, int batch, const int* query_offsets, const int* key_offsets,
                                 int causal, const char* scalar, int on_unit, int all_threads, const void* q,
                                 const void* k, const void* v, void* out) {
  return bench::attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    const auto offsets = [&](const int* of) { return std::span(of, static_cast<std::size_t>(batch) + 1); };
    const mha::Ragged ragged{offsets(query_offsets), offsets(key_offsets)};
    const auto with_mask = [&]<class B, class T>(B, T) {
      causal != 0 ? attend_ragged<B, T>(*shape, q, k, v, out, ragged, mha::Causal{})
                  : attend_ragged<B, T>(*shape, q, k, v, out, ragged, mha::Full{});
    };
    if (on_unit != 0) return with_mask(OnUnit{}, mha::bfloat16{});
    is_bfloat16(scalar) ? with_mask(Backend{}, mha::bfloat16{}) : with_mask(Backend{}, float{});
  });
}

/// The materialised form in Eigen, full or causal, on one thread.
MHA_PEER const char* peer_eigen_attention(const Shape* shape, int causal, const float* q, const float* k,
                                          const float* v, float* out) {
  return bench::attempt([&] {
    static bench::EigenAttention eigen;
    const auto map = [&](auto* data, int length) { return mha::view_bhld(data, 1, shape->heads, length, shape->dim); };
    eigen(map(out, shape->queries), map(q, shape->queries), map(k, shape->keys), map(v, shape->keys),
          causal != 0 ? bench::EigenAttention::Causal::hide : bench::EigenAttention::Causal::none);
  });
}

/// Of float32 on Cpu, of bfloat16 on the matrix unit.
MHA_PEER Module* peer_layer(int d_model, int heads, int causal, const char* scalar, const void* in, const void* in_bias,
                            const void* out, const void* out_bias) {
  const auto make = is_bfloat16(scalar) ? make_layer<mha::bfloat16, OnUnit> : make_layer<float, Backend>;
  return make(d_model, heads, causal != 0, in, in_bias, out, out_bias);
}
MHA_PEER Module* peer_step(int d_model, int heads, int causal, double dropout, const float* in, const float* in_bias,
                           const float* out, const float* out_bias) {
  const auto p = static_cast<float>(dropout);
  if (causal != 0) return new StepModule<mha::Causal>(d_model, heads, p, in, in_bias, out, out_bias);
  return new StepModule<mha::Full>(d_model, heads, p, in, in_bias, out, out_bias);
}
/// Attention's backward pass, or both passes. Run with q and d_out.
MHA_PEER Module* peer_backward(const Shape* shape, int causal, const char* scalar, int both, double dropout,
                               const void* k, const void* v) {
  const auto make = [&]<class T, class B>(const T* key, B) -> Module* {
    const auto* const value = static_cast<const T*>(v);
    const auto p = static_cast<float>(dropout);
    if (causal != 0) return new BackwardModule<T, B, mha::Causal>(*shape, both != 0, p, key, value);
    return new BackwardModule<T, B, mha::Full>(*shape, both != 0, p, key, value);
  };
  return is_bfloat16(scalar) ? make(static_cast<const mha::bfloat16*>(k), OnUnit{})
                             : make(static_cast<const float*>(k), Backend{});
}
/// Those of the last run, in float.
MHA_PEER void peer_gradients(const Module* module, float* to) { module->gradients(to); }
MHA_PEER Module* peer_linear(int k, int n, const char* scalar, const void* w, const void* bias) {
  const auto make = is_bfloat16(scalar) ? make_linear<mha::bfloat16, OnUnit> : make_linear<float, Backend>;
  return make(k, n, w, bias);
}
/// Keeps the arrays. Run with q and out.
MHA_PEER Module* peer_cache(const Shape* shape, const char* scalar, const void* k, const void* v) {
  const auto make = [&]<class T>(const T* key) -> Module* {
    return new CacheModule<T>(*shape, key, static_cast<const T*>(v));
  };
  return is_bfloat16(scalar) ? make(static_cast<const mha::bfloat16*>(k)) : make(static_cast<const float*>(k));
}
MHA_PEER const char* peer_run(Module* module, int all_threads, int rows, const void* x, void* y) {
  return bench::attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    module->run(rows, x, y);
  });
}
MHA_PEER void peer_end(Module* module) { delete module; }

MHA_PEER const char* peer_eigen_linear(int m, int k, int n, const float* x, const float* w, const float* bias,
                                       float* y) {
  return bench::attempt([&] {
    using Matrix = bench::EigenAttention::Matrix;
    Eigen::Map<Matrix> to(y, m, n);
    to.noalias() = Eigen::Map<const Matrix>(x, m, k) * Eigen::Map<const Matrix>(w, n, k).transpose();
    to.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(bias, n);
  });
}
