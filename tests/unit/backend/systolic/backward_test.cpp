// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "gradient_oracles.hpp"
#include "one_head.hpp"
#include "operands.hpp"
#include "random.hpp"
#include "units.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
namespace systolic = mha::detail::systolic;
template <class Threads> using On = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>;
using One = On<mha::Serial>;

struct Bent {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return mha::tanh(s * 0.5f) * (1 + 0.25f * static_cast<float>(h) + 0.125f * static_cast<float>(b)) -
           0.1f * static_cast<float>(mha::abs(q - k));
  }
};
template <class T = float> struct Distance {
  T slope;
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * static_cast<float>(mha::abs(q - k));
  }
};

class SystolicBackward : public unit::OnUnit {};
INSTANTIATE_TEST_SUITE_P(Units, SystolicBackward, testing::ValuesIn(systolic::all_units), unit::unit_name);

/// Numbers that bfloat16 has, in float.
BackwardCase<float> rounded_case(const std::string& name, const BackwardSizes& n) {
  return BackwardCase<float>(name, n).as<mha::bfloat16>().as<float>();
}

/// The bound of systolic/backward.hpp, term by term, for one head, no score and no sink.
template <class M> void expect_within_the_bound(const BackwardSizes& n, const M& mask, double most_logit) {
  auto c = rounded_case("bound", n);
  for (float& x : c.q) x = float(mha::bfloat16(x * static_cast<float>(most_logit)));
  const auto g = c.gradients<One>(mask);
  const auto scale = static_cast<double>(static_cast<float>(1 / std::sqrt(double(n.head_dim))));
  const Index origin = n.keys - n.queries;
  using Matrix = std::vector<std::vector<double>>;
  const auto rows = [](Index count, Index dim) {
    return Matrix(static_cast<std::size_t>(count), std::vector<double>(static_cast<std::size_t>(dim)));
  };
  Matrix dk = rows(n.keys, n.head_dim), dk_bound = dk, dv = rows(n.keys, n.value_dim), dv_bound = dv;
  const auto at = [](Matrix& m, Index i, Index d) -> double& {
    return m[static_cast<std::size_t>(i)][static_cast<std::size_t>(d)];
  };
  const double ulp = 0x1p-24, rounding = 0x1p-8;  // 2^-9 each of what is rounded and of what it is rounded from
  double largest_ratio = 0;
  const auto check = [&](double is, double exact, double bound) {
    ASSERT_LE(std::abs(is - exact), bound + 1e-30);
    if (bound > 0) largest_ratio = std::max(largest_ratio, std::abs(is - exact) / bound);
  };
  for (Index i = 0; i < n.queries; ++i) {
    std::vector<double> s(static_cast<std::size_t>(n.keys)), dp = s, w = s, dp_size = s;
    double most = -INFINITY, size = 0;
    for (Index k = 0; k < n.keys; ++k) {
      const auto j = static_cast<std::size_t>(k);
      double products = 0;
      for (Index d = 0; d < n.head_dim; ++d) {
        s[j] += scale * double(c.q(0, i, 0, d)) * double(c.k(0, k, 0, d));
        products += scale * std::abs(double(c.q(0, i, 0, d)) * double(c.k(0, k, 0, d)));
      }
      for (Index d = 0; d < n.value_dim; ++d) {
        dp[j] += double(c.d_out(0, i, 0, d)) * double(c.v(0, k, 0, d));
        dp_size[j] += std::abs(double(c.d_out(0, i, 0, d)) * double(c.v(0, k, 0, d)));
      }
      if (!mask(0, 0, origin + i, k)) s[j] = -INFINITY;
      if (s[j] != -INFINITY) size = std::max(size, products);
      most = std::max(most, s[j]);
    }
    double sum = 0, mean = 0, spread = 0, float_error = 0;
    for (std::size_t j = 0; j < s.size(); ++j) sum += w[j] = most == -INFINITY ? 0 : std::exp(s[j] - most);
    for (std::size_t j = 0; j < s.size() && sum > 0; ++j) mean += (w[j] /= sum) * dp[j];
    for (std::size_t j = 0; j < s.size(); ++j) spread += w[j] * std::abs(dp[j] - mean);
    const double eta = (n.head_dim + 8) * ulp * size, epsilon = 0x1p-7 + 1e-4 + 2 * eta;
    const double delta = (1 + epsilon) / (1 - epsilon) - 1 + 1e-5;
    for (std::size_t j = 0; j < s.size(); ++j) float_error += w[j] * dp_size[j];
    float_error *= (1 + delta) * (n.keys + 2 * n.value_dim + 16) * 2 * ulp;
    std::vector<double> dq(static_cast<std::size_t>(n.head_dim)), dq_bound = dq;
    for (Index k = 0; k < n.keys; ++k) {
      const auto j = static_cast<std::size_t>(k);
      const double ds = w[j] * (dp[j] - mean);
      const double d_error = (1 + delta) * w[j] * (delta * spread + float_error + 4 * n.value_dim * ulp * dp_size[j]);
      const double ds_bound = (delta * std::abs(ds) + d_error) * (1 + rounding) + std::abs(ds) * rounding;
      const double sums = (n.keys + n.queries) * 2 * ulp;
      const double all_ds = ds_bound + sums * (std::abs(ds) + ds_bound);
      const double p_bound = ((1 + delta) * (1 + rounding) * (1 + sums) - 1) * w[j];
      for (Index d = 0; d < n.head_dim; ++d) {
        const auto x = static_cast<std::size_t>(d);
        const double key = scale * double(c.k(0, k, 0, d)), query = scale * double(c.q(0, i, 0, d));
        dq[x] += ds * key;
        dq_bound[x] += all_ds * std::abs(key);
        at(dk, k, d) += ds * query;
        at(dk_bound, k, d) += all_ds * std::abs(query);
      }
      for (Index d = 0; d < n.value_dim; ++d) {
        at(dv, k, d) += w[j] * double(c.d_out(0, i, 0, d));
        at(dv_bound, k, d) += p_bound * std::abs(double(c.d_out(0, i, 0, d)));
      }
    }
    for (Index d = 0; d < n.head_dim; ++d) {
      const auto x = static_cast<std::size_t>(d);
      check(double(g.query(0, i, 0, d)), dq[x], dq_bound[x]);
    }
  }
  for (Index k = 0; k < n.keys; ++k) {
    for (Index d = 0; d < n.head_dim; ++d) check(double(g.key(0, k, 0, d)), at(dk, k, d), at(dk_bound, k, d));
    for (Index d = 0; d < n.value_dim; ++d) check(double(g.value(0, k, 0, d)), at(dv, k, d), at(dv_bound, k, d));
  }
  EXPECT_GT(largest_ratio, 0.05);  // a bound, not a wish
}

