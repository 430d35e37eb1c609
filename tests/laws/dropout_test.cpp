// SPDX-License-Identifier: Apache-2.0
// What dropout drops is a pair's own affair, on every backend: dropout_keeps() tells it.
#include <cmath>
#include <cstdint>

#include "law.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;

template <class Setup> class DropoutOn : public testing::Test {};
template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::Cpu, mha::half>,
                              On<mha::Cpu, mha::bfloat16>, On<mha::EigenCpu, float>, On<mha::EigenCpu, mha::bfloat16>,
                              On<support::PlainBackend, float>, On<mha::Reference, double>>;
TYPED_TEST_SUITE(DropoutOn, Setups);

/// Keys whose values are unit vectors: the output of a row is its weights.
template <class T> Inputs<T> with_unit_values(const Sizes& sizes, support::Random& random) {
  Inputs<T> in(sizes, random);
  for (T& x : in.v) x = T(mha::Accumulator<T>(0));
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index k = 0; k < sizes.keys; ++k)
      for (Index g = 0; g < sizes.kv_heads; ++g) in.v(b, k, g, k) = T(mha::Accumulator<T>(1));
  return in;
}

TYPED_TEST(DropoutOn, KeepsWhatDropoutKeepsTells) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("fate");
  laws::at_every_isa([&] {
    for (const Index queries : {1, 5, 60}) {
      Sizes sizes{.heads = 4, .kv_heads = 2, .queries = queries, .keys = 133, .head_dim = 16, .value_dim = 133};
      const Inputs<T> in = with_unit_values<T>(sizes, random);
      const Index origin = 100 + random.below(9);
      const mha::Dropout dropout{.p = 0.25f};
      const mha::DropoutSeed seed{random.engine()(), static_cast<std::uint32_t>(random.engine()())};
      const auto all = attend<B>(in, mha::Causal{}, mha::Origin{origin}),
                 some = attend<B>(in, mha::Causal{}, mha::Origin{origin}, dropout, seed);
      EXPECT_EQ(support::differing(all.log_sum_exp, some.log_sum_exp), 0u);
      for (Index b = 0; b < sizes.batch; ++b)
        for (Index i = 0; i < queries; ++i)
          for (Index h = 0; h < sizes.heads; ++h)
            for (Index k = 0; k < sizes.keys; ++k) {
              const bool kept = k <= origin + i && mha::dropout_keeps(dropout, seed, sizes.heads, b, h, origin + i, k);
              const double weight = support::to_double(all.out(b, i, h, k)), expected = kept ? weight / 0.75 : 0;
              ASSERT_NEAR(support::to_double(some.out(b, i, h, k)), expected,
                          8 * support::unit_roundoff<T>() * expected + (kept ? support::storage_error<T>(0) * 4 : 0))
                  << "b " << b << ", h " << h << ", row " << i << ", key " << k;
            }
    }
  });
}

TYPED_TEST(DropoutOn, OfNothingChangesNoBit) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("nothing");
  for (const Index queries : {1, 40}) {
    const Inputs<T> in({.queries = queries}, random);
    const auto plain = attend<B>(in, mha::Causal{});
    expect_same_bits(attend<B>(in, mha::Causal{}, mha::Dropout{.p = 0.f}, mha::DropoutSeed{7}), plain, "p = 0");
    expect_same_bits(attend<B>(in, mha::Causal{}, mha::Dropout{.p = 0.9f}), plain, "no seed");
  }
}

TYPED_TEST(DropoutOn, HiddenKeysAndEmptyRowsStayWhatTheyAre) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  using A = mha::Accumulator<T>;
  support::Random random("hidden");
  Inputs<T> in({.queries = 40, .keys = 40}, random);
  const auto with = [&] {
    return attend<B>(in, mha::SlidingWindow{.left = 6}, mha::Origin{5}, mha::Dropout{.p = 0.5f},
                     mha::DropoutSeed{3, 1});
  };
  const auto clean = with();
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) {
      in.v(b, 39, h, 0) = T(A(NAN));  // rows 34 … 39 of queries at 39 … 44 see it
      in.k(b, 39, h, 3) = T(A(NAN));
    }
  const auto dirty = with();
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < 40; ++i) {
        if (i < 34) {
          EXPECT_TRUE(same_row(dirty, b, i, clean, b, i, h)) << i;
        } else {
          EXPECT_TRUE(std::isnan(support::to_double(dirty.out(b, i, h, 0)))) << i;
        }
      }
  // Values that are not finite, of which the weight is 0 where the key is dropped: it is visible all the same.
  random.fill(in.k);
  for (const float x : {NAN, INFINITY}) {
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 2; ++h) in.v(b, 39, h, 0) = T(A(x));
    const auto poisoned = with();
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 2; ++h)
        for (Index i = 34; i < 40; ++i) {
          const bool kept = mha::dropout_keeps(mha::Dropout{.p = 0.5f}, mha::DropoutSeed{3, 1}, 2, b, h, i + 5, 39);
          const double y = support::to_double(poisoned.out(b, i, h, 0));
          EXPECT_TRUE(kept && x == INFINITY ? y == INFINITY : std::isnan(y)) << x << ", row " << i << ": " << y;
        }
  }
  const auto empty = attend<B>(in, mha::Causal{}, mha::Origin{-40}, mha::Dropout{.p = 0.5f}, mha::DropoutSeed{3, 1});
  for (const T x : empty.out) EXPECT_EQ(support::bits(x), support::bits(T(A(0))));
}

TYPED_TEST(DropoutOn, WeightsAreThoseThatValuesAreMultipliedBy) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("weights");
  const Inputs<T> in({.heads = 4}, random);
  const mha::Dropout dropout{.p = 0.3f};
  const mha::DropoutSeed seed{random.engine()()};
  const mha::SlidingWindow window{.left = 60};
  const auto all = mha::attention_weights<B>(in.q, in.k, window),
             some = mha::attention_weights<B>(in.q, in.k, window, dropout, seed);
  for (Index b = 0; b < all.extent(0); ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < all.extent(2); ++i)
        for (Index k = 0; k < all.extent(3); ++k) {
          const bool kept = mha::dropout_keeps(dropout, seed, 4, b, h, 150 - 33 + i, k);
          EXPECT_NEAR(some(b, h, i, k), kept ? all(b, h, i, k) / (1 - double{dropout.p}) : 0, 1e-6 * all(b, h, i, k));
        }
}

}  // namespace
