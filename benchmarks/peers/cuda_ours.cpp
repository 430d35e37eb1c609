// SPDX-License-Identifier: Apache-2.0
// What cuda_compare.py measures of ours, as plain functions in a shared library: on PyTorch's memory, in its stream.
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>

#include <mha/layer/cost.hpp>

#include "../cuda/computed.hpp"
#include "../cuda/measure.hpp"
#include "../cuda/patterns.hpp"
#include "peer.hpp"

namespace {

namespace gpu = bench::gpu;

/// q, out (B, Hq, Lq, D) and k, v (B, Hkv, Lk, D) in memory, as PyTorch has them.
struct Shape {
  int batch, queries, keys, heads, kv_heads, dim;
};

/// f(q, k, v, out) as views of PyTorch's memory.
template <class T, class F>
auto with_views(const Shape& s, const void* q, const void* k, const void* v, void* out, const F& f) {
  const auto read = [&](const void* data, int heads, int length) {
    return mha::view_bhld(static_cast<const T*>(data), s.batch, heads, length, s.dim);
  };
  return f(read(q, s.heads, s.queries), read(k, s.kv_heads, s.keys), read(v, s.kv_heads, s.keys),
           mha::view_bhld(static_cast<T*>(out), s.batch, s.heads, s.queries, s.dim));
}

template <class T>
void attend(const Shape& s, const char* pattern, const void* q, const void* k, const void* v, void* out,
            mha::cuda::Workspace& workspace) {
  with_views<T>(s, q, k, v, out, [&](const auto& queries, const auto& keys, const auto& values, const auto& to) {
    gpu::attend<T>(pattern, to, queries, keys, values, workspace);
  });
}

/// A stream's, kept from call to call.
mha::cuda::Workspace& workspace_of(void* stream) {
  static std::map<void*, mha::cuda::Workspace> workspaces;
  return workspaces.try_emplace(stream, static_cast<cudaStream_t>(stream)).first->second;
}
/// The recorded call that backward() differentiates, the last one.
std::unique_ptr<gpu::Trained>& recorded() {
  static std::unique_ptr<gpu::Trained> last;
  return last;
}

}  // namespace

/// Why nothing can be measured; empty if it can.
MHA_PEER const char* cuda_peer_missing() {
  static const mha::Support here = gpu::supported();
  return here.ok ? "" : here.reason.c_str();
}
MHA_PEER const char* cuda_peer_card() {
  static const std::string text = gpu::card();
  return text.c_str();
}
/// One sample of what the card can do: FLOP/s of dense bfloat16, bytes per second of reading.
MHA_PEER const char* cuda_peer_dense(double* rate) {
  return bench::attempt([&] { *rate = gpu::dense_flops<mha::bfloat16>(); });
}
MHA_PEER const char* cuda_peer_read(double* rate) {
  return bench::attempt([&] { *rate = gpu::read_bytes(); });
}

/// Pairs that the pattern shows, per head.
MHA_PEER double cuda_peer_visible_pairs(const char* pattern, int queries, int keys) {
  return gpu::with_pattern(pattern, [&](const auto& mask, const auto&) {
    return mha::visible_pairs(mask, {1, 1, queries, keys, keys - queries});
  });
}

/// Attention with the pattern's mask and score; scalar is bfloat16, half, float32 or float64.
MHA_PEER const char* cuda_peer_attention(const Shape* shape, const char* pattern, const char* scalar, void* stream,
                                         const void* q, const void* k, const void* v, void* out) {
  return bench::attempt([&] {
    auto& workspace = workspace_of(stream);
    const auto is = [&](const char* name) { return std::strcmp(scalar, name) == 0; };
    if (is("bfloat16")) return attend<mha::bfloat16>(*shape, pattern, q, k, v, out, workspace);
    if (is("half")) return attend<mha::half>(*shape, pattern, q, k, v, out, workspace);
    if (is("float32")) return attend<float>(*shape, pattern, q, k, v, out, workspace);
    if (is("float64")) return attend<double>(*shape, pattern, q, k, v, out, workspace);
    throw std::invalid_argument(std::string("no attention of ") + scalar);
  });
}

/// The same of bfloat16 with a tape, which cuda_peer_backward() differentiates.
MHA_PEER const char* cuda_peer_record(const Shape* shape, const char* pattern, void* stream, const void* q,
                                      const void* k, const void* v, void* out) {
  return bench::attempt([&] {
    recorded() = gpu::make_trained(pattern);
    with_views<gpu::Trained::T>(*shape, q, k, v, out,
                                [&](const auto& queries, const auto& keys, const auto& values, const auto& to) {
                                  recorded()->forward(to, queries, keys, values, workspace_of(stream));
                                });
  });
}
/// The gradients dq, dk, dv, each like what it is the gradient of.
MHA_PEER const char* cuda_peer_backward(const Shape* shape, void* stream, const void* q, const void* k, const void* v,
                                        void* out, void* d_out, void* dq, void* dk, void* dv) {
  return bench::attempt([&] {
    using T = gpu::Trained::T;
    const auto to = [&](void* data, int heads, int length) {
      return mha::view_bhld(static_cast<T*>(data), shape->batch, heads, length, shape->dim);
    };
    with_views<T>(*shape, q, k, v, out,
                  [&](const auto& queries, const auto& keys, const auto& values, const auto& result) {
                    recorded()->backward({to(dq, shape->heads, shape->queries), to(dk, shape->kv_heads, shape->keys),
                                          to(dv, shape->kv_heads, shape->keys)},
                                         to(d_out, shape->heads, shape->queries), queries, keys, values, result,
                                         workspace_of(stream));
                  });
  });
}
