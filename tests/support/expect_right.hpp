// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "attend_case.hpp"

namespace support {

/// The outputs of a case are what the formula says within the bound, and nothing beside them was written.
template <class Case> void expect_right(const Case& c, const std::string& name = "", const AttendBound& bound = {}) {
  Worst worst;
  c.check(worst, bound);
  EXPECT_LE(worst.error(), 1) << name << worst.text();
  EXPECT_EQ(c.spilled(), 0u) << name << c.sizes().text();
}

}  // namespace support