TEST_P(SystolicBackward, StaysWithinItsErrorBound) {
  expect_within_the_bound({1, 150, 170, 1, 1, 40, 24}, mha::Full{}, 1);
  expect_within_the_bound({1, 190, 190, 1, 1, 64, 64}, mha::Causal{}, 1);
  expect_within_the_bound({1, 100, 300, 1, 1, 96, 33}, mha::SlidingWindow{.left = 70, .right = 3}, 4);
  expect_within_the_bound({1, 5, 9000, 1, 1, 24, 17}, mha::Causal{}, 3);  // three chunks that are merged
}

template <class T, class... Extra>
void expect_right(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  SCOPED_TRACE(name);
  const auto c = rounded_case(name, n).template as<T>();
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  const auto g = c.template gradients<One>(extra...);
  // A query that sees one key has the gradient 0, the difference of two sums; few keys leave much of the rounding of
  // weights and dS. StaysWithinItsErrorBound has the bound that holds for each number.
  const double least = 0.2 * std::sqrt(support::inner(c.d_out, c.d_out)), bound = 0.05;
  EXPECT_LT(support::relative_error(g.query, expected.query, least), bound);
  EXPECT_LT(support::relative_error(g.key, expected.key, least), bound);
  EXPECT_LT(support::relative_error(g.value, expected.value, least), bound);
  if (expected.sink.size() > 0) {
    EXPECT_LT(support::relative_error(g.sink, expected.sink, least), bound);
  }
}

template <class T> void expect_right_everywhere() {
  support::Random random("sizes");
  const auto sizes = [&] {
    const int kv_heads = 1 + random.below(3);
    return BackwardSizes{
        1 + random.below(2),  1 + random.below(150), 1 + random.below(290), kv_heads * (1 + random.below(2)), kv_heads,
        1 + random.below(70), 1 + random.below(70)};
  };
  expect_right<T>("full", sizes());
  expect_right<T>("causal", sizes(), mha::Causal{});
  expect_right<T>("more queries than keys", {1, 201, 97, 2, 1, 16, 32}, mha::Causal{});
  const auto windowed = sizes();
  expect_right<T>("window", windowed, mha::SlidingWindow{.left = 20, .right = 3},
                  mha::Scale{1.5 / std::sqrt(windowed.head_dim)});
  expect_right<T>("mask of a user", sizes(),
                  mha::mask([](auto, auto h, auto q, auto k) { return (q * k + h) % 3 != 0; }));
  expect_right<T>("soft cap", sizes(), mha::SoftCap{0.7f}, mha::Causal{});
  expect_right<T>("alibi", sizes(), mha::Alibi{});
  expect_right<T>("functor", sizes(), Bent{}, mha::Origin{5});
  const auto m = sizes();
  mha::Tensor<float, 4> bias(m.batch, m.heads, m.queries, m.keys);
  support::Random("bias").fill(bias);
  for (float& x : bias)
    if (x > 1) x = -std::numeric_limits<float>::infinity();
  expect_right<T>("bias", m, Bent{}, mha::AdditiveBias{bias});
  std::vector<float> sinks(static_cast<std::size_t>(m.heads));
  for (float& x : sinks) x = static_cast<float>(random.normal());
  expect_right<T>("sink", m, mha::Sink(sinks), mha::Causal{});
  const mha::Dropout dropout{.p = 0.3f};
  expect_right<T>("dropout", sizes(), dropout, mha::DropoutSeed{support::seed()});
  expect_right<T>("dropout, sink, window", m, mha::Sink(sinks), mha::SlidingWindow{.left = 150, .right = 3}, dropout,
                  mha::SoftCap{3.f}, mha::DropoutSeed{support::seed(), 2});
  expect_right<T>("one query", {2, 1, 200, 4, 2, 24, 8}, mha::Causal{});
  expect_right<T>("long", {1, 290, 310, 1, 1, 24, 40}, mha::Causal{});
}

