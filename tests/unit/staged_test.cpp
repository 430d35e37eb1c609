// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/checked_call.hpp>
#include <mha/staged.hpp>

#include "far_backend.hpp"

namespace {

using mha::Index;
using support::Far;

/// A mask that can be copied and not assigned, with positions that go to the backend's memory.
struct After {
  const mha::Origins first;
  bool operator()(Index b, Index, Index, Index k) const { return k >= first[b]; }
  After prepared(const mha::CallShape& shape) const { return {shape.origin}; }
  template <class F> After with_data(const F& f) const { return {f(first)}; }
};
static_assert(!std::is_copy_assignable_v<After>);

template <class B> class Staged : public testing::Test {
 protected:
  mha::Tensor<float, 4> x{1, 5, 1, 2};
  std::vector<Index> offsets{0, 2, 5};
  typename B::Workspace workspace;

  auto checked(typename B::Workspace::Frame& frame) {
    mha::detail::CallOptions<float> options;
    options.ragged = mha::Ragged{offsets, offsets};
    const mha::TensorView<const float, 4> q = x.view();
    return mha::detail::checked_call<float, mha::detail::memory_of<B>>(
        "call", q, mha::detail::kv_of("call", q, q, q, options.ragged), After{}, mha::NoScore{}, mha::NoSink{}, options,
        frame);
  }
  static std::vector<Index> numbers(const Index* p, Index n) {
    const support::Kernel open;
    return {p, p + n};
  }
};
using OnHost = Staged<mha::Reference>;
using OnDevice = Staged<Far>;

TEST_F(OnHost, IsTheCallItself) {
  auto frame = workspace.frame();
  const auto call = mha::detail::staged(mha::Reference{}, checked(frame), frame, workspace);
  EXPECT_EQ(call.q_offsets, offsets.data());
  EXPECT_EQ(call.kv.offsets.data, offsets.data());
  EXPECT_EQ(call.mask.first.each, call.shape.origin.each);
}

TEST_F(OnDevice, HasItsNumbersThereEachOnce) {
  auto frame = workspace.frame();
  const auto here = checked(frame);
  Far::staged = 0;
  const auto call = mha::detail::staged(Far{}, here, frame, workspace);
  EXPECT_EQ(Far::staged, 2) << "offsets, which are those of the keys too, and origins";
  EXPECT_EQ(numbers(call.q_offsets, 3), offsets);
  EXPECT_EQ(call.shape.query_offsets, call.q_offsets);
  EXPECT_EQ(call.kv.offsets.data, call.q_offsets);
  EXPECT_EQ(call.kv.offsets.memory, mha::Memory::device);
  EXPECT_EQ(numbers(call.mask.first.each, 2), (std::vector<Index>{0, 0}));
  EXPECT_EQ(call.mask.first.each, call.shape.origin.each);
  EXPECT_NE(call.mask.first.each, here.mask.first.each);
  EXPECT_EQ(call.scale, here.scale);
  EXPECT_EQ(call.value_dim, 2);
}

}  // namespace
