// SPDX-License-Identifier: Apache-2.0
// The operations of the host model against the tables of the PTX ISA, written down a second time.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/tiles.hpp>

#include "gpu_model/launch.hpp"
#include "gpu_model/warpgroup_machine.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::half;
using mha::cuda::Chunk;
using mha::cuda::SharedPanels;
using support::gpu::HostMachine;
using support::gpu::launch;
using support::gpu::Shared;
using support::gpu::WarpgroupHostMachine;

/// Runs a body on one warp.
template <class Body> support::gpu::Counters warp(Shared bytes, Body&& body) {
  return launch({1, 1, 1}, 32, bytes, [&](HostMachine& m) { body(m, m.thread()); });
}

// "Matrix fragments for mma.m16n8k16 with floating point type": where element i of a lane's fragment lies.
struct Place {
  int row, column;
};
Place place_in_a(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  const int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
  return {row, i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8};
}
Place place_in_b(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8, group};
}
Place place_in_c(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

template <class T> class Product : public testing::Test {};
using Halves = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(Product, Halves);

TYPED_TEST(Product, HasTheFragmentsOfThePtxIsa) {
  using T = TypeParam;
  support::Random random("mma");
  // Small integers: every sum is exact in whatever order.
  const auto number = [&] { return static_cast<float>(random.below(17) - 8); };
  float a[16][16], b[16][8], c[16][8], got[16][8] = {};
  for (auto& row : a)
    for (float& x : row) x = number();
  for (auto& row : b)
    for (float& x : row) x = number();
  for (auto& row : c)
    for (float& x : row) x = number();
  const auto counters = warp(0, [&](HostMachine& m, int lane) {
    std::uint32_t left[4], right[2];
    float d[4];
    const auto bits = [](float x) { return std::uint32_t{T(x).bits}; };
    for (int i = 0; i < 8; i += 2) {
      const Place low = place_in_a(lane, i), high = place_in_a(lane, i + 1);
      left[i / 2] = bits(a[low.row][low.column]) | bits(a[high.row][high.column]) << 16;
    }
    for (int i = 0; i < 4; i += 2) {
      const Place low = place_in_b(lane, i), high = place_in_b(lane, i + 1);
      right[i / 2] = bits(b[low.row][low.column]) | bits(b[high.row][high.column]) << 16;
    }
    for (int i = 0; i < 4; ++i) d[i] = c[place_in_c(lane, i).row][place_in_c(lane, i).column];
    m.mma_m16n8k16<T>(d, left, right[0], right[1]);
    for (int i = 0; i < 4; ++i) got[place_in_c(lane, i).row][place_in_c(lane, i).column] = d[i];
  });
  EXPECT_EQ(counters.mma, 1);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      float sum = c[i][j];
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      EXPECT_EQ(got[i][j], sum) << i << ", " << j;
    }
}

/// Shared memory that holds the number of each 2-byte element, written by lane 0.
void count_up(HostMachine& m, Shared bytes) {
  if (m.thread() == 0)
    for (Shared at = 0; at < bytes; at += 4)
      m.store(at, static_cast<std::uint32_t>(at / 2) | static_cast<std::uint32_t>(at / 2 + 1) << 16);
  m.sync_warp();
}

TEST(Ldmatrix, GivesRowsOrColumnsToLanes) {
  for (const bool transposed : {false, true}) {
    const auto counters = warp(512, [&](HostMachine& m, int lane) {
      count_up(m, 512);
      std::uint32_t r[4];
      // Matrix j, row i at 16 (8 j + i), the matrices in reverse.
      const Shared row = 16 * ((3 - lane / 8) * 8 + lane % 8);
      transposed ? m.ldmatrix_x4_trans(r, row) : m.ldmatrix_x4(r, row);
      for (int j = 0; j < 4; ++j)
        for (int e = 0; e < 2; ++e) {
          // "each thread holds two elements of a row": row lane / 4, columns 2 (lane % 4) + e.
          const int x = lane / 4, y = 2 * (lane % 4) + e;
          const int row_of = transposed ? y : x, column = transposed ? x : y;
          EXPECT_EQ(r[j] >> 16 * e & 0xffffu, static_cast<std::uint32_t>((3 - j) * 64 + row_of * 8 + column));
        }
    });
    EXPECT_EQ(counters.ldmatrix, 1);
    EXPECT_EQ(counters.bank_conflicts, 0);
  }
}

