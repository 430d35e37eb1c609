// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/epilogue.hpp>
#include <mha/core/items.hpp>

namespace {

struct Negated {
  template <class S> S operator()(const S& x) const { return -x; }
};

TEST(EpilogueItems, ActivateGateAndAdd) {
  const float sum[] = {1, 2, 3, 4}, gate[] = {5, 6, 7, 8}, residual[] = {10, 20, 30, 40};
  float to[4];
  const auto s = mha::view(sum, 2, 2), g = mha::view(gate, 2, 2), r = mha::view(residual, 2, 2);
  mha::detail::run_serially(
      mha::detail::EpilogueItems<float, Negated>{2, 2, 1, {}, {}, s, mha::transposed(r), mha::view(to, 2, 2)});
  EXPECT_EQ(to[1], -2 + 30);
  mha::detail::run_serially(
      mha::detail::EpilogueItems<float, mha::Gated<Negated>>{2, 2, 1, {}, g, s, {}, mha::view(to, 2, 2)});
  EXPECT_EQ(to[3], -8 * 4);
  mha::detail::run_serially(mha::detail::sum_items<float>(s, r, mha::view(to, 2, 2)));
  EXPECT_EQ(to[2], 3 + 30);
}

}  // namespace
