// SPDX-License-Identifier: Apache-2.0
// Time on a GPU by its own events, the card's limits, CUDA graphs, and numbers brought back to be checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include <mha/backend/cuda/device_memory.hpp>
#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/products.hpp>

#include "../measure.hpp"
#include "computed.hpp"

namespace bench::gpu {

using mha::cuda::check;

/// The stream that everything runs in.
inline cudaStream_t stream() {
  static const cudaStream_t made = [] {
    cudaStream_t s = nullptr;
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return s;
  }();
  return made;
}
inline void wait() { check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

/// Seconds of one call of f, from so many calls in a row: the GPU's time with what it waited for the host.
template <class F> double seconds_per_call(int calls, F&& f) {
  static const auto event = [] {
    cudaEvent_t e = nullptr;
    check(cudaEventCreate(&e), "cudaEventCreate");
    return e;
  };
  static const cudaEvent_t begin = event(), end = event();
  check(cudaEventRecord(begin, stream()), "cudaEventRecord");
  for (int i = 0; i < calls; ++i) f();
  check(cudaEventRecord(end, stream()), "cudaEventRecord");
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return 1e-3 * double(milliseconds) / calls;
}

/// How many calls fill a sample of some milliseconds; the first, untimed, warms up.
template <class F> int calls_per_sample(F&& f) {
  f();
  constexpr double sample = 10e-3;
  const double once = std::max(seconds_per_call(3, f), 1e-7);
  return once >= sample ? 1 : static_cast<int>(sample / once) + 1;
}

/// What f enqueues in the stream, recorded once.
class Graph {
 public:
  template <class F> explicit Graph(F&& f) {
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      f();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream(), &graph));
      throw;
    }
    check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    check(made, "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }

  void replay() const { check(cudaGraphLaunch(graph_, stream()), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// ---- the card's limits, one sample a call ----

/// FLOP/s of a large dense product by cuBLASLt, of normal numbers: zeros would draw less power and run faster.
template <class T> double dense_flops() {
  constexpr mha::Index n = std::is_same_v<T, double> ? 4096 : 8192;
  struct Operands {
    mha::DeviceTensor<T, 2> a{n, n}, b{n, n}, c{n, n};
    mha::cuda::Products products;
    mha::cuda::Product product{mha::cuda::data_type<T>, *mha::cuda::operand(a.view()), *mha::cuda::operand(b.view()),
                               *mha::cuda::operand(c.view())};
    mha::cuda::Products::Choice choice = products.choose(product);
    mha::cuda::DevicePointer<std::byte> scratch = mha::cuda::device_array<std::byte>(choice.scratch);
    Operands() {
      fill_normal(a.data(), a.size(), 1, 1, stream());
      fill_normal(b.data(), b.size(), 2, 1, stream());
    }
  };
  static Operands o;
  const auto multiply = [] { o.products.run(o.product, o.choice, o.scratch.get(), stream()); };
  multiply();
  return 2.0 * n * n * n / seconds_per_call(3, multiply);
}

/// FLOP/s of multiply-adds in registers, and the clock that a multiprocessor ran at meanwhile.
struct MultiplyAdds {
  double flops, megahertz;
};
template <class T> MultiplyAdds multiply_add_flops() {
  constexpr std::size_t most_threads = std::size_t{1} << 20;
  static mha::cuda::DeviceArray<T> out(most_threads);
  static mha::cuda::DeviceArray<long long> times(2);
  double flop = 0;
  const auto run = [&] { flop = multiply_adds(out.data(), times.data(), stream()); };
  run();
  const double seconds = seconds_per_call(4, run);
  long long took[2];  // cycles, nanoseconds
  check(cudaMemcpy(took, times.data(), sizeof took, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return {flop / seconds, 1e3 * static_cast<double>(took[0]) / static_cast<double>(std::max(took[1], 1ll))};
}

/// Memory far larger than the caches.
inline mha::cuda::DeviceArray<std::byte>& large_memory() {
  static mha::cuda::DeviceArray<std::byte> memory = [] {
    std::size_t free = 0, all = 0;
    check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    mha::cuda::DeviceArray<std::byte> m(std::min(std::size_t{4} << 30, free / 4) / 4096 * 4096);
    check(cudaMemsetAsync(m.data(), 1, m.size(), stream()), "cudaMemsetAsync");
    return m;
  }();
  return memory;
}
/// Bytes per second of reading memory once.
inline double read_bytes() {
  auto& memory = large_memory();
  static mha::cuda::DeviceArray<float> out(1);
  const auto read = [&] { read_all(memory.data(), memory.size(), out.data(), stream()); };
  read();
  return static_cast<double>(memory.size()) / seconds_per_call(2, read);
}
/// Bytes per second of copying, reads and writes both counted.
inline double copy_bytes() {
  auto& memory = large_memory();
  const std::size_t half = memory.size() / 2;
  const auto copy = [&] {
    check(cudaMemcpyAsync(memory.data(), memory.data() + half, half, cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync");
  };
  copy();
  return 2 * static_cast<double>(half) / seconds_per_call(2, copy);
}

inline int attribute(cudaDeviceAttr a) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, a, device), "cudaDeviceGetAttribute");
  return value;
}

/// One line on the card and the toolkit, so that a table can be read on its own.
inline std::string card() {
  int device = 0, runtime = 0, driver = 0;
  cudaDeviceProp p{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  return std::string(p.name) + ", compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
         ", " + std::to_string(p.multiProcessorCount) + " multiprocessors at " +
         std::to_string(attribute(cudaDevAttrClockRate) / 1000) + " MHz at most, memory at " +
         std::to_string(attribute(cudaDevAttrMemoryClockRate) / 1000) + " MHz, " +
         number(static_cast<double>(p.totalGlobalMem) / (1 << 30), 1) + " GiB, L2 " +
         std::to_string(p.l2CacheSize >> 20) + " MiB; CUDA " + version(runtime) + ", driver for " + version(driver);
}

// ---- results, checked ----

/// Rows of n numbers, `stride` numbers apart on the device, as doubles.
template <class T>
std::vector<double> rows_to_host(const T* from, std::ptrdiff_t stride, mha::Index rows, mha::Index n) {
  std::vector<T> copy(static_cast<std::size_t>(rows) * static_cast<std::size_t>(n));
  const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
  wait();
  check(cudaMemcpy2D(copy.data(), bytes, from, static_cast<std::size_t>(stride) * sizeof(T), bytes,
                     static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost),
        "cudaMemcpy2D");
  std::vector<double> values(copy.size());
  std::transform(copy.begin(), copy.end(), values.begin(), [](T x) { return static_cast<double>(x); });
  return values;
}

/// NaN everywhere: what a kernel does not write is seen.
template <class T, int Rank> void poison(mha::DeviceTensor<T, Rank>& t) {
  check(cudaMemsetAsync(t.data(), 0xff, t.size() * sizeof(T), stream()), "cudaMemsetAsync");
}
template <class T, int Rank> bool is_finite(const mha::DeviceTensor<T, Rank>& t) {
  static mha::cuda::DeviceArray<unsigned long long> count(1);
  check(cudaMemsetAsync(count.data(), 0, sizeof(unsigned long long), stream()), "cudaMemsetAsync");
  count_not_finite(t.data(), t.size(), count.data(), stream());
  unsigned long long found = 0;
  wait();
  check(cudaMemcpy(&found, count.data(), sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return found == 0;
}

}  // namespace bench::gpu
