// SPDX-License-Identifier: Apache-2.0
// The GPU with few of the kernels: what surrounds them is tested without compiling all for every policy and source.
#pragma once

#include <stdexcept>
#include <string>

#include "on_gpu.hpp"

namespace on_gpu {

template <class Kernel, class T> constexpr bool is_compiled = false;
template <class Shape, class T>
constexpr bool is_compiled<mha::cuda::ForwardKernel<Shape>, T> =
    Shape::head_dim == 64 && Shape::layout == mha::cuda::RowLayout::aligned;
template <class Shape, class T> constexpr bool is_compiled<mha::cuda::FewQueriesKernel<Shape>, T> = Shape::width == 64;
template <class Shape, class T>
constexpr bool is_compiled<mha::cuda::FmaKernel<Shape>, T> = Shape::values == 64 && !mha::cuda::on_tensor_cores<T>;

/// mha::Cuda for head sizes between 33 and 64 whose rows are aligned, planned for a device of one's choice.
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

struct SomeOfGpu : Gpu {
  using Backend = SomeOfCuda;
  static mha::cuda::DeviceFacts& facts() { return SomeOfCuda::facts; }
};

}  // namespace on_gpu
