// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/few_tiles.hpp>

#include "attend_case.hpp"
#include "gpu_model/launch.hpp"

namespace {

using namespace mha::cuda;
using mha::Index;
using support::Random;
using support::gpu::HostMachine;

/// Two steps of `keys` keys each by one warp, its rows the queries of one head: state and sums against the formula.
template <class Tile> void check(const char* name, bool poison) {
  using T = typename Tile::Scalar;
  using A = typename Tile::Number;
  Random random(name);
  const support::AttendSizes sizes{
      .queries = Tile::rows, .keys = 2 * Tile::keys - 3, .dim = Tile::width, .value_dim = Tile::width};
  support::AttendCase<T> c(random, sizes, support::MaskKind::sieve);
  auto& call = c.call();
  if (poison) c.values()(0, 5, 0, 3) = T(std::numeric_limits<float>::quiet_NaN());
  std::vector<A> max(Tile::rows), sum(Tile::rows), o(static_cast<std::size_t>(Tile::rows * Tile::width));
  std::vector<int> rows(Tile::rows, 0);
  constexpr Shared k = Tile::q_bytes, v = k + Tile::panel_bytes, scratch = v + Tile::panel_bytes;
  constexpr Shared end = scratch + Tile::scratch_bytes, bytes = end + Tile::rows * Tile::width * 8;
  const auto stage = [&](HostMachine& m, Shared to, int count, Index valid, const auto& row) {
    stage_rows<T, Tile::width / Pack<T>::width>(m, m.thread(), 32, count, valid, 0, Tile::width, 1, true,
                                                Tile::place(to), row);
  };
  const auto counters = support::gpu::launch<HostMachine>({1, 1, 1}, 32, bytes, [&](HostMachine& m) {
    typename Tile::State state;
    Tile::clear(state);
    stage(m, 0, Tile::rows, Tile::rows, [&](Index r) { return call.query(0, r, 0); });
    for (int step = 0; step < 2; ++step) {
      const Index first = step * Tile::keys;
      const auto run = call.kv.run(0, 0, first, sizes.keys);
      m.sync_warp();
      stage(m, k, Tile::keys, run.count, [&](Index r) { return run.key + r * run.key_stride; });
      stage(m, v, Tile::keys, run.count, [&](Index r) { return run.value + r * run.value_stride; });
      m.commit();
      m.wait<0>();
      m.sync_warp();
      Tile::weigh(
          m, state, 0, k, scratch, call, 0, first, sizes.keys, true,
          [&](int i) {
            const Index r = Tile::row(m, i);
            return TileRow{0, r, call.position(0, r), true};
          },
          [&](int) { return mha::NoScore{}; });
      m.sync_warp();
      Tile::accumulate(m, state, scratch, v);
    }
    Tile::reduce(m, state);
    Tile::store(m, state, end);
    for (int i = 0; i < Tile::rows_per_lane; ++i)
      if (Tile::lane(m) == 0) {
        const auto r = static_cast<std::size_t>(Tile::row(m, i));
        ++rows.at(r);
        max[r] = state.max[i];
        sum[r] = state.sum[i];
      }
    m.sync_warp();
    if (m.thread() == 0)
      for (std::size_t i = 0; i < o.size(); ++i) o[i] = m.load<A>(end + static_cast<int>(i * sizeof(A)));
  });
  EXPECT_EQ(counters.bank_conflicts, 0);
  const double u = support::unit_roundoff<T>();
  for (Index r = 0; r < Tile::rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    EXPECT_EQ(rows[at], 1);
    double top = -std::numeric_limits<double>::infinity(), total = 0;
    std::vector<double> logit;
    for (Index key = 0; key < sizes.keys; ++key) {
      double dot = 0;
      for (Index d = 0; d < Tile::width; ++d)
        dot += support::to_double(call.query(0, r, 0)[d]) * support::to_double(c.keys()(0, key, 0, d));
      const bool seen = call.mask(0, 0, call.position(0, r), key);
      logit.push_back(seen ? dot * double(call.scale) : -std::numeric_limits<double>::infinity());
      top = std::max(top, logit.back());
    }
    for (double& x : logit) total += x = std::exp(x - top);
    EXPECT_NEAR(max[at], top, 1e-4);
    EXPECT_NEAR(sum[at], total, 1e-4 * total);
    for (Index d = 0; d < Tile::width; ++d) {
      double expected = 0, size = 0;
      for (Index key = 0; key < sizes.keys; ++key)
        if (logit[static_cast<std::size_t>(key)] > 0) {
          expected += logit[static_cast<std::size_t>(key)] * support::to_double(c.values()(0, key, 0, d));
          size += std::abs(logit[static_cast<std::size_t>(key)] * support::to_double(c.values()(0, key, 0, d)));
        }
      const double got = double(o[at * Tile::width + static_cast<std::size_t>(d)]);
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(got)) << name << " row " << r << " column " << d;
      else
        EXPECT_NEAR(got, expected, (2 * u + 1e-4) * size + 1e-6) << name << " row " << r << " column " << d;
    }
  }
}

TEST(FewTiles, TensorCoresTakeKeysAndTheirValues) {
  for (const bool poison : {false, true}) {
    check<FewOnMma<mha::bfloat16, 64>>("bfloat16", poison);
    check<FewOnMma<mha::half, 128>>("half", poison);
  }
}

TEST(FewTiles, MultiplyAddsTakeKeysAndTheirValues) {
  for (const bool poison : {false, true}) {
    check<FewOnFma<float, 1, 64>>("float, 4 rows", poison);
    check<FewOnFma<float, 4, 128>>("float, 16 rows", poison);
    check<FewOnFma<double, 2, 64>>("double, 8 rows", poison);
  }
}

}  // namespace
