// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>

#include <gtest/gtest.h>

#include <mha/backend/gemm_sum.hpp>
#include <mha/mha.hpp>

namespace {

struct Packed {
  std::size_t bytes() const { return 0; }
  mha::DenseWeights<float> columns(std::size_t, std::size_t) const { return {}; }
};
struct Sums {
  using Workspace = mha::Workspace;
  Packed pack(std::span<const mha::DenseWeights<float>>) const { return {}; }
  void gemm(const mha::GemmSumCall<float>&, Workspace&) const {}
};
struct WithoutThem {
  using Workspace = mha::Workspace;
  Packed pack(std::span<const mha::DenseWeights<float>>) const { return {}; }
};

TEST(GemmSum, IsWhatABackendHasWhereTheHostDoesNotReach) {
  EXPECT_TRUE((mha::SumsProducts<Sums, float>));
  EXPECT_FALSE((mha::SumsProducts<WithoutThem, float>));
  EXPECT_FALSE((mha::SumsProducts<mha::Reference, float>));
}

}  // namespace
