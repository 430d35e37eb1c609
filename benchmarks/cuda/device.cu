// SPDX-License-Identifier: Apache-2.0
// The limits of a GPU, and the numbers it computes with: plain kernels that share nothing with the library's.
#include <cstdint>

#include <mha/backend/cuda/error.hpp>
#include <mha/core/scalar.hpp>

#include "computed.hpp"

namespace bench::gpu {

namespace {

constexpr int threads = 256;

int multiprocessors() {
  int device = 0, count = 0;
  mha::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  mha::cuda::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

void check_launch(const char* name) { mha::cuda::check(cudaGetLastError(), name); }

constexpr int chains = 16, steps = 8192;

/// Every thread has as many chains as hide the latency; the sums are different, or they would become one.
template <class T> __global__ void __launch_bounds__(threads) multiply_adds_kernel(T* out, long long* times) {
  const long long cycles = clock64();
  long long begin, end;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  T sum[chains];
#pragma unroll
  for (int c = 0; c < chains; ++c) sum[c] = T(threadIdx.x + c);
  const T factor = T(0.5) + T(blockIdx.x) * T(1e-9), term = T(1) / T(threadIdx.x + 3);
#pragma unroll 4
  for (int i = 0; i < steps; ++i)
#pragma unroll
    for (int c = 0; c < chains; ++c) sum[c] = sum[c] * factor + term;
  T all = 0;
#pragma unroll
  for (int c = 0; c < chains; ++c) all += sum[c];
  out[blockIdx.x * threads + threadIdx.x] = all;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    times[0] = clock64() - cycles;
    times[1] = end - begin;
  }
}

/// The sum is written where it is NaN, so that nothing but reading takes time.
__global__ void __launch_bounds__(threads) read_kernel(const float4* from, std::size_t count, float* out) {
  constexpr int at_once = 8;
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  float sum[at_once] = {};
  std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  for (; i + (at_once - 1) * stride < count; i += at_once * stride)
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const float4 x = from[i + n * stride];
      sum[n] += (x.x + x.y) + (x.z + x.w);
    }
  for (; i < count; i += stride) sum[0] += from[i].x;
  float all = 0;
#pragma unroll
  for (int n = 0; n < at_once; ++n) all += sum[n];
  if (all != all) *out = all;
}

__device__ std::uint32_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>(x >> 32);
}

/// Box and Muller's.
template <class T>
__global__ void __launch_bounds__(threads) normal_kernel(T* to, std::size_t n, unsigned seed, float size) {
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < n; i += stride) {
    const std::uint64_t at = (std::uint64_t{seed} << 40) + 2 * i + 0x9e3779b97f4a7c15ull;
    const float u = (static_cast<float>(mixed(at)) + 1) * 0x1p-32f, v = static_cast<float>(mixed(at + 1)) * 0x1p-31f;
    to[i] = static_cast<T>(size * sqrtf(-2 * logf(u)) * cospif(v));
  }
}

template <class T>
__global__ void __launch_bounds__(threads)
    count_not_finite_kernel(const T* from, std::size_t n, unsigned long long* count) {
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  unsigned long long own = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < n; i += stride) {
    const auto x = static_cast<mha::Accumulator<T>>(from[i]);
    own += x - x == 0 ? 0 : 1;
  }
  if (own > 0) atomicAdd(count, own);
}

}  // namespace

template <class T> double multiply_adds(T* out, long long* times, cudaStream_t stream) {
  const int blocks = 4 * multiprocessors();  // 64 registers for each thread
  multiply_adds_kernel<<<blocks, threads, 0, stream>>>(out, times);
  check_launch("multiply_adds");
  return 2.0 * blocks * threads * chains * steps;
}
template double multiply_adds(float*, long long*, cudaStream_t);
template double multiply_adds(double*, long long*, cudaStream_t);

void read_all(const void* from, std::size_t bytes, float* out, cudaStream_t stream) {
  read_kernel<<<8 * multiprocessors(), threads, 0, stream>>>(static_cast<const float4*>(from), bytes / sizeof(float4),
                                                             out);
  check_launch("read_all");
}

template <class T> void fill_normal(T* to, std::size_t n, unsigned seed, float size, cudaStream_t stream) {
  normal_kernel<<<8 * multiprocessors(), threads, 0, stream>>>(to, n, seed, size);
  check_launch("fill_normal");
}
template <class T> void count_not_finite(const T* from, std::size_t n, unsigned long long* count, cudaStream_t stream) {
  count_not_finite_kernel<<<8 * multiprocessors(), threads, 0, stream>>>(from, n, count);
  check_launch("count_not_finite");
}

#define MHA_BENCH_NUMBERS(T)                                                 \
  template void fill_normal(T*, std::size_t, unsigned, float, cudaStream_t); \
  template void count_not_finite(const T*, std::size_t, unsigned long long*, cudaStream_t)
MHA_BENCH_NUMBERS(mha::bfloat16);
MHA_BENCH_NUMBERS(mha::half);
MHA_BENCH_NUMBERS(float);
MHA_BENCH_NUMBERS(double);

}  // namespace bench::gpu
