// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"

namespace {

using mha::Index;
namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;
using Source = mha::ContiguousKv<float>;

/// The pieces of one head in an order of the caller's.
struct OneHead {
  support::BackwardCase<float> c{"one head", {1, 700, 800, 1, 1, 24, 16}};
  mha::AttentionTape<float> tape;
  mha::Tensor<float, 4> out = mha::attention(c.q, c.k, c.v, mha::Causal{}, mha::record(tape));
  mha::Tensor<float, 4> dq{1, 700, 1, 24}, dk{1, 800, 1, 24}, dv{1, 800, 1, 16};

  template <class Order> void run(Order&& order) {
    mha::AttendBackwardCall<float, Source, mha::Causal, mha::NoScore> call{};
    call.forward.q = c.q.view();
    call.forward.kv.key = c.k.view();
    call.forward.kv.value = c.v.view();
    call.forward.shape = {1, 1, 700, 800, 100};
    call.forward.kv_heads = 1;
    call.forward.head_dim = 24;
    call.forward.value_dim = 16;
    call.forward.scale = static_cast<float>(1 / std::sqrt(24.));
    call.out = out.view();
    call.d_out = c.d_out.view();
    call.level = tape.level();
    call.sum = tape.sum();
    call.query = dq;
    call.key = dk;
    call.value = dv;
    const auto level = mha::current_isa();
    const cpu::AnyBackwardCall<float> any(call, level);
    const auto kernels = simd::backward_kernels<float>(level, 700);
    const cpu::BackwardTiling tiling(kernels.tile, 24, 16);
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const cpu::HeadMemory<float> memory(frame, tiling, 700, 800, 24, 16);
    const cpu::BackwardScratch<float> scratch(frame, tiling.lanes);
    const cpu::HeadBackward<float> head(any, level, kernels, tiling, memory, 0, 0);
    for (Index t = 0; t < head.tiles(); ++t) head.prepare_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.prepare_keys(m);
    order(head.query_pieces(), head.key_pieces(), [&](Index n, Index m) { head.piece(n, m, scratch); });
    for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.store_keys(m);
  }
};

TEST(HeadBackward, PiecesGiveTheSameBitsInEveryOrderThatIsAllowed) {
  OneHead by_keys, by_queries, by_waves;
  by_keys.run([](Index rows, Index columns, auto&& piece) {
    ASSERT_GE(rows, 2);
    ASSERT_GE(columns, 3);
    for (Index m = 0; m < columns; ++m)
      for (Index n = 0; n < rows; ++n) piece(n, m);
  });
  by_queries.run([](Index rows, Index columns, auto&& piece) {
    for (Index n = 0; n < rows; ++n)
      for (Index m = 0; m < columns; ++m) piece(n, m);
  });
  by_waves.run([](Index rows, Index columns, auto&& piece) {
    for (Index wave = 0; wave < rows + columns - 1; ++wave)
      for (Index n = rows - 1; n >= 0; --n)
        if (wave >= n && wave - n < columns) piece(n, wave - n);
  });
  for (const OneHead* const other : {&by_queries, &by_waves}) {
    EXPECT_EQ(support::differing(other->dq, by_keys.dq), 0u);
    EXPECT_EQ(support::differing(other->dk, by_keys.dk), 0u);
    EXPECT_EQ(support::differing(other->dv, by_keys.dv), 0u);
  }
  const auto expected = by_keys.c.as<double>().gradients<mha::Reference>(mha::Causal{});
  EXPECT_LT(support::relative_error(by_keys.dk, expected.key), 5e-6);
}

}  // namespace