TEST(Ldmatrix, CountsBankConflicts) {
  const auto conflicts = [](int stride) {
    return warp(32 * stride,
                [&](HostMachine& m, int lane) {
                  count_up(m, 32 * stride);
                  std::uint32_t r[4];
                  m.ldmatrix_x4(r, lane * stride);
                })
        .bank_conflicts;
  };
  EXPECT_EQ(conflicts(16), 0);
  EXPECT_EQ(conflicts(32), 4 * 1);  // two rows of each matrix on the same banks
  EXPECT_EQ(conflicts(64), 4 * 3);
  EXPECT_EQ(conflicts(128), 4 * 7);  // all eight
  EXPECT_EQ(conflicts(128 + 16), 0);
}

using Matrix = std::vector<std::vector<float>>;

/// Small integers: every sum is exact in whatever order.
Matrix integers(int rows, int columns, support::Random& random) {
  Matrix x(static_cast<std::size_t>(rows), std::vector<float>(static_cast<std::size_t>(columns)));
  for (auto& row : x)
    for (float& e : row) e = static_cast<float>(random.below(17) - 8);
  return x;
}
float at(const Matrix& x, int row, int column) {
  return x[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)];
}

/// Stores a matrix in panels, each thread of the block its part.
template <class T, class Panels> void store_panels(WarpgroupHostMachine& m, Shared to, const Matrix& x) {
  const int rows = static_cast<int>(x.size()), threads = 128;
  for (int i = m.thread(); i < rows * Panels::chunks; i += threads) {
    const int row = i / Panels::chunks, c = i % Panels::chunks;
    Chunk chunk;
    for (int e = 0; e < 4; ++e) chunk.word[e] = m.pack<T>(at(x, row, c * 8 + 2 * e), at(x, row, c * 8 + 2 * e + 1));
    m.store(Panels::address(to, row, c), chunk);
  }
  m.fence_proxy();
}

/// Element e of step n of the accumulator of a thread of a warpgroup.
Place place_in_d(int thread, int n, int e) {
  const Place c = place_in_c(thread % 32, e);
  return {thread / 32 * 16 + c.row, n * 8 + c.column};
}

/// d = c + a · bᵀ of depth 64 for a warpgroup: a (64, 64), the lower half of a panel of 128 rows; b (N, 64).
template <class T, int N> void check_wgmma_of_shared_memory() {
  support::Random random("wgmma of shared memory");
  const Matrix a = integers(128, 64, random), b = integers(N, 64, random), c = integers(64, N, random);
  using Left = SharedPanels<64, 128>;
  using Right = SharedPanels<64, N>;
  for (const bool add : {false, true}) {
    const auto counters =
        launch<WarpgroupHostMachine>({1, 1, 1}, 128, Left::all_bytes + Right::all_bytes, [&](WarpgroupHostMachine& m) {
          store_panels<T, Left>(m, 0, a);
          store_panels<T, Right>(m, Left::all_bytes, b);
          m.sync();
          float d[std::size_t{N / 8}][4];
          for (int n = 0; n < N / 8; ++n)
            for (int e = 0; e < 4; ++e) {
              const Place p = place_in_d(m.thread(), n, e);
              d[n][e] = at(c, p.row, p.column);
            }
          m.wgmma_fence();
          for (int step = 0; step < 4; ++step)
            m.wgmma<T, N>(d, 64 * Left::bytes + step * 32, Left::all_bytes + step * 32, add || step > 0);
          m.wgmma_commit();
          EXPECT_TRUE(std::isnan(d[0][0]));
          m.wgmma_wait<0>();
          m.hold(d);
          for (int n = 0; n < N / 8; ++n)
            for (int e = 0; e < 4; ++e) {
              const Place p = place_in_d(m.thread(), n, e);
              float sum = add ? at(c, p.row, p.column) : 0;
              for (int k = 0; k < 64; ++k) sum += at(a, 64 + p.row, k) * at(b, p.column, k);
              EXPECT_EQ(d[n][e], sum) << p.row << ", " << p.column;
            }
        });
    EXPECT_EQ(counters.wgmma, 4);
  }
}

