// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/launch.cuh>
#include <mha/core/copy.hpp>

#include "gpu.hpp"

namespace {

using mha::Tensor;
using mha::TensorView;

TEST(CudaItems, NothingToDoNeedsNoDevice) {
  const TensorView<float, 2> none{nullptr, {0, 3}, {3, 1}};
  mha::cuda::run_items(mha::detail::copy_items(TensorView<const float, 2>(none), none), nullptr);
}

TEST(CudaItems, EachRunsOnce) {
  MHA_NEEDS_GPU();
  Tensor<float, 3> x(7, 33, 50);
  std::iota(x.begin(), x.end(), 0.f);
  const auto from = mha::to_device(x);
  mha::DeviceTensor<float, 3> to(50, 33, 7);
  const TensorView<float, 3> turned{to.data(), {7, 33, 50}, {1, 7, 231}};
  mha::cuda::run_items(mha::detail::copy_items(from.view(), turned), nullptr);
  const auto back = mha::to_host(to);
  for (int a = 0; a < 7; ++a)
    for (int b = 0; b < 33; ++b)
      for (int c = 0; c < 50; ++c) ASSERT_EQ(back(c, b, a), x(a, b, c));
}

__global__ void too_much(const __grid_constant__ int) {}

TEST(CudaLaunch, ARefusedLaunchSaysWhichItWas) {
  MHA_NEEDS_GPU();
  try {
    mha::cuda::launch<too_much>("attention", dim3(1), 32, std::size_t{1} << 30, 0, nullptr);
    ADD_FAILURE() << "a gigabyte of shared memory";
  } catch (const mha::CudaError& e) {
    EXPECT_EQ(std::string(e.what()).substr(0, 11), "attention: ");
  }
}

struct LastByte {
  int last;
  int* to;
};
__global__ void write_last(const __grid_constant__ LastByte p) {
  extern __shared__ unsigned char bytes[];
  bytes[p.last] = 7;
  *p.to = bytes[p.last];
}

TEST(CudaLaunch, TheSharedMemoryOfAKernelMayGrow) {
  MHA_NEEDS_GPU();
  mha::DeviceTensor<int, 1> to(1);
  for (const int kilobytes : {50, 60, 96, 52}) {
    const int bytes = kilobytes * 1024;
    mha::cuda::launch<write_last>("attention", dim3(1), 1, static_cast<std::size_t>(bytes),
                                  LastByte{bytes - 1, to.data()}, nullptr);
    EXPECT_EQ(mha::to_host(to)(0), 7);
  }
}

}  // namespace