TEST_P(SystolicBackward, IsNearTheReferenceInFloat) { expect_right_everywhere<float>(); }
TEST_P(SystolicBackward, IsNearTheReferenceInBfloat16) { expect_right_everywhere<mha::bfloat16>(); }
TEST_P(SystolicBackward, IsNearTheReferenceInHalf) { expect_right_everywhere<mha::half>(); }

TEST_P(SystolicBackward, ErrsAtMostTwiceAsMuchAsAPlain16BitImplementation) {
  for (const double size : {0.5, 1., 2.}) {
    BackwardCase<mha::bfloat16> c("plain", {1, 260, 260, 1, 1, 64, 64});
    for (auto& x : c.q) x = mha::bfloat16(static_cast<float>(x) * static_cast<float>(size));
    const auto plain = support::plain_16_bit(c);
    const auto expected = c.as<double>().gradients<mha::Reference>(mha::Causal{});
    const auto g = c.gradients<One>(mha::Causal{});
    EXPECT_LT(support::relative_error(g.query, expected.query), 2 * support::relative_error(plain.q, expected.query));
    EXPECT_LT(support::relative_error(g.key, expected.key), 2 * support::relative_error(plain.k, expected.key));
    EXPECT_LT(support::relative_error(g.value, expected.value), 2 * support::relative_error(plain.v, expected.value));
  }
}

TEST_P(SystolicBackward, KeepsRowsFarFromZeroBesideOthers) {
  EXPECT_LT(support::FarRows<mha::bfloat16>().error<One>(), 2e-2);
  EXPECT_LT(support::FarRows<float>().error<One>(), 2e-2);
}

template <class G> void expect_same_bits(const G& a, const G& b) {
  EXPECT_EQ(support::differing(a.query, b.query), 0u);
  EXPECT_EQ(support::differing(a.key, b.key), 0u);
  EXPECT_EQ(support::differing(a.value, b.value), 0u);
  EXPECT_EQ(support::differing(a.sink, b.sink), 0u);
}

/// One head on kernels of the test's.
struct OneHead : support::OneHead<One> {
  using support::OneHead<One>::OneHead;

  void run(const systolic::BackwardKernels& kernels) {
    const auto own = call();
    mha::Workspace workspace;
    systolic::attend_backward(systolic::AnyBackwardCall<float>(own, kernels.level), kernels, workspace, mha::Serial{});
  }
};

TEST_P(SystolicBackward, EveryUnitHasTheBitsOfItsEmulation) {
  for (const BackwardSizes n : {BackwardSizes{1, 230, 333, 1, 1, 40, 72}, BackwardSizes{1, 49, 70, 1, 1, 64, 33}}) {
    OneHead head(rounded_case("emulated", n));
    head.run(systolic::backward_kernels_of<mha::AmxArray>());
    OneHead emulated = head;
    const auto unit = systolic::emulated_unit(mha::order_of(GetParam()));
    emulated.run(systolic::backward_kernels({unit, unit, unit}, mha::current_isa()));
    EXPECT_EQ(unit::differing_floats(head.dq, emulated.dq), 0u);
    EXPECT_EQ(unit::differing_floats(head.dk, emulated.dk), 0u);
    EXPECT_EQ(unit::differing_floats(head.dv, emulated.dv), 0u);
  }
}

/// What this machine may not run: the order of AMX, by its emulation.
TEST(SystolicBackwardInEveryOrder, IsNearTheReference) {
  const auto c = rounded_case("orders", {1, 70, 140, 1, 1, 33, 40});
  const auto expected = c.as<double>().gradients<mha::Reference>(mha::Causal{});
  for (const mha::SumOrder order : {mha::SumOrder::chained, mha::SumOrder::split_chains, mha::SumOrder::pairs}) {
    OneHead head(c);
    const auto unit = systolic::emulated_unit(order);
    head.run(systolic::backward_kernels({unit, unit, unit}, mha::current_isa()));
    EXPECT_LT(support::relative_error(head.dq, expected.query), 0.02);
    EXPECT_LT(support::relative_error(head.dk, expected.key), 0.02);
    EXPECT_LT(support::relative_error(head.dv, expected.value), 0.02);
  }
}

