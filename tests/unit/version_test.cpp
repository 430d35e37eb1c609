// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/config.hpp>
#include <mha/version.hpp>

TEST(Version, IsTheOneOfTheBuild) {
  const std::string version = std::to_string(MHA_VERSION_MAJOR) + "." + std::to_string(MHA_VERSION_MINOR) + "." +
                              std::to_string(MHA_VERSION_PATCH);
  EXPECT_EQ(version, MHA_PROJECT_VERSION);
}

#if MHA_VERSION < 100 || MHA_VERSION >= 10000000
#error "MHA_VERSION is to be compared by the preprocessor"
#endif

TEST(Version, HasAnOrder) {
  EXPECT_EQ(MHA_VERSION / 10000, MHA_VERSION_MAJOR);
  EXPECT_EQ(MHA_VERSION / 100 % 100, MHA_VERSION_MINOR);
  EXPECT_EQ(MHA_VERSION % 100, MHA_VERSION_PATCH);
}

// Minor versions below 1.0 are not compatible, so that two of them in one process must share no symbol.
TEST(Version, TheInlineNamespaceTellsTheMinorVersion) {
  const std::string name = MHA_TEXT_OF(MHA_NAMESPACE);
  const std::string version = "v" + std::to_string(MHA_VERSION_MAJOR) + "_" + std::to_string(MHA_VERSION_MINOR);
  EXPECT_TRUE(name == version || name.rfind(version + "_", 0) == 0) << name;
}
