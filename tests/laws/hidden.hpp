// SPDX-License-Identifier: Apache-2.0
// Hidden pairs contribute exactly nothing: poison in a key or value row leaves the rows that do not see it untouched.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>

#include "call.hpp"

namespace laws {

inline constexpr float poisons[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity()};

enum class Where { keys, values };

/// Poisons one row of sequence 0 after the other; visible(h, i, k) says which queries may notice.
template <class B, class T, class Visible, class... Policies>
void expect_hidden_poison_does_nothing(const std::string& name, const Inputs<T>& in, std::span<const Index> keys,
                                       Where where, const Visible& visible, const Policies&... policies) {
  const auto clean = attend<B>(in, policies...);
  int noticed = 0, hidden = 0;
  for (const Index k : keys)
    for (const float poison : poisons) {
      Inputs<T> poisoned = in;
      mha::Tensor<T, 4>& rows = where == Where::keys ? poisoned.k : poisoned.v;
      for (Index h = 0; h < rows.extent(2); ++h)
        for (Index d = 0; d < rows.extent(3); ++d) rows(0, k, h, d) = T(poison);
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

/// Kernels differ for many queries and for few, of which rows are whole registers.
inline constexpr Sizes hidden_sizes[] = {
    {.heads = 2, .kv_heads = 1, .queries = 35, .keys = 150, .head_dim = 5, .value_dim = 7},
    {.heads = 2, .kv_heads = 1, .queries = 3, .keys = 150, .head_dim = 32, .value_dim = 32}};

/// Poisons these keys of 150. at_each(f) calls f() once, or once for each way the backend has to compute.
template <class B, class T, class AtEach>
void expect_masks_to_hide(std::span<const Index> keys, const Sizes& sizes, const AtEach& at_each) {
  support::Random random("hidden by masks");
  const Inputs<T> in(sizes, random);
  const mha::CallShape shape{sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.keys - sizes.queries};
  const std::vector<Index> lengths = {141, 60};
  mha::Tensor<bool, 3> table(2, sizes.queries, 150);
  for (bool& x : table) x = random.chance(0.5);
  std::vector<Index> documents;
  for (Index k = 0; k < 150; ++k) documents.push_back(k / 43);
  std::vector<std::uint8_t> map(16 * 16);
  for (auto& x : map) x = random.chance(0.6) ? 1 : 0;
  const auto check = [&](const char* name, const auto& mask) {
    const auto ready = mha::prepared(mask, shape);
    const auto visible = [&](Index h, Index i, Index k) { return ready(0, h, shape.origin[0] + i, k); };
    for (const Where where : {Where::keys, Where::values})
      expect_hidden_poison_does_nothing<B>(name, in, keys, where, visible, mask);
  };
  at_each([&] {
    check("causal", mha::Causal{});
    check("causal, top left", mha::CausalTopLeft{});
    check("window", mha::SlidingWindow{.left = 11, .right = 2});
    check("padding", mha::Padding{lengths});
    check("prefix", mha::Prefix{lengths});
    check("document", mha::Document{documents});
    check("block-sparse", mha::BlockSparse({.block = 10, .query_blocks = 16, .key_blocks = 16}, map));
    check("dense", mha::Dense(table));
    check("functor", Strided{});
    check("and, or, not", (mha::Causal{} && mha::Padding{lengths}) || !mha::mask(Strided{}));
  });
}

/// A score of a user's own that hides by −∞.
struct HidesSome {
  Index origin;
  MHA_HOST_DEVICE bool visible(Index h, Index i, Index k) const { return (h + i + 3 * k) % 4 != 0; }
  template <class S> MHA_HOST_DEVICE S operator()(S s, Index, Index h, Index q, Index k) const {
    return visible(h, q - origin, k) ? s : mha::minus_infinity<S>();
  }
};

template <class B, class T, class AtEach>
void expect_scores_to_hide(std::span<const Index> keys, const Sizes& sizes, const AtEach& at_each) {
  support::Random random("hidden by scores");
  const Inputs<T> in(sizes, random);
  const HidesSome score{sizes.keys - sizes.queries};
  const auto visible = [&](Index h, Index i, Index k) { return score.visible(h, i, k); };
  mha::Tensor<float, 3> bias(2, sizes.queries, 150);
  for (float& x : bias)
    x = random.chance(0.4) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.normal());
  const auto unbiased = [&](Index h, Index i, Index k) {
    return bias(h, i, k) != -std::numeric_limits<float>::infinity();
  };
  at_each([&] {
    for (const Where where : {Where::keys, Where::values}) {
      expect_hidden_poison_does_nothing<B>("score", in, keys, where, visible, score);
      expect_hidden_poison_does_nothing<B>("bias", in, keys, where, unbiased, mha::AdditiveBias(bias));
    }
  });
}

}  // namespace laws