/// d = c + a · b of depth 32 for a warpgroup: a (64, 32) in registers, b (32, N).
template <class T, int N> void check_wgmma_of_registers() {
  support::Random random("wgmma of registers");
  const Matrix a = integers(64, 32, random), b = integers(32, N, random), c = integers(64, N, random);
  using Right = SharedPanels<N, 32>;
  const auto counters = launch<WarpgroupHostMachine>({1, 1, 1}, 128, Right::all_bytes, [&](WarpgroupHostMachine& m) {
    store_panels<T, Right>(m, 0, b);
    m.sync();
    float d[std::size_t{N / 8}][4];
    std::uint32_t left[2][4];
    for (int n = 0; n < N / 8; ++n)
      for (int e = 0; e < 4; ++e) {
        const Place p = place_in_d(m.thread(), n, e);
        d[n][e] = at(c, p.row, p.column);
      }
    for (int step = 0; step < 2; ++step)
      for (int i = 0; i < 8; i += 2) {
        const Place p = place_in_a(m.thread() % 32, i);
        const int row = m.thread() / 32 * 16 + p.row, column = step * 16 + p.column;
        left[step][i / 2] = m.pack<T>(at(a, row, column), at(a, row, column + 1));
      }
    m.wgmma_fence();
    for (int step = 0; step < 2; ++step) m.wgmma<T, N>(d, left[step], step * 16 * Right::bytes, Right::panel_bytes);
    m.wgmma_commit();
    m.wgmma_wait<0>();
    m.hold(d);
    m.hold(left);
    for (int n = 0; n < N / 8; ++n)
      for (int e = 0; e < 4; ++e) {
        const Place p = place_in_d(m.thread(), n, e);
        float sum = at(c, p.row, p.column);
        for (int k = 0; k < 32; ++k) sum += at(a, p.row, k) * at(b, k, p.column);
        EXPECT_EQ(d[n][e], sum) << p.row << ", " << p.column;
      }
  });
  EXPECT_EQ(counters.wgmma, 2);
}

TYPED_TEST(Product, OfAWarpgroupReadsPanels) {
  check_wgmma_of_shared_memory<TypeParam, 64>();
  check_wgmma_of_shared_memory<TypeParam, 128>();
  check_wgmma_of_registers<TypeParam, 64>();
  check_wgmma_of_registers<TypeParam, 128>();
}

TEST(ProductOfAWarpgroup, IsThereAfterTheWaitOfItsGroup) {
  using Panels = SharedPanels<64, 64>;
  const Matrix ones(64, std::vector<float>(64, 1.f));
  launch<WarpgroupHostMachine>({1, 1, 1}, 256, 2 * Panels::all_bytes, [&](WarpgroupHostMachine& m) {
    const Shared mine = m.thread() / 128 * Panels::all_bytes;  // the two warpgroups do not meet after the barrier
    if (m.thread() < 128) {
      store_panels<half, Panels>(m, 0, ones);
      store_panels<half, Panels>(m, Panels::all_bytes, ones);
    }
    m.sync();
    float first[8][4] = {}, second[8][4];
    const auto group = [&](float(&d)[8][4], bool add) {
      m.wgmma_fence();
      m.wgmma<half, 64>(d, mine, mine, add);
      m.wgmma_commit();
    };
    group(first, true);
    group(second, false);
    m.wgmma_wait<1>();
    EXPECT_EQ(first[7][3], 16.f);
    EXPECT_TRUE(std::isnan(second[0][0]));
    if (m.thread() >= 128) group(first, true);
    group(second, true);
    m.wgmma_wait<1>();
    EXPECT_EQ(std::isnan(first[7][3]), false);
    EXPECT_TRUE(std::isnan(second[0][0])) << "the next group adds to it";
    m.wgmma_wait<0>();
    EXPECT_EQ(first[7][3], m.thread() >= 128 ? 32.f : 16.f);
    EXPECT_EQ(second[0][0], 32.f);
  });
}

TEST(ProductOfAWarpgroup, ReadsItsRegistersWhenItIsDone) {
  using Panels = SharedPanels<64, 16>;
  const Matrix ones(16, std::vector<float>(64, 1.f));
  launch<WarpgroupHostMachine>({1, 1, 1}, 128, Panels::all_bytes, [&](WarpgroupHostMachine& m) {
    store_panels<half, Panels>(m, 0, ones);
    m.sync();
    float d[8][4] = {};
    std::uint32_t a[4] = {};
    m.wgmma_fence();
    m.wgmma<half, 64>(d, a, 0, 0);
    m.wgmma_commit();
    for (std::uint32_t& x : a) x = m.pack<half>(1, 1);  // too early
    m.wgmma_wait<0>();
    EXPECT_EQ(d[0][0], 16.f);
  });
}

TEST(Collectives, SyncAnyCountsTheThreadsOfTheBlock) {
  const auto counters = launch({1, 1, 1}, 96, 4 * 96, [](HostMachine& m) {
    m.store(m.thread() * 4, static_cast<float>(m.thread()));
    EXPECT_TRUE(m.sync_any(m.thread() == 70));
    EXPECT_EQ(m.load<float>((95 - m.thread()) * 4), static_cast<float>(95 - m.thread()));
    EXPECT_FALSE(m.sync_any(false));
    EXPECT_TRUE(m.sync_any(true));
  });
  EXPECT_EQ(counters.syncs, 3);
}