/// Five products: those of visible blocks, counted once.
TEST_P(SystolicBackward, CountsWhatTheArrayDoes) {
  const BackwardSizes n{1, 150, 170, 2, 1, 40, 24};
  const BackwardCase<float> c("meter", n);
  mha::AttentionTape<float, One> tape;
  const auto out = mha::attention<One>(c.q, c.k, c.v, mha::record(tape));
  const mha::ArrayMeter meter;
  static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape));
  const mha::ArrayUse use = meter.use();
  EXPECT_EQ(use.useful, std::int64_t{n.heads} * n.queries * n.keys * (3 * n.head_dim + 2 * n.value_dim));
  EXPECT_GT(use.issued, use.useful);
}

TEST(SystolicBackwardOfOtherArrays, IsNearTheReference) {
  const auto c = rounded_case("arrays", {2, 100, 150, 2, 1, 40, 70});
  const auto expected = c.as<double>().gradients<mha::Reference>(mha::Causal{});
  const auto g = c.gradients<mha::Systolic<mha::TpuArray<128>, mha::DefaultPrecision, mha::Serial>>(mha::Causal{});
  EXPECT_LT(support::relative_error(g.query, expected.query), 0.02);
  EXPECT_LT(support::relative_error(g.key, expected.key), 0.02);
  EXPECT_LT(support::relative_error(g.value, expected.value), 0.02);
}

TEST_P(SystolicBackward, HasTheSameBitsForAnyThreads) {
  // Pieces of one head, two of queries and of keys; heads, whose keys are in two pieces, and in one.
  for (const BackwardSizes n : {BackwardSizes{1, 390, 450, 1, 1, 16, 16}, BackwardSizes{2, 49, 290, 4, 2, 24, 40},
                                BackwardSizes{3, 41, 99, 6, 2, 32, 32}}) {
    const BackwardCase<float> c("threads", n);
    const mha::Sink sink(std::vector<float>(static_cast<std::size_t>(n.heads), 0.5f));
    mha::Tensor<float, 3> d_lse(n.batch, n.heads, n.queries);
    support::Random("d_lse").fill(d_lse);
    const auto on = [&](const auto& backend, const auto&... dropout) {
      mha::AttentionTape<float, std::remove_cvref_t<decltype(backend)>> tape;
      const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, sink, backend, mha::record(tape), dropout...);
      return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, sink, backend,
                                     mha::LogSumExpGradient(d_lse), dropout...);
    };
    const mha::Dropout dropout{.p = 0.2f};
    const mha::DropoutSeed seed{support::seed()};
    const auto alone = on(One{}), dropped = on(One{}, dropout, seed);
    EXPECT_GT(support::differing(dropped.query, alone.query), 0u);
    expect_same_bits(on(One{}, dropout), alone);
    for (const int threads : {1, 2, 5}) {
      const On<mha::ThreadPool> pool(mha::ThreadPool{threads});
      expect_same_bits(on(pool), alone);
      expect_same_bits(on(pool, dropout, seed), dropped);
    }
  }
}

TEST_P(SystolicBackward, DifferentiatesThroughTheLogSumExpUnderALargeSinkToo) {
  const BackwardSizes n{2, 90, 110, 4, 2, 24, 16};
  const BackwardCase<float> c("log-sum-exp", n);
  const BackwardCase<double> wide = c.as<double>();
  mha::Tensor<float, 3> d_lse(n.batch, n.heads, n.queries);
  mha::Tensor<double, 3> wide_d_lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  std::copy(d_lse.begin(), d_lse.end(), wide_d_lse.begin());
  const mha::Sink sink({300.f, -1.f, 95.f, 0.5f});
  const auto on = [&](const auto& at, const auto& d, const auto& backend, const auto&... extra) {
    using T = mha::ScalarOf<decltype(at.q)>;
    mha::AttentionTape<T, std::remove_cvref_t<decltype(backend)>> tape;
    const auto out = mha::attention(at.q, at.k, at.v, backend, mha::record(tape), extra...);
    return mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, backend, mha::LogSumExpGradient(d), extra...);
  };
  const double least = 0.1 * std::sqrt(support::inner(c.d_out, c.d_out));
  const auto expect = [&](const auto&... extra) {
    const auto expected = on(wide, wide_d_lse, mha::Reference{}, extra...);
    const auto g = on(c, d_lse, One{}, extra...);
    EXPECT_LT(support::relative_error(g.query, expected.query, least), 0.01);
    EXPECT_LT(support::relative_error(g.key, expected.key, least), 0.01);
    EXPECT_LT(support::relative_error(g.value, expected.value, least), 0.01);
    if (g.sink.size() > 0) {
      EXPECT_LT(support::relative_error(g.sink, expected.sink, least), 0.01);
    }
  };
  expect();
  expect(sink);
  expect(sink, mha::Causal{}, mha::SoftCap{2.f});
}

