// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include <mha/backend/cuda/backward.hpp>
#include <mha/backend/cuda/dispatch.hpp>
#include <mha/backend/weights.hpp>

#include "../plain_backend.hpp"
#include "inside.hpp"
#include "launch.hpp"
#include "warpgroup_machine.hpp"

namespace support {

namespace gpu {
/// Of recorded calls the shapes of the forward body that tests launch, on plain warps up to 128: the others' text is
/// the same as without a tape but for two numbers a row, and would be compiled for nothing.
template <class Kernel, class Params> inline constexpr bool is_compiled = true;
template <class Shape, class Call>
inline constexpr bool
    is_compiled<mha::cuda::ForwardKernel<Shape>, mha::cuda::ForwardParams<mha::cuda::Recorded<Call>>> =
        Shape::warpgroups == 0 && Shape::head_dim <= 128;

/// A score that changes nothing.
struct SameLogit {
  static constexpr mha::Role role = mha::Role::score;
  template <class A> A operator()(A s, Index, Index, Index, Index) const { return s; }
};
/// use(the call with policies as with_guarded_policies() has them). NoScore, for which bodies fold the scale, stays
/// itself over tensors, and not in half, whose text is bfloat16's.
template <class T, class Source, class M, class S, class Use>
void with_model_policies(const mha::AttendCall<T, Source, M, S>& call, Use&& use) {
  if constexpr (std::is_same_v<S, mha::NoScore> &&
                (std::is_same_v<T, mha::half> || !std::is_same_v<Source, mha::ContiguousKv<T>>))
    with_guarded_policies(with_policies(call, call.mask, SameLogit{}), use);
  else
    with_guarded_policies(call, use);
}

/// Runs a kernel of the backend; a function of its own, which a program may compile once.
template <class Machine, class Kernel, class Params>
Counters run_kernel(BlockIndex grid, Shared bytes, const Params& params, Order order) {
  return launch<Machine>(
      grid, Kernel::threads, bytes, [&](Machine& m) { Kernel::run(m, params); }, order);
}
}  // namespace gpu

/// How the launches of SimulatedCuda run, and what they have counted.
struct SimulatedState {
  mha::cuda::DeviceFacts device{};
  gpu::Order order{};
  gpu::Counters counted{};
  int launches = 0;
  std::string kernel;  ///< the last one's name
};

/// The CUDA backend without a device: plans, parameters and kernel bodies are its own, the blocks run one after another
/// on the host model. Memory is the host's, products are plain loops.
struct SimulatedCuda {
  static constexpr const char* name = "SimulatedCuda";
  static constexpr bool drops = true;
  static constexpr bool sums_scores = true;
  static constexpr bool weights_in_storage = true;  // tensor cores multiply values by weights in 16 bits
  using Workspace = mha::Workspace;

  inline static SimulatedState state;

  mha::Support supported() const { return {}; }

  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace& workspace) const {
    PlainBackend{}.gemm(call, workspace);
  }

  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    gpu::with_model_policies(call, [&](const auto& any) { run(any, workspace); });
  }

  template <class T, class Source, class M, class S>
  void attend_recorded(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    gpu::with_model_policies(call, [&](const auto& any) { run_recorded(any, workspace); });
  }
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    gpu::with_guarded_backward(call, [&](const auto& any) {
      auto frame = workspace.frame();
      mha::cuda::attend_backward(any, state.device, Launcher<Workspace::Frame>{frame});
    });
  }

  template <class T, class Source, class M, class S>
  void weights(const mha::AttendCall<T, Source, M, S>& call, mha::TensorView<mha::Accumulator<T>, 4> to,
               Workspace& workspace) const {
    gpu::with_guarded_policies(call, [&](const auto& any) {
      mha::detail::run_softmax(any, to, mha::detail::ItemsOn<SimulatedCuda>{*this, workspace});
    });
  }

  /// attend() and attend_recorded() of calls whose policies have lost their types, which a program may compile once.
  template <class Call> static void run(const Call& call, Workspace& workspace) {
    auto frame = workspace.frame();
    Launcher<Workspace::Frame> launcher{frame};
    mha::cuda::attend(call, state.device, launcher);
    launcher.expect_zero_counters();
  }
  template <class Call> static void run_recorded(const Call& call, Workspace& workspace) {
    auto frame = workspace.frame();
    Launcher<Workspace::Frame> launcher{frame};
    mha::cuda::attend_recorded(call, state.device, launcher);
    launcher.expect_zero_counters();
  }

  template <class T> std::string explain(const mha::AttendPlan& plan) const {
    return mha::cuda::explain<T>(plan, state.device);
  }

 private:
  template <class Frame> struct Launcher {
    Frame& frame;
    unsigned* counted = nullptr;
    std::ptrdiff_t counters_taken = 0;

    template <class Kernel, class Params>
    void launch(mha::cuda::BlockIndex grid, mha::cuda::Shared bytes, const Params& params) {
      if constexpr (gpu::is_compiled<Kernel, Params>)
        state.counted += gpu::run_kernel<gpu::MachineOf<Kernel>, Kernel>(
            grid, bytes, gpu::KernelParams<Params>(params).params, state.order);
      else
        throw gpu::Fault(std::string(Kernel::name) + ": tests do without recorded calls of this shape");
      state.kernel = Kernel::name;
      ++state.launches;
    }
    /// Scratch, NaN at first.
    template <class A> A* parts(std::ptrdiff_t n) {
      A* const to = frame.template take<A>(static_cast<std::size_t>(n));
      std::fill_n(to, n, std::numeric_limits<A>::quiet_NaN());
      return to;
    }
    unsigned* counters(std::ptrdiff_t n) {
      counted = frame.template take<unsigned>(static_cast<std::size_t>(n));
      counters_taken = n;
      std::fill_n(counted, n, 0u);
      return counted;
    }
    void expect_zero_counters() const {
      for (std::ptrdiff_t i = 0; i < counters_taken; ++i)
        if (counted[i] != 0) throw gpu::Fault("a counter is not 0 after the launch");
    }
  };
};

static_assert(mha::Backend<SimulatedCuda>);

}  // namespace support
