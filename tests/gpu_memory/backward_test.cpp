// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CUDA backend with its tensors, tape and policies in memory that the host does not reach.
#include <vector>

#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>

#include "far_cuda.hpp"
#include "gradient_checks.hpp"

namespace {

using gradient_checks::expect_right;
using support::FarCuda;

TEST(FarBackward, OfEveryKernel) {
  expect_right<FarCuda, mha::bfloat16>("far backward bfloat16", {2, 70, 90, 4, 2, 16, 24}, mha::Causal{});
  expect_right<FarCuda, float>("far backward float", {2, 70, 90, 4, 2, 16, 24}, mha::Causal{});
}

TEST(FarBackward, OfPoliciesWithDataAndRaggedBatches) {
  const std::vector<mha::Index> lengths{30, 90}, q_offsets{0, 20, 20, 70}, k_offsets{0, 8, 30, 90};
  expect_right<FarCuda, float>("far backward policies", {2, 7, 90, 4, 2, 16, 24}, mha::Padding{lengths},
                               mha::SoftCap{2.f}, mha::Sink({0.5f, -2.f, 3.f, 1.f}));
  expect_right<FarCuda, float>("far backward ragged", {1, 70, 90, 4, 2, 16, 24}, mha::Ragged{q_offsets, k_offsets},
                               mha::Causal{});
}

TEST(FarBackward, RefusesWhatIsNotThere) {
  const support::BackwardCase<float> c("far backward refused", {1, 5, 7, 2, 2, 8, 8});
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d = mha::to_device(c.d_out);
  mha::AttentionTape<float, FarCuda> tape;
  const auto out = mha::attention<FarCuda>(q, k, v, mha::record(tape));
  mha::Tensor<float, 4> here(1, 5, 2, 8);
  EXPECT_ANY_THROW((mha::attention_backward_into({here, {}, {}}, d, q, k, v, out, tape)));
  mha::DeviceTensor<float, 4> there(1, 5, 2, 8), shorter(1, 4, 2, 8);
  EXPECT_THROW((mha::attention_backward_into({there, {}, {}}, d, q, k, v, shorter, tape)), mha::ShapeError);
}

}  // namespace
