// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention_backward.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/alibi_slopes.hpp>
#include <mha/policy/score/softcap.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "gradient_oracles.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using One = mha::EigenCpuWith<mha::Serial>;

static_assert(mha::DifferentiatesAttention<mha::EigenCpu, float>);

/// Gradients of the case within the scalar's bound of the Reference's in double.
template <class T, class G, class Expected>
void expect_near(const BackwardCase<T>& c, const G& g, const Expected& expected) {
  // A query that sees one key has the gradient 0, the difference of two sums, one of which is of rounded outputs.
  const double least = 0.3 * std::sqrt(support::inner(c.d_out, c.d_out)), bound = support::gradient_bound<T>;
  EXPECT_LT(support::relative_error(g.query, expected.query, least), bound);
  EXPECT_LT(support::relative_error(g.key, expected.key, least), bound);
  EXPECT_LT(support::relative_error(g.value, expected.value, least), bound);
  ASSERT_EQ(g.sink.size(), expected.sink.size());
  EXPECT_LE(support::relative_error(g.sink, expected.sink, 1), bound);
}
template <class T, class... Extra>
void expect_right(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  SCOPED_TRACE(name);
  const BackwardCase<T> c(name, n);
  expect_near(c, c.template gradients<One>(extra...),
              c.template as<double>().template gradients<mha::Reference>(extra...));
}

template <class T> class EigenBackward : public testing::Test {};
using Scalars = testing::Types<float, mha::bfloat16>;
TYPED_TEST_SUITE(EigenBackward, Scalars);

TYPED_TEST(EigenBackward, EqualsTheReferenceOverTilesAndPieces) {
  using T = TypeParam;
  support::Random random("sizes");
  const auto sizes = [&] {
    const int kv_heads = 1 + random.below(2);
    return BackwardSizes{
        1 + random.below(2),  1 + random.below(200), 1 + random.below(300), kv_heads * (1 + random.below(2)), kv_heads,
        1 + random.below(20), 1 + random.below(20)};
  };
  const auto thirds = mha::mask([](auto, auto h, auto q, auto k) { return (q * k + h) % 3 != 0; });
  expect_right<T>("full", sizes());
  expect_right<T>("causal", {1, 170, 301, 2, 1, 16, 8}, mha::Causal{});
  expect_right<T>("more queries than keys", {1, 201, 97, 2, 1, 16, 24}, mha::Causal{});
  expect_right<T>("one query", {2, 1, 200, 4, 2, 24, 8}, mha::Causal{});
  expect_right<T>("holes", sizes(), thirds, mha::Scale{0.4});
  const BackwardSizes m = sizes();
  expect_right<T>("window, sink, dropout", m, mha::SlidingWindow{.left = 20, .right = 3},
                  mha::Sink(std::vector<float>(static_cast<std::size_t>(m.heads), 0.75f)), mha::Dropout{.p = 0.3f},
                  mha::DropoutSeed{support::seed()});
  expect_right<T>("scores", sizes(), mha::SoftCap{0.7f}, mha::Alibi{}, mha::Origin{5}, mha::Causal{});
}

TEST(EigenBackwardRows, DifferentiateThroughTheLogSumExpBesideASink) {
  const BackwardSizes n{2, 90, 70, 4, 2, 24, 16};  // the first queries see no key
  const BackwardCase<float> c("log-sum-exp", n);
  const BackwardCase<double> wide = c.as<double>();
  mha::Tensor<float, 3> d_lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  mha::Tensor<double, 3> wide_d_lse(n.batch, n.heads, n.queries);
  std::copy(d_lse.begin(), d_lse.end(), wide_d_lse.begin());
  const mha::Sink sink({300.f, -1.f, 95.f, 0.5f});  // of the first, weights beside the sink underflow
  const auto on = [&](const auto& at, const auto& d, const auto& backend) {
    mha::AttentionTape<mha::ScalarOf<decltype(at.q)>, std::remove_cvref_t<decltype(backend)>> tape;
    const auto out = mha::attention(at.q, at.k, at.v, mha::Causal{}, sink, backend, mha::record(tape));
    return mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, mha::Causal{}, sink, backend,
                                   mha::LogSumExpGradient(d));
  };
  const auto found = on(c, d_lse, One{});
  const auto expected = on(wide, wide_d_lse, mha::Reference{});
  expect_near(c, found, expected);
  for (Index h = 0; h < n.heads; ++h) {  // alone, or the other heads hide its error
    double error = 0, size = 0;
    for (Index i = 0; i < n.queries; ++i)
      for (Index d = 0; d < n.head_dim; ++d) {
        error += std::abs(found.query(1, i, h, d) - expected.query(1, i, h, d));
        size += std::abs(expected.query(1, i, h, d));
      }
    EXPECT_LT(error, 2e-5 * size) << h;
  }
}

