// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/block/kept_arrays.hpp>

namespace {

TEST(KeptArrays, AreAsTheyWereUntilADraftIsKept) {
  mha::detail::KeptArrays<float> arrays;
  using Draft = decltype(arrays)::Draft;
  const mha::Reference backend;
  float *first = nullptr, *second = nullptr;
  {
    Draft draft(arrays, backend, "linear");
    first = draft.take<float>(10);
    second = draft.take<float>(3);
    EXPECT_NE(first, second);
    first[9] = 5;
    draft.keep();
  }
  {
    Draft refused(arrays, backend, "linear");
    EXPECT_NE(refused.take<float>(11), first);
    EXPECT_EQ(refused.take<float>(2), second);
  }
  Draft again(arrays, backend, "linear");
  EXPECT_EQ(again.take<float>(10), first);
  EXPECT_EQ(first[9], 5);
}

}  // namespace
