// SPDX-License-Identifier: Apache-2.0
// The least that is a score, and what is nearly one.
#include <concepts>
#include <type_traits>

#include <mha/policy/score.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

namespace score_archetype {

class Least {
 public:
  explicit Least(int);
  Least(const Least&) = default;
  Least& operator=(const Least&) = delete;
  template <class T> T operator()(T s, mha::Index b, mha::Index h, mha::Index q, mha::Index k) const;
};
struct Whole : Least {
  static constexpr mha::Role role = mha::Role::score;
  static constexpr bool borrows = false;
  Whole prepared(const mha::CallShape&) const;
  Least at_head(mha::Index, mha::Index) const;
};
struct FloatOnly {
  float operator()(float, int, int, int, int) const;
};

struct ReturnsBool {
  bool operator()(float, int, int, int, int) const;
};
struct ReturnsNothing {
  void operator()(float, int, int, int, int) const;
};
struct NotConst {
  float operator()(float, int, int, int, int);
};
struct FourIndicesMissing {
  float operator()(float) const;
};
struct DeclaredOtherwise {
  static constexpr mha::Role role = mha::Role::mask;
  float operator()(float, int, int, int, int) const;
};

static_assert(mha::Score<Least> && mha::Score<const Least&> && mha::Score<Whole> && mha::Score<FloatOnly>);
static_assert(!mha::Score<ReturnsBool> && !mha::Score<ReturnsNothing> && !mha::Score<NotConst>);
static_assert(!mha::Score<FourIndicesMissing> && !mha::Score<DeclaredOtherwise> && !mha::Score<float>);

using Composed = mha::Chain<Whole, mha::Chain<Least, mha::Alibi>>;
static_assert(mha::Score<Composed> && !mha::Borrows<Composed>);
static_assert(std::same_as<decltype(mha::at_head(std::declval<const mha::Chain<Whole, FloatOnly>&>(), 0, 0)),
                           mha::Chain<Least, FloatOnly>>);
static_assert(std::same_as<decltype(std::declval<const Composed&>()(1.0, 0, 0, 0, 0)), double>);

// A score template works in every scalar, dual numbers and a scalar of the user's own included.
struct Rational {
  int numerator, denominator;
};
static_assert(std::same_as<decltype(std::declval<const Least&>()(Rational{1, 2}, 0, 0, 0, 0)), Rational>);
static_assert(std::same_as<decltype(mha::SoftCap{1.f}(mha::Dual<float>(1), 0, 0, 0, 0)), mha::Dual<float>>);

static_assert(std::is_empty_v<mha::NoScore>);
static_assert(std::is_trivially_copyable_v<mha::Chain<mha::SoftCap, mha::Alibi>>);
static_assert(std::is_trivially_copyable_v<mha::Chain<mha::SoftCap, mha::AdditiveBias<float>>>);
static_assert(sizeof(mha::SoftCap) == sizeof(float) && sizeof(mha::Alibi::OfHead) == sizeof(double));

}  // namespace score_archetype
