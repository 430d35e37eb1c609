// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/config.hpp>

namespace {

MHA_HOST_DEVICE constexpr mha::Index twice(mha::Index i) { return 2 * i; }
MHA_ALWAYS_INLINE int inlined() { return 3; }
MHA_NO_INLINE int called() { return 4; }

TEST(Config, AnIndexIsThirtyTwoSignedBits) {
  static_assert(std::is_signed_v<mha::Index> && sizeof(mha::Index) == 4);
  static_assert(std::is_same_v<mha::Index, int>);
}

TEST(Config, DynamicIsNoCount) { EXPECT_LT(mha::Dynamic, 0); }

TEST(Config, TheInlineNamespaceKeepsItsNameOutOfUserCode) {
  static_assert(std::is_same_v<mha::Memory, mha::MHA_NAMESPACE::Memory>);
  EXPECT_NE(mha::Memory::host, mha::Memory::device);
}

TEST(Config, AnnotationsLeaveAFunctionWhatItWas) {
  static_assert(twice(4) == 8);
  EXPECT_EQ(inlined() + called(), 7);
}

}  // namespace