TEST(Collectives, ShuffleExchangesLanes) {
  warp(0, [](HostMachine& m, int lane) {
    for (const int mask : {1, 2, 7, 16, 31}) {
      EXPECT_EQ(m.shuffle_xor(static_cast<float>(lane), mask), static_cast<float>(lane ^ mask));
      EXPECT_EQ(m.shuffle_xor(1.0 / 3 + lane, mask), 1.0 / 3 + (lane ^ mask));
      EXPECT_EQ(m.shuffle_xor(static_cast<std::uint32_t>(lane), mask), static_cast<std::uint32_t>(lane ^ mask));
    }
  });
}

TEST(Collectives, VotesCountLanes) {
  warp(0, [](HostMachine& m, int lane) {
    EXPECT_TRUE(m.any(lane == 31));
    EXPECT_FALSE(m.any(false));
    EXPECT_FALSE(m.all(lane != 31));
    EXPECT_TRUE(m.all(true));
  });
}

TEST(Numbers, PackRoundsToNearestEvenAndPutsTheFirstLow) {
  warp(0, [](HostMachine& m, int) {
    EXPECT_EQ(m.pack<bfloat16>(1.f, -2.f), 0xc0003f80u);
    EXPECT_EQ(m.pack<half>(1.f, -2.f), 0xc0003c00u);
    EXPECT_EQ(m.pack<bfloat16>(1 + 0x1p-8f, 1 + 0x3p-8f), 0x3f823f80u);  // ties go to even
    EXPECT_EQ(m.pack<half>(65520.f, 0x1p-25f), 0x00007c00u);             // overflows, underflows
  });
}

TEST(Numbers, ExponentialFlushesSubnormalFloats) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  warp(0, [=](HostMachine& m, int) {
    EXPECT_EQ(m.exp2(3.f), 8.f);
    EXPECT_EQ(m.exp2(-126.f), 0x1p-126f);
    EXPECT_EQ(m.exp2(-127.f), 0.f);
    EXPECT_EQ(m.exp2(-infinity), 0.f);
    EXPECT_EQ(m.exp2(infinity), infinity);
    EXPECT_TRUE(std::isnan(m.exp2(std::nanf(""))));
    EXPECT_EQ(m.exp2(-1074.0), 0x1p-1074);
    EXPECT_EQ(m.log(0.f), -infinity);
    EXPECT_EQ(m.max(1.f, std::nanf("")), 1.f);
    EXPECT_EQ(m.fma(1 + 0x1p-23f, 1 - 0x1p-23f, -1.f), -0x1p-46f);  // one rounding
  });
}

TEST(Copies, LandAtTheirWaitAndZeroFill) {
  alignas(16) std::uint32_t source[4 * 32];
  for (std::uint32_t i = 0; i < 128; ++i) source[i] = i;
  const auto counters = warp(1024, [&](HostMachine& m, int lane) {
    m.cp_async16(lane * 16, source + lane * 4, lane < 20);
    m.commit();
    m.cp_async16(512 + lane * 16, source, true);
    m.commit();
    m.wait<1>();
    const Chunk first = m.load<Chunk>(lane * 16);  // one's own needs no barrier
    for (std::uint32_t e = 0; e < 4; ++e)
      EXPECT_EQ(first.word[e], lane < 20 ? 4 * static_cast<std::uint32_t>(lane) + e : 0u);
    m.wait<0>();
    m.sync();
    EXPECT_EQ(m.load<Chunk>(512 + (31 - lane) * 16).word[3], 3u);
  });
  EXPECT_EQ(counters.copies, 64);
}

TEST(Memory, MovesWordsOf4And8And16Bytes) {
  float out_float[32];
  half out_half[32];
  warp(1024, [&](HostMachine& m, int lane) {
    m.store(lane * 4, 0.5f * static_cast<float>(lane));
    m.store(512 + lane * 8, 1.0 / (lane + 1));
    EXPECT_EQ(m.load<float>(lane * 4), 0.5f * static_cast<float>(lane));
    EXPECT_EQ(m.load<double>(512 + lane * 8), 1.0 / (lane + 1));
    m.store_global(out_float + lane, static_cast<float>(lane));
    m.store_global(out_half + lane, half(static_cast<float>(lane)));
    EXPECT_EQ(m.load_global(out_float + lane), static_cast<float>(lane));
  });
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(out_float[i], static_cast<float>(i));
    EXPECT_EQ(static_cast<float>(out_half[i]), static_cast<float>(i));
  }
}

}  // namespace
