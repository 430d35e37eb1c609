// SPDX-License-Identifier: Apache-2.0
// Hidden pairs contribute exactly nothing: poison in a key or value row leaves the rows that do not see it untouched.
#pragma once

#include <cstdint>
#include <functional>
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

/// Which queries of sequence 0 see a key: visible(h, i, k).
using Visible = std::function<bool(Index h, Index i, Index k)>;

/// Poisons one row of sequence 0 after the other.
template <class T>
void expect_hidden_poison_does_nothing(const std::string& name, const Inputs<T>& in, std::span<const Index> keys,
                                       Where where, const Visible& visible,
                                       const std::function<Result<T>(const Inputs<T>&)>& attention) {
  const auto clean = attention(in);
  int noticed = 0, hidden = 0;
  for (const Index k : keys)
    for (const float poison : poisons) {
      Inputs<T> poisoned = in;
      mha::Tensor<T, 4>& rows = where == Where::keys ? poisoned.k : poisoned.v;
      for (Index h = 0; h < rows.extent(2); ++h)
        for (Index d = 0; d < rows.extent(3); ++d) rows(0, k, h, d) = T(poison);
      const auto r = attention(poisoned);
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

/// Masks that hide some of 150 keys, and what they are made of.
class HidingMasks {
 public:
  struct Erased {
    const char* name;
    Mask mask;
    Visible visible;
  };

  explicit HidingMasks(const Sizes& sizes, support::Random& random)
      : shape_{sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.keys - sizes.queries},
        table_(2, sizes.queries, 150) {
    for (bool& x : table_) x = random.chance(0.5);
    for (Index k = 0; k < 150; ++k) documents_.push_back(k / 43);
    for (auto& x : map_) x = random.chance(0.6) ? 1 : 0;
    map_[14 * 16] = 0;  // the last queries see some of the poisoned keys and not all
    map_[14 * 16 + 14] = 1;
  }

  /// f(name, mask, visible) with every mask.
  template <class F> void visit(const F& f) const {
    const auto with = [&](const char* name, const auto& mask) {
      f(name, mask, [ready = mha::prepared(mask, shape_), origin = shape_.origin[0]](Index h, Index i, Index k) {
        return ready(0, h, origin + i, k);
      });
    };
    with("causal", mha::Causal{});
    with("causal, top left", mha::CausalTopLeft{});
    with("window", mha::SlidingWindow{.left = 11, .right = 2});
    with("padding", mha::Padding{lengths_});
    with("prefix", mha::Prefix{lengths_});
    with("document", mha::Document{documents_});
    with("block-sparse", mha::BlockSparse({.block = 10, .query_blocks = 16, .key_blocks = 16}, map_));
    with("dense", mha::Dense(table_));
    with("functor", Strided{});
    with("and, or, not", (mha::Causal{} && mha::Padding{lengths_}) || !mha::mask(Strided{}));
  }

  /// The same masks without their types.
  std::vector<Erased> all_erased() const {
    std::vector<Erased> all;
    visit([&](const char* name, const auto& mask, const auto& visible) {
      all.push_back({name, erased<Mask>(mask), visible});
    });
    return all;
  }

 private:
  mha::CallShape shape_;
  std::vector<Index> lengths_ = {141, 60}, documents_;
  mha::Tensor<bool, 3> table_;
  std::vector<std::uint8_t> map_ = std::vector<std::uint8_t>(16 * 16);
};

/// Poisons these keys of 150. at_each(f) calls f() once, or once for each way the backend has to compute.
template <class B, class T, PolicyTypes types = PolicyTypes::any, class AtEach>
void expect_masks_to_hide(std::span<const Index> keys, const Sizes& sizes, const AtEach& at_each) {
  support::Random random("hidden by masks");
  const Inputs<T> in(sizes, random);
  const HidingMasks masks(sizes, random);
  const auto check = [&](const char* name, const auto& mask, const Visible& visible) {
    for (const Where where : {Where::keys, Where::values})
      expect_hidden_poison_does_nothing<T>(name, in, keys, where, visible,
                                           [&](const Inputs<T>& with) { return attend<B, types>(with, mask); });
  };
  at_each([&] {
    if constexpr (types == PolicyTypes::any && compiled_once<B, T>)
      for (const auto& each : masks.all_erased()) check(each.name, each.mask, each.visible);
    else
      masks.visit(check);
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

template <class B, class T, PolicyTypes types = PolicyTypes::any, class AtEach>
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
      expect_hidden_poison_does_nothing<T>("score", in, keys, where, visible,
                                           [&](const Inputs<T>& with) { return attend<B, types>(with, score); });
      expect_hidden_poison_does_nothing<T>("bias", in, keys, where, unbiased, [&](const Inputs<T>& with) {
        return attend<B, types>(with, mha::AdditiveBias(bias));
      });
    }
  });
}

}  // namespace laws
