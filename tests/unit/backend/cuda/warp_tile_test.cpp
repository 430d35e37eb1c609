// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/warp_tile.hpp>

#include "attend_case.hpp"
#include "gpu_model/launch.hpp"

namespace {

using namespace mha::cuda;
using mha::Index;
using support::Random;
using support::gpu::HostMachine;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

TEST(WarpTile, OnlyTheHiddenWeightIsHidden) {
  EXPECT_TRUE(is_hidden_weight(hidden_weight<float>()));
  EXPECT_TRUE(is_hidden_weight(hidden_weight<double>()));
  for (const float w : {0.f, 1.f, 1e-40f, inf, nan, -nan}) EXPECT_FALSE(is_hidden_weight(w)) << w;
  for (const double w : {0., 1., -double{nan}}) EXPECT_FALSE(is_hidden_weight(w)) << w;
}

TEST(WarpTile, RowsEndAsTheFormulaSays) {
  Random random("WarpTile.RowEnd");
  support::AttendCase<float> c(random, {.heads = 2, .sink = true}, support::MaskKind::full);
  const float sink = c.call().sink[1];
  auto without_sink = c.call();
  without_sink.sink = {};
  support::gpu::launch<HostMachine>({1, 1, 1}, 32, 1024, [&](HostMachine& m) {
    const RowEnd<float> empty = end_of_row(m, c.call(), 1, -inf, 0.f);
    EXPECT_EQ(empty.inverse, 0);
    EXPECT_EQ(empty.log_sum_exp, -inf);
    const RowEnd<float> row = end_of_row(m, c.call(), 1, 2.f, 3.f);
    EXPECT_NEAR(row.inverse, 1 / (3 + std::exp(double(sink) - 2)), 1e-6);
    EXPECT_NEAR(row.log_sum_exp, 2 + std::log(3.), 1e-6);
    EXPECT_TRUE(std::isnan(end_of_row(m, c.call(), 0, -inf, nan).inverse));  // only NaN was seen
    EXPECT_EQ(end_of_row(m, without_sink, 0, -inf, 0.f).inverse, 0);
    EXPECT_EQ(end_of_row(m, without_sink, 0, 1.f, 4.f).inverse, 0.25f);
  });
}

/// (rows, packs) as they arrive in shared memory, read by one thread.
template <class A, class T, int Packs>
std::vector<double> staged(const mha::TensorView<T, 2>& from, Index first, int rows, bool aligned) {
  std::vector<double> seen;
  support::gpu::launch<HostMachine>({1, 1, 1}, 32, 8192, [&](HostMachine& m) {
    const Shared pitch = (Packs + 1) * 16;
    stage_rows<A, Packs>(m, m.thread(), 32, rows, from.extent[0], first, from.extent[1], from.stride[1], aligned,
                         rows_at(m.shared(), pitch), [&](Index r) { return from.pointer(r, 0); });
    m.commit();
    m.wait<0>();
    m.sync();
    if (m.thread() != 0) return;
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < Packs * Pack<A>::width; ++i) {
        const auto pack = m.load<Pack<A>>(m.shared() + r * pitch + i / Pack<A>::width * 16);
        seen.push_back(support::to_double(pack.x[i % Pack<A>::width]));
      }
  });
  return seen;
}

TEST(WarpTile, StagesRowsAndZerosBeyond) {
  Random random("WarpTile.Stage");
  std::vector<float> memory(7 * 40);
  random.fill(memory);
  const mha::TensorView<const float, 2> rows{memory.data(), {5, 20}, {40, 1}}, spread{memory.data(), {5, 20}, {40, 2}};
  std::vector<double> expected, expected_spread;
  for (Index r = 0; r < 8; ++r)
    for (Index i = 8; i < 24; ++i) {
      expected.push_back(r < 5 && i < 20 ? double(rows(r, i)) : 0);
      expected_spread.push_back(r < 5 && i < 20 ? double(spread(r, i)) : 0);
    }
  EXPECT_EQ((staged<float, const float, 4>(rows, 8, 8, true)), expected);
  EXPECT_EQ((staged<float, const float, 4>(rows, 8, 8, false)), expected);
  EXPECT_EQ((staged<float, const float, 4>(spread, 8, 8, false)), expected_spread);
}

