// SPDX-License-Identifier: Apache-2.0
// Scores of a user's own whose numbers a layer trains, and the numbers of any.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <mha/config.hpp>
#include <mha/core/dual.hpp>
#include <mha/core/math.hpp>
#include <mha/policy/trained_score.hpp>

namespace support {

/// All numbers of a score that are trained, one after another.
template <class S> std::vector<double> numbers_of(const S& score) {
  std::vector<double> all;
  mha::detail::for_each_numbers(score, mha::detail::trained(score), [&](const auto& numbers, const auto&) {
    for (const auto x : numbers) all.push_back(static_cast<double>(x));
  });
  return all;
}

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
