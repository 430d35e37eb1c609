// SPDX-License-Identifier: Apache-2.0
// Laws of the softmax and of grouping, whatever the kernel.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "law.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class Setup> class Softmax : public testing::Test {};
template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::EigenCpu, float>,
                              On<mha::EigenCpu, double>, On<support::PlainBackend, float>>;
TYPED_TEST_SUITE(Softmax, Setups);

/// Eigen's products give a row other last bits at another place of a tile.
template <class B> constexpr bool rows_share_bits = true;
template <class Threads> constexpr bool rows_share_bits<mha::EigenCpuWith<Threads>> = false;

/// A few roundings in sums of a hundred terms of size one.
template <class T> constexpr double rounding = 400 * support::unit_roundoff<T>();

TYPED_TEST(Softmax, WeightsOfEachRowSumToOne) {
  using T = typename TypeParam::T;
  support::Random random("rows sum to one");
  const Inputs<T> in({}, random);
  const auto w = mha::attention_weights<typename TypeParam::Backend>(in.q, in.k, mha::SlidingWindow{.left = 60},
                                                                     mha::SoftCap{.cap = 9});
  for (Index b = 0; b < w.extent(0); ++b)
    for (Index h = 0; h < w.extent(1); ++h)
      for (Index i = 0; i < w.extent(2); ++i) {
        double sum = 0;
        for (Index k = 0; k < w.extent(3); ++k) {
          EXPECT_GE(w(b, h, i, k), T(0));
          sum += static_cast<double>(w(b, h, i, k));
        }
        EXPECT_NEAR(sum, 1, rounding<T>);
      }
}

TYPED_TEST(Softmax, OrderOfTheKeysDoesNotMatter) {
  using T = typename TypeParam::T;
  support::Random random("key order");
  const Inputs<T> in({}, random);
  Inputs<T> shuffled = in;
  std::vector<Index> order(static_cast<std::size_t>(in.k.extent(1)));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine());
  for (Index b = 0; b < in.k.extent(0); ++b)
    for (Index j = 0; j < in.k.extent(1); ++j)
      for (Index h = 0; h < in.k.extent(2); ++h) {
        const Index from = order[static_cast<std::size_t>(j)];
        for (Index d = 0; d < in.k.extent(3); ++d) shuffled.k(b, j, h, d) = in.k(b, from, h, d);
        for (Index d = 0; d < in.v.extent(3); ++d) shuffled.v(b, j, h, d) = in.v(b, from, h, d);
      }
  const auto a = attend<typename TypeParam::Backend>(in), b = attend<typename TypeParam::Backend>(shuffled);
  EXPECT_LE(support::largest_difference(a.out, b.out), rounding<T>);
  EXPECT_LE(support::largest_difference(a.log_sum_exp, b.log_sum_exp), rounding<T>);
}

TYPED_TEST(Softmax, FewKeyHeadsEqualRepeatedOnes) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("repeated heads");
  for (const Index kv_heads : {1, 2, 3, 6}) {
    const Inputs<T> in({.heads = 6, .kv_heads = kv_heads}, random);
    const Sizes sizes{.heads = 6, .kv_heads = 6};
    Inputs<T> repeated(sizes, random);
    repeated.q = in.q;
    for (Index b = 0; b < sizes.batch; ++b)
      for (Index j = 0; j < sizes.keys; ++j)
        for (Index h = 0; h < 6; ++h) {
          for (Index d = 0; d < sizes.head_dim; ++d) repeated.k(b, j, h, d) = in.k(b, j, h / (6 / kv_heads), d);
          for (Index d = 0; d < sizes.value_dim; ++d) repeated.v(b, j, h, d) = in.v(b, j, h / (6 / kv_heads), d);
        }
    const auto few = attend<B>(in, mha::Causal{}), each = attend<B>(repeated, mha::Causal{});
    if constexpr (rows_share_bits<B>)
      expect_same_bits(few, each, std::to_string(kv_heads) + " key heads");
    else
      EXPECT_LE(support::largest_difference(few.out, each.out), rounding<T>) << kv_heads << " key heads";
  }
}

