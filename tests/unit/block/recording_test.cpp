// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"

namespace {

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
  EXPECT_EQ(message(true, false),
            "backward: the tape was recorded with other weights: by another norm, or before this one's last update() "
            "or borrow()");
}

}  // namespace
