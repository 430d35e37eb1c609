// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/backend/weights.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "kv_copies.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
constexpr double inf = std::numeric_limits<double>::infinity();

/// Hides pairs without a pattern, and all of head 1's row 5.
struct Spotted {
  bool operator()(Index b, Index h, Index q, Index k) const {
    return (7 * q + 5 * k + 3 * h + b) % 4 != 0 && !(h == 1 && q == 5);
  }
};
/// Hides by −∞.
struct Cut {
  template <class T> T operator()(T s, Index, Index, Index q, Index k) const {
    return k == q - 1 ? mha::minus_infinity<T>() : s;
  }
};

template <class T> struct Numbers {
  Tensor<T, 4> q, k;
  Numbers(Index batch, Index queries, Index keys, support::Random& random)
      : q(batch, queries, 4, 6), k(batch, keys, 2, 6) {
    random.fill(q);
    random.fill(k);
  }
};

template <class T, class M, class S>
mha::AttendCall<T, mha::ContiguousKv<T>, M, S> call_of(const Numbers<T>& n, const M& mask, const S& score,
                                                       const mha::CallShape& shape, const Index* offsets = nullptr) {
  mha::AttendCall<T, mha::ContiguousKv<T>, M, S> call{
      n.q.view(), {n.k.view(), n.k.view()}, mask, score, {}, {}, shape, 2, 6, 6, 0.5};
  call.q_offsets = offsets;
  if (offsets != nullptr) call.kv.offsets = {offsets, shape.batch + 1};
  return call;
}

/// The largest difference of the items' softmax, written over poison, to the reference's.
template <class Call> double error(const Call& call) {
  using A = mha::Accumulator<typename Call::Scalar>;
  const mha::CallShape& s = call.shape;
  Tensor<A, 4> to(s.batch, s.heads, s.queries, s.keys), expected(s.batch, s.heads, s.queries, s.keys);
  support::poison_all(to);
  mha::detail::run_softmax(call, to.view(), mha::detail::SerialItems{});
  mha::Workspace none;
  mha::Reference{}.weights(call, expected.view(), none);
  double worst = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const double a = to.data()[i], e = expected.data()[i];
    if (std::isnan(e) && std::isnan(a)) continue;
    if (e == 0 && a != 0) return inf;  // hidden is exactly 0
    worst = support::maximum(worst, std::abs(a - e));
  }
  return worst;
}

TEST(SoftmaxItems, ReadKeysInEightBits) {
  support::Random random("softmax items of 8 bits");
  Numbers<float> n(2, 9, 13, random);
  const auto rows = support::in_eight_bits(n.k);
  const mha::CallShape shape{2, 4, 9, 13, 4};
  const auto of_floats = call_of(n, mha::Causal{}, mha::NoScore{}, shape);
  const mha::AttendCall<float, mha::ContiguousKv<mha::scaled_int8>, mha::Causal, mha::NoScore> call{
      of_floats.q, {support::numbers_of(rows), support::numbers_of(rows)}, {}, {}, {}, {}, shape, 2, 6, 6, 0.5};
  Tensor<float, 4> to(2, 4, 9, 13), expected(2, 4, 9, 13);
  mha::detail::run_softmax(call, to.view(), mha::detail::SerialItems{});
  mha::detail::run_softmax(of_floats, expected.view(), mha::detail::SerialItems{});
  EXPECT_EQ(support::differing(to, expected), 0u);
}

TEST(SoftmaxItems, AgreeWithTheReference) {
  support::Random random("softmax items");
  const Numbers<double> n(2, 9, 13, random);
  const mha::CallShape shape{2, 4, 9, 13, 4};
  EXPECT_LE(error(call_of(n, mha::Full{}, mha::NoScore{}, shape)), 1e-15);
  EXPECT_LE(error(call_of(n, mha::Causal{}, mha::Alibi{}.prepared(shape), shape)), 1e-15);
  EXPECT_LE(error(call_of(n, Spotted{}, mha::Chain{mha::SoftCap{2}, Cut{}}, shape)), 1e-15);
  const Numbers<mha::bfloat16> narrow(2, 9, 13, random);
  EXPECT_LE(error(call_of(narrow, mha::Causal{}, mha::NoScore{}, shape)), 1e-6);
}

