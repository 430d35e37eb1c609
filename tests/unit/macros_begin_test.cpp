// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

namespace {

#define check 1
#define slots 2
#include <mha/macros_begin.hpp>
#if defined(check) || defined(slots) || defined(I) || !defined(MHA_MACROS_ASIDE)
#error "a macro was not put aside"
#endif
constexpr int check = 3, slots = 4;
constexpr int inside = check + slots;
#define I 5
#include <mha/macros_begin.hpp>
#if defined(I)
#error "a macro was not put aside within another front door"
#endif
#include <mha/macros_end.hpp>
#if !defined(I) || defined(check) || !defined(MHA_MACROS_ASIDE)
#error "the inner of two front doors has ended the outer one"
#endif
#include <mha/macros_end.hpp>
#if defined(I) || !defined(check) || !defined(slots) || defined(MHA_MACROS_ASIDE)
#error "macros are not what they were before"
#endif
constexpr int outside = check + slots;
#undef check
#undef slots

TEST(MacrosBegin, PutsMacrosAsideOnceForEachDoor) {
  EXPECT_EQ(inside, 7);
  EXPECT_EQ(outside, 3);
}

}  // namespace
