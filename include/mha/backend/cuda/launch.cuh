// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/items.hpp"
#include "../../core/scalar.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/score.hpp"
#include "device.hpp"

/// How a kernel gets onto the device: its parameters, its shared memory, the errors of its launch.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Enqueues Kernel(params), a `__global__ void(const Params)`.
///
/// Errors    CudaError with `name` if CUDA refuses it
template <auto Kernel, class Params>
void launch(const char* name, dim3 grid, int threads, std::size_t shared_bytes, const Params& params,
            cudaStream_t stream) {
  static_assert(std::is_trivially_copyable_v<Params>,
                "mha: what a kernel gets must be trivially copyable: a policy that owns memory goes through "
                "mha::on_device(policy) (see mha/backend/cuda/on_device.hpp)");
  const auto kernel = reinterpret_cast<const void*>(Kernel);
  constexpr std::size_t without_asking = 48 * 1024;
  if (shared_bytes > without_asking) {
    static std::atomic<std::uint64_t> asked{0};  // one bit per device, of the first 64
    const int device = current_device();
    const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
    if ((asked.load(std::memory_order_relaxed) & bit) == 0) {
      // For all there is: another launch of the same kernel may need more than this one.
      cudaFuncAttributes own{};
      check(cudaFuncGetAttributes(&own, kernel), name);
      const int most =
          device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int>(own.sharedSizeBytes);
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), name);
      asked.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&params))};
  check(cudaLaunchKernel(kernel, grid, dim3(static_cast<unsigned>(threads)), arguments, shared_bytes, stream), name);
}

template <class Call> __device__ void touch_policies(const Call& call);

/// One thread an item, in strides of the whole grid.
template <class WorkItems>
__global__ void __launch_bounds__(256) items_kernel(const __grid_constant__ WorkItems items) {
  if constexpr (requires { items.call.mask; }) touch_policies(items.call);
  const std::ptrdiff_t count = items.rows * items.columns;
  for (std::ptrdiff_t i = std::ptrdiff_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::ptrdiff_t{gridDim.x} * blockDim.x)
    items(i / items.columns, static_cast<Index>(i % items.columns));
}

template <Items WorkItems> void run_items(const WorkItems& items, cudaStream_t stream) {
  constexpr int threads = 256;
  const std::ptrdiff_t count = std::ptrdiff_t{items.rows} * items.columns;
  if (count == 0) return;
  const auto blocks = std::min<std::ptrdiff_t>((count + threads - 1) / threads, std::numeric_limits<int>::max());
  launch<items_kernel<WorkItems>>("items", dim3(static_cast<unsigned>(blocks)), threads, 0, items, stream);
}

/// Calls every mask and score of a composition from device code, so that one which the host alone can call is an error
/// of the compiler: inside a composition it would be a warning and wrong code. Nothing of it runs.
template <class A, class B> __device__ void touch(const And<A, B>& mask);
template <class A, class B> __device__ void touch(const Or<A, B>& mask);
template <class A> __device__ void touch(const Not<A>& mask);
template <class M> __device__ void touch(const M& mask) {
  if (false) static_cast<void>(mask(0, 0, 0, 0));
}
template <class A, class B> __device__ void touch(const And<A, B>& mask) {
  touch(mask.a);
  touch(mask.b);
}
template <class A, class B> __device__ void touch(const Or<A, B>& mask) {
  touch(mask.a);
  touch(mask.b);
}
template <class A> __device__ void touch(const Not<A>& mask) { touch(mask.a); }

template <class A, class S> __device__ void touch_score(const S& score) {
  if (false) static_cast<void>(score(A(0), 0, 0, 0, 0));
}
template <class A, class X, class Y> __device__ void touch_score(const Chain<X, Y>& score) {
  touch_score<A>(score.first);
  touch_score<A>(score.second);
}
template <class Call> __device__ void touch_policies(const Call& call) {
  touch(call.mask);
  touch_score<Accumulator<typename Call::Scalar>>(call.score);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
