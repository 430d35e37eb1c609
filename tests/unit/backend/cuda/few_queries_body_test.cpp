// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/few_queries_body.hpp>

#include "attend_case.hpp"
#include "expect_right.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"

namespace {

using mha::Index;
using mha::cuda::FewOnFma;
using mha::cuda::FewOnMma;
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

using Brain64 = FewOnMma<mha::bfloat16, 64>;
using Half64 = FewOnMma<mha::half, 64>;
using Float64 = FewOnFma<float, 1, 64>;  // of width 64
using Float64x4 = FewOnFma<float, 4, 64>;
using Double64 = FewOnFma<double, 2, 64>;

/// A device's memory for the parts, poison before each launch, and the counters, zero before the first.
template <class A> class Work {
 public:
  std::vector<unsigned> counters;

  A* parts(std::ptrdiff_t size) {
    memory_.resize(static_cast<std::size_t>(size) + 4);
    support::poison_all(memory_);
    A* first = memory_.data();
    while (reinterpret_cast<std::uintptr_t>(first) % 16 != 0) ++first;
    return first;
  }

 private:
  std::vector<A> memory_;
};

/// most: as many queries as the call has, if not given.
template <class Machine, class Tile, class Case>
support::gpu::Counters run(Case& c, Index splits, Work<typename Case::A>& work, Order order = {}, Index most = -1) {
  using Shape = mha::cuda::FewShape<Tile>;
  auto& call = c.call();
  const Index rows = call.shape.heads / call.kv_heads * call.shape.queries;
  mha::cuda::FewParams<typename Case::Call> params{.call = call,
                                                   .splits = splits,
                                                   .passes = (rows + Shape::rows - 1) / Shape::rows,
                                                   .most = most < 0 ? call.shape.queries : most,
                                                   .aligned = c.packed()};
  const Index groups = call.shape.batch * call.kv_heads * params.passes;
  params.parts = work.parts(mha::cuda::SplitParts{splits, Shape::rows, Shape::width}.size(groups));
  work.counters.resize(static_cast<std::size_t>(groups));
  params.counters = work.counters.data();
  return support::gpu::launch<Machine>(
      {splits * groups, 1, 1}, Shape::threads, Shape::bytes(splits),
      [&](Machine& m) { mha::cuda::few_queries_body<Machine, Shape>(m, params); }, order);
}

/// Weights are rounded to T before they meet the values; those below 2⁻¹⁴ are subnormal halves.
template <class T> support::AttendBound bound() {
  if constexpr (sizeof(T) >= 4) return {};
  return {.weight_rounding = support::unit_roundoff<T>(), .weight_floor = std::is_same_v<T, mha::half> ? 0x1p-25 : 0};
}

template <class Tile, Scores scores = Scores::none>
void check(Random& random, const AttendSizes& sizes, Index splits, MaskKind mask = MaskKind::causal,
           ScoreKind score = ScoreKind::user) {
  AttendCase<typename Tile::Scalar, scores> c(random, sizes, mask, score);
  Work<typename Tile::Number> work;
  const auto count = run<HostMachine, Tile>(c, splits, work);
  expect_right(c,
               "splits " + std::to_string(splits) + " mask " + std::to_string(static_cast<int>(mask)) + " score " +
                   std::to_string(static_cast<int>(score)) + ": ",
               bound<typename Tile::Scalar>());
  EXPECT_EQ(count.bank_conflicts, 0);
  for (const unsigned counter : work.counters) EXPECT_EQ(counter, 0u);
}

TEST(FewQueriesBody, LeavesSequencesOfMoreQueriesToAnotherLaunch) {
  Random random("FewQueriesBody.Most");
  AttendCase<float> c(random, {.queries = 5, .keys = 70, .heads = 2, .dim = 40, .value_dim = 24}, MaskKind::causal);
  Work<float> work;
  run<HostMachine, Float64>(c, 2, work, {}, 4);
  for (const float y : c.output_memory()) ASSERT_EQ(support::bits(y), support::bits(support::poison<float>()));
  run<HostMachine, Float64>(c, 2, work, {}, 5);
  expect_right(c, "five of five: ");
}

TEST(FewQueriesBody, TakesTailsOfKeys) {
  Random random("FewQueriesBody.Tails");
  for (const Index keys : {0, 1, 15, 16, 17, 63, 64, 65, 200})
    for (const Index queries : {1, 2}) {
      const AttendSizes sizes{
          .queries = queries, .keys = keys, .heads = 4, .kv_heads = 2, .dim = 40, .value_dim = 24, .sink = keys == 17};
      check<Brain64>(random, sizes, 1 + random.below(3));
      check<Float64>(random, sizes, 1 + random.below(3));
      check<Double64>(random, sizes, 1 + random.below(3));
    }
}

TEST(FewQueriesBody, EverySplitIsRight) {
  Random random("FewQueriesBody.Splits");
  const AttendSizes sizes{.batch = 2, .queries = 2, .keys = 230, .heads = 6, .kv_heads = 2, .dim = 24, .value_dim = 40};
  AttendCase<mha::bfloat16> brain(random, sizes, MaskKind::window);
  AttendCase<float> single(random, sizes, MaskKind::window);
  Work<float> work;
  for (const Index splits : {1, 2, 3, 4, 5, 7, 12, 17}) {  // from 5 on some chunks are empty
    brain.reset();
    run<HostMachine, Brain64>(brain, splits, work);
    expect_right(brain, "bfloat16, splits " + std::to_string(splits) + ": ", bound<mha::bfloat16>());
    single.reset();
    run<HostMachine, Float64x4>(single, splits, work);
    expect_right(single, "float, splits " + std::to_string(splits) + ": ");
  }
}

TEST(FewQueriesBody, TakesEveryShape) {
  Random random("FewQueriesBody.Shapes");
  for (const Index odd : {0, 3}) {
    AttendSizes sizes{.queries = 3, .keys = 100, .heads = 8, .kv_heads = 2, .dim = 64 - odd, .value_dim = 56 - odd};
    check<Brain64>(random, sizes, 2);
    check<Half64>(random, sizes, 2);
    check<Float64>(random, sizes, 2);
    check<Float64x4>(random, sizes, 2);
    check<Double64>(random, sizes, 2);
    sizes.dim = 128 - odd;
    sizes.value_dim = 104 - odd;
    check<FewOnMma<mha::bfloat16, 128>>(random, sizes, 2);
    check<FewOnFma<float, 1, 128>>(random, sizes, 2);
    check<FewOnFma<float, 4, 128>>(random, sizes, 2);
    check<FewOnFma<double, 2, 128>>(random, sizes, 2);
    sizes.dim = 200 - odd;
    sizes.value_dim = 256 - odd;
    check<FewOnMma<mha::half, 256>>(random, sizes, 2);
    check<FewOnFma<float, 2, 256>>(random, sizes, 2);
    check<FewOnFma<double, 2, 256>>(random, sizes, 2);
  }
}

TEST(FewQueriesBody, TakesMoreRowsInPasses) {
  Random random("FewQueriesBody.Passes");
  const AttendSizes sizes{.batch = 2, .queries = 3, .keys = 90, .heads = 18, .kv_heads = 2, .dim = 16, .value_dim = 16};
  for (const Index splits : {1, 3}) {
    check<Brain64>(random, sizes, splits);  // 27 rows: 16 and 11
    check<Float64>(random, sizes, splits);
    check<Double64>(random, sizes, splits);
  }
}

TEST(FewQueriesBody, TakesEveryMask) {
  Random random("FewQueriesBody.Masks");
  for (int kind = 0; kind <= static_cast<int>(MaskKind::none); ++kind) {
    const MaskKind mask = static_cast<MaskKind>(kind);
    const AttendSizes sizes{
        .batch = 2, .queries = 3, .keys = 150, .heads = 4, .kv_heads = 2, .dim = 16, .value_dim = 24, .sink = true};
    check<Brain64>(random, sizes, 1 + kind % 3, mask);
    check<Float64x4>(random, sizes, 1 + kind % 3, mask);
    AttendSizes other = sizes;
    other.batch = 3;
    other.ragged = mask != MaskKind::document && mask != MaskKind::padding && mask != MaskKind::prefix &&
                   mask != MaskKind::both && mask != MaskKind::either;
    other.run = 5;
    check<Half64>(random, other, 2 + kind % 3, mask);
    check<Double64>(random, other, 2 + kind % 3, mask);
  }
}

TEST(FewQueriesBody, TakesEveryScore) {
  Random random("FewQueriesBody.Scores");
  for (int kind = 0; kind <= static_cast<int>(ScoreKind::user); ++kind)
    for (const MaskKind mask : {MaskKind::full, MaskKind::window}) {
      const AttendSizes sizes{.batch = 2,
                              .queries = 2,
                              .keys = 150,
                              .heads = 8,
                              .kv_heads = 2,
                              .dim = 16,
                              .value_dim = 24,
                              .sink = mask == MaskKind::full};
      check<Brain64, Scores::one>(random, sizes, 1 + kind % 3, mask, static_cast<ScoreKind>(kind));
      check<Float64x4, Scores::one>(random, sizes, 1 + kind % 3, mask, static_cast<ScoreKind>(kind));
    }
}

TEST(FewQueriesBody, TakesAnyStridesAndScales) {
  Random random("FewQueriesBody.Strides");
  for (const Rows rows : {Rows::blhd, Rows::bhld, Rows::padded, Rows::odd, Rows::columns})
    for (const double scale : {0., -0.2}) {
      const AttendSizes sizes{.batch = 2,
                              .queries = 2,
                              .keys = 70,
                              .heads = 4,
                              .kv_heads = 2,
                              .dim = 32,
                              .value_dim = 16,
                              .rows = rows,
                              .scale = scale};
      check<Brain64>(random, sizes, 2);
      check<Float64x4>(random, sizes, 2);
    }
}

TEST(FewQueriesBody, TakesAnyOrigin) {
  Random random("FewQueriesBody.Origin");
  for (const Index origin : {-3, 0, 20, 500}) {
    const AttendSizes sizes{.queries = 5,
                            .keys = 100,
                            .heads = 4,
                            .kv_heads = 2,
                            .dim = 16,
                            .value_dim = 16,
                            .sink = true,
                            .origin = origin};
    check<Brain64>(random, sizes, 3);
    check<Double64>(random, sizes, 3, MaskKind::window);
  }
}

template <class Tile> void check_not_finite(const std::string& name) {
  Random random(name);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  using T = typename Tile::Scalar;
  for (const MaskKind mask : {MaskKind::full, MaskKind::causal, MaskKind::sieve}) {
    const AttendSizes sizes{.queries = 4, .keys = 100, .heads = 4, .kv_heads = 2, .dim = 16, .value_dim = 16};
    AttendCase<T> c(random, sizes, mask);
    c.values()(0, 70, 0, 3) = T(inf);
    c.values()(0, 80, 1, 4) = T(nan);
    c.values()(0, 98, 0, 5) = T(-inf);  // under the causal mask for the last two queries only
    c.keys()(0, 97, 1, 6) = T(nan);
    Work<typename Tile::Number> work;
    run<HostMachine, Tile>(c, 2, work);
    expect_right(c, name, bound<T>());
  }
}

TEST(FewQueriesBody, KeepsWhatIsNotFiniteAndVisible) {
  check_not_finite<Brain64>("FewQueriesBody.NotFinite.bfloat16");
  check_not_finite<Half64>("FewQueriesBody.NotFinite.half");
  check_not_finite<Float64x4>("FewQueriesBody.NotFinite.float");
}

TEST(FewQueriesBody, GivesTheSameBitsInAnyOrderOfBlocksAndAgain) {
  Random random("FewQueriesBody.Order");
  const AttendSizes sizes{.batch = 2, .queries = 2, .keys = 230, .heads = 8, .kv_heads = 2, .dim = 32, .value_dim = 32};
  AttendCase<mha::bfloat16> c(random, sizes, MaskKind::causal);
  Work<float> work;  // the counters of one launch serve the next
  run<HostMachine, Brain64>(c, 5, work);
  const std::vector<mha::bfloat16> first = c.output_memory();
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    c.reset();
    run<HostMachine, Brain64>(c, 5, work, {seed == 0 ? Order::backward : Order::shuffled, seed});
    EXPECT_EQ(support::differing(first, c.output_memory()), 0u);
  }
}

