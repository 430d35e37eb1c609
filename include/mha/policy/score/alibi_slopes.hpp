// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../core/borrowed.hpp"
#include "../../core/check.hpp"
#include "../score.hpp"
#include "../shared_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Attention with linear biases whose slopes are given, one per head, and can be trained; Alibi has those of the paper.
///
/// Formula   s − slope_h · |q − k|
/// Shapes    slopes (Hq)
/// Numerics  slopes and their gradients are float in a double call too; their products with distances are double there
/// Errors    ShapeError if there is not one slope per head, or one is not finite
/// Source    Press et al. 2022, §3, which tries slopes that are trained
class AlibiSlopes {
 public:
  static constexpr Role role = Role::score;
  static constexpr const char* name = "AlibiSlopes";
  static constexpr bool additive = true;
  static constexpr bool trained = true;

  explicit AlibiSlopes(std::vector<float> per_head) : slopes_(std::move(per_head)) {}

  const std::vector<float>& per_head() const { return slopes_.get(); }
  /// The slopes, to write; copies of this score keep those that they have.
  std::span<float> numbers() { return slopes_.writable(); }
  std::span<const float> numbers() const { return slopes_.get(); }

  /// |q − k| as a factor of a T: in its scalar, and of a dual number the integer, which has no derivative to multiply.
  template <class T> MHA_HOST_DEVICE static constexpr auto distance(Index q, Index k) {
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(mha::abs(q - k));
    else
      return mha::abs(q - k);
  }

  /// One head's bias.
  struct OfHead {
    static constexpr Role role = Role::score;
    static constexpr int parameters = 1;
    float slope;
    template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index, Index, Index q, Index k) const {
      return s - static_cast<T>(slope) * distance<T>(q, k);
    }
    /// The same with a slope that a dual number of value 0 changes: the value is rounded as without.
    template <class D> struct Shifted {
      static constexpr Role role = Role::score;
      float slope;
      D by;
      MHA_HOST_DEVICE D operator()(const D& s, Index b, Index h, Index q, Index k) const {
        return OfHead{slope}(s, b, h, q, k) - by * distance<D>(q, k);
      }
    };
    template <class Duals> MHA_HOST_DEVICE auto shifted(const Duals& by) const {
      return Shifted<std::remove_cvref_t<decltype(by[0])>>{slope, by[0]};
    }
  };

  /// The slopes of all heads for a call.
  struct Prepared {
    static constexpr Role role = Role::score;
    static constexpr bool additive = true;
    Borrowed<float> slopes;
    MHA_HOST_DEVICE constexpr OfHead at_head(Index, Index h) const { return {slopes.data[h]}; }
    template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index b, Index h, Index q, Index k) const {
      return at_head(b, h)(s, b, h, q, k);
    }
    template <class F> Prepared with_data(F&& f) const { return {f(slopes)}; }
  };

  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return OfHead{per_head()[static_cast<std::size_t>(h)]}(s, b, h, q, k);
  }
  /// Checks the slopes for a call with this many heads.
  void check(Index heads) const {
    const Borrowed<float> all(per_head());
    detail::require(all.size == heads, "AlibiSlopes: ", all.size, " slopes for ", heads, " heads");
    for (Index h = 0; h < all.size; ++h)
      detail::require(std::isfinite(all[h]), "AlibiSlopes: the slope of head ", h, " is ", all[h], ", not finite");
  }
  Prepared prepared(const CallShape& s) const {
    check(s.heads);
    return {Borrowed<float>(per_head())};
  }

  /// Of a gradient: += the sums over pairs.
  template <class Sums> void add(const Sums& sums, int& slot, int&) {
    const std::span<float> each = numbers();
    const Index heads = std::min(static_cast<Index>(each.size()), sums.shape.heads);
    for (Index h = 0; h < heads; ++h) each[static_cast<std::size_t>(h)] += static_cast<float>(sums.of(slot, h));
    ++slot;
  }

 private:
  detail::SharedNumbers slopes_;
};

}  // namespace mha::inline MHA_NAMESPACE
