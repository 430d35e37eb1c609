// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/block/device_gradients.hpp>

#include "far_backend.hpp"

namespace {

using mha::Index;
using support::Far;
using Host = mha::LinearGradients<float>;
using There = mha::DeviceGradients<Host, Far>;

const mha::Linear<float> linear({.inputs = 3, .outputs = 5});
Host host_gradients() { return linear.gradients(); }

/// What is there ← its number.
void count_up(There& gradients) {
  const auto views = gradients.there();
  const support::Kernel open;
  for (Index j = 0; j < 5; ++j) {
    views.bias(j) += float(100 + j);
    for (Index i = 0; i < 3; ++i) views.weight(i, j) += float(10 * i + j);
  }
}

TEST(DeviceGradients, AreThoseOfTheHostWhereTheHostComputes) {
  static_assert(std::is_same_v<mha::detail::GradientsOn<Host, mha::Cpu>, Host>);
  static_assert(std::is_same_v<mha::detail::GradientsOn<Host, Far>, There>);
  static_assert(std::is_move_constructible_v<There> && !std::is_copy_constructible_v<There>);
}

TEST(DeviceGradients, AddUpThereAndAreReadHere) {
  Far::Workspace workspace;
  There gradients(Far{}, host_gradients());
  for (const float x : gradients.to_host(workspace).flat()) EXPECT_EQ(x, 0) << "before the first";
  EXPECT_TRUE(support::FarMemory::holds(gradients.memory().data));
  EXPECT_EQ(gradients.memory().extent[0], linear.parameter_count());
  count_up(gradients);
  count_up(gradients);
  const Host& here = gradients.to_host(workspace);
  EXPECT_EQ(here.bias(4), 208);
  EXPECT_EQ(here.weight(2, 3), 46);
  EXPECT_EQ(&gradients.to_host(), &here) << "the same object";
  EXPECT_EQ(here.flat().size(), static_cast<std::size_t>(linear.parameter_count()));
}

/// One that makes its own of what it gets.
struct Counting : Host {
  explicit Counting(Host host) : Host(std::move(host)) {}
  void received() { last = bias(4); }
  float last = -1;
};
TEST(DeviceGradients, TellTheHostWhatItHasReceived) {
  Far::Workspace workspace;
  mha::DeviceGradients<Counting, Far> gradients(Far{}, Counting(host_gradients()));
  EXPECT_EQ(gradients.on_host().last, -1);
  {
    const auto views = gradients.there();
    const support::Kernel open;
    views.bias(4) = 7;
  }
  EXPECT_EQ(gradients.to_host(workspace).last, 7);
}

TEST(DeviceGradients, BeginAgainAtZero) {
  Far::Workspace workspace;
  There gradients(Far{}, host_gradients());
  for (const bool own : {false, true}) {
    count_up(gradients);
    EXPECT_EQ(gradients.to_host(workspace).bias(0), 100);
    if (own)
      gradients.clear();
    else
      gradients.clear(workspace);
    EXPECT_EQ(gradients.to_host(workspace).bias(0), 0);
    EXPECT_EQ(gradients.to_host(workspace).weight(2, 3), 0);
  }
}

/// Memory that is not 0 when it is new.
template <class T, int Rank> struct Used : support::FarTensor<T, Rank> {
  Used() = default;
  explicit Used(Index n) : support::FarTensor<T, Rank>(n) {
    const support::Kernel open;
    std::fill_n(this->view().data, n, std::numeric_limits<T>::quiet_NaN());
  }
};
struct UsedMemory : Far {
  template <class T, int Rank> using Tensor = Used<T, Rank>;
};

TEST(DeviceGradients, AreZeroInMemoryThatWasUsed) {
  mha::DeviceGradients<Host, UsedMemory> gradients(UsedMemory{}, host_gradients());
  for (const float x : gradients.to_host().flat()) EXPECT_EQ(x, 0);
}

TEST(DeviceGradients, AreReadFromTheDeviceEachTime) {
  There gradients(Far{}, host_gradients());
  EXPECT_EQ(gradients.to_host().bias(0), 0);
  {
    const support::Kernel open;  // as a recorded step writes, which no call of the host's tells
    gradients.memory().data[0] = 7;
  }
  EXPECT_EQ(gradients.to_host().flat()[0], 7);
}

TEST(DeviceGradients, Move) {
  Far::Workspace workspace;
  There gradients(Far{}, host_gradients());
  count_up(gradients);
  There moved(std::move(gradients));
  EXPECT_EQ(moved.to_host(workspace).weight(1, 1), 11);
  count_up(moved);
  EXPECT_EQ(moved.to_host(workspace).weight(1, 1), 22);
}

}  // namespace