TYPED_TEST(Softmax, SplitOverKeysMergesToTheWhole) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("split");
  const Sizes sizes{};
  const Inputs<T> in(sizes, random);
  const Index origin = sizes.keys - sizes.queries;
  const auto whole = attend<B>(in, mha::Causal{});
  for (const Index cut : {0, 1, 64, 128, 140, 149, 150}) {
    auto first =
        attend<B>(in.q, laws::rows(in.k, 0, cut), laws::rows(in.v, 0, cut), mha::Causal{}, mha::Origin{origin});
    // Positions of the second part start at its own first key.
    const auto second = attend<B>(in.q, laws::rows(in.k, cut, sizes.keys - cut),
                                  laws::rows(in.v, cut, sizes.keys - cut), mha::Causal{}, mha::Origin{origin - cut});
    mha::merge(first.out, first.log_sum_exp, second.out, second.log_sum_exp);
    EXPECT_LE(support::largest_difference(first.out, whole.out), rounding<T>) << "cut at " << cut;
    EXPECT_LE(support::largest_difference(first.log_sum_exp, whole.log_sum_exp), rounding<T>) << "cut at " << cut;
  }
}

TYPED_TEST(Softmax, RowThatSeesNothingIsZero) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("empty rows");
  const Inputs<T> in({.queries = 9, .keys = 7}, random);
  Inputs<T> wild = in;
  for (T& x : wild.k) x = std::numeric_limits<T>::quiet_NaN();
  for (T& x : wild.v) x = std::numeric_limits<T>::infinity();
  const mha::Tensor<float, 2> nothing = [] {
    mha::Tensor<float, 2> bias(9, 7);
    std::fill(bias.begin(), bias.end(), -infinity);
    return bias;
  }();
  const std::vector<Index> none = {0, 0};
  const auto expect_empty = [](const laws::Result<T>& r, Index first, Index last) {
    for (Index i = first; i < last; ++i)
      for (Index b = 0; b < r.out.extent(0); ++b)
        for (Index h = 0; h < r.out.extent(2); ++h) {
          EXPECT_EQ(r.log_sum_exp(b, h, i), -std::numeric_limits<T>::infinity()) << i;
          for (Index d = 0; d < r.out.extent(3); ++d) EXPECT_EQ(r.out(b, i, h, d), T(0)) << i;
        }
  };
  expect_empty(attend<B>(wild, mha::mask([](Index, Index, Index, Index) { return false; })), 0, 9);
  expect_empty(attend<B>(wild, mha::Padding{none}), 0, 9);
  expect_empty(attend<B>(wild, !mha::Full{}), 0, 9);
  // Two queries stand before the first key.
  expect_empty(attend<B>(wild, mha::Causal{}), 0, 2);
  expect_empty(attend<B>(in, mha::AdditiveBias(nothing)), 0, 9);
  expect_empty(attend<B>(in.q, laws::rows(in.k, 0, 0), laws::rows(in.v, 0, 0)), 0, 9);
  // A sink does not fill an empty row.
  expect_empty(attend<B>(wild, mha::Padding{none}, mha::Sink({3.f, -3.f})), 0, 9);
}