TEST(SoftmaxItems, AddTheSinkOfTheirHead) {
  support::Random random("softmax items, sink");
  const Numbers<double> n(1, 5, 7, random);
  auto call = call_of(n, Spotted{}, mha::NoScore{}, {1, 4, 5, 7, 2});
  const float sinks[4] = {0.5f, -3, 2, -std::numeric_limits<float>::infinity()};
  call.sink = mha::Borrowed<float>(sinks, 4);
  EXPECT_LE(error(call), 1e-15);
}

TEST(SoftmaxItems, LeaveEmptyRowsAndWhatLiesBeyondASequenceZero) {
  support::Random random("softmax items, ragged");
  const Numbers<double> n(1, 20, 20, random);
  const std::vector<Index> offsets{0, 3, 3, 12, 20};
  mha::CallShape shape{4, 4, 9, 9, 0, offsets.data()};
  EXPECT_LE(error(call_of(n, mha::Causal{}, mha::NoScore{}, shape, offsets.data())), 1e-15);
  EXPECT_LE(error(call_of(n, mha::Full{}, mha::NoScore{}, shape, offsets.data())), 1e-15);
  const Numbers<double> late(1, 9, 4, random);  // the first 5 queries come before every key
  EXPECT_LE(error(call_of(late, mha::Causal{}, mha::NoScore{}, {1, 4, 9, 4, -5})), 1e-15);
}

TEST(SoftmaxItems, LeavePositionsThatTheSourceHasDroppedZero) {
  support::Random random("softmax items, ring");
  const Numbers<double> n(2, 9, 23, random);
  const support::RingCopy<double> ring(n.k.view(), n.k.view(), {23, 6}, 9, 2);
  const mha::AttendCall<double, mha::RingKv<double>, mha::Full, mha::NoScore> call{
      n.q.view(), ring.source(), {}, {}, {}, {}, {2, 4, 9, 23, 14}, 2, 6, 6, 0.5};
  EXPECT_LE(error(call), 1e-15);
  Tensor<double, 4> to(2, 4, 9, 23);
  mha::detail::run_softmax(call, to.view(), mha::detail::SerialItems{});
  for (Index b = 0; b < 2; ++b)
    for (Index k = 0; k < 23; ++k) EXPECT_EQ(to(b, 3, 8, k) != 0, ring.holds(b, k)) << b << ' ' << k;
}

TEST(SoftmaxItems, KeepNanThatIsSeenAndNoOther) {
  support::Random random("softmax items, NaN");
  Numbers<double> n(1, 6, 6, random);
  for (Index d = 0; d < 6; ++d) n.k(0, 5, 1, d) = std::nan("");  // the last key of heads 2 and 3
  EXPECT_LE(error(call_of(n, mha::Causal{}, mha::NoScore{}, {1, 4, 6, 6, 0})), 1e-15);
  for (Index l = 0; l < 6; ++l)
    for (Index d = 0; d < 6; ++d) n.k(0, l, 1, d) = std::nan("");
  EXPECT_LE(error(call_of(n, mha::Causal{}, mha::NoScore{}, {1, 4, 6, 6, 0})), 1e-15);
}

TEST(DropItems, MultiplyEveryWeightByItsFactor) {
  support::Random random("drop items");
  const std::vector<Index> origins{3, -4};
  const mha::CallShape shape{2, 3, 5, 11, mha::Origins(origins.data())};
  const mha::DropoutDraws draws = mha::detail::dropout_draws(0.4, mha::DropoutSeed{random.engine()(), 2});
  Tensor<float, 4> to(2, 3, 5, 11);
  random.fill(to);
  const auto before = to;
  mha::detail::SerialItems{}(mha::detail::drop_items(draws, shape, to.view()));
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 3; ++h)
      for (Index i = 0; i < 5; ++i)
        for (Index k = 0; k < 11; ++k) {
          const double factor =
              draws.factor(static_cast<std::uint32_t>(3 * b + h), origins[static_cast<std::size_t>(b)] + i, k);
          EXPECT_EQ(to(b, h, i, k), before(b, h, i, k) * static_cast<float>(factor));
        }
}

}  // namespace
