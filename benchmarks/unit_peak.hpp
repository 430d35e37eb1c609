// SPDX-License-Identifier: Apache-2.0
// The peak of a matrix unit, for what divides by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <mha/systolic.hpp>

#include "measure.hpp"

namespace bench {

#if defined(__x86_64__)
/// Dot products that depend on nothing but registers: as many chains as hide the latency.
struct DotPeakBody {
  static constexpr int chains = 12;
  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(mha::Index steps, const std::uint32_t* pairs, float* out) {
    typedef float V __attribute__((vector_size(64)));
    typedef std::uint32_t I __attribute__((vector_size(64)));
    V sum[chains];
    I left, right;
    mha::detail::simd::load(left, pairs);
    mha::detail::simd::load(right, pairs + 16);
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) mha::detail::simd::load(sum[c], out + c);  // all different
    for (mha::Index i = 0; i < steps; ++i)
#pragma GCC unroll 16
      for (int c = 0; c < chains; ++c) mha::detail::systolic::add_dot_products(sum[c], left, right);
#pragma GCC unroll 16
    for (int c = 1; c < chains; ++c) sum[0] = sum[0] + sum[c];
    mha::detail::simd::store(out, sum[0]);
  }
};
#endif

/// GFLOP/s of one thread on a unit with its operands in registers, or in the first cache where it is emulated. Random
/// numbers, because a unit that multiplies zeros draws less power and runs faster.
inline double unit_peak_gflops(const mha::detail::systolic::ProductUnit& unit, Clock clock = thread_seconds) {
  namespace systolic = mha::detail::systolic;
  using mha::Index;
  const systolic::UnitScope scope(unit.unit);
  constexpr Index steps = 2, calls = 20000;
  const auto words = static_cast<std::size_t>(steps * unit.lanes * 16);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  auto* const a = frame.take<mha::bfloat16>(2 * steps * systolic::tile_size);
  auto* const b = frame.take<std::uint32_t>(words);
  auto* const c = frame.take<float>(static_cast<std::size_t>(32 * unit.lanes));
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  const auto number = [&] { return mha::bfloat16(normal(gen)); };
  for (Index i = 0; i < 2 * steps * systolic::tile_size; ++i) a[i] = number();
  for (std::size_t i = 0; i < words; ++i) b[i] = number().bits | std::uint32_t{number().bits} << 16;
  for (Index i = 0; i < 32 * unit.lanes; ++i) c[i] = normal(gen);
#if defined(__x86_64__)
  if (unit.unit == mha::MatrixUnit::amx) {
    namespace amx = systolic::amx;
    amx::load<4>(a, amx::row_bytes);
    amx::load<5>(a + systolic::tile_size, amx::row_bytes);
    amx::load<6>(b, amx::row_bytes);
    amx::load<7>(b + systolic::tile_words, amx::row_bytes);
    const auto tiles = [] {
      for (Index i = 0; i < calls; ++i) {
        amx::multiply_add<0, 4, 6>();
        amx::multiply_add<1, 4, 7>();
        amx::multiply_add<2, 5, 6>();
        amx::multiply_add<3, 5, 7>();
      }
    };
    tiles();
    return 2e-9 * calls * 32 * 32 * 32 / seconds_per_call(clock, 1, tiles);
  }
  if (unit.unit == mha::MatrixUnit::dot_product) {
    const auto products = [&] { systolic::Avx512Bf16::run<DotPeakBody>(10 * calls, b, c); };
    products();
    return 2e-9 * (10 * calls) * DotPeakBody::chains * 32 / seconds_per_call(clock, 1, products);
  }
#endif
  const auto run = [&] {
    for (Index i = 0; i < calls; ++i) unit.multiply({a, steps * systolic::tile_size, b, c, 2, steps, false});
  };
  run();
  return 2e-9 * calls * 32 * unit.lanes * (32.0 * steps) / seconds_per_call(clock, 1, run);
}

/// GFLOP/s of so many threads at once, by the clock on the wall.
inline double unit_peak_gflops_of(const mha::detail::systolic::ProductUnit& unit, int threads) {
  if (threads == 1) return unit_peak_gflops(unit);
  std::vector<double> each(static_cast<std::size_t>(threads));
  std::vector<std::thread> others;
  for (double& rate : each) others.emplace_back([&rate, &unit] { rate = unit_peak_gflops(unit, wall_seconds); });
  for (std::thread& t : others) t.join();
  return std::accumulate(each.begin(), each.end(), 0.0);
}

}  // namespace bench
