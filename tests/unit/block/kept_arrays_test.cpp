// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/kept_arrays.hpp>

namespace {

TEST(KeptArrays, AreAsTheyWereUntilADraftIsKept) {
  mha::detail::KeptArrays<float> arrays;
  using Draft = decltype(arrays)::Draft;
  float *first = nullptr, *second = nullptr;
  {
    Draft draft(arrays);
    first = draft.take<float>(10);
    second = draft.take<float>(3);
    EXPECT_NE(first, second);
    first[9] = 5;
    draft.keep();
  }
  {
    Draft refused(arrays);
    EXPECT_NE(refused.take<float>(11), first);
    EXPECT_EQ(refused.take<float>(2), second);
  }
  Draft again(arrays);
  EXPECT_EQ(again.take<float>(10), first);
  EXPECT_EQ(first[9], 5);
}

}  // namespace
