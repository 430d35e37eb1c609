// SPDX-License-Identifier: Apache-2.0
// Every flaw is noticed in a small kernel that needs all that a machine can do.
#include "gpu_model/faulty_machine.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/tiles.hpp>

#include "gpu_model/launch.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::Index;
using mha::cuda::Chunk;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;
using support::gpu::launch;
using support::gpu::Order;
using support::gpu::Seed;
using support::gpu::Shared;
using support::gpu::WarpgroupHostMachine;

constexpr Index depth = 16, tile_keys = 16, splits = 2, rows = 32;

struct Params {
  const bfloat16 *q, *k, *v;  // (rows, 16), (keys, 16), (keys, 16)
  float* partial;             // (splits, rows, 18)
  float* out;                 // (rows, 18): (q kᵀ) v, the sum of q kᵀ, and the weighted sum of q
  float* negative;            // (splits, warps): whether q kᵀ has a negative number
  unsigned* counter;
  Index keys;
};

/// out = (q kᵀ) v without any softmax, the keys split between blocks, two tiles in flight.
template <class Machine> MHA_KERNEL void bilinear(Machine& m, const Params& p) {
  constexpr Shared tile = tile_keys * depth * 2;
  const Shared sq = m.shared(), sk = sq + 2 * tile, sv = sk + 2 * tile, told = sv + 2 * tile;
  const Index split = m.block().x, tiles = (p.keys + tile_keys - 1) / tile_keys;
  const auto at = [](Shared base, int row, int chunk) { return base + row * 32 + (chunk ^ (row >> 2 & 1)) * 16; };
  const auto copy = [&](Shared to, const bfloat16* from, Index first, Index count, Index end) {
    const int row = m.thread() / 2, chunk = m.thread() % 2;
    if (row >= count) return;
    const bool valid = first + row < end;
    m.cp_async16(at(to, row, chunk), from + (valid ? first + row : 0) * depth + chunk * 8, valid);
  };
  const auto fetch = [&](Index t, int stage) {
    if (t < tiles) {
      copy(sk + stage * tile, p.k, t * tile_keys, tile_keys, p.keys);
      copy(sv + stage * tile, p.v, t * tile_keys, tile_keys, p.keys);
    }
    m.commit();
  };

  copy(sq, p.q, 0, rows, rows);
  fetch(split, 0);
  const int lane = m.thread() % 32, warp = m.thread() / 32;
  std::uint32_t q[4] = {};
  float o[2][4] = {}, sum[2] = {}, weighted[2] = {};
  bool negative = false;
  int stage = 0;
  for (Index t = split; t < tiles; t += splits, stage ^= 1) {
    fetch(t + splits, stage ^ 1);
    m.template wait<1>();
    m.sync();
    if (t == split) {
      m.ldmatrix_x4(q, at(sq, warp * 16 + lane % 16, lane / 16));
      for (int r = 0; r < 2; ++r) {
        const auto number = [](std::uint32_t bits) { return float(bfloat16::from_bits(std::uint16_t(bits))); };
        weighted[r] = number(q[r]) + 2 * number(q[r] >> 16) + number(q[r + 2]) + 2 * number(q[r + 2] >> 16);
      }
    }
    std::uint32_t f[4];
    float s[2][4] = {};
    m.ldmatrix_x4(f, at(sk + stage * tile, lane % 8 + lane / 16 * 8, lane / 8 % 2));
    m.template mma_m16n8k16<bfloat16>(s[0], q, f[0], f[1]);
    m.template mma_m16n8k16<bfloat16>(s[1], q, f[2], f[3]);
    bool below = false;
    for (int n = 0; n < 2; ++n)
      for (int e = 0; e < 4; ++e) {
        sum[e / 2] += s[n][e];
        below = below || s[n][e] < 0;
      }
    negative = m.any(below) || negative;
    const std::uint32_t a[4] = {
        m.template pack<bfloat16>(s[0][0], s[0][1]), m.template pack<bfloat16>(s[0][2], s[0][3]),
        m.template pack<bfloat16>(s[1][0], s[1][1]), m.template pack<bfloat16>(s[1][2], s[1][3])};
    m.ldmatrix_x4_trans(f, at(sv + stage * tile, lane % 16, lane / 16));
    m.template mma_m16n8k16<bfloat16>(o[0], a, f[0], f[1]);
    m.template mma_m16n8k16<bfloat16>(o[1], a, f[2], f[3]);
    if (t + 2 * splits < tiles) m.sync();  // before that tile's copy into this stage
  }
  if (lane == 0) m.store_global(p.negative + split * 2 + warp, negative ? 1.f : 0.f);

  // Through shared memory, so that a thread writes whole rows: the room of Q, of this warp alone.
  const Shared mine = sq + warp * 16 * 32;
  float* const partial = p.partial + split * rows * 18;
  for (int half = 0; half < 2; ++half) {
    m.sync_warp();
    for (int r = 0; r < 2; ++r)
      for (int e = 0; e < 2; ++e) m.store(mine + (lane / 4 + r * 8) * 32 + (lane % 4 * 2 + e) * 4, o[half][2 * r + e]);
    m.sync_warp();
    for (int c = lane; c < 16 * 8; c += 32)
      m.store_global(partial + (warp * 16 + c / 8) * 18 + half * 8 + c % 8, m.template load<float>(mine + c * 4));
  }
  for (int r = 0; r < 2; ++r)
    for (int what = 0; what < 2; ++what) {
      float x = what == 0 ? sum[r] : weighted[r];
      x += m.shuffle_xor(x, 1);
      x += m.shuffle_xor(x, 2);
      if (lane % 4 == 0) m.store_global(partial + (warp * 16 + lane / 4 + r * 8) * 18 + 16 + what, x);
    }

  m.sync();
  if (m.thread() == 0) {
    m.fence();
    const unsigned ticket = m.atomic_wrap(p.counter, splits - 1);
    m.fence();
    m.store(told, ticket);
  }
  m.sync();
  if (m.template load<std::uint32_t>(told) != splits - 1) return;
  for (int i = m.thread(); i < rows * 18; i += 64) {
    float x = 0;
    for (Index other = 0; other < splits; ++other) x += m.load_global(p.partial + other * rows * 18 + i);
    m.store_global(p.out + i, x);
  }
}

