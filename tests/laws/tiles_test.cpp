// SPDX-License-Identifier: Apache-2.0
// A mask that says nothing of tiles has the results of one whose pairs are all computed and then hidden, whatever it
// hides: finding hidden tiles changes no bit.
#include <limits>
#include <string>
#include <tuple>

#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "every_isa.hpp"
#include "law.hpp"
#include "units.hpp"

namespace {

using laws::Index;

/// Masks of many kinds in one type, which kernels ask for pairs.
struct Kinds {
  Index kind;
  bool operator()(Index b, Index h, Index q, Index k) const {
    switch (kind) {
      case 0:
        return k <= q;
      case 1:
        return k <= q && q - k < 40;
      case 2:
        return q / 48 == k / 48;
      case 3:
        return (q + k + h) % 3 == 0;
      case 4:
        return k == 137;
      case 5:
        return q != 131 || k != 64;
      case 6:
        return h % 2 == 1 && k >= 16;
      case 7:
        return false;
      case 8:
        return true;
      case 9:
        return k >= 128 + 32 * b;
      default:
        return k < 33 || k > q - 7;
    }
  }
};
constexpr Index kinds = 11;

/// The same, of which no tile is known to be hidden or shown.
struct Computed : Kinds {
  mha::TileVisibility tile(Index, Index, Index, Index, Index, Index) const { return mha::TileVisibility::partial; }
  bool operator()(Index b, Index h, Index q, Index k) const { return Kinds::operator()(b, h, q, k); }
};
static_assert(mha::detail::silent_on_tiles<Kinds> && !mha::detail::silent_on_tiles<Computed>);

constexpr support::BackwardSizes sizes[] = {
    {.queries = 70, .keys = 300, .head_dim = 32, .value_dim = 32},
    {.queries = 133, .keys = 133, .head_dim = 5, .value_dim = 7},
    {.queries = 5, .keys = 140, .head_dim = 32, .value_dim = 16},
    {.queries = 1, .keys = 300, .head_dim = 64, .value_dim = 64},
};

/// f(what, results and gradients) of a case, with the same masks and scores of a call.
template <class B, class T, class F, class Policies, class Others>
void compare(const support::BackwardCase<T>& c, const std::string& what, const F& f, const Policies& found,
             const Others& computed) {
  const auto out = [&](const auto&... policies) { return mha::attention<B>(c.q, c.k, c.v, policies...); };
  const auto gradients = [&](const auto&... policies) { return c.template gradients<B>(policies...); };
  f(what, std::apply(out, found), std::apply(out, computed));
  const auto g = std::apply(gradients, found), other = std::apply(gradients, computed);
  f(what + ", dQ", g.query, other.query);
  f(what + ", dK", g.key, other.key);
  f(what + ", dV", g.value, other.value);
}

/// f(what, found, computed) for masks of each kind.
template <class B, class T, class F> void of_each(const F& f) {
  for (const auto& size : sizes) {
    const support::BackwardCase<T> c("tiles", size);
    for (Index kind = 0; kind < kinds; ++kind)
      compare<B>(c, "kind " + std::to_string(kind) + ", " + std::to_string(size.queries) + " queries", f,
                 std::tuple(Kinds{kind}), std::tuple(Computed{{kind}}));
  }
}

template <class B, class T> void expect_same_bits() {
  of_each<B, T>([](const std::string& what, const auto& found, const auto& computed) {
    EXPECT_EQ(support::differing(found, computed), 0u) << what;
  });
}

/// Behind a table it keeps kernels from knowing what the table hides.
struct Unchanged {
  template <class T> T operator()(T s, Index, Index, Index, Index) const { return s; }
};

/// The same for tables that are −∞ where such a mask hides a pair.
template <class B> void expect_same_bits_of_tables() {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  support::Random random("tables");
  for (const auto& size : sizes) {
    const support::BackwardCase<float> c("tiles", size);
    for (Index kind = 0; kind < kinds; ++kind) {
      mha::Tensor<float, 4> table(size.batch, size.heads, size.queries, size.keys);
      random.fill(table);
      for (Index b = 0; b < size.batch; ++b)
        for (Index h = 0; h < size.heads; ++h)
          for (Index i = 0; i < size.queries; ++i)
            for (Index k = 0; k < size.keys; ++k)
              if (!Kinds{kind}(b, h, i + size.keys - size.queries, k)) table(b, h, i, k) = -infinity;
      const auto same = [](const std::string& what, const auto& found, const auto& computed) {
        EXPECT_EQ(support::differing(found, computed), 0u) << what;
      };
      const std::string what = "table " + std::to_string(kind) + ", " + std::to_string(size.queries) + " queries";
      const mha::AdditiveBias bias(table);
      compare<B>(c, what, same, std::tuple(bias), std::tuple(bias, Unchanged{}));
      if (kind > 2) continue;
      compare<B>(c, what + ", capped before", same, std::tuple(mha::SoftCap{2}, bias),
                 std::tuple(mha::SoftCap{2}, bias, Unchanged{}));
      compare<B>(c, what + ", capped behind", same, std::tuple(bias, mha::SoftCap{2}),
                 std::tuple(bias, mha::SoftCap{2}, Unchanged{}));
    }
  }
}

TEST(Tiles, ThatAMaskDoesNotTellOfAreFoundAndChangeNoBit) {
  support::at_every_isa([] {
    expect_same_bits<mha::CpuWith<mha::Serial>, float>();
    expect_same_bits<mha::CpuWith<mha::Serial>, double>();
  });
}

TEST(Tiles, OfATableOfMinusInfinityAreFoundAndChangeNoBit) {
  support::at_every_isa([] { expect_same_bits_of_tables<mha::CpuWith<mha::Serial>>(); });
}

// Eigen sums the keys that are left, so that what is left out moves the borders between its sums.
TEST(Tiles, ThatAMaskDoesNotTellOfAreFoundByEigen) {
  of_each<mha::EigenCpuWith<mha::Serial>, double>(
      [](const std::string& what, const auto& silent, const auto& computed) {
        EXPECT_LE(support::largest_difference(silent, computed), 1e-12) << what;
      });
}

class TilesOnUnit : public unit::OnUnit {};
INSTANTIATE_TEST_SUITE_P(Units, TilesOnUnit, testing::ValuesIn(mha::detail::systolic::all_units), unit::unit_name);
TEST_P(TilesOnUnit, ThatAMaskDoesNotTellOfAreFoundAndChangeNoBit) {
  expect_same_bits<mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>, float>();
}

}  // namespace
