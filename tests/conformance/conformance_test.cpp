// SPDX-License-Identifier: Apache-2.0
// Every backend, scalar, policy, layout, instruction set and size against the reference in double, two by two.
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cases.hpp"

namespace {

using conformance::Case;
using conformance::cases;
using conformance::Storage;

std::vector<int> level_counts() {
  std::vector<int> counts;
  for (const auto& factor : conformance::factors()) counts.push_back(static_cast<int>(factor.levels.size()));
  return counts;
}

std::vector<support::CoveringRow> rows() {
  std::vector<support::CoveringRow> all;
  for (const Case& c : cases()) all.push_back(c.row);
  return all;
}

TEST(CoveringArray, HasEveryPairOfLevels) {
  EXPECT_EQ(support::missing_pairs(level_counts(), rows()), 0u) << "of " << cases().size() << " cases";
}

TEST(CoveringArray, MissesPairsWithoutTheCasesOfOneLevel) {
  auto fewer = rows();
  std::erase_if(fewer, [](const auto& row) { return row[conformance::mask] == 1 && row[conformance::score] == 2; });
  EXPECT_GE(support::missing_pairs(level_counts(), fewer), 1u);
}

TEST(CoveringArray, HasEveryPolicyInItsOwnTypeOverEverySource) {
  std::set<std::vector<int>> seen;
  for (const Case& c : conformance::cases_of_own_types())
    seen.insert({c.row[conformance::mask], c.row[conformance::score], c.row[conformance::source]});
  const auto levels = [](conformance::Factor f) { return conformance::factors()[f].levels.size(); };
  if (levels(conformance::isa) < 2) GTEST_SKIP() << "one instruction set in two scalars makes two cases a policy";
  EXPECT_EQ(seen.size(), (levels(conformance::mask) + levels(conformance::score) - 1) * levels(conformance::source));
}

/// The cases of a scalar, of which there are four.
template <class T> void expect_cases(Storage storage) {
  ASSERT_EQ(conformance::factors()[conformance::storage].levels.size(), 4u);
  int failed = 0;
  for (std::size_t i = 0; i < cases().size() && failed < 10; ++i) {
    const Case& c = cases()[i];
    if (c.at<Storage>(conformance::storage) != storage) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    // A stream of its own for each case: one can be repeated without those before it.
    support::Random stream("case " + std::to_string(i));
    conformance::run<T>(c, stream);
    failed += testing::Test::HasFailure() ? 1 : 0;
  }
}
TEST(Conformance, EveryPairOfLevelsAgreesWithTheDoubleReferenceInFloat) { expect_cases<float>(Storage::float32); }
TEST(Conformance, EveryPairOfLevelsAgreesWithTheDoubleReferenceInDouble) { expect_cases<double>(Storage::float64); }
TEST(Conformance, EveryPairOfLevelsAgreesWithTheDoubleReferenceInHalf) { expect_cases<mha::half>(Storage::half); }
TEST(Conformance, EveryPairOfLevelsAgreesWithTheDoubleReferenceInBfloat16) {
  expect_cases<mha::bfloat16>(Storage::bfloat16);
}

TEST(Conformance, EveryPolicyInItsOwnTypeAgreesWithTheDoubleReference) {
  const auto& own = conformance::cases_of_own_types();
  const auto levels = [](conformance::Factor f) { return conformance::factors()[f].levels.size(); };
  const std::size_t policies = levels(conformance::mask) + levels(conformance::score) - 1;
  ASSERT_EQ(own.size(), 2 * policies * levels(conformance::isa));
  int failed = 0;
  for (std::size_t i = 0; i < own.size() && failed < 10; ++i) {
    const Case& c = own[i];
    SCOPED_TRACE("own types, case " + std::to_string(i) + ": " + c.text());
    support::Random stream("own types, case " + std::to_string(i));
    if (c.at<Storage>(conformance::storage) == Storage::float32)
      conformance::run_own_types<float>(c, stream);
    else
      conformance::run_own_types<double>(c, stream);
    failed += HasFailure() ? 1 : 0;
  }
}

}  // namespace
