// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/fma_body.hpp>

#include "attend_case.hpp"
#include "expect_right.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"

namespace {

using mha::Index;
using support::AttendCase;
using support::AttendSizes;
using support::MaskKind;
using support::Random;
using support::Rows;
using support::ScoreKind;
using support::Scores;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;
using support::gpu::Order;

template <class Machine, int Values, class Case> void run(Case& c, bool q_stays = true, Order order = {}) {
  using Shape = mha::cuda::FmaShape<typename Case::A, Values>;
  auto& call = c.call();
  const Index tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows, heads = call.shape.batch * call.shape.heads;
  const mha::cuda::FmaParams<typename Case::Call> params{
      call, {tiles, call.shape.heads, heads, heads}, (call.value_dim + Values - 1) / Values, q_stays, c.packed()};
  support::gpu::launch<Machine>(
      {tiles * heads * params.value_parts, 1, 1}, Shape::threads, Shape::bytes(call.head_dim, q_stays),
      [&](Machine& m) { mha::cuda::fma_body<Machine, Shape>(m, params); }, order);
}

template <class T, int Values = 64>
void check(Random& random, const AttendSizes& sizes, MaskKind mask = MaskKind::causal, bool q_stays = true) {
  AttendCase<T> c(random, sizes, mask);
  run<HostMachine, Values>(c, q_stays);
  expect_right(c, "mask " + std::to_string(static_cast<int>(mask)) + ": ");
}

TEST(FmaBody, TakesTailsOfQueriesAndKeys) {
  Random random("FmaBody.Tails");
  for (const Index queries : {1, 17, 64, 65})
    for (const Index keys : {1, 31, 63, 64, 65, 130}) {
      const AttendSizes sizes{.queries = queries, .keys = keys, .heads = 2, .dim = 20, .value_dim = 24};
      check<float>(random, sizes);
      if (keys % 2 == 0 || queries == 65) check<double>(random, sizes, MaskKind::full);
    }
}

TEST(FmaBody, TakesAnyHeadSizes) {
  Random random("FmaBody.HeadSizes");
  for (const Index dim : {1, 32, 40, 100})
    for (const Index value_dim : {3, 64, 130}) {
      const AttendSizes sizes{.queries = 9, .keys = 70, .dim = dim, .value_dim = value_dim};
      check<float>(random, sizes);
      check<float, 128>(random, sizes);
      check<float>(random, sizes, MaskKind::full, false);
      check<double>(random, sizes);
    }
  const AttendSizes wide{.queries = 5, .keys = 70, .dim = 300, .value_dim = 260};
  check<float, 256>(random, wide);
  check<double, 128>(random, wide, MaskKind::causal, false);
}

TEST(FmaBody, TakesSixteenBitScalars) {
  Random random("FmaBody.Sixteen");
  const AttendSizes sizes{.queries = 70, .keys = 90, .heads = 2, .dim = 40, .value_dim = 50};
  check<mha::bfloat16>(random, sizes);
  check<mha::half>(random, sizes, MaskKind::sieve);
  const AttendSizes whole{.queries = 70, .keys = 90, .heads = 2, .dim = 40, .value_dim = 48};  // rows of whole packs
  check<mha::bfloat16>(random, whole);
  check<mha::half>(random, whole, MaskKind::sieve);
}

TEST(FmaBody, TakesEveryMask) {
  Random random("FmaBody.Masks");
  for (int kind = 0; kind <= static_cast<int>(MaskKind::none); ++kind) {
    const MaskKind mask = static_cast<MaskKind>(kind);
    const AttendSizes sizes{
        .batch = 2, .queries = 66, .keys = 100, .heads = 2, .kv_heads = 1, .dim = 16, .value_dim = 12};
    check<float>(random, sizes, mask);
    AttendSizes other = sizes;
    other.ragged = mask != MaskKind::document && mask != MaskKind::padding && mask != MaskKind::prefix &&
                   mask != MaskKind::both && mask != MaskKind::either;
    other.sink = true;
    other.run = 5;
    check<double>(random, other, mask);
  }
}

TEST(FmaBody, TakesEveryScore) {
  Random random("FmaBody.Scores");
  for (int kind = 0; kind <= static_cast<int>(ScoreKind::user); ++kind)
    for (const MaskKind mask : {MaskKind::full, MaskKind::window}) {
      const AttendSizes sizes{.batch = 2,
                              .queries = 30,
                              .keys = 100,
                              .heads = 4,
                              .kv_heads = 2,
                              .dim = 16,
                              .value_dim = 12,
                              .sink = mask == MaskKind::full};
      AttendCase<float, Scores::one> c(random, sizes, mask, static_cast<ScoreKind>(kind));
      run<HostMachine, 64>(c);
      expect_right(c, "score " + std::to_string(kind) + ": ");
    }
}

TEST(FmaBody, TakesMoreQueriesThanKeysAndAnyOrigin) {
  Random random("FmaBody.Origin");
  AttendSizes sizes{.queries = 100, .keys = 40, .heads = 2, .dim = 16, .value_dim = 16, .sink = true};
  check<float>(random, sizes);  // the first rows see nothing
  sizes.origin = 7;
  check<float>(random, sizes);
  sizes.origin = -20;
  check<double>(random, sizes, MaskKind::window);
  sizes.keys = 0;
  check<float>(random, sizes);
}

TEST(FmaBody, TakesAnyStrides) {
  Random random("FmaBody.Strides");
  for (const Rows rows : {Rows::blhd, Rows::bhld, Rows::padded, Rows::odd, Rows::columns})
    for (const Index dim : {16, 19}) {
      const AttendSizes sizes{
          .batch = 2, .queries = 20, .keys = 70, .heads = 2, .kv_heads = 1, .dim = dim, .value_dim = dim, .rows = rows};
      check<float>(random, sizes);
      check<double>(random, sizes);
    }
}

TEST(FmaBody, TakesAnyScale) {
  Random random("FmaBody.Scale");
  for (const double scale : {-0.3, 1e-30, 4.}) {
    const AttendSizes sizes{.queries = 20, .keys = 70, .dim = 16, .value_dim = 16, .scale = scale};
    check<float>(random, sizes);
    check<double>(random, sizes);
  }
}

TEST(FmaBody, KeepsWhatIsNotFiniteAndVisible) {
  Random random("FmaBody.NotFinite");
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const MaskKind mask : {MaskKind::full, MaskKind::causal, MaskKind::sieve}) {
    const AttendSizes sizes{.queries = 40, .keys = 100, .heads = 2, .dim = 16, .value_dim = 16};
    AttendCase<float> c(random, sizes, mask);
    c.values()(0, 70, 0, 3) = inf;
    c.values()(0, 80, 0, 4) = nan;
    c.values()(0, 99, 0, 5) = -inf;  // under the causal mask for the last query only
    c.keys()(0, 90, 0, 6) = nan;
    run<HostMachine, 64>(c);
    expect_right(c);
  }
}

