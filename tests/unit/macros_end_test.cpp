// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

namespace {

#define require 1
#include <mha/macros_end.hpp>
constexpr int alone = require;  // behind no macros_begin.hpp there is nothing to define again
#include <mha/macros_begin.hpp>
constexpr int require = 2;
constexpr int aside = require;
#include <mha/macros_end.hpp>
constexpr int again = require;
#undef require

TEST(MacrosEnd, DefinesAgainWhatWasPutAside) {
  EXPECT_EQ(alone, 1);
  EXPECT_EQ(aside, 2);
  EXPECT_EQ(again, 1);
}

}  // namespace
