// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/few_queries_body.hpp>
#include <mha/policy/mask/positional.hpp>

#include "attend_case.hpp"
#include "gpu_model/launch.hpp"

namespace {

using mha::Index;
using mha::cuda::FewOnFma;
using mha::cuda::FewOnMma;
using support::AttendCase;
using support::AttendSizes;
using support::Rows;
using support::gpu::HostMachine;
using support::gpu::Order;

const auto no_score = [](const mha::CallShape&) { return mha::NoScore{}; };
const auto full = [](const mha::CallShape&) { return mha::Full{}; };
const auto causal = [](const mha::CallShape&) { return mha::Causal{}; };

/// Workspace of launches: parts are poison, counters zero.
template <class A> struct Work {
  std::vector<A> parts;
  std::vector<unsigned> counters;
};

template <class Machine, class Tile, class Case>
support::gpu::Counters run(Case& c, Index splits, Work<typename Case::A>& work, Order order = {}) {
  using Shape = mha::cuda::FewShape<Tile>;
  auto& call = c.call();
  const Index rows = call.shape.heads / call.kv_heads * call.shape.queries;
  mha::cuda::FewParams<typename Case::Call> params{call, splits, (rows + Shape::rows - 1) / Shape::rows, c.packed()};
  const std::ptrdiff_t groups = std::ptrdiff_t{call.shape.batch} * call.kv_heads * params.passes;
  const mha::cuda::SplitParts place{splits, Shape::rows, Shape::width};
  work.parts.resize(static_cast<std::size_t>(place.size(groups)) + 8);
  support::poison_all(work.parts);
  work.counters.resize(static_cast<std::size_t>(groups));
  params.parts = work.parts.data();
  while (reinterpret_cast<std::uintptr_t>(params.parts) % 16 != 0) ++params.parts;
  params.counters = work.counters.data();
  return support::gpu::launch<Machine>(
      {splits * static_cast<int>(groups), 1, 1}, Shape::threads, Shape::bytes(splits),
      [&](Machine& m) { mha::cuda::few_queries_body<Machine, Shape>(m, params); }, order);
}

template <class T> support::AttendBound bound() {
  if constexpr (sizeof(T) >= 4) return {};
  return {.weight_rounding = support::unit_roundoff<T>()};
}

template <class Tile, class MakeMask, class MakeScore>
void expect_right(support::Random& random, const AttendSizes& sizes, Index splits, MakeMask&& mask, MakeScore&& score,
                  Order order = {}) {
  using T = typename Tile::Scalar;
  using M = decltype(mask(mha::CallShape{}));
  using S = decltype(score(mha::CallShape{}));
  AttendCase<T, M, S> c(random, sizes, mask, score);
  Work<typename Tile::Number> work;
  const auto n = run<HostMachine, Tile>(c, splits, work, order);
  support::Worst worst;
  c.check(worst, bound<T>());
  EXPECT_LE(worst.error(), 1) << worst.text() << " splits " << splits;
  EXPECT_EQ(c.spilled(), 0u) << sizes.text();
  EXPECT_EQ(n.bank_conflicts, 0) << sizes.text();
  for (const unsigned counter : work.counters) EXPECT_EQ(counter, 0u);
}

TEST(FewQueriesBody, First) {
  support::Random random("FewQueriesBody.First");
  for (const Index splits : {1, 2, 5})
    for (const Index lk : {1, 63, 200}) {
      const AttendSizes sizes{.queries = 2, .keys = lk, .heads = 4, .kv_heads = 2, .dim = 40, .value_dim = 24};
      expect_right<FewOnFma<float, 1, 64>>(random, sizes, splits, full, no_score);
      expect_right<FewOnFma<float, 4, 64>>(random, sizes, splits, causal, no_score);
      expect_right<FewOnMma<mha::bfloat16, 64>>(random, sizes, splits, causal, no_score);
    }
}

}  // namespace
