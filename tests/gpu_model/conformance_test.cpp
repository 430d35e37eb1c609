// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA backend on the host model, through its plans and through attention(), against the reference
// in double: every scalar, policy, layout and size, two by two. Sizes are few and small, the model is a slow machine.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "simulated_cases.hpp"

namespace {

using conformance::Case;
using conformance::factors;
using conformance::Index;
using conformance::Storage;

/// The sizes that are tried, by name; of the other factors every level but of those that are the CPU's.
const std::vector<std::string>& sizes(std::size_t factor) {
  static const std::vector<std::string> queries{"1", "3", "8", "17", "65", "129"},
      keys{"0", "1", "16", "48", "65", "200"}, dims{"1", "8", "16", "48", "65", "128", "200"},
      value_dims{"1", "8", "31", "48", "128", "257"};
  switch (factor) {
    case conformance::queries:
      return queries;
    case conformance::keys:
      return keys;
    case conformance::head_dim:
      return dims;
    default:
      return value_dims;
  }
}

/// The levels of a factor that are tried, as numbers of factors().
std::vector<int> tried(std::size_t factor) {
  const auto& names = factors()[factor].levels;
  if (factor == conformance::machine || factor == conformance::isa) return {0};
  std::vector<int> levels;
  if (factor < conformance::queries) {
    for (std::size_t i = 0; i < names.size(); ++i) levels.push_back(static_cast<int>(i));
    return levels;
  }
  for (const std::string& size : sizes(factor))
    levels.push_back(static_cast<int>(std::find(names.begin(), names.end(), size) - names.begin()));
  return levels;
}

struct Array {
  std::vector<std::vector<int>> levels;  // tried, of each factor
  std::vector<support::CoveringRow> rows;

  std::vector<int> counts() const {
    std::vector<int> n;
    for (const auto& of : levels) n.push_back(static_cast<int>(of.size()));
    return n;
  }
  Case at(std::size_t row) const {
    Case c{rows[row]};
    for (std::size_t f = 0; f < levels.size(); ++f) c.row[f] = levels[f][static_cast<std::size_t>(rows[row][f])];
    return c;
  }
};

const Array& array() {
  static const Array all = [] {
    Array a;
    for (std::size_t f = 0; f < factors().size(); ++f) a.levels.push_back(tried(f));
    const auto counts = a.counts();
    support::Random random("simulated cases");
    const auto allowed = [&](const support::CoveringRow& row) {
      using namespace conformance;
      int large = 0;
      for (const auto f : {queries, keys, head_dim, value_dim})
        large += row[f] >= counts[f] - (f == queries || f == keys ? 1 : 2) ? 1 : 0;
      if (large > 2) return false;
      const int s = row[storage], m = row[mask], c = row[score];
      return s < 0 || m < 0 || c < 0 || simulated::compiled(s, m, c);
    };
    a.rows = support::covering_array(counts, random, allowed);
    return a;
  }();
  return all;
}

TEST(SimulatedCuda, CasesHaveEveryPairOfLevels) {
  EXPECT_EQ(support::missing_pairs(array().counts(), array().rows), 0u) << "of " << array().rows.size() << " cases";
}

TEST(SimulatedCuda, EveryPairOfLevelsAgreesWithTheDoubleReference) {
  int failed = 0;
  for (std::size_t i = 0; i < array().rows.size() && failed < 10; ++i) {
    const Case c = array().at(i);
    support::Random stream("simulated case " + std::to_string(i));
    const Index start = stream.chance(0.6) ? 16 : 1;
    SCOPED_TRACE("case " + std::to_string(i) + " from element " + std::to_string(start) + ": " + c.text());
    switch (c.at<Storage>(conformance::storage)) {
      case Storage::float32:
        simulated::run<float>(c, stream, start);
        break;
      case Storage::float64:
        simulated::run<double>(c, stream, start);
        break;
      case Storage::half:
        simulated::run<mha::half>(c, stream, start);
        break;
      case Storage::bfloat16:
        simulated::run<mha::bfloat16>(c, stream, start);
        break;
    }
    failed += HasFailure() ? 1 : 0;
  }
}

}  // namespace