TEST_P(SystolicBackward, AGradientDependsOnWhatItsRowSeesAlone) {
  const BackwardCase<float> c("rows", {3, 120, 200, 4, 2, 24, 16});
  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed()};
  const auto all = c.gradients<One>(mha::Causal{}), dropped = c.gradients<One>(mha::Causal{}, dropout, seed);
  for (Index b = 0; b < 3; ++b) {
    const auto one = [&](const mha::Tensor<float, 4>& t, Index first = 0) {
      mha::Tensor<float, 4> part(1, t.extent(1) - first, t.extent(2), t.extent(3));
      std::copy_n(&t(b, first, 0, 0), part.size(), part.data());
      return part;
    };
    BackwardCase<float> alone;
    alone.q = one(c.q);
    alone.k = one(c.k);
    alone.v = one(c.v);
    alone.d_out = one(c.d_out);
    const auto g = alone.gradients<One>(mha::Causal{});
    EXPECT_EQ(support::differing(g.query, one(all.query)), 0u);
    EXPECT_EQ(support::differing(g.key, one(all.key)), 0u);
    EXPECT_EQ(support::differing(g.value, one(all.value)), 0u);
    for (const Index first : {1, 50, 119}) {  // a query's, not on the others
      alone.q = one(c.q, first);
      alone.d_out = one(c.d_out, first);
      EXPECT_EQ(support::differing(alone.gradients<One>(mha::Causal{}).query, one(all.query, first)), 0u);
      if (b == 0) {
        EXPECT_EQ(
            support::differing(alone.gradients<One>(mha::Causal{}, dropout, seed).query, one(dropped.query, first)),
            0u);
      }
    }
  }
}

/// Query 5 sees the same keys, or key 5 the same queries, whatever their neighbours see.
struct Neighbours {
  bool of_query, see_more;
  bool operator()(Index, Index, Index q, Index k) const {
    return of_query ? k >= 32 || (see_more && q != 5) : q >= 32 || (see_more && k != 5);
  }
  mha::TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) const {
    Index seen = 0;
    for (Index q = q_begin; q < q_end; ++q)
      for (Index k = k_begin; k < k_end; ++k) seen += (*this)(b, h, q, k) ? 1 : 0;
    return seen == 0                                       ? mha::TileVisibility::none
           : seen == (q_end - q_begin) * (k_end - k_begin) ? mha::TileVisibility::full
                                                           : mha::TileVisibility::partial;
  }
};
template <class Backend> void expect_rows_alone(const char* name) {
  const BackwardCase<float> c(name, {1, 128, 128, 1, 1, 32, 32});
  const auto with = [&](bool of_query, bool see_more) { return c.gradients<Backend>(Neighbours{of_query, see_more}); };
  const auto few = with(true, false), all = with(true, true), none = with(false, false), some = with(false, true);
  EXPECT_NE(support::differing(few.query, all.query), 0u) << name;
  EXPECT_NE(support::differing(none.key, some.key), 0u) << name;
  for (Index d = 0; d < 32; ++d) {
    EXPECT_EQ(support::bits(few.query(0, 5, 0, d)), support::bits(all.query(0, 5, 0, d))) << name << d;
    EXPECT_EQ(support::bits(none.key(0, 5, 0, d)), support::bits(some.key(0, 5, 0, d))) << name << d;
    EXPECT_EQ(support::bits(none.value(0, 5, 0, d)), support::bits(some.value(0, 5, 0, d))) << name << d;
  }
}

TEST_P(SystolicBackward, AGradientDoesNotDependOnWhatItsNeighboursSee) {
  expect_rows_alone<One>("depth 32");
  expect_rows_alone<mha::Systolic<mha::SystolicArray<16, 16, 64>, mha::DefaultPrecision, mha::Serial>>("depth 64");
  expect_rows_alone<mha::Systolic<mha::TpuArray<128>, mha::DefaultPrecision, mha::Serial>>("depth 128");
}

/// The logits are NaN for both: by an infinity some may be −∞, which hides a key.
TEST_P(SystolicBackward, HiddenNaNIsInertAndAVisibleOnePropagates) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float poison : {nan, std::numeric_limits<float>::infinity()}) {
    BackwardCase<float> c("nan", {1, 130, 130, 2, 1, 20, 12});
    const auto clean = c.gradients<One>(mha::Causal{});
    for (Index d = 0; d < 12; ++d) c.v(0, 100, 0, d) = poison, c.k(0, 100, 0, d) = nan;
    const auto keys = c.gradients<One>(mha::Causal{});
    for (Index i = 0; i < 100; ++i)
      for (Index d = 0; d < 20; ++d) EXPECT_EQ(keys.query(0, i, 1, d), clean.query(0, i, 1, d));
    EXPECT_FALSE(std::isfinite(keys.query(0, 100, 0, 0)));
    EXPECT_FALSE(std::isfinite(keys.key(0, 3, 0, 0)));

    BackwardCase<float> other("nan", {1, 130, 130, 2, 1, 20, 12});
    for (Index d = 0; d < 12; ++d) other.d_out(0, 60, 1, d) = poison, other.q(0, 60, 1, d) = nan;
    const auto queries = other.gradients<One>(mha::Causal{});
    for (Index k = 61; k < 130; ++k)
      for (Index d = 0; d < 12; ++d) {
        EXPECT_EQ(queries.key(0, k, 0, d), clean.key(0, k, 0, d));
        EXPECT_EQ(queries.value(0, k, 0, d), clean.value(0, k, 0, d));
      }
    for (Index k = 0; k <= 60; ++k) EXPECT_FALSE(std::isfinite(queries.value(0, k, 0, 0))) << k;
    EXPECT_FALSE(std::isfinite(queries.query(0, 60, 1, 3)));
    EXPECT_EQ(queries.query(0, 60, 0, 3), clean.query(0, 60, 0, 3));
    EXPECT_EQ(queries.query(0, 61, 1, 3), clean.query(0, 61, 1, 3));
  }
}

