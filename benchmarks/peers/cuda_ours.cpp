// SPDX-License-Identifier: Apache-2.0
// What cuda_compare.py measures of ours, as plain functions in a shared library: on PyTorch's memory, in its stream.
#include <cstring>
#include <map>
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

template <class T>
void attend(const Shape& s, const char* pattern, const void* q, const void* k, const void* v, void* out,
            mha::cuda::Workspace& workspace) {
  const auto read = [&](const void* data, int heads, int length) {
    return mha::view_bhld(static_cast<const T*>(data), s.batch, heads, length, s.dim);
  };
  gpu::attend<T>(pattern, mha::view_bhld(static_cast<T*>(out), s.batch, s.heads, s.queries, s.dim),
                 read(q, s.heads, s.queries), read(k, s.kv_heads, s.keys), read(v, s.kv_heads, s.keys), workspace);
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
    static std::map<void*, mha::cuda::Workspace> workspaces;
    auto& workspace = workspaces.try_emplace(stream, static_cast<cudaStream_t>(stream)).first->second;
    const auto is = [&](const char* name) { return std::strcmp(scalar, name) == 0; };
    if (is("bfloat16")) return attend<mha::bfloat16>(*shape, pattern, q, k, v, out, workspace);
    if (is("half")) return attend<mha::half>(*shape, pattern, q, k, v, out, workspace);
    if (is("float32")) return attend<float>(*shape, pattern, q, k, v, out, workspace);
    if (is("float64")) return attend<double>(*shape, pattern, q, k, v, out, workspace);
    throw std::invalid_argument(std::string("no attention of ") + scalar);
  });
}