TEST(WarpTile, WidensSixteenBitRows) {
  Random random("WarpTile.Widen");
  std::vector<mha::half> memory(60);
  random.fill(memory);
  const mha::TensorView<const mha::half, 2> rows{memory.data(), {3, 20}, {20, 1}};
  std::vector<double> expected;
  for (Index r = 0; r < 4; ++r)
    for (Index i = 0; i < 24; ++i) expected.push_back(r < 3 && i < 20 ? support::to_double(rows(r, i)) : 0);
  EXPECT_EQ((staged<float, const mha::half, 6>(rows, 0, 4, false)), expected);
}

TEST(WarpTile, WeightsOfARowFadeWhenTheMaximumMoves) {
  const std::vector<std::vector<float>> steps = {{1, -inf, 3, 0}, {-inf, -inf, -inf, -inf}, {7, 7, -1e9f, 2}};
  support::gpu::launch<HostMachine>({1, 1, 1}, 32, 1024, [&](HostMachine& m) {
    float max = -inf, sum = 0;
    std::vector<double> all;
    for (const auto& step : steps) {
      float s[2];  // four lanes, two keys of lane 0 and 1; 2 and 3 have what is hidden
      const int lane = m.thread() % 4;
      for (int j = 0; j < 2; ++j) s[j] = lane < 2 ? step[static_cast<std::size_t>(2 * lane + j)] : -inf;
      bool hidden = false;
      weigh_row<4>(m, s, max, sum, hidden);
      for (const float x : step) all.push_back(x);
      double top = -double{inf};
      for (const double x : all) top = std::max(top, x);
      EXPECT_EQ(max, top);
      for (int j = 0; j < 2; ++j) {
        const float x = lane < 2 ? step[static_cast<std::size_t>(2 * lane + j)] : -inf;
        EXPECT_EQ(is_hidden_weight(s[j]), x == -inf);
        EXPECT_NEAR(s[j], x == -inf ? 0 : std::exp(x - top), 1e-6);
      }
      EXPECT_EQ(hidden, is_hidden_weight(s[0]) || is_hidden_weight(s[1]));
      float whole = sum;
      whole += m.shuffle_xor(whole, 1);
      whole += m.shuffle_xor(whole, 2);
      double expected = 0;
      for (const double x : all) expected += std::exp(x - top);
      EXPECT_NEAR(whole, expected, 1e-5);
    }
  });
}

template <class T> void check_stored_values() {
  const float sums[4] = {1.5f, -2.25f, 3.f, 1e-3f};
  for (const bool wide : {false, true}) {
    alignas(16) T to[12];
    for (T& x : to) x = support::poison<T>();
    support::gpu::launch<HostMachine>({1, 1, 1}, 32, 1024, [&](HostMachine& m) {
      if (m.thread() == 0) store_values(m, to, 1, 4, wide ? 8 : 7, sums, 2.f, wide);
      if (m.thread() == 1) store_values(m, to, 1, 8, 8, sums, 2.f, wide);  // beyond the row
    });
    for (int i = 0; i < 12; ++i) {
      const bool written = i >= 4 && i < (wide ? 8 : 7);
      EXPECT_EQ(support::bits(to[i]), support::bits(written ? T(2 * sums[i % 4]) : support::poison<T>())) << i;
    }
  }
}

TEST(WarpTile, StoresColumnsOfARow) {
  check_stored_values<float>();
  check_stored_values<mha::half>();
  check_stored_values<mha::bfloat16>();
}

}  // namespace
