// SPDX-License-Identifier: Apache-2.0
// Hidden pairs contribute exactly nothing: poison in a key or value row leaves the rows that do not see it untouched.
#include <limits>
#include <string>
#include <vector>

#include "law.hpp"
#include "plain_backend.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;

/// Sequence 0 only: the keys around a block's edge and some at both ends, so that partial tiles of every kind occur.
constexpr Index poisoned_keys[] = {0, 1, 5, 17, 40, 60, 126, 127, 128, 129, 140, 149};

template <class T> struct Poisons {
  static constexpr T values[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                                 -std::numeric_limits<T>::infinity()};
};

enum class Where { keys, values };

/// Poisons one row after the other; visible(h, i, k) says which queries may notice.
template <class B, class T, class Visible, class... Policies>
void expect_hidden_poison_does_nothing(const std::string& name, const Inputs<T>& in, Where where,
                                       const Visible& visible, const Policies&... policies) {
  const auto clean = attend<B>(in, policies...);
  int noticed = 0, hidden = 0;
  for (const Index k : poisoned_keys)
    for (const T poison : Poisons<T>::values) {
      Inputs<T> poisoned = in;
      mha::Tensor<T, 4>& rows = where == Where::keys ? poisoned.k : poisoned.v;
      for (Index h = 0; h < rows.extent(2); ++h)
        for (Index d = 0; d < rows.extent(3); ++d) rows(0, k, h, d) = poison;
      const auto r = attend<B>(poisoned, policies...);
      for (Index b = 0; b < r.out.extent(0); ++b)
        for (Index h = 0; h < r.out.extent(2); ++h)
          for (Index i = 0; i < r.out.extent(1); ++i) {
            if (b == 0 && visible(h, i, k)) {
              noticed += same_row(r, b, i, clean, b, i, h) ? 0 : 1;
              continue;
            }
            ++hidden;
            ASSERT_TRUE(same_row(r, b, i, clean, b, i, h))
                << name << ": " << poison << " in " << (where == Where::keys ? "key " : "value ") << k
                << " reached query " << i << " of head " << h << ", sequence " << b;
          }
    }
  EXPECT_GT(hidden, 0) << name;
  EXPECT_GT(noticed, 0) << name << ": the poison did nothing at all";
}

template <class Setup> class Hidden : public testing::Test {};
template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
using Setups = testing::Types<On<mha::CpuWith<mha::Serial>, float>, On<mha::CpuWith<mha::Serial>, double>,
                              On<support::PlainBackend, float>, On<mha::Reference, float>>;
TYPED_TEST_SUITE(Hidden, Setups);

TYPED_TEST(Hidden, PoisonBehindAMaskDoesNothing) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  support::Random random("hidden by masks");
  const Sizes sizes{.heads = 2, .kv_heads = 1, .queries = 35, .keys = 150, .head_dim = 5, .value_dim = 7};
  const Inputs<T> in(sizes, random);
  const mha::CallShape shape{sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.keys - sizes.queries};
  const std::vector<Index> lengths = {141, 60};
  mha::Tensor<bool, 3> table(2, 35, 150);
  for (bool& x : table) x = random.chance(0.5);
  std::vector<Index> documents;
  for (Index k = 0; k < 150; ++k) documents.push_back(k / 43);
  std::vector<std::uint8_t> map(16 * 16);
  for (auto& x : map) x = random.chance(0.6) ? 1 : 0;
  const auto check = [&](const char* name, const auto& mask) {
    const auto ready = mha::prepared(mask, shape);
    const auto visible = [&](Index h, Index i, Index k) { return ready(0, h, shape.origin[0] + i, k); };
    for (const Where where : {Where::keys, Where::values})
      expect_hidden_poison_does_nothing<B>(name, in, where, visible, mask);
  };
  laws::at_every_isa([&] {
    check("causal", mha::Causal{});
    check("causal, top left", mha::CausalTopLeft{});
    check("window", mha::SlidingWindow{.left = 11, .right = 2});
    check("padding", mha::Padding{lengths});
    check("prefix", mha::Prefix{lengths});
    check("document", mha::Document{documents});
    check("block-sparse", mha::BlockSparse({.block = 10, .query_blocks = 16, .key_blocks = 16}, map));
    check("dense", mha::Dense(table));
    check("functor", laws::Strided{});
    check("and, or, not", (mha::Causal{} && mha::Padding{lengths}) || !mha::mask(laws::Strided{}));
  });
}

TYPED_TEST(Hidden, PoisonBehindAScoreOfMinusInfinityDoesNothing) {
  using T = typename TypeParam::T;
  support::Random random("hidden by scores");
  const Inputs<T> in({.queries = 35, .keys = 150, .head_dim = 5, .value_dim = 7}, random);
  const auto visible = [](Index h, Index i, Index k) { return (h + i + 3 * k) % 4 != 0; };
  const auto score = mha::score([&](auto s, Index, Index h, Index q, Index k) {
    return visible(h, q - 115, k) ? s : mha::minus_infinity<decltype(s)>();
  });
  laws::at_every_isa([&] {
    for (const Where where : {Where::keys, Where::values})
      expect_hidden_poison_does_nothing<typename TypeParam::Backend>("score", in, where, visible, score);
  });
}

TYPED_TEST(Hidden, PoisonBehindABiasOfMinusInfinityDoesNothing) {
  using T = typename TypeParam::T;
  support::Random random("hidden by a bias");
  const Inputs<T> in({.queries = 35, .keys = 150, .head_dim = 5, .value_dim = 7}, random);
  mha::Tensor<float, 3> bias(2, 35, 150);
  for (float& x : bias)
    x = random.chance(0.4) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.normal());
  const auto visible = [&](Index h, Index i, Index k) {
    return bias(h, i, k) != -std::numeric_limits<float>::infinity();
  };
  laws::at_every_isa([&] {
    for (const Where where : {Where::keys, Where::values})
      expect_hidden_poison_does_nothing<typename TypeParam::Backend>("bias", in, where, visible,
                                                                     mha::AdditiveBias(bias));
  });
}

TEST(HiddenWeights, ArePlainZeros) {
  support::Random random("hidden weights");
  Inputs<float> in({.batch = 1, .queries = 20, .keys = 140}, random);
  for (Index d = 0; d < in.k.extent(3); ++d) in.k(0, 139, 0, d) = std::numeric_limits<float>::quiet_NaN();
  laws::at_every_isa([&] {
    const auto w = mha::attention_weights(in.q, in.k, mha::Causal{});
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < 20; ++i)
        for (Index k = 121 + i; k < 140; ++k) EXPECT_EQ(support::bits(w(0, h, i, k)), 0u) << i << ", " << k;
  });
}

}  // namespace
