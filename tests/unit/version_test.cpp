// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/version.hpp>

TEST(Version, IsTheOneOfTheBuild) {
  const std::string version = std::to_string(MHA_VERSION_MAJOR) + "." + std::to_string(MHA_VERSION_MINOR) + "." +
                              std::to_string(MHA_VERSION_PATCH);
  EXPECT_EQ(version, MHA_PROJECT_VERSION);
}
