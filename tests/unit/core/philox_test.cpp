// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <gtest/gtest.h>

#include <mha/core/philox.hpp>

namespace {

using mha::philox4x32;
using mha::PhiloxWords;

constexpr std::uint64_t key_of(std::uint32_t low, std::uint32_t high) { return low | std::uint64_t{high} << 32; }

// The known answers of Random123, tests/kat_vectors.
constexpr PhiloxWords zeros{}, ones{{~0u, ~0u, ~0u, ~0u}}, pi{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
constexpr std::uint64_t pi_key = key_of(0xa4093822, 0x299f31d0);

TEST(Philox, GivesThePublishedNumbersOfSevenRounds) {
  EXPECT_EQ(philox4x32<7>(zeros, 0), (PhiloxWords{{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}));
  EXPECT_EQ(philox4x32<7>(ones, ~std::uint64_t{0}), (PhiloxWords{{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}}));
  EXPECT_EQ(philox4x32<7>(pi, pi_key), (PhiloxWords{{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}}));
  EXPECT_EQ(philox4x32(pi, pi_key), philox4x32<7>(pi, pi_key));
}

TEST(Philox, GivesThePublishedNumbersOfTenRounds) {
  EXPECT_EQ(philox4x32<10>(zeros, 0), (PhiloxWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(philox4x32<10>(ones, ~std::uint64_t{0}), (PhiloxWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox4x32<10>(pi, pi_key), (PhiloxWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, IsComputedByTheCompilerToo) {
  static_assert(philox4x32<7>(zeros, 0).word[0] == 0x5f6fb709);
  static_assert(!(philox4x32<7>(zeros, 0) == philox4x32<7>(zeros, 1)));
}

}  // namespace
