// SPDX-License-Identifier: Apache-2.0
// The least that is a mask, and what is nearly one.
#include <concepts>
#include <type_traits>

#include <mha/policy/mask.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>

namespace mask_archetype {

/// Copying and calling are all that is asked for: no default, no assignment, no comparison.
class Least {
 public:
  explicit Least(int);
  Least(const Least&) = default;
  Least& operator=(const Least&) = delete;
  bool operator()(mha::Index b, mha::Index h, mha::Index q, mha::Index k) const;
};
struct Whole : Least {
  static constexpr mha::Role role = mha::Role::mask;
  static constexpr bool borrows = true;
  mha::TileVisibility tile(mha::Index, mha::Index, mha::Index, mha::Index, mha::Index, mha::Index) const;
  Whole prepared(const mha::CallShape&) const;
  template <class F> Whole with_data(F&&) const;
};

struct ReturnsInt {
  int operator()(int, int, int, int) const;
};
struct ReturnsReference {
  const bool& operator()(int, int, int, int) const;
};
struct NotConst {
  bool operator()(int, int, int, int);
};
struct ThreeIndices {
  bool operator()(int, int, int) const;
};
struct Private {
 private:
  bool operator()(int, int, int, int) const;
};
struct DeclaredOtherwise {
  static constexpr mha::Role role = mha::Role::score;
  bool operator()(int, int, int, int) const;
};
struct DeclaredOnly {
  static constexpr mha::Role role = mha::Role::mask;
};

static_assert(mha::Mask<Least> && mha::Mask<const Least&> && mha::Mask<Whole>);
static_assert(mha::Borrows<Whole> && !mha::Borrows<Least>);
static_assert(!mha::Mask<ReturnsInt> && !mha::Mask<ReturnsReference> && !mha::Mask<NotConst>);
static_assert(!mha::Mask<ThreeIndices> && !mha::Mask<Private>);
static_assert(!mha::Mask<DeclaredOtherwise> && !mha::Mask<DeclaredOnly>);
static_assert(!mha::Mask<int> && !mha::Mask<void> && !mha::Mask<bool>);

// Compositions ask no more of their parts.
using Composed = mha::And<Least, mha::Or<mha::Not<Whole>, mha::Causal>>;
static_assert(mha::Mask<Composed> && mha::Borrows<Composed>);
static_assert(
    std::same_as<decltype(mha::prepared(std::declval<const mha::Not<Whole>&>(), mha::CallShape{})), mha::Not<Whole>>);
static_assert(
    std::same_as<decltype(mha::tile(std::declval<const Composed&>(), 0, 0, 0, 1, 0, 1)), mha::TileVisibility>);

// What a kernel copies into its inner loop stays small and trivially copyable.
using mha::And, mha::Causal, mha::CausalTopLeft, mha::Full, mha::Not, mha::Or, mha::Padding, mha::SlidingWindow;
template <class M> constexpr bool is_plain = std::is_trivially_copyable_v<M>&& std::is_trivially_destructible_v<M>;
static_assert(is_plain<And<Causal, Padding>> && is_plain<Or<Not<CausalTopLeft>, And<SlidingWindow, Padding>>>);
static_assert(std::is_empty_v<Full> && std::is_empty_v<Causal>);
static_assert(sizeof(SlidingWindow) == 2 * sizeof(mha::Index));
static_assert(sizeof(Padding) <= 2 * sizeof(void*));
static_assert(sizeof(And<Causal, Padding>) <= 3 * sizeof(void*));
static_assert(sizeof(And<SlidingWindow, Padding>) == sizeof(SlidingWindow) + sizeof(Padding));
static_assert(sizeof(Not<Padding>) == sizeof(Padding));

}  // namespace mask_archetype
