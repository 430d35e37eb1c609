// SPDX-License-Identifier: Apache-2.0
// Pairwise covering arrays: few rows in which every two levels of different factors meet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "random.hpp"

namespace support {

using CoveringRow = std::vector<int>;  ///< a level of each factor

/// Which pairs of (factor, level) have met.
class PairTable {
 public:
  explicit PairTable(const std::vector<int>& levels) {
    for (const int n : levels) first_.push_back(std::exchange(total_, total_ + n));
    met_.assign(static_cast<std::size_t>(total_) * static_cast<std::size_t>(total_), 0);
  }
  char& met(std::size_t f, int a, std::size_t g, int b) {
    const int x = first_[f] + a, y = first_[g] + b;
    return met_[static_cast<std::size_t>(std::min(x, y)) * static_cast<std::size_t>(total_) +
                static_cast<std::size_t>(std::max(x, y))];
  }
  void add(const CoveringRow& row) {
    for (std::size_t f = 0; f < row.size(); ++f)
      for (std::size_t g = 0; g < f; ++g) met(f, row[f], g, row[g]) = 1;
  }

 private:
  std::vector<int> first_;
  int total_ = 0;
  std::vector<char> met_;
};

/// How many pairs of levels no row has.
inline std::size_t missing_pairs(const std::vector<int>& levels, const std::vector<CoveringRow>& rows) {
  std::size_t missing = 0;
  for (std::size_t f = 0; f < levels.size(); ++f)
    for (std::size_t g = 0; g < f; ++g)
      for (int a = 0; a < levels[f]; ++a)
        for (int b = 0; b < levels[g]; ++b)
          if (std::none_of(rows.begin(), rows.end(), [&](const CoveringRow& r) { return r[f] == a && r[g] == b; }))
            ++missing;
  return missing;
}

/// Greedy: every row starts from a pair that is still missing and takes, factor by factor in random order, the level
/// that meets the most missing pairs. `allowed(row)` refuses rows, also unfinished ones (level −1); whatever pair it
/// allows it must allow to be completed, in any order. Pairs that it refuses are in no row.
template <class Allowed>
std::vector<CoveringRow> covering_array(const std::vector<int>& levels, Random& random, Allowed&& allowed) {
  const std::size_t factors = levels.size();
  PairTable table(levels);
  std::vector<CoveringRow> rows;
  struct Pair {
    std::size_t f, g;
    int a, b;
  };
  std::vector<Pair> wanted;
  for (std::size_t f = 0; f < factors; ++f)
    for (std::size_t g = 0; g < f; ++g)
      for (int a = 0; a < levels[f]; ++a)
        for (int b = 0; b < levels[g]; ++b) wanted.push_back({f, g, a, b});
  std::shuffle(wanted.begin(), wanted.end(), random.engine());
  std::vector<std::size_t> order(factors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const Pair& pair : wanted) {
    if (table.met(pair.f, pair.a, pair.g, pair.b) != 0) continue;
    CoveringRow row(factors, -1);
    row[pair.f] = pair.a;
    row[pair.g] = pair.b;
    if (!allowed(std::as_const(row))) continue;
    std::shuffle(order.begin(), order.end(), random.engine());
    for (const std::size_t f : order) {
      if (row[f] >= 0) continue;
      int best = 0, best_gain = -1;
      const int start = random.below(levels[f]);
      for (int i = 0; i < levels[f]; ++i) {
        const int level = (start + i) % levels[f];
        row[f] = level;
        if (!allowed(std::as_const(row))) continue;
        int gain = 0;
        for (std::size_t g = 0; g < factors; ++g)
          if (g != f && row[g] >= 0 && table.met(f, level, g, row[g]) == 0) ++gain;
        if (gain > best_gain) {
          best = level;
          best_gain = gain;
        }
      }
      row[f] = best;
    }
    table.add(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace support