/// The keys that padding hides from all queries, at numbers of queries that leave lanes without one.
TEST_P(SystolicBackward, NaNInPaddedKeysReachesNobody) {
  const std::vector<Index> lengths{37, 20};
  for (const int queries : {5, 16, 20, 64, 65}) {
    BackwardCase<float> c("padded", {2, queries, 40, 4, 2, 20, 12});
    const auto clean = c.gradients<One>(mha::Padding{lengths});
    for (Index b = 0; b < 2; ++b)
      for (Index k = lengths[static_cast<std::size_t>(b)]; k < 40; ++k)
        for (Index g = 0; g < 2; ++g) {
          for (Index d = 0; d < 20; ++d) c.k(b, k, g, d) = std::numeric_limits<float>::quiet_NaN();
          for (Index d = 0; d < 12; ++d) c.v(b, k, g, d) = std::numeric_limits<float>::infinity();
        }
    const auto found = c.gradients<One>(mha::Padding{lengths});
    EXPECT_EQ(support::differing(found.query, clean.query), 0u) << queries;
    EXPECT_EQ(support::differing(found.key, clean.key), 0u) << queries;
    EXPECT_EQ(support::differing(found.value, clean.value), 0u) << queries;
  }
}

/// Its derivative at 0, where lanes without a query stand, is infinite.
struct Root {
  template <class S> S operator()(S s, Index, Index, Index, Index) const { return mha::sqrt(mha::abs(s)); }
};
TEST_P(SystolicBackward, LanesWithoutAQueryAddNothing) {
  const BackwardCase<float> c("lanes", {1, 20, 8, 1, 1, 20, 12});
  const auto found = c.gradients<One>(Root{});
  for (const auto* x : {&found.query, &found.key, &found.value})
    for (const float e : *x) EXPECT_TRUE(std::isfinite(e));
}

/// A number that is not finite in d_out alone meets weights that are: each visible pair adds it, a hidden one does not.
TEST_P(SystolicBackward, ANonFiniteNumberReachesItsOwnColumnOfVisiblePairs) {
  BackwardCase<float> c("column", {1, 100, 100, 1, 1, 24, 40});
  c.d_out(0, 40, 0, 33) = std::numeric_limits<float>::infinity();
  const auto clean = BackwardCase<float>("column", {1, 100, 100, 1, 1, 24, 40}).gradients<One>(mha::Causal{});
  const auto g = c.gradients<One>(mha::Causal{});
  for (Index k = 0; k < 100; ++k)
    for (Index d = 0; d < 40; ++d) {
      if (d == 33 && k <= 40)
        EXPECT_EQ(g.value(0, k, 0, d), std::numeric_limits<float>::infinity());
      else
        EXPECT_EQ(g.value(0, k, 0, d), clean.value(0, k, 0, d));
    }
}

/// The same of a key or a query, of the first block or of a later one: a cap makes finite logits of it.
TEST_P(SystolicBackward, AnInfiniteKeyOrQueryUnderACapReachesItsOwnColumn) {
  const mha::SoftCap cap{.cap = 5};
  for (const Index key : {10, 270}) {
    BackwardCase<float> c("capped", {1, 300, 300, 1, 1, 20, 12});
    const auto clean = c.gradients<One>(mha::Causal{}, cap);
    c.k(0, key, 0, 5) = std::numeric_limits<float>::infinity();
    const auto found = c.gradients<One>(mha::Causal{}, cap);
    for (Index i = 0; i < 300; ++i)
      for (Index d = 0; d < 20; ++d) {
        if (i < key)
          EXPECT_EQ(found.query(0, i, 0, d), clean.query(0, i, 0, d)) << i;
        else
          EXPECT_EQ(std::isfinite(found.query(0, i, 0, d)), d != 5) << key << ' ' << i << ' ' << d;
      }
  }
  for (const Index query : {10, 270}) {
    BackwardCase<float> c("capped", {1, 300, 300, 1, 1, 20, 12});
    const auto clean = c.gradients<One>(mha::Causal{}, cap);
    c.q(0, query, 0, 5) = std::numeric_limits<float>::infinity();
    const auto found = c.gradients<One>(mha::Causal{}, cap);
    for (Index k = 0; k < 300; ++k)
      for (Index d = 0; d < 20; ++d) {
        if (k > query)
          EXPECT_EQ(found.key(0, k, 0, d), clean.key(0, k, 0, d)) << k;
        else
          EXPECT_EQ(std::isfinite(found.key(0, k, 0, d)), d != 5) << query << ' ' << k << ' ' << d;
      }
  }
}

