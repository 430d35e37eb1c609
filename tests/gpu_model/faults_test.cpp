// SPDX-License-Identifier: Apache-2.0
// What the host model must notice: each kind of race, copies that have not landed, bad addresses, lanes that are
// absent.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu_model/launch.hpp"
#include "gpu_model/warpgroup_machine.hpp"

namespace {

using mha::cuda::BlockIndex;
using mha::cuda::Chunk;
using support::gpu::Fault;
using support::gpu::HostMachine;
using support::gpu::launch;
using support::gpu::Order;
using support::gpu::Shared;
using support::gpu::WarpgroupHostMachine;

/// What the model says of body(machine, thread) on two warps and a kilobyte, "" if nothing.
template <class Body> std::string fault(Body&& body, BlockIndex grid = {1, 1, 1}) {
  try {
    launch(grid, 64, 1024, [&](HostMachine& m) { body(m, m.thread()); });
  } catch (const Fault& f) {
    return f.what();
  }
  return "";
}

#define EXPECT_FAULT(words, ...)                                           \
  do {                                                                     \
    const std::string what = fault(__VA_ARGS__);                           \
    EXPECT_NE(what.find(words), std::string::npos) << "it says: " << what; \
  } while (false)

TEST(Races, ReadAfterTheWriteOfAnotherThread) {
  const auto shift = [](int by, bool block, bool warp) {
    return [=](HostMachine& m, int t) {
      m.store(t * 4, 1.f);
      if (warp) m.sync_warp();
      if (block) m.sync();
      if (t >= by) m.load<float>((t - by) * 4);
    };
  };
  EXPECT_EQ(fault(shift(0, false, false)), "");  // its own
  EXPECT_FAULT("races with the write of thread", shift(1, false, false));
  EXPECT_EQ(fault(shift(1, true, false)), "");
  EXPECT_FAULT("races with the write of thread", shift(32, false, true));  // a barrier of the warp is not enough
  EXPECT_EQ(fault([](HostMachine& m, int t) {
              m.store(t * 4, 1.f);
              m.sync_warp();
              m.load<float>((t ^ 5) * 4);
            }),
            "");
}

TEST(Races, WriteAfterTheWriteOfAnotherThread) {
  const auto write_twice = [](bool block) {
    return [=](HostMachine& m, int t) {
      if (t == 3) m.store(0, 1.f);
      if (block) m.sync();
      if (t == 40) m.store(0, 2.f);
    };
  };
  EXPECT_FAULT("write of shared byte 0 races with the write of thread 3", write_twice(false));
  EXPECT_EQ(fault(write_twice(true)), "");
}

TEST(Races, WriteAfterTheReadOfAnotherThread) {
  const auto body = [](int reader, int writer, bool block, bool warp) {
    return [=](HostMachine& m, int t) {
      if (t == writer) m.store(0, 1.f);
      m.sync();
      if (t == reader) m.load<float>(0);
      if (warp) m.sync_warp();
      if (block) m.sync();
      if (t == writer) m.store(0, 2.f);
    };
  };
  EXPECT_FAULT("races with a read in warp 0", body(2, 7, false, false));
  EXPECT_FAULT("races with a read in warp 0", body(2, 40, false, true));
  EXPECT_EQ(fault(body(2, 7, false, true)), "");
  EXPECT_EQ(fault(body(2, 40, true, false)), "");
  EXPECT_EQ(fault(body(7, 7, false, false)), "");
}

TEST(Races, LdmatrixReadsForTheWholeWarp) {
  const auto body = [](bool warp) {
    return [=](HostMachine& m, int t) {
      m.store(t * 16, Chunk{});
      if (warp) m.sync_warp();
      std::uint32_t r[4];
      m.ldmatrix_x4(r, t * 16);
    };
  };
  EXPECT_FAULT("races with the write", body(false));
  EXPECT_EQ(fault(body(true)), "");
}

TEST(Races, WhatNobodyWroteIsNotRead) {
  EXPECT_FAULT("that nobody wrote", [](HostMachine& m, int t) { m.load<float>(t * 4); });
}

alignas(16) std::uint32_t source[4 * 64] = {};

TEST(Copies, AreNotReadBeforeTheirWaitAndTheBarrier) {
  const auto body = [](bool wait, bool sync, int reader_shift) {
    return [=](HostMachine& m, int t) {
      m.cp_async16(t * 16, source + t * 4, true);
      m.commit();
      if (wait) m.wait<0>();
      if (sync) m.sync();
      if (t >= reader_shift) m.load<Chunk>((t - reader_shift) * 16);
      m.wait<0>();
    };
  };
  EXPECT_FAULT("is in flight", body(false, true, 0));
  EXPECT_FAULT("is in flight", body(false, true, 1));
  EXPECT_FAULT("races with the write of thread", body(true, false, 1));
  EXPECT_EQ(fault(body(true, false, 0)), "");
  EXPECT_EQ(fault(body(true, true, 1)), "");
}

TEST(Copies, WaitForTheGroupsTheyAreIn) {
  const auto body = [](bool commit) {
    return [=](HostMachine& m, int t) {
      m.cp_async16(t * 16, source, true);
      if (commit) m.commit();
      m.wait<0>();
      m.load<Chunk>(t * 16);
    };
  };
  EXPECT_FAULT("is in flight", body(false));
  EXPECT_EQ(fault(body(true)), "");
}

TEST(Copies, AreNotWrittenOverNorLeftBehind) {
  EXPECT_FAULT("while a cp.async to it is in flight", [](HostMachine& m, int t) {
    m.cp_async16(t * 16, source, true);
    m.store(t * 16, 1.f);
  });
  EXPECT_FAULT("races with a read", [](HostMachine& m, int t) {
    if (t == 0) m.store(0, Chunk{});
    m.sync();
    if (t < 3) m.load<Chunk>(0);
    if (t == 3) m.cp_async16(0, source, true);
  });
  EXPECT_FAULT("left the kernel with a cp.async in flight", [](HostMachine& m, int t) {
    m.cp_async16(t * 16, source, true);
    m.commit();
  });
}

TEST(Addresses, AreMultiplesOfWhatIsMovedAndInsideTheBlock) {
  EXPECT_FAULT("is no multiple of 16", [](HostMachine& m, int t) { m.store(t * 16 + 4, Chunk{}); });
  EXPECT_FAULT("is no multiple of 8", [](HostMachine& m, int t) { m.store(t * 16 + 4, 1.0); });
  EXPECT_FAULT("is no multiple of 4", [](HostMachine& m, int) { m.store(2, 1.f); });
  EXPECT_FAULT("is past the 1024 bytes", [](HostMachine& m, int t) { m.store(1024 - 4 * t, 1.f); });
  EXPECT_FAULT("is past the 1024 bytes", [](HostMachine& m, int) { m.store(-16, 1.f); });
  EXPECT_FAULT("cp_async16 from an address", [](HostMachine& m, int t) { m.cp_async16(t * 16, source + 1, true); });
  EXPECT_FAULT("store_global to an address", [](HostMachine& m, int) {
    m.store_global(reinterpret_cast<Chunk*>(reinterpret_cast<char*>(source) + 8), Chunk{});
  });
}

TEST(Warps, MeetInOneOperation) {
  EXPECT_FAULT("the warp diverges: any meets shuffle_xor", [](HostMachine& m, int t) {
    if (t == 9)
      m.any(true);
    else
      m.shuffle_xor(1.f, 1);
  });
  EXPECT_FAULT("mma of bfloat16", [](HostMachine& m, int t) {
    float d[4] = {};
    const std::uint32_t a[4] = {};
    t % 32 < 31 ? m.mma_m16n8k16<mha::half>(d, a, 0, 0) : m.mma_m16n8k16<mha::bfloat16>(d, a, 0, 0);
  });
}

TEST(Warps, LanesThatNeverComeAreADeadlock) {
  EXPECT_FAULT("deadlock: thread 0 waits in any", [](HostMachine& m, int t) {
    if (t != 5) m.any(true);
  });
  EXPECT_FAULT("deadlock: thread 0 waits in sync", [](HostMachine& m, int t) { t == 40 ? m.sync_warp() : m.sync(); });
  EXPECT_FAULT("sync, but other threads have left", [](HostMachine& m, int t) {
    if (t > 0) m.sync();
  });
}

TEST(Blocks, MeetInOneKindOfBarrier) {
  EXPECT_FAULT("the block diverges: sync meets sync_any",
               [](HostMachine& m, int t) { t == 40 ? m.sync() : void(m.sync_any(true)); });
  EXPECT_FAULT("sync_any, but other threads have left", [](HostMachine& m, int t) {
    if (t > 0) m.sync_any(false);
  });
}

/// What the model says of a product of registers and 16 rows of 64 columns, "" if nothing.
struct WgmmaStep {
  bool fence = true, commit = true, wait = true, sync = true, copied = false;
  enum class Fenced { no, before_the_write, yes, after_the_sync } proxy = Fenced::yes;
  Shared b = 0, panel = 0;
  int astray = -1;  ///< a thread that makes another product