template <class Tile>
void expect_flaws_noticed(const AttendSizes& sizes, std::initializer_list<support::gpu::Seed> seeds) {
  Random random("FewQueriesBody.Flaws");
  using T = typename Tile::Scalar;
  AttendCase<T> c(random, sizes, MaskKind::causal);
  c.values()(0, sizes.keys - 1, 0, 3) = T(std::numeric_limits<float>::quiet_NaN());  // the last query's only
  const auto right = [&] {
    c.reset();
    Work<typename Tile::Number> work;
    run<FaultyMachine, Tile>(c, 2, work);
    support::Worst worst;
    c.check(worst, bound<T>());
    return worst.error() <= 1 && work.counters[0] == 0;
  };
  EXPECT_EQ(support::gpu::unnoticed(right, seeds), std::vector<std::string>{});
}

TEST(FewQueriesBody, ChecksOfThisFileNoticeFlaws) {
  AttendSizes sizes{.queries = 2, .keys = 300, .heads = 4, .kv_heads = 1, .dim = 56, .value_dim = 48};
  expect_flaws_noticed<FewOnFma<float, 2, 64>>(sizes, {{Flaw::no_sync},
                                                       {Flaw::no_sync_warp},
                                                       {Flaw::no_wait},
                                                       {Flaw::shorter_wait},
                                                       {Flaw::no_zero_fill},
                                                       {Flaw::other_lane},
                                                       {Flaw::no_shuffle},
                                                       {Flaw::vote_false},
                                                       {Flaw::no_fence}});
  expect_flaws_noticed<Brain64>(
      sizes, {{Flaw::no_sync},    {Flaw::no_sync_warp, 1}, {Flaw::no_sync_warp, 2}, {Flaw::no_sync_warp, 3},
              {Flaw::no_wait},    {Flaw::shorter_wait},    {Flaw::no_zero_fill},    {Flaw::other_lane},
              {Flaw::no_shuffle}, {Flaw::vote_false},      {Flaw::vote_true},       {Flaw::no_fence},
              {Flaw::swapped_a},  {Flaw::swapped_b},       {Flaw::swapped_d},       {Flaw::no_transpose},
              {Flaw::transpose},  {Flaw::other_place},     {Flaw::swapped_pack},    {Flaw::lane_absent}});
  sizes.keys = 60;  // the first stages of a ring, where sums are left at the end, are the last that are read
  expect_flaws_noticed<Brain64>(sizes, {{Flaw::no_sync_warp}});
  sizes.keys = 300;
  sizes.rows = Rows::odd;
  expect_flaws_noticed<FewOnFma<float, 2, 64>>(sizes,
                                               {{Flaw::no_sync}, {Flaw::no_sync_warp, 1}, {Flaw::no_sync_warp, 2}});
}

}  // namespace
