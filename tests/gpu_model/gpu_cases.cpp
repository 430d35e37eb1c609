// SPDX-License-Identifier: Apache-2.0
#include "gpu_cases.hpp"

#include <algorithm>
#include <numeric>

namespace gpu_cases {

namespace {

using conformance::factors;
using Sizes = std::vector<std::vector<std::string>>;  // by name, of the factors from `queries` on

/// Every level of a factor but of those that are the CPU's; of the sizes those that are named, or all.
std::vector<int> tried(std::size_t factor, const Sizes& sizes) {
  const auto& names = factors()[factor].levels;
  if (factor == conformance::machine || factor == conformance::isa) return {0};
  std::vector<int> levels;
  if (factor < conformance::queries || sizes.empty()) {
    levels.resize(names.size());
    std::iota(levels.begin(), levels.end(), 0);
    return levels;
  }
  for (const std::string& size : sizes[factor - conformance::queries])
    levels.push_back(static_cast<int>(std::find(names.begin(), names.end(), size) - names.begin()));
  return levels;
}

template <class Allowed> Array array(const char* name, const Sizes& sizes, const Allowed& allowed) {
  Array a{name, {}, {}};
  for (std::size_t f = 0; f < factors().size(); ++f) a.levels.push_back(tried(f, sizes));
  support::Random random(name);
  const auto counts = a.counts();
  a.rows = support::covering_array(counts, random, [&](const auto& row) { return allowed(row, counts); });
  return a;
}

}  // namespace

std::vector<int> Array::counts() const {
  std::vector<int> n;
  for (const auto& of : levels) n.push_back(static_cast<int>(of.size()));
  return n;
}

Case Array::at(std::size_t row) const {
  Case c{rows[row]};
  for (std::size_t f = 0; f < levels.size(); ++f) c.row[f] = levels[f][static_cast<std::size_t>(rows[row][f])];
  return c;
}

const Array& small() {
  static const Array of = array("small case ",
                                {{"1", "3", "8", "17", "65", "129"},
                                 {"0", "1", "16", "48", "65", "200"},
                                 {"1", "8", "16", "48", "65", "128", "200"},
                                 {"1", "8", "31", "48", "128", "257"}},
                                [](const support::CoveringRow& row, const std::vector<int>& counts) {
                                  using namespace conformance;
                                  int large = 0;
                                  for (const auto f : {queries, keys, head_dim, value_dim})
                                    large += row[f] >= counts[f] - (f == queries || f == keys ? 1 : 2) ? 1 : 0;
                                  return large <= 2;
                                });
  return of;
}

const Array& all() {
  static const Array of = array("case ", {}, [](const auto&, const auto&) { return true; });
  return of;
}

}  // namespace gpu_cases
