// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CUDA backend with its tensors, tape and policies in memory that the host does not reach.
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/alibi_slopes.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>

#include "far_cuda.hpp"
#include "gradient_checks.hpp"
#include "message_of.hpp"
#include "scratch.hpp"

namespace {

using gradient_checks::expect_right;
using gradient_checks::expect_scores_right;
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

TEST(FarBackward, OfScoresWithNumbersOnTheDevice) {
  const mha::Chain score{mha::RelativeBias(std::vector<float>(16, 0.25f), {8, 20, true}),
                         mha::AlibiSlopes({0.5f, 0.25f})};
  for (const int axes : {0, 5, 15})
    expect_scores_right<FarCuda, float>("far scores float", {2, 66, 70, 2, 1, 8, 12}, axes, score, mha::Causal{});
  expect_scores_right<FarCuda, mha::bfloat16>("far scores bfloat16", {2, 66, 70, 2, 1, 16, 24}, 1, score,
                                              mha::Causal{});
  const std::vector<mha::Index> q_offsets{0, 20, 20, 70}, k_offsets{0, 8, 30, 90};
  const support::BackwardCase<float> c("far scores ragged", {1, 70, 90, 2, 1, 8, 8});
  const auto expected =
      support::score_gradient<mha::Reference>(c.as<double>(), score, mha::Ragged{q_offsets, k_offsets});
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d = mha::to_device(c.d_out);
  mha::AttentionTape<float, FarCuda> tape;
  const auto there = mha::on_device(score);
  const auto out = mha::attention<FarCuda>(q, k, v, there, mha::Ragged{q_offsets, k_offsets}, mha::record(tape));
  const auto g = mha::attention_backward(d, q, k, v, out, tape, there, mha::Ragged{q_offsets, k_offsets}).score;
  static_assert(std::is_same_v<std::remove_const_t<decltype(g)>, mha::Chain<mha::RelativeBias, mha::AlibiSlopes>>);
  EXPECT_LE(support::relative_error(support::numbers_of(g), expected, support::gradient_scale(c)), 5e-6);
}

TEST(FarBackward, OfAScoreIsRefusedUnderARecordingBeforeAnythingIsEnqueued) {
  support::Random random("far backward recorded");
  mha::Tensor<float, 4> rows(1, 5, 2, 8);
  random.fill(rows);
  const auto x = mha::to_device(rows);
  const auto slopes = mha::on_device(mha::AlibiSlopes({0.5f, 0.25f}));
  mha::AttentionTape<float, FarCuda> tape;
  FarCuda::Workspace workspace;
  mha::DeviceTensor<float, 4> out(1, 5, 2, 8), dq(1, 5, 2, 8);
  mha::attention_into<FarCuda>(out, x, x, x, slopes, mha::record(tape), workspace);
  mha::AlibiSlopes to({0.f, 0.f});
  const auto backward = [&] {
    mha::attention_backward_into({dq, {}, {}}, x, x, x, x, out, tape, slopes, mha::ScoreGradient(to), workspace);
  };
  backward();
  const auto before = mha::to_host(dq);
  mha::cuda::check(cudaMemset(dq.data(), 0xff, dq.size() * sizeof(float)), "cudaMemset");
  const auto poison = mha::to_host(dq);
  cudaGraph_t graph = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const std::string said = support::message_of(backward);
  const std::size_t recorded = support::FarStream::recorded();
  mha::cuda::check(cudaStreamEndCapture(nullptr, &graph), "cudaStreamEndCapture");
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  EXPECT_NE(said.find("is being recorded: record no ragged call, no Origin{positions}, no Positions, no ScoreGradient"),
            std::string::npos)
      << said;
  EXPECT_EQ(recorded, 0u);
  EXPECT_EQ(support::differing(mha::to_host(dq), poison), 0u);
  backward();
  EXPECT_EQ(support::differing(mha::to_host(dq), before), 0u);
}

TEST(FarBackward, TheGradientsOfAScoreOfNoSequencesAreZero) {
  const support::BackwardCase<float> c("far scores none", {0, 5, 7, 2, 2, 8, 8});
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d = mha::to_device(c.d_out);
  mha::AttentionTape<float, FarCuda> tape;
  mha::Tensor<float, 2> table(5, 7);
  const auto bias = mha::on_device(mha::AdditiveBias(table));
  const auto slopes = mha::on_device(mha::AlibiSlopes({0.5f, 0.25f}));
  auto to = mha::to_device(mha::Tensor<float, 2>(5, 7));
  const auto out = mha::attention<FarCuda>(q, k, v, bias, slopes, mha::record(tape));
  mha::AlibiSlopes of_slopes({1.f, 2.f});
  mha::attention_backward_into({{}, {}, {}}, d, q, k, v, out, tape, bias, slopes, mha::BiasGradient(to),
                               mha::ScoreGradient(of_slopes));
  for (const float x : mha::to_host(to)) EXPECT_EQ(x, 0);
  EXPECT_EQ(of_slopes.per_head(), (std::vector<float>{0, 0}));
}

TEST(FarBackward, RefusesABiasGradientOnTheHostOrOfAnotherShape) {
  const support::BackwardCase<float> c("far bias refused", {1, 5, 7, 2, 2, 8, 8});
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d = mha::to_device(c.d_out);
  mha::AttentionTape<float, FarCuda> tape;
  mha::Tensor<float, 2> table(5, 7);
  const auto bias = mha::on_device(mha::AdditiveBias(table));
  const auto out = mha::attention<FarCuda>(q, k, v, bias, mha::record(tape));
  const auto said = [&](auto& to) {
    return mha_test::message_of<std::exception>([&] {
      mha::attention_backward_into({{}, {}, {}}, d, q, k, v, out, tape, bias, mha::BiasGradient(to));
    });
  };
  EXPECT_NE(said(table).find("BiasGradient"), std::string::npos) << said(table);
  mha::DeviceTensor<float, 3> wider(2, 5, 7);
  EXPECT_EQ(said(wider), "attention_backward: AdditiveBias has 1 head but BiasGradient has 2");
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