TEST(FmaBody, LeavesOutTheLogSumExpIfItIsNotWanted) {
  Random random("FmaBody.NoLogSumExp");
  AttendCase<float> c(random, {.queries = 20, .keys = 30, .heads = 2, .dim = 16, .value_dim = 16}, MaskKind::causal);
  c.call().log_sum_exp.data = nullptr;
  run<HostMachine, 64>(c);
  expect_right(c);
}

TEST(FmaBody, GivesTheSameBitsInAnyOrderOfBlocks) {
  Random random("FmaBody.Order");
  const AttendSizes sizes{.batch = 2, .queries = 70, .keys = 70, .heads = 2, .dim = 16, .value_dim = 70};
  AttendCase<float> c(random, sizes, MaskKind::causal);
  run<HostMachine, 64>(c);
  const std::vector<float> first = c.output_memory();
  for (const Order order : {Order{Order::backward}, Order{Order::shuffled, 7}}) {
    c.reset();
    run<HostMachine, 64>(c, true, order);
    EXPECT_EQ(support::differing(first, c.output_memory()), 0u);
  }
}

TEST(FmaBody, ChecksOfThisFileNoticeFlaws) {
  for (const Rows rows : {Rows::blhd, Rows::odd}) {
    Random random("FmaBody.Flaws");
    const AttendSizes sizes{.queries = 65, .keys = 150, .dim = 40, .value_dim = 64, .rows = rows};
    AttendCase<float> c(random, sizes, MaskKind::causal);
    c.values()(0, 149, 0, 3) = std::numeric_limits<float>::quiet_NaN();  // the last query's only
    const auto right = [&] {
      c.reset();
      run<FaultyMachine, 64>(c);
      support::Worst worst;
      c.check(worst);
      return worst.error() <= 1;
    };
    FaultyMachine::plant({Flaw::none});
    ASSERT_TRUE(right());
    std::vector<std::string> missed =
        support::gpu::unnoticed(right, {{Flaw::no_sync}, {Flaw::other_lane}, {Flaw::no_shuffle}, {Flaw::vote_false}});
    EXPECT_EQ(missed, std::vector<std::string>{});
    if (rows != Rows::blhd) continue;
    missed = support::gpu::unnoticed(
        right,
        {{Flaw::no_wait}, {Flaw::shorter_wait}, {Flaw::no_commit, 0}, {Flaw::no_commit, 3}, {Flaw::no_zero_fill}});
    EXPECT_EQ(missed, std::vector<std::string>{});
  }
}

}  // namespace