TEST(EigenBackwardRows, HaveGradientsInLongDouble) {
  const BackwardCase<long double> c("long double", {1, 40, 210, 2, 1, 12, 20});
  const auto expected = c.gradients<mha::Reference>(mha::Causal{}, mha::Sink({0.5f, -1.f}));
  const auto g = c.gradients<One>(mha::Causal{}, mha::Sink({0.5f, -1.f}));
  const auto largest = [](const auto& a, const auto& b) {
    long double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a.data()[i] - b.data()[i]));
    return most;
  };
  EXPECT_LT(largest(g.query, expected.query), 1e-17L);
  EXPECT_LT(largest(g.key, expected.key), 1e-17L);
  EXPECT_LT(largest(g.value, expected.value), 1e-17L);
  EXPECT_LT(largest(g.sink, expected.sink), 1e-16L);
}

TEST(EigenBackwardRows, KeepThoseWhoseLogitsAreFarFromZero) {
  EXPECT_LT(support::FarRows<float>().error<One>(), 5e-6);
  EXPECT_LT(support::FarRows<double>().error<One>(), 1e-6);  // what double keeps of a logit beside −10⁹
}

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(EigenBackwardRows, HiddenNaNIsInertAndAVisibleOnePropagates) {
  const BackwardSizes n{1, 170, 230, 2, 1, 20, 12};
  const BackwardCase<float> clean_case("nan", n);
  BackwardCase<float> c = clean_case;
  const mha::Origin origin{30};
  const auto clean = c.gradients<One>(mha::Causal{}, mha::SoftCap{3.f}, origin);
  for (Index d = 0; d < 12; ++d) c.v(0, 130, 0, d) = c.k(0, 130, 0, d) = nan;  // query 100 is the first that sees it
  const auto keys = c.gradients<One>(mha::Causal{}, mha::SoftCap{3.f}, origin);
  for (Index i = 0; i < 100; ++i)
    for (Index d = 0; d < 20; ++d) EXPECT_NEAR(keys.query(0, i, 1, d), clean.query(0, i, 1, d), 1e-5);
  EXPECT_TRUE(std::isnan(keys.query(0, 100, 0, 0)));
  EXPECT_TRUE(std::isnan(keys.key(0, 3, 0, 0)));
  EXPECT_TRUE(std::isnan(keys.value(0, 130, 0, 0)));
  EXPECT_EQ(keys.key(0, 201, 0, 3), 0);  // nobody sees it

  BackwardCase<float> other = clean_case;
  for (Index d = 0; d < 12; ++d) other.d_out(0, 60, 1, d) = other.q(0, 60, 1, d) = nan;
  const auto queries = other.gradients<One>(mha::Causal{}, mha::SoftCap{3.f}, origin);
  for (Index k = 91; k < 200; ++k)
    for (Index d = 0; d < 12; ++d) {
      EXPECT_NEAR(queries.key(0, k, 0, d), clean.key(0, k, 0, d), 1e-5);
      EXPECT_NEAR(queries.value(0, k, 0, d), clean.value(0, k, 0, d), 1e-5);
    }
  for (Index k = 0; k <= 90; ++k) EXPECT_TRUE(std::isnan(queries.value(0, k, 0, 0)));
  EXPECT_TRUE(std::isnan(queries.query(0, 60, 1, 3)));
  EXPECT_EQ(queries.query(0, 60, 0, 3), clean.query(0, 60, 0, 3));
  EXPECT_NEAR(queries.query(0, 61, 1, 3), clean.query(0, 61, 1, 3), 1e-5);
}

