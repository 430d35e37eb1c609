// SPDX-License-Identifier: Apache-2.0
// The covering array's cases in float only: what a mutation run compiles of the conformance suite.
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "../conformance/cases.hpp"

namespace {

using conformance::Storage;

TEST(Conformance, FloatCasesAgreeWithTheDoubleReference) {
  for (std::size_t i = 0; i < conformance::cases().size() && !HasFailure(); ++i) {
    const conformance::Case& c = conformance::cases()[i];
    if (c.at<Storage>(conformance::storage) != Storage::float32) continue;
    SCOPED_TRACE(c.text());
    support::Random stream("case " + std::to_string(i));
    conformance::run<float>(c, stream);
  }
}

}  // namespace