  template <class Between> std::string operator()(Between&& between) const {
    alignas(16) static const std::uint32_t zeros[4] = {};
    try {
      launch<WarpgroupHostMachine>({1, 1, 1}, 128, 8192, [&](WarpgroupHostMachine& m) {
        const int t = m.thread();
        if (proxy == Fenced::before_the_write) m.fence_proxy();
        for (Shared to = t * 16; to < 8192; to += 128 * 16) {
          if (copied)
            m.cp_async16(to, zeros, true);
          else
            m.store(to, Chunk{});
        }
        m.commit();
        m.wait<0>();
        if (proxy == Fenced::yes) m.fence_proxy();
        if (sync) m.sync();
        if (proxy == Fenced::after_the_sync) m.fence_proxy();
        float d[8][4] = {};
        std::uint32_t a[4] = {};
        if (fence) m.wgmma_fence();
        if (t != astray)
          m.wgmma<mha::half, 64>(d, a, b, panel);
        else
          m.wgmma<mha::bfloat16, 64>(d, a, b, panel);
        if (commit) m.wgmma_commit();
        between(m, d);
        if (wait) m.wgmma_wait<0>();
      });
    } catch (const Fault& f) {
      return f.what();
    }
    return "";
  }
  std::string operator()() const {
    return (*this)([](auto&, auto&) {});
  }
};

#define EXPECT_SAYS(words, ...)                                            \
  do {                                                                     \
    const std::string what = __VA_ARGS__;                                  \
    EXPECT_NE(what.find(words), std::string::npos) << "it says: " << what; \
  } while (false)

TEST(Warpgroups, MeetInOneOperation) {
  EXPECT_EQ(WgmmaStep{}(), "");
  EXPECT_SAYS("the warpgroup diverges: wgmma of registers", WgmmaStep{.astray = 77}());
  EXPECT_SAYS("deadlock: thread 0 waits in wgmma_commit", WgmmaStep{.commit = false}([](auto& m, auto&) {
                if (m.thread() != 77) m.wgmma_commit();
                if (m.thread() == 77) m.sync_warp();
              }));
  EXPECT_SAYS("the warpgroup diverges: wgmma_wait<1> meets wgmma_wait<0>", WgmmaStep{}([](auto& m, auto&) {
                if (m.thread() == 77) m.template wgmma_wait<1>();
              }));
  EXPECT_SAYS("name different operands", WgmmaStep{}([](auto& m, auto& d) {
                m.wgmma_fence();
                m.template wgmma<mha::half, 64>(d, 0, m.thread() == 77 ? 32 : 0, true);
              }));
}

TEST(Products, BeginWithAFence) {
  EXPECT_SAYS("without a wgmma_fence", WgmmaStep{.fence = false}());
  EXPECT_SAYS("without a wgmma_fence", WgmmaStep{}([](auto& m, auto&) {
                float other[8][4];
                m.template wgmma<mha::half, 64>(other, 0, 0, false);
              }));
}

TEST(Products, AreNotLeftBehind) {
  EXPECT_SAYS("left the kernel with a wgmma in flight", WgmmaStep{.wait = false}());
  EXPECT_SAYS("left the kernel with a wgmma in flight", WgmmaStep{.commit = false}());
}

TEST(Products, ReadWhatIsFencedForThem) {
  for (const bool copied : {false, true}) {
    const auto step = [&](WgmmaStep::Fenced proxy) { return WgmmaStep{.copied = copied, .proxy = proxy}(); };
    EXPECT_EQ(step(WgmmaStep::Fenced::yes), "");
    for (const auto wrong :
         {WgmmaStep::Fenced::no, WgmmaStep::Fenced::before_the_write, WgmmaStep::Fenced::after_the_sync})
      EXPECT_SAYS("not fenced for the asynchronous proxy", step(wrong));
  }
  EXPECT_SAYS("races with the write of thread", WgmmaStep{.sync = false}());
}

TEST(Products, LeaveTheirOperandsAndAccumulatorsAloneInFlight) {
  EXPECT_SAYS("while the product was in flight", WgmmaStep{}([](auto& m, auto&) {
                m.sync();
                if (m.thread() == 3) m.store(0, 1.f);
                m.fence_proxy();
                m.sync();
              }));
  EXPECT_SAYS("races with", WgmmaStep{}([](auto& m, auto&) {
                if (m.thread() == 3) m.store(0, 1.f);
              }));
  EXPECT_SAYS("races with a read in warp", WgmmaStep{}([](auto& m, auto&) {
                m.template wgmma_wait<0>();
                if (m.thread() == 3) m.store(0, 1.f);  // without a barrier
              }));
  EXPECT_SAYS("cp.async of thread 3 is in flight", WgmmaStep{}([](auto& m, auto&) {
                m.sync();
                if (m.thread() == 3) m.cp_async16(0, source, true);
              }));
  EXPECT_SAYS("the accumulator of a wgmma was written", WgmmaStep{}([](auto& m, auto& d) {
                if (m.thread() == 3) d[7][3] = 0;
              }));
}

TEST(Products, NameChunksInRowsOfAPanel) {
  EXPECT_EQ(WgmmaStep{.b = 1024}(), "");
  EXPECT_SAYS("b at 128 begins in a row that is no multiple of 8", WgmmaStep{.b = 128}());
  EXPECT_SAYS("b at 8 is no multiple of 16", WgmmaStep{.b = 8}());
  EXPECT_SAYS("b at 16 reaches past its panel", WgmmaStep{.b = 16}());
  EXPECT_SAYS("is past the 8192 bytes", WgmmaStep{.b = 7168}());
  const auto wide = [](Shared a, Shared b, Shared panel) {
    return WgmmaStep{}([=](auto& m, auto&) {
      m.wgmma_fence();
      float d[16][4], thin[1][4];
      const std::uint32_t registers[4] = {};
      m.template wgmma<mha::half, 8>(thin, a, b, false);
      m.template wgmma<mha::half, 128>(d, registers, 0, panel);
      m.wgmma_commit();
      m.template wgmma_wait<0>();
    });
  };
  EXPECT_EQ(wide(96, 32, 2048), "");
  EXPECT_SAYS("a at 112 reaches past its panel", wide(112, 0, 2048));
  EXPECT_SAYS("b at 640 begins in a row", wide(0, 640, 2048));
  EXPECT_SAYS("panels 2176 bytes apart are not aligned", wide(0, 0, 2176));
  EXPECT_SAYS("is past the 8192 bytes", wide(1024, 0, 2048));
}

TEST(Blocks, TellWhichAndWho) {
  EXPECT_FAULT("block (1, 2, 0) thread 17: ",
               [](HostMachine& m, int t) {
                 if (m.block().x == 1 && m.block().y == 2 && t == 17) m.load<float>(0);
               },
               {2, 3, 1});
}

TEST(Blocks, BeginWithUndefinedMemoryAndNoHistory) {
  EXPECT_FAULT("that nobody wrote",
               [](HostMachine& m, int t) {
                 if (m.block().x == 0) m.store(t * 4, 1.f);
                 if (m.block().x == 1) m.load<float>(t * 4);
               },
               {2, 1, 1});
}

TEST(Blocks, PassOnWhatABodyThrows) {
  struct Mine {};
  EXPECT_THROW(launch({1, 1, 1}, 32, 0,
                      [](HostMachine& m) {
                        if (m.thread() == 3) throw Mine();
                      }),
               Mine);
  EXPECT_THROW(launch({1, 1, 1}, 31, 0, [](HostMachine&) {}), Fault);
}

TEST(Blocks, RunEachOnceInTheOrderAskedFor) {
  const auto order_of = [](Order order) {
    std::vector<int> seen;
    launch(
        {2, 3, 2}, 32, 0,
        [&](HostMachine& m) {
          if (m.thread() == 0) seen.push_back(m.block().x + 2 * m.block().y + 6 * m.block().z);
        },
        order);
    return seen;
  };
  const std::vector<int> forward = order_of({}), mixed = order_of({Order::shuffled, 7});
  for (int i = 0; i < 12; ++i) EXPECT_EQ(forward[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(order_of({Order::backward}), std::vector<int>(forward.rbegin(), forward.rend()));
  EXPECT_NE(mixed, forward);
  EXPECT_EQ(mixed, order_of({Order::shuffled, 7}));
  EXPECT_NE(mixed, order_of({Order::shuffled, 8}));
  auto sorted = mixed;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, forward);
}

TEST(GlobalMemory, HasOneWriterOfAnAddress) {
  float out[64] = {};
  EXPECT_FAULT("has written", [&](HostMachine& m, int t) { m.store_global(out + t / 2, 1.f); });
  EXPECT_FAULT("of block 0 has written", [&](HostMachine& m, int t) { m.store_global(out + t, 1.f); }, {2, 1, 1});
  mha::half pairs[64] = {};
  EXPECT_EQ(fault([&](HostMachine& m, int t) { m.store_global(pairs + t, mha::half(1.f)); }), "");
}

/// One block's partial sum each, the last to come adds them: how a split over keys is merged.
struct Merge {
  bool sync_before = true, fence = true, fence_after = true, sync_after = true, fence_too_early = false;
  std::vector<float> partial = std::vector<float>(4 * 64);
  std::vector<float> sum = std::vector<float>(64);
  unsigned counter = 0;

  void operator()(HostMachine& m, int t) {
    const int block = m.block().x;
    m.store_global(&partial[static_cast<std::size_t>(block * 64 + t)], static_cast<float>(block + t));
    if (fence_too_early) m.fence();
    if (sync_before) m.sync();
    if (t == 0) {
      if (fence) m.fence();
      const unsigned ticket = m.atomic_wrap(&counter, 3);
      if (fence_after) m.fence();
      m.store(0, ticket);
    }
    if (sync_after) m.sync();
    if (sync_after ? m.load<std::uint32_t>(0) == 3 : block == 3) {
      float s = 0;
      for (int b = 0; b < 4; ++b) s += m.load_global(&partial[static_cast<std::size_t>(b * 64 + (t + 1) % 64)]);
      m.store_global(&sum[static_cast<std::size_t>(t)], s);
    }
  }
};
std::string merge(Merge& merge, Order order = {}) {
  try {
    launch(
        {4, 1, 1}, 64, 16, [&](HostMachine& m) { merge(m, m.thread()); }, order);
  } catch (const Fault& f) {
    return f.what();
  }
  return "";
}

TEST(GlobalMemory, IsMergedByTheLastBlockInAnyOrder) {
  Merge m;
  for (const Order order : {Order{}, Order{Order::backward}, Order{Order::shuffled, 3}, Order{Order::shuffled, 4}}) {
    EXPECT_EQ(merge(m, order), "");
    EXPECT_EQ(m.counter, 0u) << "ready for the next launch";
    for (int t = 0; t < 64; ++t)
      EXPECT_EQ(m.sum[static_cast<std::size_t>(t)], 6.f + 4.f * static_cast<float>((t + 1) % 64));
  }
}

TEST(GlobalMemory, IsNotSeenWithoutFencesAndBarriers) {
  const auto says = [](Merge m) { return merge(m); };
  EXPECT_NE(says({.fence = false, .fence_too_early = true}).find("without a fence and an atomic after it"),
            std::string::npos);
  EXPECT_NE(says({.fence = false}).find("without a fence and an atomic after it"), std::string::npos);
  EXPECT_NE(says({.sync_before = false}).find("without a fence and an atomic after it"), std::string::npos);
  EXPECT_NE(says({.fence_after = false}).find("without an atomic, a fence and a barrier before it"), std::string::npos);
  EXPECT_NE(says({.sync_after = false}).find("without an atomic, a fence and a barrier before it"), std::string::npos);
}

TEST(GlobalMemory, OfOnesOwnBlockNeedsABarrierToo) {
  float out[64];
  const auto body = [&](bool sync) {
    return [&out, sync](HostMachine& m, int t) {
      m.store_global(out + t, 1.f);
      if (sync) m.sync();
      const float x = m.load_global(out + (t + 63) % 64);
      EXPECT_TRUE(!sync || x == 1.f);
    };
  };
  EXPECT_FAULT("races with the", body(false));
  EXPECT_EQ(fault(body(true)), "");
}

}  // namespace
