// SPDX-License-Identifier: Apache-2.0
// Clocks, interleaved samples, the arithmetic peak of this machine, and tables.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <time.h>

#include <mha/backend/executor.hpp>
#include <mha/backend/simd/isa.hpp>
#include <mha/backend/simd/vector.hpp>
#include <mha/core/tensor.hpp>

namespace bench {

/// Processor time of the calling thread: other programs on the machine do not count.
inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
/// For work on several threads.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Clock = double (*)();
/// The clock of an executor: one thread is timed by its own, so that other programs do not count.
template <class Threads> constexpr Clock clock_of() {
  return std::is_same_v<Threads, mha::Serial> ? thread_seconds : wall_seconds;
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}
/// The value that a share of the others does not exceed.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}
/// Median of a[i] / b[i]: both samples of a round saw the same machine.
inline double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

/// Seconds of one call of f, from as many calls as fill a sample.
template <class F> double seconds_per_call(Clock clock, int calls, F&& f) {
  const double begin = clock();
  for (int i = 0; i < calls; ++i) f();
  return (clock() - begin) / calls;
}

/// How many calls fill a sample of a few milliseconds; the first, untimed, call warms up.
template <class F> int calls_per_sample(Clock clock, F&& f) {
  f();
  constexpr double sample = 5e-3;
  const double once = seconds_per_call(clock, 1, f);
  return once >= sample ? 1 : static_cast<int>(sample / std::max(once, 1e-7)) + 1;
}

/// Multiply-adds that depend on nothing but registers: as many chains as hide the latency and fit.
template <class T> struct PeakBody {
  static constexpr int chains = 12;
  template <class Isa> MHA_ALWAYS_INLINE static void run(int steps, T* out) {
    using V = mha::detail::simd::vector_t<T, Isa>;
    V sum[chains], factor, term;
    mha::detail::simd::load(factor, out);
    mha::detail::simd::load(term, out + 16);
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) mha::detail::simd::load(sum[c], out + c);  // all different, or they become one
    for (int i = 0; i < steps; ++i)
#pragma GCC unroll 16
      for (int c = 0; c < chains; ++c) sum[c] = sum[c] * factor + term;
    for (int c = 1; c < chains; ++c) sum[0] = sum[0] + sum[c];
    mha::detail::simd::store(out, sum[0]);
  }
};

/// GFLOP/s of one thread at the library's instruction-set level, a multiply-add counted as two.
template <class T = float> double peak_gflops(Clock clock = thread_seconds) {
  constexpr int steps = 200000;
  std::array<T, 32> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(0.5) + T(0.01) * static_cast<T>(i);
  return mha::detail::simd::with_isa(mha::current_isa(), [&](auto isa) {
    using Isa = decltype(isa);
    constexpr double flop = 2.0 * steps * PeakBody<T>::chains * mha::detail::simd::Vector<T, Isa>::width;
    const auto multiply = [&] {
      Isa::template run<PeakBody<T>>(steps, numbers.data());
      asm volatile("" : : "r"(numbers.data()) : "memory");  // the sums are of no use to anybody else
    };
    multiply();  // after a pause a processor takes a while until its widest registers run at full speed
    return flop / seconds_per_call(clock, 1, multiply) * 1e-9;
  });
}

/// Reads memory from end to end, eight registers at a time in chains of their own.
struct ReadBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* from, std::size_t count, float* out) {
    using V = mha::detail::simd::vector_t<float, Isa>;
    constexpr std::size_t width = sizeof(V) / sizeof(float), chains = 8;
    V sum[chains], x;
#pragma GCC unroll 8
    for (std::size_t c = 0; c < chains; ++c) sum[c] = V{};
    for (std::size_t i = 0; i + chains * width <= count; i += chains * width) {
#pragma GCC unroll 8
      for (std::size_t c = 0; c < chains; ++c) {
        mha::detail::simd::load(x, from + i + c * width);
        sum[c] = sum[c] + x;
      }
    }
    for (std::size_t c = 1; c < chains; ++c) sum[0] = sum[0] + sum[c];
    mha::detail::simd::store(out, sum[0]);
  }
};

/// Reads these numbers once, several threads a share at a time.
template <class Threads = mha::Serial> void read_all(const float* from, std::size_t count) {
  const Threads threads;
  const mha::Index shares = threads.workers() == 1 ? 1 : 8 * threads.workers();
  const std::size_t share = count / static_cast<std::size_t>(shares);
  threads.run(shares, [&](mha::Index i, mha::Index) {
    float sink[16];
    mha::detail::simd::with_isa(mha::current_isa(), [&](auto isa) {
      decltype(isa)::template run<ReadBody>(from + static_cast<std::size_t>(i) * share, share, +sink);
      return 0;
    });
    asm volatile("" : : "r"(+sink) : "memory");  // the sums are of no use to anybody else
  });
}

/// So many numbers in memory as the library takes its own, in huge pages where there are any: what it is measured
/// against. Those of a vector are in small pages, which are read up to one and a half times as slowly.
inline mha::Tensor<float, 1> numbers_to_read(std::size_t count) {
  mha::Tensor<float, 1> numbers(static_cast<mha::Index>(count));
  std::fill(numbers.begin(), numbers.end(), 1.f);
  return numbers;
}

/// GB/s at which one thread reads these numbers again and again: that of the cache they fit in, or of memory.
inline double read_gbps(const float* from, std::size_t count, Clock clock = thread_seconds) {
  const auto read = [&] { read_all(from, count); };
  return static_cast<double>(count * sizeof(float)) / seconds_per_call(clock, calls_per_sample(clock, read), read) *
         1e-9;
}

/// GFLOP/s of so many threads at once, by the clock on the wall.
template <class T = float> double peak_gflops_of(int threads) {
  if (threads == 1) return peak_gflops<T>();
  std::vector<double> each(static_cast<std::size_t>(threads));
  std::vector<std::thread> others;
  for (double& rate : each) others.emplace_back([&rate] { rate = peak_gflops<T>(wall_seconds); });
  for (std::thread& t : others) t.join();
  return std::accumulate(each.begin(), each.end(), 0.0);
}

/// One line on what ran where, so that a table can be read on its own.
inline std::string machine() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(std::min(line.find(':') + 2, line.size()));
      break;
    }
#if defined(__AVX512F__)
  const char* const flags = "AVX-512 allowed everywhere (-march=native or alike)";
#elif defined(__AVX2__)
  const char* const flags = "AVX2 allowed everywhere (-march=native or alike)";
#else
  const char* const flags = "no machine flags";
#endif
#if defined(__clang__)
  const char* const compiler = __VERSION__;
#else
  const char* const compiler = "g++ " __VERSION__;
#endif
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " threads, kernels " +
         mha::to_string(mha::current_isa()) + "; " + compiler + ", " + flags;
}

/// Rows of a Markdown table.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    if (rows_.size() < 2) return;
    std::printf("\n");
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t c = 0; c < rows_[r].size(); ++c) std::printf("| %s ", rows_[r][c].c_str());
      std::printf("|\n");
      if (r > 0) continue;
      for (std::size_t c = 0; c < rows_[r].size(); ++c) std::printf("|%s", c == 0 ? "---" : "---:");
      std::printf("|\n");
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

inline std::string number(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}
inline std::string mebibytes(std::size_t bytes) { return number(static_cast<double>(bytes) / (1 << 20), 2); }

}  // namespace bench