TYPED_TEST(Softmax, ValidNaNPropagates) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("valid NaN");
  const Sizes sizes{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 40, .keys = 40};
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const Inputs<T> in(sizes, random);
  Inputs<T> key = in, value = in, query = in;
  key.k(0, 20, 0, 3) = nan;
  value.v(0, 20, 0, 4) = nan;
  query.q(0, 20, 0, 5) = nan;
  const auto by_key = attend<B>(key, mha::Causal{}), by_value = attend<B>(value, mha::Causal{});
  const auto by_query = attend<B>(query, mha::Causal{});
  for (Index i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(by_key.log_sum_exp(0, 0, i)), i >= 20) << i;
    EXPECT_FALSE(std::isnan(by_value.log_sum_exp(0, 0, i))) << i;
    EXPECT_EQ(std::isnan(by_query.log_sum_exp(0, 0, i)), i == 20) << i;
    for (Index d = 0; d < sizes.value_dim; ++d) {
      EXPECT_EQ(std::isnan(by_key.out(0, i, 0, d)), i >= 20) << i;
      EXPECT_EQ(std::isnan(by_value.out(0, i, 0, d)), i >= 20 && d == 4) << i;
      EXPECT_EQ(std::isnan(by_query.out(0, i, 0, d)), i == 20) << i;
    }
  }
}

/// Infinite values in the first and in later tiles, before and after the row's maximum rises, none of weight 0.
TYPED_TEST(Softmax, ValidInfinitiesAreThoseOfTheReference) {
  using T = typename TypeParam::T;
  support::Random random("valid infinity");
  const Sizes sizes{.batch = 1, .heads = 4, .kv_heads = 2, .queries = 130, .keys = 600, .value_dim = 6};
  Inputs<T> in(sizes, random);
  const T inf = std::numeric_limits<T>::infinity();
  for (const auto& [key, x] : {std::pair{2, inf}, {3, -inf}, {290, inf}, {470, -inf}, {599, inf}})
    for (Index g = 0; g < 2; ++g) in.v(0, key, g, (key + g) % 6) = x;
  const auto rising = mha::score([](auto s, Index, Index, Index, Index k) {
    return s + decltype(s)(k < 280 ? 0 : k < 560 ? 20 : 40);
  });
  const auto expect_equal = [&](const auto& r, const auto& e, const char* name) {
    int infinite = 0;
    for (std::size_t i = 0; i < r.out.size(); ++i) {
      const T x = r.out.data()[i], y = e.out.data()[i];
      infinite += std::isinf(y) ? 1 : 0;
      if (std::isfinite(y))
        EXPECT_NEAR(x, y, rounding<T>) << name << ", " << i;
      else
        EXPECT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << name << ", " << i << ": " << x << ", not " << y;
    }
    EXPECT_GT(infinite, 100) << name;
    EXPECT_LE(support::largest_difference(r.log_sum_exp, e.log_sum_exp), rounding<T>) << name;
  };
  using B = typename TypeParam::Backend;
  expect_equal(attend<B>(in), attend<mha::Reference>(in), "full");
  expect_equal(attend<B>(in, mha::Causal{}, mha::Origin{0}), attend<mha::Reference>(in, mha::Causal{}, mha::Origin{0}),
               "causal");
  expect_equal(attend<B>(in, rising), attend<mha::Reference>(in, rising), "rising");
}

/// What a bias does that is the same for all pairs of a row but the last `kept`, which have 0.
template <class B, class T> void expect_logits_are_numbers(float far) {
  support::Random random("far logits");
  const Sizes sizes{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 20, .keys = 140};
  const Inputs<T> in(sizes, random);
  mha::Tensor<float, 2> all(20, 140), all_but_ten(20, 140), hidden_and_far(20, 140);
  for (Index i = 0; i < 20; ++i)
    for (Index k = 0; k < 140; ++k) {
      all(i, k) = far;
      all_but_ten(i, k) = k < 130 ? far : 0;
      hidden_and_far(i, k) = k < 130 ? -infinity : far;
    }
  // Every logit far down: a softmax like any other, not an empty row. The logits' own digits drown in the bias.
  const auto level = attend<B>(in, mha::AdditiveBias(all), mha::Scale{0});
  const auto tail = attend<B>(in, mha::AdditiveBias(hidden_and_far), mha::Scale{0});
  for (Index i = 0; i < 20; ++i) {
    const double lse = static_cast<double>(level.log_sum_exp(0, 0, i));
    ASSERT_TRUE(std::isfinite(lse)) << lse;
    EXPECT_NEAR(lse / static_cast<double>(far), 1, 1e-6);
    ASSERT_TRUE(std::isfinite(tail.log_sum_exp(0, 0, i)));
    for (Index d = 0; d < sizes.value_dim; ++d) {
      double mean = 0, tail_mean = 0;
      for (Index k = 0; k < 140; ++k) {
        mean += static_cast<double>(in.v(0, k, 0, d)) / 140;
        if (k >= 130) tail_mean += static_cast<double>(in.v(0, k, 0, d)) / 10;
      }
      EXPECT_NEAR(static_cast<double>(level.out(0, i, 0, d)), mean, rounding<T>);
      EXPECT_NEAR(static_cast<double>(tail.out(0, i, 0, d)), tail_mean, rounding<T>);
    }
  }
  // Beside ordinary logits they vanish.
  const auto near = attend<B>(in, mha::AdditiveBias(all_but_ten));
  const auto alone = attend<B>(in.q, laws::rows(in.k, 130, 10), laws::rows(in.v, 130, 10));
  EXPECT_LE(support::largest_difference(near.out, alone.out), rounding<T>);
  EXPECT_LE(support::largest_difference(near.log_sum_exp, alone.log_sum_exp), rounding<T>);
}

