// SPDX-License-Identifier: Apache-2.0
// What compare.py measures of ours and of Eigen, as plain functions in a shared library, so that all of them run in one
// process on the same arrays. Built twice: plain, and with -march=native for Eigen, which takes its instructions from
// the flags.
#include <cstring>
#include <Eigen/Core>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <mha/mha.hpp>

#include "../eigen_baseline.hpp"
#include "../measure.hpp"
#include "../patterns.hpp"

#define MHA_PEER extern "C" __attribute__((visibility("default")))

namespace {

using Backend = mha::CpuWith<bench::OneOrAll>;

/// nullptr, or what went wrong.
template <class F> const char* attempt(F&& f) {
  static std::string message;
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

/// q, out (1, Hq, Lq, D) and k, v (1, Hkv, Lk, D) in memory, as PyTorch has them.
struct Shape {
  int queries, keys, heads, kv_heads, dim;
};

template <class T>
void attend(const Shape& s, std::string_view pattern, const void* q, const void* k, const void* v, void* out) {
  static mha::Workspace workspace;
  const auto read = [&](const void* data, int heads, int length) {
    return mha::view_bhld(static_cast<const T*>(data), 1, heads, length, s.dim);
  };
  bench::with_pattern(pattern, s.keys, [&](const auto& mask, const auto& score) {
    mha::attention_into<Backend>(mha::view_bhld(static_cast<T*>(out), 1, s.heads, s.queries, s.dim),
                                 read(q, s.heads, s.queries), read(k, s.kv_heads, s.keys), read(v, s.kv_heads, s.keys),
                                 mask, score, workspace);
  });
}

/// A layer with weights and biases as PyTorch stores them: in (3·E, E) and (3·E), out (E, E) and (E).
template <class... Policies> struct LayerOf final {
  mha::MultiHeadAttention<float, Backend, Policies...> layer;
  mha::Workspace workspace;

  LayerOf(int d_model, int heads, const float* in, const float* in_bias, const float* out, const float* out_bias)
      : layer({.d_model = d_model, .num_heads = heads, .bias = true}) {
    const auto matrix = [&](const float* w) { return mha::transposed(mha::view(w, d_model, d_model)); };
    const auto part = [&](int i) { return matrix(in + std::ptrdiff_t{i} * d_model * d_model); };
    const auto bias = [&](int i) { return mha::view(in_bias + std::ptrdiff_t{i} * d_model, d_model); };
    layer.borrow({.query = part(0),
                  .key = part(1),
                  .value = part(2),
                  .output = matrix(out),
                  .query_bias = bias(0),
                  .key_bias = bias(1),
                  .value_bias = bias(2),
                  .output_bias = mha::view(out_bias, d_model)});
  }
  void run(int length, const float* x, float* y) {
    const int d_model = layer.config().d_model;
    layer(mha::view(x, length, d_model), workspace, mha::into(mha::view(y, length, d_model)));
  }
};
struct AnyLayer {
  std::unique_ptr<LayerOf<>> full;
  std::unique_ptr<LayerOf<mha::Causal>> causal;
};

}  // namespace

MHA_PEER const char* peer_machine() {
  static const std::string text = bench::machine();
  return text.c_str();
}
MHA_PEER int peer_threads() { return mha::ThreadPool{}.workers(); }
MHA_PEER double peer_peak(int threads) { return bench::peak_gflops_of(threads); }

/// Pairs that the pattern shows, per head.
MHA_PEER double peer_visible_pairs(const char* pattern, int queries, int keys) {
  return bench::with_pattern(pattern, keys, [&](const auto& mask, const auto&) {
    return mha::visible_pairs(mask, {1, 1, queries, keys, keys - queries});
  });
}

/// Attention with the pattern's mask and score; scalar is float32 or bfloat16.
MHA_PEER const char* peer_attention(const Shape* shape, const char* pattern, const char* scalar, int all_threads,
                                    const void* q, const void* k, const void* v, void* out) {
  return attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    std::strcmp(scalar, "bfloat16") == 0 ? attend<mha::bfloat16>(*shape, pattern, q, k, v, out)
                                         : attend<float>(*shape, pattern, q, k, v, out);
  });
}

/// The materialised form in Eigen, full or causal, on one thread.
MHA_PEER const char* peer_eigen_attention(const Shape* shape, int causal, const float* q, const float* k,
                                          const float* v, float* out) {
  return attempt([&] {
    static bench::EigenAttention eigen;
    const auto map = [&](auto* data, int length) { return mha::view_bhld(data, 1, shape->heads, length, shape->dim); };
    eigen(map(out, shape->queries), map(q, shape->queries), map(k, shape->keys), map(v, shape->keys),
          causal != 0 ? bench::EigenAttention::Causal::hide : bench::EigenAttention::Causal::none);
  });
}

MHA_PEER AnyLayer* peer_layer(int d_model, int heads, int causal, const float* in, const float* in_bias,
                              const float* out, const float* out_bias) {
  auto made = std::make_unique<AnyLayer>();
  if (causal != 0)
    made->causal = std::make_unique<LayerOf<mha::Causal>>(d_model, heads, in, in_bias, out, out_bias);
  else
    made->full = std::make_unique<LayerOf<>>(d_model, heads, in, in_bias, out, out_bias);
  return made.release();
}
MHA_PEER void peer_layer_end(AnyLayer* layer) { delete layer; }
MHA_PEER const char* peer_layer_run(AnyLayer* layer, int all_threads, int length, const float* x, float* y) {
  return attempt([&] {
    bench::OneOrAll::all = all_threads != 0;
    layer->causal ? layer->causal->run(length, x, y) : layer->full->run(length, x, y);
  });
}

/// y (M, N) = x (M, K) · wᵀ + bias, w (N, K) as PyTorch stores it.
MHA_PEER const char* peer_linear(int m, int k, int n, int all_threads, const float* x, const float* w,
                                 const float* bias, float* y) {
  return attempt([&] {
    static mha::Workspace workspace;
    bench::OneOrAll::all = all_threads != 0;
    Backend{}.gemm(mha::GemmCall<float>{mha::view(x, m, k), mha::transposed(mha::view(w, n, k)), mha::view(bias, n),
                                        mha::view(y, m, n)},
                   workspace);
  });
}
MHA_PEER const char* peer_eigen_linear(int m, int k, int n, const float* x, const float* w, const float* bias,
                                       float* y) {
  return attempt([&] {
    using Matrix = bench::EigenAttention::Matrix;
    Eigen::Map<Matrix> to(y, m, n);
    to.noalias() = Eigen::Map<const Matrix>(x, m, k) * Eigen::Map<const Matrix>(w, n, k).transpose();
    to.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(bias, n);
  });
}