TEST(EigenBackwardRows, EmptyOnesGiveExactlyNothing) {
  BackwardCase<float> c("empty", {2, 90, 40, 2, 1, 8, 8});  // 50 queries see no key
  const auto clean = c.gradients<One>(mha::Causal{});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 50; ++i)
      for (Index d = 0; d < 8; ++d) c.d_out(b, i, 0, d) = c.q(b, i, 1, d) = nan;
  const auto g = c.gradients<One>(mha::Causal{});
  expect_near(c.as<double>(), g, clean);
  for (Index h = 0; h < 2; ++h)
    for (Index d = 0; d < 8; ++d) EXPECT_EQ(support::bits(g.query(1, 49, h, d)), 0u);
}

/// Products of finite operands that overflow, in pairs that are hidden.
TEST(EigenBackwardRows, HiddenPairsThatOverflowAddNothing) {
  BackwardCase<float> c("overflow", {1, 3, 3, 1, 1, 4, 4});
  const auto clean = c.gradients<One>(mha::Causal{});
  for (Index d = 0; d < 4; ++d) c.v(0, 2, 0, d) = c.d_out(0, 0, 0, d) = 1e30f;  // the first query does not see the key
  const auto g = c.gradients<One>(mha::Causal{});
  for (Index d = 0; d < 4; ++d) EXPECT_NEAR(g.query(0, 1, 0, d), clean.query(0, 1, 0, d), 1e-6);
  for (Index d = 0; d < 4; ++d) EXPECT_TRUE(std::isfinite(g.key(0, 2, 0, d)));
}

TEST(EigenBackwardCall, HasTheSameBitsForAnyThreads) {
  // Pieces of one head, two of queries and of keys; heads whose keys are in two pieces, and in one.
  for (const BackwardSizes n : {BackwardSizes{1, 310, 450, 1, 1, 16, 16}, BackwardSizes{2, 61, 350, 4, 2, 24, 40},
                                BackwardSizes{3, 41, 99, 6, 2, 32, 32}}) {
    const BackwardCase<float> c("threads", n);
    const mha::Sink sink(std::vector<float>(static_cast<std::size_t>(n.heads), 0.5f));
    const auto on = [&](const auto& backend) {
      mha::AttentionTape<float, std::remove_cvref_t<decltype(backend)>> tape;
      const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, sink, backend, mha::record(tape));
      return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, sink, backend);
    };
    const auto alone = on(One{});
    for (const int threads : {1, 2, 3, 5}) {
      const auto g = on(mha::EigenCpu(mha::ThreadPool(threads)));
      EXPECT_EQ(support::differing(g.query, alone.query), 0u);
      EXPECT_EQ(support::differing(g.key, alone.key), 0u);
      EXPECT_EQ(support::differing(g.value, alone.value), 0u);
      EXPECT_EQ(support::differing(g.sink, alone.sink), 0u);
    }
  }
}