TYPED_TEST(Softmax, MinusABillionIsANumber) {
  expect_logits_are_numbers<typename TypeParam::Backend, typename TypeParam::T>(-1e9f);
}

TYPED_TEST(Softmax, TheLowestFloatIsANumber) {
  expect_logits_are_numbers<typename TypeParam::Backend, typename TypeParam::T>(std::numeric_limits<float>::lowest());
}

TYPED_TEST(Softmax, TheLowestScalarIsANumber) {
  using T = typename TypeParam::T;
  support::Random random("lowest scalar");
  const Inputs<T> in({.batch = 1, .queries = 5, .keys = 12}, random);
  const auto r = attend<typename TypeParam::Backend>(
      in, mha::score([](auto s, Index, Index, Index, Index) { return std::numeric_limits<decltype(s)>::lowest(); }));
  for (const T lse : r.log_sum_exp) ASSERT_EQ(lse, std::numeric_limits<T>::lowest());
  for (Index d = 0; d < r.out.extent(3); ++d) {
    double mean = 0;
    for (Index k = 0; k < 12; ++k) mean += static_cast<double>(in.v(0, k, 1, d)) / 12;
    EXPECT_NEAR(static_cast<double>(r.out(0, 3, 1, d)), mean, rounding<T>);
  }
}

TYPED_TEST(Softmax, OutliersKeepTheirAccuracy) {
  using T = typename TypeParam::T;
  support::Random random("outliers");
  const Sizes sizes{.batch = 1, .queries = 70, .keys = 200, .head_dim = 64, .value_dim = 64};
  Inputs<T> in(sizes, random);
  // N(0, 1) + N(0, 100)·Bernoulli(0.001), as in the tests of FlashAttention-3.
  for (auto* t : {&in.q, &in.k, &in.v})
    for (T& x : *t)
      if (random.chance(0.001)) x += static_cast<T>(10 * random.normal());
  Inputs<double> exact(sizes, random);
  std::copy(in.q.begin(), in.q.end(), exact.q.begin());
  std::copy(in.k.begin(), in.k.end(), exact.k.begin());
  std::copy(in.v.begin(), in.v.end(), exact.v.begin());
  const auto r = attend<typename TypeParam::Backend>(in, mha::Causal{});
  const auto e = attend<mha::Reference>(exact, mha::Causal{});
  // Logits up to some hundred, off by (D + 16)·u each; values up to some ten.
  double square = 0;
  for (std::size_t i = 0; i < r.out.size(); ++i)
    square += std::pow(static_cast<double>(r.out.data()[i]) - e.out.data()[i], 2);
  EXPECT_LE(std::sqrt(square / static_cast<double>(r.out.size())), 40 * support::unit_roundoff<T>());
}

}  // namespace