/// Small integers: all sums and products are exact.
class Bilinear {
 public:
  explicit Bilinear(Index keys) : keys_(keys) {
    support::Random random("bilinear");
    const auto fill = [&](std::vector<bfloat16>& to, Index n, int least) {
      for (Index i = 0; i < n * depth; ++i) to.push_back(bfloat16(static_cast<float>(least + random.below(5))));
    };
    fill(q_, rows / 2, -2);
    fill(q_, rows / 2, 0);  // the second warp has nothing negative
    fill(k_, keys, 0);
    fill(v_, keys, -2);
  }

  /// Whether a machine finds the right answer without bank conflicts.
  template <class Machine> bool right(Order order = {}) const {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(rows * 18, nan), partial(splits * rows * 18, nan), negative(splits * 2, nan);
    unsigned counter = 0;
    const Params p{q_.data(), k_.data(), v_.data(), partial.data(), out.data(), negative.data(), &counter, keys_};
    const auto counts = launch<Machine>(
        {splits, 1, 1}, 64, 6 * 512 + 16, [&](Machine& m) { bilinear(m, p); }, order);
    std::vector<float> expected(rows * 18), below(splits * 2);
    for (Index i = 0; i < rows; ++i) {
      float* const row = expected.data() + i * 18;
      for (Index j = 0; j < keys_; ++j) {
        float s = 0;
        for (Index d = 0; d < depth; ++d) s += q(i, d) * float(k_[index(j, d)]);
        for (Index d = 0; d < depth; ++d) row[d] += s * float(v_[index(j, d)]);
        row[16] += s;
        if (s < 0) below[static_cast<std::size_t>(j / tile_keys % splits * 2 + i / 16)] = 1;
      }
      for (Index d = 0; d < depth; ++d) row[17] += splits * q(i, d) * static_cast<float>(1 + d % 2);
    }
    return out == expected && negative == below && counter == 0 && counts.bank_conflicts == 0;
  }

 private:
  static std::size_t index(Index row, Index d) { return static_cast<std::size_t>(row * depth + d); }
  float q(Index i, Index d) const { return float(q_[index(i, d)]); }
  std::vector<bfloat16> q_, k_, v_;
  Index keys_;
};

TEST(FaultyMachine, WithoutAFlawIsTheHostMachine) {
  for (const Index keys : {17, 32, 90}) {
    const Bilinear kernel(keys);
    for (const Order order : {Order{}, Order{Order::backward}, Order{Order::shuffled, 5}}) {
      EXPECT_TRUE(kernel.right<HostMachine>(order)) << keys;
      EXPECT_TRUE(kernel.right<FaultyMachine>(order)) << keys;
    }
  }
}

TEST(FaultyMachine, EveryFlawIsNoticed) {
  const Bilinear one_tile_each(17), more(90);
  const auto right = [&] { return one_tile_each.right<FaultyMachine>() && more.right<FaultyMachine>(); };
  const auto missed = support::gpu::unnoticed(right, {{Flaw::no_sync},
                                                      {Flaw::no_sync_warp},
                                                      {Flaw::no_wait},
                                                      {Flaw::no_commit},
                                                      {Flaw::shorter_wait},
                                                      {Flaw::no_zero_fill},
                                                      {Flaw::swapped_a},
                                                      {Flaw::swapped_b},
                                                      {Flaw::swapped_d},
                                                      {Flaw::no_transpose},
                                                      {Flaw::transpose},
                                                      {Flaw::other_place, Seed::always, 1024, 2048},
                                                      {Flaw::other_lane},
                                                      {Flaw::no_shuffle},
                                                      {Flaw::swapped_pack},
                                                      {Flaw::vote_false},
                                                      {Flaw::vote_true},
                                                      {Flaw::no_fence},
                                                      {Flaw::lane_absent, 0}});
  for (const std::string& what : missed) ADD_FAILURE() << what;
}

