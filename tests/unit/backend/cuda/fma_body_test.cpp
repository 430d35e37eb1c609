// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/fma_body.hpp>
#include <mha/policy/mask/positional.hpp>

#include "attend_case.hpp"
#include "gpu_model/launch.hpp"

namespace {

using mha::Index;
using support::AttendCase;
using support::AttendSizes;
using support::Rows;
using support::gpu::HostMachine;
using support::gpu::Order;

const auto no_score = [](const mha::CallShape&) { return mha::NoScore{}; };
const auto full = [](const mha::CallShape&) { return mha::Full{}; };
const auto causal = [](const mha::CallShape&) { return mha::Causal{}; };

template <class Machine, int Values, class Case>
support::gpu::Counters run(Case& c, bool q_stays = true, Order order = {}) {
  using A = typename Case::A;
  using Shape = mha::cuda::FmaShape<A, Values>;
  auto& call = c.call();
  const Index tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows, heads = call.shape.batch * call.shape.heads;
  const mha::cuda::FmaParams<typename Case::Call> params{
      call, {tiles, call.shape.heads, heads, heads}, (call.value_dim + Values - 1) / Values, q_stays, c.packed()};
  return support::gpu::launch<Machine>(
      {tiles * heads * params.value_parts, 1, 1}, Shape::threads, Shape::bytes(call.head_dim, q_stays),
      [&](Machine& m) { mha::cuda::fma_body<Machine, Shape>(m, params); }, order);
}

template <class T, int Values, class MakeMask, class MakeScore>
void expect_right(support::Random& random, const AttendSizes& sizes, MakeMask&& mask, MakeScore&& score,
                  bool q_stays = true, Order order = {}) {
  using M = decltype(mask(mha::CallShape{}));
  using S = decltype(score(mha::CallShape{}));
  AttendCase<T, M, S> c(random, sizes, mask, score);
  run<HostMachine, Values>(c, q_stays, order);
  support::Worst worst;
  c.check(worst);
  EXPECT_LE(worst.error(), 1) << worst.text();
  EXPECT_EQ(c.spilled(), 0u) << sizes.text();
}

TEST(FmaBody, Float) {
  support::Random random("FmaBody.Float");
  for (const Index lq : {1, 65})
    for (const Index lk : {1, 63, 64, 130}) {
      const AttendSizes sizes{.queries = lq, .keys = lk, .heads = 2, .kv_heads = 1, .dim = 40, .value_dim = 24};
      expect_right<float, 32>(random, sizes, full, no_score);
      expect_right<float, 32>(random, sizes, causal, no_score);
    }
}

}  // namespace
