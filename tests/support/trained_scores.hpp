// SPDX-License-Identifier: Apache-2.0
// Scores of a user's own whose numbers a layer trains.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <mha/config.hpp>
#include <mha/core/dual.hpp>
#include <mha/core/math.hpp>

namespace support {

/// Two numbers, and a logit that is bent.
template <class T = float> struct BentScore {
  T slope, bend;
  template <class S> auto operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + bend * mha::tanh(s) - slope * (float((1 + h) * mha::abs(q - k)) * 0.25f);
  }
};

/// A table that knows its gradient.
template <std::size_t Count> struct TableScore {
  std::array<double, Count> table{};
  std::span<double> numbers() { return table; }
  std::span<const double> numbers() const { return table; }
  static std::size_t at(mha::Index h, mha::Index q, mha::Index k) {
    return static_cast<std::size_t>(q + k + h) % Count;
  }
  template <class S> S operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return static_cast<S>(s + table[at(h, q, k)]);
  }
  template <class G, class S>
  void accumulate(G gradient, S dt, S, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    gradient[at(h, q, k)] += dt;
  }
};

}  // namespace support
