// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/dispatch.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>
#include <mha/launch.hpp>

namespace {

using mha::Index;
using mha::Tensor;

/// Notes what it is asked to launch.
struct Notes {
  std::string kernel;
  mha::cuda::BlockIndex grid{};
  mha::cuda::Shared bytes = 0;
  int threads = 0, launches = 0;

  template <class Kernel, class Params>
  void launch(mha::cuda::BlockIndex blocks, mha::cuda::Shared shared, const Params&) {
    kernel = Kernel::name;
    threads = Kernel::threads;
    grid = blocks;
    bytes = shared;
    ++launches;
  }
  template <class A> A* parts(std::ptrdiff_t) { return nullptr; }
  unsigned* counters(std::ptrdiff_t) { return nullptr; }
};

template <class T> Notes plan(Index batch, Index queries, Index keys, Index heads, Index dim, Index value_dim) {
  const Tensor<T, 4> q(batch, queries, heads, dim), k(batch, keys, heads, dim), v(batch, keys, heads, value_dim);
  Tensor<T, 4> out(batch, queries, heads, value_dim);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const auto call = mha::detail::attend_call<T>("attention", out.view(), q.view(), k.view(), v.view(), mha::Full{},
                                                mha::NoScore{}, mha::NoSink{}, {}, frame);
  Notes notes;
  mha::cuda::attend(call, mha::cuda::DeviceFacts{}, notes);
  return notes;
}

TEST(Dispatch, SixteenBitsRunOnTensorCoresUpToAHeadSizeOf256) {
  for (const Index dim : {32, 40, 128, 256}) {
    const Notes notes = plan<mha::bfloat16>(2, 300, 300, 3, dim, dim);
    EXPECT_EQ(notes.kernel, "attention (tensor cores)") << dim;
    EXPECT_EQ(notes.launches, 1);
    EXPECT_GE(notes.grid.x, 2 * 3 * 3);
    EXPECT_LE(notes.bytes, 227 * 1024);
  }
  EXPECT_EQ(plan<mha::half>(1, 300, 300, 1, 320, 64).kernel, "attention (multiply-adds)");
}

TEST(Dispatch, FloatAndDoubleRunOnMultiplyAdds) {
  const Notes narrow = plan<float>(2, 100, 100, 3, 64, 64), wide = plan<double>(2, 100, 100, 3, 64, 300);
  EXPECT_EQ(narrow.kernel, "attention (multiply-adds)");
  EXPECT_EQ(narrow.grid.x, 2);
  EXPECT_EQ(narrow.grid.y, 3);
  EXPECT_EQ(narrow.grid.z, 2);
  EXPECT_EQ(wide.grid.x, 2 * 3) << "three blocks share the columns of an output";
}

TEST(Dispatch, ExplainsWhatItWouldLaunch) {
  const mha::AttendPlan call{{2, 8, 512, 512, 0}, 2, 64, 64};
  const std::string mma = mha::cuda::explain<mha::bfloat16>(call, {}), fma = mha::cuda::explain<double>(call, {});
  EXPECT_NE(mma.find("tensor cores in bfloat16"), std::string::npos) << mma;
  EXPECT_NE(fma.find("multiply-adds in double"), std::string::npos) << fma;
}

}  // namespace
