// SPDX-License-Identifier: Apache-2.0
// The operations of the host model against the tables of the PTX ISA, written down a second time.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "gpu_model/launch.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::half;
using mha::cuda::Chunk;
using support::gpu::HostMachine;
using support::gpu::launch;
using support::gpu::Shared;

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
