// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_tensor.hpp>

#include "gpu.hpp"
#include "scratch.hpp"

namespace {

using mha::DeviceTensor;
using mha::Tensor;
using mha::TensorView;
using mha_test::message_of;

static_assert(!std::is_copy_constructible_v<DeviceTensor<float, 2>> &&
              !std::is_copy_assignable_v<DeviceTensor<float, 2>>);
static_assert(std::is_nothrow_move_constructible_v<DeviceTensor<float, 2>>);
static_assert(mha::ViewTraits<DeviceTensor<float, 2>>::memory == mha::Memory::device);
static_assert(std::is_same_v<decltype(mha::detail::ResultOf<DeviceTensor<float, 2>, DeviceTensor>::make(2, 3, 4)),
                             DeviceTensor<float, 3>>);

TEST(DeviceTensor, EmptyNeedsNoDevice) {
  const DeviceTensor<float, 3> none(2, 0, 4);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.view().extent[2], 4);
  EXPECT_EQ(message_of<mha::ShapeError>([] { DeviceTensor<float, 2>(2, -1); }), "DeviceTensor: extent -1 on axis 1");
}

TEST(DeviceTensor, HostsViewsArePackedRowMajor) {
  int numbers[24], packed[24] = {};
  std::iota(numbers, numbers + 24, 0);
  const TensorView<const int, 3> turned{numbers, {4, 3, 2}, {1, 4, 12}};
  mha::detail::pack_row_major(turned, packed);
  int n = 0;
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 2; ++c) EXPECT_EQ(packed[n++], turned(a, b, c));
}

TEST(DeviceTensor, ToTheDeviceAndBack) {
  MHA_NEEDS_GPU();
  cudaStream_t stream = nullptr;
  mha::cuda::check(cudaStreamCreate(&stream), "cudaStreamCreate");
  Tensor<float, 3> x(3, 4, 5);
  std::iota(x.begin(), x.end(), 0.f);
  DeviceTensor<float, 3> there = mha::to_device(x, stream);
  const float* const data = there.data();
  const DeviceTensor<float, 3> moved = std::move(there);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(there.size(), 0u);
  const Tensor<float, 3> back = mha::to_host(moved, stream);
  EXPECT_TRUE(std::equal(x.begin(), x.end(), back.begin()));
  const TensorView<const float, 2> columns{x.data(), {5, 12}, {1, 5}};
  const Tensor<float, 2> turned = mha::to_host(mha::to_device(columns, stream), stream);
  for (int i = 0; i < 5; ++i)
    for (int j = 0; j < 12; ++j) EXPECT_EQ(turned(i, j), columns(i, j));
  mha::cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST(DeviceTensor, OnlyRowMajorViewsGoBack) {
  const TensorView<const float, 2> turned{reinterpret_cast<const float*>(64), {2, 3}, {1, 2}};
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(mha::to_host(turned)); }),
            "to_host: the view of 6 elements must be row-major and contiguous");
}

}  // namespace
