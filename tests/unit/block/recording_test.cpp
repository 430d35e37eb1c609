// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"

namespace {

using mha::Index;
using mha::detail::has_call_tape;
using Tape = mha::LinearTape<float, mha::Cpu>;

static_assert(has_call_tape<const mha::Cpu&, Tape&> && !has_call_tape<const mha::Cpu&, mha::Workspace&>);
static_assert(mha::detail::outlasts_call<mha::Tensor<float, 2>&>() && mha::detail::outlasts_call<mha::Cpu>());
static_assert(!mha::detail::outlasts_call<mha::Tensor<float, 2>>());
static_assert(mha::detail::outlasts_call<mha::TensorView<const float, 2>>());

TEST(Recording, TheTapeIsFoundAmongOtherArguments) {
  Tape tape;
  mha::Workspace workspace;
  const mha::Cpu backend;
  EXPECT_EQ(&mha::detail::given_tape<Tape>(workspace, tape, backend), &tape);
}

TEST(Recording, SaysWhatIsNotThere) {
  const auto message = [](bool recorded, bool same) {
    return support::message_of([&] { mha::detail::require_recorded(recorded, same, "norm"); });
  };
  EXPECT_EQ(message(true, true), "");
  EXPECT_EQ(message(false, true), "backward: nothing was recorded on the tape: call it with x and the tape first");
  EXPECT_EQ(
      message(true, false),
      "backward: the tape was recorded with other weights: by another norm, or before this one's weights changed");
}

TEST(Recording, AResultHasMemoryOfItsOwn) {
  mha::Tensor<float, 3> x(2, 3, 4), dy(2, 3, 5), dx(2, 3, 4);
  const mha::Tensor<float, 1> gradients(20);
  const auto message = [&](const mha::TensorView<float, 3>& to, const mha::TensorView<float, 3>& from) {
    return support::message_of([&] {
      mha::detail::require_apart("dx", to, mha::TensorView<const float, 3>(from),
                                 mha::TensorView<const float, 3>(dy.view()), gradients.view());
    });
  };
  EXPECT_EQ(message(dx.view(), x.view()), "");
  EXPECT_EQ(message(dx.view(), support::repeated(x.view(), 0)), "") << "what is read may show one element many times";
  EXPECT_EQ(message(x.view(), x.view()), "backward: dx overlaps x");
  const char* const axes[] = {"batch", "length", "width"};
  for (int a = 0; a < 3; ++a)
    EXPECT_EQ(message(support::repeated(dx.view(), a), x.view()),
              support::overlaps_itself("backward: dx", axes[a], dx.extent(a)));
}

TEST(Recording, AResultOverlapsNoParameter) {
  mha::Tensor<float, 2> numbers(4, 6);
  const auto rows = [&](Index first) { return mha::TensorView<float, 2>{numbers.data() + first, {4, 2}, {6, 1}}; };
  mha::LinearViews<const float> parameters{};
  const auto message = [&](Index first, const char* of) {
    return support::message_of(
        [&] { mha::detail::require_apart_from_parameters("dx", mha::detail::footprint(rows(first)), parameters, of); });
  };
  EXPECT_EQ(message(0, ""), "") << "there are none";
  parameters.weight = rows(0);
  parameters.gate_bias = {numbers.data() + 5, {4}, {6}};
  EXPECT_EQ(message(1, ""), "backward: dx overlaps the parameter 'weight'");
  EXPECT_EQ(message(2, ""), "") << "columns beside each other";
  EXPECT_EQ(message(4, " of up()"), "backward: dx overlaps the parameter 'gate_bias' of up()");
}

}  // namespace
