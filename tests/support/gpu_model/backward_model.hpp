// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CUDA backend's kernels on a machine of the host model, against the reference in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../backward_case.hpp"
#include "simulated_cuda.hpp"

namespace support::gpu {

/// SimulatedCuda whose backward pass runs on this machine. It notes the kernels that it launches.
template <class Machine = HostMachine> struct BackwardModel : SimulatedCuda {
  inline static std::vector<std::string> kernels;
  inline static mha::cuda::GradientLimits limits{};

  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    kernels.clear();
    with_guarded_backward(call, [&](const auto& any) {
      auto frame = workspace.frame();
      mha::cuda::attend_backward(any, state.device, GradientLauncher<Workspace::Frame>{frame}, limits);
    });
  }

 private:
  template <class Frame> struct GradientLauncher {
    Frame& frame;
    template <class Kernel, class Params>
    void launch(mha::cuda::BlockIndex grid, mha::cuda::Shared bytes, const Params& params) {
      state.counted += run_kernel<Machine, Kernel>(grid, bytes, KernelParams<Params>(params).params, state.order);
      kernels.push_back(Kernel::name);
    }
    template <class A> A* parts(std::ptrdiff_t n) {
      A* const to = frame.template take<A>(static_cast<std::size_t>(n));
      std::fill_n(to, n, std::numeric_limits<A>::quiet_NaN());
      return to;
    }
  };
};

/// The largest error of a gradient by norm, in units of the bound; sums that cancel count as if their norm were 1, a
/// sink's, which has a term of any sign for each row, as if it grew like a random walk of a third a row.
template <class T, class Gradients, class Expected>
double gradient_error(const Gradients& found, const Expected& expected) {
  double worst = 0;
  const auto see = [&](const auto& a, const auto& b, double least) {
    const double error = relative_error(a, b, least) / gradient_bound<T>;
    if (!(error <= worst) && !std::isnan(worst)) worst = error;
  };
  see(found.query, expected.query, 1);
  see(found.key, expected.key, 1);
  see(found.value, expected.value, 0);
  const auto rows = static_cast<double>(expected.query.extent(0) * expected.query.extent(1));
  see(found.sink, expected.sink, 1 + std::sqrt(rows) / 3);
  return worst;
}
template <class T, class... Extra> double gradient_error(const BackwardCase<T>& given, const Extra&... extra) {
  return gradient_error<T>(given.template gradients<BackwardModel<>>(extra...),
                           given.template as<double>().template gradients<mha::Reference>(extra...));
}

}  // namespace support::gpu
