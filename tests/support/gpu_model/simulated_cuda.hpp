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
    gpu::with_guarded_policies(call, [&](const auto& any) {
      auto frame = workspace.frame();
      Launcher<Workspace::Frame> launcher{frame};
      mha::cuda::attend(any, state.device, launcher);
      launcher.expect_zero_counters();
    });
  }

  template <class T, class Source, class M, class S>
  void attend_recorded(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    gpu::with_guarded_policies(call, [&](const auto& any) {
      auto frame = workspace.frame();
      Launcher<Workspace::Frame> launcher{frame};
      mha::cuda::attend_recorded(any, state.device, launcher);
      launcher.expect_zero_counters();
    });
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
      using Machine = gpu::MachineOf<Kernel>;
      state.counted += gpu::launch<Machine>(
          grid, Kernel::threads, bytes, [&](Machine& m) { Kernel::run(m, params); }, state.order);
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