TEST_P(SystolicBackward, EmptyRowsGiveExactlyNothing) {
  BackwardCase<float> c("empty", {2, 90, 40, 2, 1, 8, 8});  // 50 queries see no key
  const auto clean = c.gradients<One>(mha::Causal{});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 50; ++i)
      for (Index d = 0; d < 8; ++d) c.d_out(b, i, 0, d) = c.q(b, i, 1, d) = std::numeric_limits<float>::quiet_NaN();
  expect_same_bits(c.gradients<One>(mha::Causal{}), clean);
  for (Index d = 0; d < 8; ++d) EXPECT_EQ(support::bits(clean.query(1, 49, 1, d)), 0u);
}

TEST_P(SystolicBackward, KeepsRowsWhoseLogitsAreFarFromZero) {
  BackwardCase<float> c("far", {1, 2, 6, 1, 1, 3, 4});
  for (float& x : c.q) x = 0;
  mha::Tensor<float, 2> bias(2, 6);
  for (float& x : bias) x = -1e9f;
  const auto g = c.gradients<One>(mha::AdditiveBias{bias});
  for (Index k = 0; k < 6; ++k)
    for (Index d = 0; d < 4; ++d)
      EXPECT_NEAR(g.value(0, k, 0, d), (c.d_out(0, 0, 0, d) + c.d_out(0, 1, 0, d)) / 6, 0.02f);
}

/// A row whose anchor moves again and again, from −6000 up.
TEST_P(SystolicBackward, WeightsAreThoseOfForwardsLastAnchor) {
  const BackwardSizes n{1, 60, 900, 1, 1, 16, 16};
  const BackwardCase<float> c("anchors", n);
  mha::Tensor<float, 2> bias(n.queries, n.keys);
  for (Index i = 0; i < n.queries; ++i)
    for (Index k = 0; k < n.keys; ++k) bias(i, k) = k < 850 ? -6000 + 7.f * static_cast<float>(k) : 1.f;
  const auto expected = c.as<double>().gradients<mha::Reference>(mha::AdditiveBias{bias});
  const auto g = c.gradients<One>(mha::AdditiveBias{bias});
  EXPECT_LT(support::relative_error(g.query, expected.query), 0.02);
  EXPECT_LT(support::relative_error(g.key, expected.key), 0.02);
  EXPECT_LT(support::relative_error(g.value, expected.value), 0.02);
}