TEST(EigenBackwardCall, WritesWhatIsWantedAnyStridesAndAdds) {
  const BackwardSizes n{2, 50, 60, 4, 2, 12, 20};
  const BackwardCase<mha::bfloat16> c("destinations", n);
  mha::AttentionTape<mha::bfloat16, One> tape;
  mha::Workspace workspace;
  const auto out = mha::attention<One>(c.q, c.k, c.v, mha::record(tape), workspace);
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, workspace);
  mha::Tensor<float, 4> dq(2, 50, 4, 12), wide(2, 60, 2, 20);
  std::vector<float> transposed(2 * 60 * 2 * 20, 3.f);
  const mha::TensorView<float, 4> dv{transposed.data(), {2, 60, 2, 20}, {60 * 2 * 20, 1, 60 * 20, 60}};
  const int allocations = workspace.allocations();
  mha::attention_backward_into({dq, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, workspace);
  mha::attention_backward_into({{}, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, workspace);
  mha::attention_backward_into({{}, {}, wide}, c.d_out, c.q, c.k, c.v, out, tape, workspace);
  EXPECT_EQ(workspace.allocations(), allocations);
  for (std::size_t i = 0; i < dq.size(); ++i)
    EXPECT_EQ(support::bits(mha::bfloat16(dq.data()[i])), support::bits(g.query.data()[i]));
  for (Index k = 0; k < 60; ++k)
    for (Index d = 0; d < 20; ++d) EXPECT_EQ(dv(1, k, 1, d), (3 + wide(1, k, 1, d)) + wide(1, k, 1, d));
}

TEST(EigenBackwardCall, OfARaggedBatchIsTheSequencesApart) {
  const std::vector<Index> queries{0, 70, 70, 75}, keys{0, 20, 60, 260};
  const BackwardCase<float> c("ragged", {1, 75, 260, 4, 2, 16, 24});
  const auto ragged = c.gradients<mha::EigenCpu>(mha::Causal{}, mha::Ragged{queries, keys});
  expect_near(c, ragged, c.as<double>().gradients<mha::Reference>(mha::Causal{}, mha::Ragged{queries, keys}));
  for (Index k = 20; k < 60; ++k) EXPECT_EQ(ragged.value(0, k, 0, 0), 0);  // the second has no queries
}

TEST(EigenBackwardCall, IsQuietWhereThereIsNothing) {
  const auto sizes = [](const BackwardSizes& n) { return BackwardCase<float>("empty", n).gradients<One>(); };
  EXPECT_EQ(sizes({2, 0, 5, 2, 1, 8, 8}).query.size(), 0u);
  for (const float x : sizes({2, 0, 5, 2, 1, 8, 8}).value) EXPECT_EQ(x, 0.f);
  for (const float x : sizes({2, 3, 0, 2, 1, 8, 8}).query) EXPECT_EQ(x, 0.f);
  EXPECT_EQ(sizes({0, 3, 4, 2, 1, 8, 8}).query.size(), 0u);
}

/// A layer is trained as the Reference's is.
TEST(EigenBackwardLayer, HasTheGradientsOfTheReference) {
  support::Random random("layer by Eigen");
  mha::Tensor<double, 3> x(2, 45, 24), dy(2, 45, 24);
  random.fill(x);
  random.fill(dy);
  const auto gradients = [&]<class B>(const B&) {
    mha::MultiHeadAttention<double, B, mha::GroupedQuery<2>, mha::Causal, mha::SoftCap, mha::Rotary<>, mha::QkNorm,
                            mha::GatedHeads, mha::Sink>
        layer({.d_model = 24, .num_heads = 4, .bias = true}, mha::Sink({0.f, 1.f, -1.f, 0.5f}), mha::SoftCap{4});
    layer.initialize(mha::XavierUniform{.seed = 7});
    auto tape = layer.tape();
    auto to = layer.gradients();
    static_cast<void>(layer(x, tape));
    const auto dx = layer.backward(dy, tape, to);
    std::vector<double> all(dx.begin(), dx.end());
    all.insert(all.end(), to.flat().begin(), to.flat().end());
    for (Index h = 0; h < 4; ++h) all.push_back(to.sink(h));
    return all;
  };
  const auto found = gradients(mha::EigenCpu{}), expected = gradients(mha::Reference{});
  ASSERT_EQ(found.size(), expected.size());
  double most = 0;
  for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] - expected[i]));
  EXPECT_LT(most, 1e-11);
}

TEST(EigenBackward, TrainsTheNumbersOfScores) {
  const BackwardCase<double> c("numbers of scores", BackwardSizes{2, 310, 133, 4, 2, 5, 6});
  const mha::AlibiSlopes slopes({0.5f, 0.25f, -0.125f, 0.f});
  const auto expect = [&](const auto&... extra) {
    const auto numbers = [&]<class B>(const B&) {
      mha::AttentionTape<double, B> tape;
      const mha::SoftCap cap{0.7f};
      const auto out = mha::attention<B>(c.q, c.k, c.v, cap, extra..., mha::record(tape));
      mha::SoftCap of_cap{7};
      mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, cap, extra...,
                                   mha::ScoreGradient(of_cap));
      const auto of_slopes = c.gradients<B>(slopes, extra...).score;
      std::vector<double> all(of_slopes.per_head().begin(), of_slopes.per_head().end());
      all.push_back(double(of_cap.cap));
      return all;
    };
    const std::vector<double> found = numbers(mha::EigenCpu{}), expected = numbers(mha::Reference{});
    ASSERT_EQ(found.size(), 5u);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NE(expected[i], 0) << i;
      EXPECT_NEAR(found[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << i;
    }
  };
  expect();
  expect(mha::Causal{});
}

}  // namespace
