// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/backward_steps.hpp>
#include <mha/mha.hpp>

#include "random.hpp"

namespace {

TEST(LayerBackwardSteps, HandTheGradientOfTheRowsToTheHeads) {
  using Policies = mha::detail::PoliciesByRole<mha::NoOutput>;
  mha::Tensor<float, 3> x(1, 3, 4), dy(1, 3, 4), dx(1, 3, 4), d_memory(1, 3, 4);
  support::Random("steps").fill(dy);
  mha::LayerGradients<float> gradients(0, [](float*) { return mha::LayerGradientViews<float>{}; });
  const mha::NoNorm norm;
  const mha::NoPosition position;
  mha::detail::RecordedTensors<float> recorded;
  recorded.x = std::as_const(x).view();
  recorded.memory = {recorded.x, recorded.x};
  mha::detail::BackwardTensors<float> tensors{recorded, std::as_const(dy).view(), {dx.view()}, {}, {}, {}, {}, {}, {}};
  tensors.d_heads = mha::view(d_memory.data(), 1, 3, 2, 2);
  const mha::Reference backend;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  mha::detail::LayerBackwardSteps<float, mha::Reference, Policies> steps(norm, position, {}, tensors, gradients,
                                                                         nullptr, backend, workspace, frame);
  steps.before();
  const auto d_heads = tensors.d_heads;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) EXPECT_EQ(d_heads(0, i, j / 2, j % 2), dy(0, i, j));
}

}  // namespace