TEST_P(SystolicBackward, WritesWhatIsWantedAnyStridesAndAdds) {
  const BackwardSizes n{2, 50, 60, 4, 2, 12, 40};
  const BackwardCase<mha::bfloat16> c("destinations", n);
  mha::AttentionTape<mha::bfloat16, One> tape;
  mha::Workspace workspace;
  const auto out = mha::attention<One>(c.q, c.k, c.v, Bent{}, mha::record(tape), workspace);
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  mha::Tensor<float, 4> dq(2, 50, 4, 12);
  support::poison_all(dq);
  std::vector<float> transposed(2 * 60 * 2 * 40, 3.f);
  const mha::TensorView<float, 4> dv{transposed.data(), {2, 60, 2, 40}, {60 * 2 * 40, 1, 60 * 40, 60}};
  const int allocations = workspace.allocations();
  mha::attention_backward_into({dq, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  mha::attention_backward_into({{}, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  EXPECT_LE(workspace.allocations(), allocations + 1);
  for (std::size_t i = 0; i < dq.size(); ++i)
    EXPECT_EQ(support::bits(mha::bfloat16(dq.data()[i])), support::bits(g.query.data()[i]));
  mha::Tensor<float, 4> wide(2, 60, 2, 40);
  mha::attention_backward_into({{}, {}, wide}, c.d_out, c.q, c.k, c.v, out, tape, Bent{});
  for (Index k = 0; k < 60; ++k)
    for (Index d = 0; d < 40; ++d) EXPECT_EQ(dv(1, k, 1, d), (3 + wide(1, k, 1, d)) + wide(1, k, 1, d));
}

TEST_P(SystolicBackward, RaggedSequencesAreSequencesApart) {
  const std::vector<Index> queries{0, 70, 70, 75}, keys{0, 20, 60, 260};
  const BackwardCase<float> c("ragged", {1, 75, 260, 4, 2, 16, 24});
  const auto ragged = c.gradients<One>(mha::Causal{}, mha::Ragged{queries, keys});
  const auto reference = c.as<double>().gradients<mha::Reference>(mha::Causal{}, mha::Ragged{queries, keys});
  EXPECT_LT(support::relative_error(ragged.query, reference.query), 0.02);
  EXPECT_LT(support::relative_error(ragged.key, reference.key), 0.02);
  EXPECT_LT(support::relative_error(ragged.value, reference.value), 0.02);
  expect_same_bits(c.gradients<mha::Systolic<>>(mha::Causal{}, mha::Ragged{queries, keys}), ragged);
  for (Index k = 20; k < 60; ++k) EXPECT_EQ(ragged.value(0, k, 0, 0), 0);  // the second has no queries

  const std::vector<Index> lengths{40, 130};
  const BackwardCase<float> p("padded", {2, 60, 130, 2, 1, 16, 24});
  const auto padded = p.gradients<One>(mha::Padding{lengths});
  const auto expected = p.as<double>().gradients<mha::Reference>(mha::Padding{lengths});
  EXPECT_LT(support::relative_error(padded.key, expected.key), 0.02);
  for (Index k = 40; k < 130; ++k) EXPECT_EQ(padded.key(0, k, 0, 0), 0);
}

TEST_P(SystolicBackward, GradientsOfScoresAreNearTheReferencesForAnyThreads) {
  const BackwardSizes n{2, 90, 130, 4, 2, 24, 16};
  const auto c = rounded_case("scores", n);
  mha::Tensor<float, 4> bias(1, n.heads, n.queries, n.keys), to = bias;
  mha::Tensor<double, 4> wide_to(1, n.heads, n.queries, n.keys);
  support::Random("bias").fill(bias);
  const auto on = [&](const auto& at, const auto& backend, auto& table) {
    using T = mha::ScalarOf<decltype(at.q)>;
    mha::AttentionTape<T, std::remove_cvref_t<decltype(backend)>> tape;
    const Distance<float> distance{0.05f};
    const mha::SoftCap cap{3.f};
    const mha::AdditiveBias added{bias};
    const auto out = mha::attention(at.q, at.k, at.v, cap, distance, added, mha::Causal{}, backend, mha::record(tape));
    const auto g = mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, cap, distance, added, mha::Causal{},
                                           backend, mha::BiasGradient(table));
    return g.score;
  };
  const auto expected = on(c.as<double>(), mha::Reference{}, wide_to);
  const auto score = on(c, One{}, to);
  const auto slope = [](const auto& s) { return static_cast<double>(s.second.slope); };
  double of_table = 0, size = 0, of_wide = 0;  // dt of the same pairs, of which the bias has the sums over the batch
  for (Index h = 0; h < n.heads; ++h)
    for (Index q = 0; q < n.queries; ++q)
      for (Index k = 0; k < n.keys; ++k) {
        const double distance = std::abs(q + n.keys - n.queries - k);
        of_table -= distance * static_cast<double>(to(0, h, q, k));
        of_wide -= distance * wide_to(0, h, q, k);
        size += distance * std::abs(wide_to(0, h, q, k));
      }
  EXPECT_NEAR(slope(expected), of_wide, 1e-5 * size);
  EXPECT_NEAR(slope(score), of_table, 1e-5 * size);
  EXPECT_LT(support::relative_error(to, wide_to), 0.02);
  for (const int threads : {2, 3}) {
    mha::Tensor<float, 4> other(1, n.heads, n.queries, n.keys);
    support::poison_all(other);
    const auto again = on(c, On<mha::ThreadPool>(mha::ThreadPool{threads}), other);
    EXPECT_EQ(slope(again), slope(score));
    EXPECT_EQ(support::differing(other, to), 0u);
  }
}

TEST_P(SystolicBackward, EmptyTensorsAreNoError) {
  for (const BackwardSizes n : {BackwardSizes{.batch = 0}, BackwardSizes{.queries = 0}, BackwardSizes{.keys = 0},
                                BackwardSizes{.value_dim = 0}}) {
    const BackwardCase<float> c("no elements", n);
    const auto g = c.gradients<One>();
    for (const float x : g.query) EXPECT_EQ(x, 0);
    for (const float x : g.key) EXPECT_EQ(x, 0);
    for (const float x : g.value) EXPECT_EQ(x, 0);
  }
}

/// The pieces of one head in an order of the test's.
struct HeadInPieces : support::OneHead<One> {
  HeadInPieces() : OneHead(support::BackwardCase<float>("array, one head", {1, 700, 800, 1, 1, 24, 16})) {}

  template <class Order> void run(const Order& order) {
    const auto own = call();
    const auto kernels = systolic::backward_kernels_of<mha::AmxArray>();
    const systolic::AnyBackwardCall<float> any(own, kernels.level);
    const systolic::BackwardTiling tiling(kernels.product.lanes, 24, 16);
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const systolic::BackwardMemory memory(frame, tiling, 700, 800, false, 0);
    const systolic::BackwardScratch scratch(frame, tiling.lanes, false, false, 0);
    const systolic::HeadBackward<float> head(any, kernels, tiling, memory, 0, 0);
    support::run_in_pieces(head, scratch, order);
  }
};

TEST(SystolicHeadBackward, PiecesGiveTheSameBitsInEveryOrderThatIsAllowed) {
  HeadInPieces by_keys, by_waves;
  by_keys.run(support::by_keys);
  by_waves.run(support::by_waves);
  EXPECT_EQ(support::differing(by_waves.dq, by_keys.dq), 0u);
  EXPECT_EQ(support::differing(by_waves.dk, by_keys.dk), 0u);
  EXPECT_EQ(support::differing(by_waves.dv, by_keys.dv), 0u);
  const auto expected = by_keys.c.as<double>().gradients<mha::Reference>(mha::Causal{});
  EXPECT_LT(support::relative_error(by_keys.dk, expected.key), 2e-2);
}

}  // namespace
