// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CUDA backend with its tensors, tape and policies in memory that the host does not reach.
#include <exception>
#include <string>
#include <vector>

#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>

#include "far_cuda.hpp"
#include "gradient_checks.hpp"
#include "scratch.hpp"

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

struct FarBelow {
  template <class S> MHA_HOST_DEVICE S operator()(S s, mha::Index, mha::Index, mha::Index, mha::Index) const {
    return s - S(200);
  }
};
TEST(FarBackward, OfRowsThatASinkOutweighs) {
  expect_right<FarCuda, float>("far outweighed float", {2, 9, 11, 2, 1, 8, 8}, FarBelow{}, mha::Sink({0.f, 1.f}));
  expect_right<FarCuda, mha::bfloat16>("far outweighed bfloat16", {2, 9, 11, 2, 1, 8, 8}, FarBelow{},
                                       mha::Sink({0.f, 1.f}));
}

TEST(FarBackward, TheSinksGradientOfNoSequencesIsZero) {
  const support::BackwardCase<float> some("far before", {2, 5, 7, 2, 2, 8, 8}), none("far none", {0, 5, 7, 2, 2, 8, 8});
  FarCuda::Workspace workspace;
  for (const auto* c : {&some, &none}) {
    const auto q = mha::to_device(c->q), k = mha::to_device(c->k), v = mha::to_device(c->v),
               d = mha::to_device(c->d_out);
    mha::AttentionTape<float, FarCuda> tape;
    const auto sink = mha::on_device(mha::Sink({0.5f, 1.f}));
    const auto out = mha::attention<FarCuda>(q, k, v, sink, mha::record(tape), workspace);
    const auto g = mha::to_host(mha::attention_backward(d, q, k, v, out, tape, sink, workspace).sink);
    ASSERT_EQ(g.size(), 2u);
    for (const auto x : g) EXPECT_EQ(x == 0, c == &none);
  }
}

TEST(FarBackward, RefusesWhatIsNotThere) {
  const support::BackwardCase<float> c("far backward refused", {1, 5, 7, 2, 2, 8, 8});
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d = mha::to_device(c.d_out);
  mha::AttentionTape<float, FarCuda> tape;
  const auto out = mha::attention<FarCuda>(q, k, v, mha::record(tape));
  mha::Tensor<float, 4> here(1, 5, 2, 8);
  const auto said = mha_test::message_of<std::exception>([&] {
    mha::attention_backward_into({here, {}, {}}, d, q, k, v, out, tape);
  });
  EXPECT_NE(said.find("the gradient of q"), std::string::npos) << said;
  mha::DeviceTensor<float, 4> there(1, 5, 2, 8), shorter(1, 4, 2, 8);
  EXPECT_THROW((mha::attention_backward_into({there, {}, {}}, d, q, k, v, shorter, tape)), mha::ShapeError);
}

}  // namespace
