// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/block/arguments.hpp>
#include <mha/call.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>
#include <mha/layer/call.hpp>
#include <mha/policy/dropout.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>
#include <mha/positions.hpp>

namespace {

using mha::detail::LayerArgument;
using mha::detail::WholeCache;
using View = mha::TensorView<float, 3>;

struct Cache {
  struct Step {
    void commit() {}
  };
};
struct MaskWithSteps : mha::Causal {
  struct Step {};
};

TEST(LayerCall, TakesWhatACallOfItMaySay) {
  static_assert(LayerArgument<mha::Causal> && LayerArgument<const mha::SoftCap&>);
  static_assert(LayerArgument<mha::Workspace&> && LayerArgument<mha::Reference>);
  static_assert(LayerArgument<mha::Into<View>> && LayerArgument<mha::Residual<mha::TensorView<const float, 3>>>);
  static_assert(LayerArgument<mha::LogSumExp<float>> && LayerArgument<mha::Ragged&> && LayerArgument<mha::Origin> &&
                LayerArgument<mha::Positions> && LayerArgument<mha::DropoutSeed>);
  // What the layer's type and configuration say is not said again by a call.
  static_assert(!LayerArgument<mha::Scale> && !LayerArgument<mha::Dropout> && !LayerArgument<mha::NoSink>);
}

TEST(LayerCall, TellsAWholeCacheFromItsPartForALayer) {
  static_assert(WholeCache<Cache&> && WholeCache<Cache::Step&> && !WholeCache<mha::Causal>);
  static_assert(WholeCache<MaskWithSteps> && LayerArgument<MaskWithSteps>);
}

TEST(LayerCall, AcceptsItsArgumentsInAnyOrderOnceEach) {
  constexpr auto accepts = [] {
    mha::detail::check_layer_arguments<mha::Causal, mha::Workspace&, mha::Into<View>, mha::Causal, mha::Origin>();
    mha::detail::check_layer_weights_arguments<mha::Origin, mha::Causal, mha::Workspace&>();
    mha::detail::check_project_arguments<mha::Workspace&, mha::Ragged, mha::Origin, mha::Reference>();
    return true;
  };
  static_assert(accepts());
}

}  // namespace
