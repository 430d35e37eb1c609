// SPDX-License-Identifier: Apache-2.0
// Masks against their tables, and keys shared out to any number of blocks: policies of these tests' own, so that few of
// the kernels are compiled.
#include <stdexcept>
#include <string>

#include "on_gpu.hpp"

namespace some_of_cuda {

template <class Kernel, class T> constexpr bool is_compiled = false;
template <class Shape, class T>
constexpr bool is_compiled<mha::cuda::ForwardKernel<Shape>, T> =
    Shape::head_dim == 64 && Shape::layout == mha::cuda::RowLayout::aligned;
template <class Shape, class T> constexpr bool is_compiled<mha::cuda::FewQueriesKernel<Shape>, T> = Shape::width == 64;
template <class Shape> constexpr bool is_compiled<mha::cuda::FmaKernel<Shape>, float> = Shape::values == 64;

/// Cuda for head sizes between 33 and 64, planned for a device of one's choice.
struct SomeOfCuda : mha::Cuda {
  static inline mha::cuda::DeviceFacts facts;

  struct Launcher : mha::cuda::DeviceLauncher {
    template <class Kernel, class Params>
    void launch(mha::cuda::BlockIndex grid, mha::cuda::Shared bytes, const Params& params) {
      if constexpr (is_compiled<Kernel, typename decltype(params.call)::Scalar>)
        DeviceLauncher::launch<Kernel>(grid, bytes, params);
      else
        throw std::logic_error(std::string("this test has not compiled ") + Kernel::name);
    }
  };
  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    auto frame = workspace.frame();
    mha::cuda::attend(call, facts, Launcher{{workspace, frame}});
  }
};

struct SomeOfGpu : on_gpu::Gpu {
  using Backend = SomeOfCuda;
  static mha::cuda::DeviceFacts& facts() { return SomeOfCuda::facts; }
};

}  // namespace some_of_cuda

namespace {

using device_checks::Sizes;
using some_of_cuda::SomeOfGpu;

template <class T> void expect_masks(const char* name) {
  support::Random random(name);
  for (const mha::Index queries : {3, 200})
    device_checks::check_masks<SomeOfGpu, T>({2, queries, 300, 4, 2, 64, 64}, random);
}

TEST(CudaMasks, OfTensorCoresAreTheirTables) {
  MHA_NEEDS_GPU();
  expect_masks<mha::bfloat16>("cuda masks bfloat16");
}
TEST(CudaMasks, OfMultiplyAddsAreTheirTables) {
  MHA_NEEDS_GPU();
  expect_masks<float>("cuda masks float");
}

template <class T> void expect_splits(const char* name) {
  support::Random random(name);
  const Sizes sizes{1, 2, 9000, 4, 2, 64, 64};
  const device_checks::Masks masks(sizes, random);
  const mha::Tensor<bool, 4> unused(1, 1, 1, 1);
  constexpr int causal = 1;
  device_checks::check_splits<SomeOfGpu, T>(sizes, random,
                                            [&](const auto& keep) { return masks.at(causal, unused, keep); });
}

TEST(CudaSplits, OfSixteenBitsAgreeWithOnePiece) {
  MHA_NEEDS_GPU();
  expect_splits<mha::bfloat16>("cuda splits bfloat16");
}
TEST(CudaSplits, OfFloatAgreeWithOnePiece) {
  MHA_NEEDS_GPU();
  expect_splits<float>("cuda splits float");
}

}  // namespace