/// out (64, 64) = the sum over tiles of q kᵀ, q (64, 16), k (tiles, 64, 16): one product in flight while the next one's
/// keys are stored. Only the last thread knows how many tiles there are.
template <class Machine> MHA_KERNEL void summed_products(Machine& m, const bfloat16* q, const bfloat16* k, float* out) {
  using Panel = mha::cuda::SharedPanels<64, 64>;
  const Shared sq = m.shared(), sk = sq + Panel::all_bytes;
  const auto fill = [&](Shared to, const bfloat16* from) {
    const int row = m.thread() / 2, c = m.thread() % 2;
    Chunk chunk;
    std::memcpy(&chunk, from + row * depth + c * 8, sizeof chunk);
    m.store(Panel::address(to, row, c), chunk);
  };
  const auto key_tile = [&](int t) { return sk + t % 2 * Panel::all_bytes; };
  float s[2][8][4], sum[8][4] = {};
  const auto add = [&](int t) {
    m.hold(s[t % 2]);
    for (int n = 0; n < 8; ++n)
      for (int e = 0; e < 4; ++e) sum[n][e] += s[t % 2][n][e];
  };

  fill(sq, q);
  fill(key_tile(0), k);
  m.fence_proxy();
  m.sync();
  int t = 0;
  for (bool last = false;; ++t) {
    m.wgmma_fence();
    m.template wgmma<bfloat16, 64>(s[t % 2], sq, key_tile(t), false);
    m.wgmma_commit();
    if (t > 0) {
      m.template wgmma_wait<1>();
      add(t - 1);
      last = m.sync_any(m.thread() == 127 && t == 3);  // and before the next keys replace those of t - 1
    }
    if (last) break;
    fill(key_tile(t + 1), k + (t + 1) % 4 * 64 * depth);
    m.fence_proxy();
    m.sync();
  }
  m.template wgmma_wait<0>();
  add(t);
  for (int n = 0; n < 8; ++n)
    for (int e = 0; e < 4; ++e) {
      const int lane = m.thread() % 32, row = m.thread() / 32 * 16 + mha::cuda::Lanes::row(lane, e);
      m.store_global(out + row * 64 + n * 8 + mha::cuda::Lanes::column(lane, e), sum[n][e]);
    }
}

/// Whether a machine finds the right sums.
template <class Machine> bool sums_products() {
  support::Random random("summed products");
  std::vector<bfloat16> q, k;
  for (Index i = 0; i < 64 * depth; ++i) q.push_back(bfloat16(static_cast<float>(random.below(5) - 2)));
  for (Index i = 0; i < 4 * 64 * depth; ++i) k.push_back(bfloat16(static_cast<float>(random.below(5) - 2)));
  std::vector<float> out(64 * 64), expected(64 * 64);
  launch<Machine>({1, 1, 1}, 128, 3 * 8192, [&](Machine& m) { summed_products(m, q.data(), k.data(), out.data()); });
  for (std::size_t i = 0; i < 64; ++i)
    for (std::size_t row = 0; row < 4 * 64; ++row)
      for (std::size_t d = 0; d < depth; ++d)
        expected[i * 64 + row % 64] += float(q[i * depth + d]) * float(k[row * depth + d]);
  return out == expected;
}

TEST(FaultyMachine, EveryFlawOfAWarpgroupIsNoticed) {
  EXPECT_TRUE(sums_products<WarpgroupHostMachine>());
  const auto missed =
      support::gpu::unnoticed([] { return sums_products<FaultyMachine>(); }, {{Flaw::no_sync},
                                                                              {Flaw::no_sync_any},
                                                                              {Flaw::no_fence_proxy},
                                                                              {Flaw::no_wgmma_fence},
                                                                              {Flaw::no_wgmma_commit},
                                                                              {Flaw::no_wgmma_wait},
                                                                              {Flaw::shorter_wgmma_wait}});
  for (const std::string& what : missed) ADD_FAILURE() << what;
}

TEST(FaultyMachine, AFlawThatMakesNoDifferenceIsReported) {
  const auto nothing = [] { return true; };
  EXPECT_EQ(support::gpu::unnoticed(nothing, {{Flaw::no_transpose}}),
            std::vector<std::string>{"no transpose: never made"});
  const auto careless = [] {
    launch<FaultyMachine>({1, 1, 1}, 32, 0, [](FaultyMachine& m) { m.sync(); });
    return true;
  };
  EXPECT_EQ(support::gpu::unnoticed(careless, {{Flaw::no_sync}}), std::vector<std::string>{"no sync, number 0"});
  EXPECT_EQ(support::gpu::unnoticed([] { return false; }, {}),
            std::vector<std::string>{"the kernel is wrong without a flaw"});
}

}  // namespace
