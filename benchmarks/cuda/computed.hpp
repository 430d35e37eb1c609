// SPDX-License-Identifier: Apache-2.0
// What the GPU computes for the benchmarks, as plain functions, so that each kernel is compiled once, by nvcc, for the
// program and for the library of peers/cuda_compare.py.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include <cuda_runtime_api.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/workspace.hpp>
#include <mha/layer/config.hpp>
#include <mha/layer/parameters.hpp>

namespace bench::gpu {

/// Whether a device is here, and if not why.
mha::Support supported();

// ---- ours ----

/// The masks and scores by name; those behind the second are compiled for bfloat16 alone.
inline constexpr std::array patterns = {"full", "causal", "window 256", "functor", "softcap"};

/// attention() in the workspace's stream, T bfloat16, half, float or double; any strides.
///
/// Shapes    q, out (B, Lq, Hq, D)  k, v (B, Lk, Hkv, D)
template <class T>
void attend(std::string_view pattern, const mha::TensorView<T, 4>& out, const mha::TensorView<const T, 4>& q,
            const mha::TensorView<const T, 4>& k, const mha::TensorView<const T, 4>& v,
            mha::cuda::Workspace& workspace);

/// attention() of bfloat16 that records a tape, and its gradients.
///
/// Shapes    q, out, d_out, dq (B, L, Hq, D)  k, v, dk, dv (B, L, Hkv, D)
class Trained {
 public:
  using T = mha::bfloat16;
  using Read = mha::TensorView<const T, 4>;
  using Written = mha::TensorView<T, 4>;
  virtual ~Trained() = default;
  virtual void forward(const Written& out, const Read& q, const Read& k, const Read& v,
                       mha::cuda::Workspace& workspace) = 0;
  virtual void backward(const std::array<Written, 3>& dq_dk_dv, const Read& d_out, const Read& q, const Read& k,
                        const Read& v, const Read& out, mha::cuda::Workspace& workspace) const = 0;
};
/// The pattern full or causal.
std::unique_ptr<Trained> make_trained(std::string_view pattern);

/// A causal layer of bfloat16 with drawn weights.
class Layer {
 public:
  virtual ~Layer() = default;
  /// x, y (L, E)
  virtual void run(const mha::TensorView<mha::bfloat16, 2>& x, const mha::TensorView<mha::bfloat16, 2>& y,
                   mha::cuda::Workspace& workspace) const = 0;
  /// On the host: matrices (in, out).
  virtual mha::BorrowedWeights<mha::bfloat16> weights() const = 0;
};
std::unique_ptr<Layer> make_layer(const mha::Config& config);

/// y (M, N) = x (M, K) · w, packed as a layer packs its weights.
template <class T> class Projection {
 public:
  virtual ~Projection() = default;
  virtual void run(const mha::TensorView<const T, 2>& x, const mha::TensorView<T, 2>& y,
                   mha::cuda::Workspace& workspace) const = 0;
};
/// w (K, N), on the host.
template <class T> std::unique_ptr<Projection<T>> make_projection(const mha::TensorView<const T, 2>& w);

// ---- the device's limits ----

/// Multiply-adds in registers on all multiprocessors, T float or double: how many FLOP. Block 0 writes how many cycles
/// and nanoseconds its multiprocessor took into times[0] and times[1].
template <class T> double multiply_adds(T* out, long long* times, cudaStream_t stream);

/// Reads so many bytes, a multiple of 16, once.
void read_all(const void* from, std::size_t bytes, float* out, cudaStream_t stream);

// ---- numbers ----

/// Normal numbers times `size`, other ones for another seed.
template <class T> void fill_normal(T* to, std::size_t n, unsigned seed, float size, cudaStream_t stream);

/// Adds to *count how many of them are infinite or NaN.
template <class T> void count_not_finite(const T* from, std::size_t n, unsigned long long* count, cudaStream_t stream);

}  // namespace bench::gpu
