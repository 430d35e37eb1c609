// SPDX-License-Identifier: Apache-2.0
// The CUDA backend without CUDA and without a GPU: tensors, workspaces, products and on_device() are its own, on the
// runtime of far_runtime.cpp, whose device memory is closed to the host, and the products of far_cublaslt.cpp; kernels
// run on the host model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <mha/backend/cuda/backward.hpp>
#include <mha/backend/cuda/device.hpp>
#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/dispatch.hpp>
#include <mha/backend/cuda/gemm.hpp>
#include <mha/backend/cuda/norm_backward_body.hpp>
#include <mha/backend/cuda/norm_body.hpp>
#include <mha/backend/cuda/on_device.hpp>
#include <mha/backend/cuda/workspace.hpp>
#include <mha/backend/weights.hpp>

#include "cuda_memory.hpp"
#include "far_backend.hpp"
#include "far_stream.hpp"
#include "gpu_model/inside.hpp"
#include "gpu_model/launch.hpp"
#include "gpu_model/warpgroup_machine.hpp"
#include "transport.hpp"

namespace support {

/// What one launch of attend() is told beside its call.
struct FarLaunch {
  mha::cuda::BlockIndex grid{};
  mha::cuda::Shared bytes = 0;
  void* parts = nullptr;
  unsigned* counters = nullptr;
};

struct FarCuda {
  static constexpr const char* name = "FarCuda";
  static constexpr bool drops = true;
  static constexpr bool sums_scores = true;
  static constexpr mha::Memory memory = mha::Memory::device;
  static constexpr bool side_by_side = true;
  static constexpr bool weights_in_storage = true;  // tensor cores multiply values by weights in 16 bits
  using Workspace = mha::cuda::Workspace;
  using Index = mha::Index;
  static inline int launches = 0;  ///< of attend()
  static inline FarLaunch last{};

  template <class T, int Rank> using Tensor = mha::DeviceTensor<T, Rank>;

  int device = mha::cuda::any_device;

  mha::Support supported() const { return mha::cuda::device_exists(device); }
  [[nodiscard]] mha::cuda::DeviceGuard enter() const { return mha::cuda::DeviceGuard(device); }
  [[nodiscard]] mha::cuda::DeviceGuard enter(Workspace& workspace) const {
    return mha::cuda::entered(device, workspace);
  }
  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::multiply(call, workspace, mha::detail::ItemsOn<FarCuda>{*this, workspace});
  }
  template <class T> void gemm(const mha::GemmSumCall<T>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::multiply(call, workspace, mha::detail::ItemsOn<FarCuda>{*this, workspace});
  }
  template <class T> mha::cuda::PackedWeights<T> pack(std::span<const mha::DenseWeights<T>> parts) const {
    const auto held = enter();
    return mha::cuda::PackedWeights<T>(parts);
  }
  template <class T>
  void gemm(const mha::PackedGemmCall<T, mha::cuda::PackedWeights<T>>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::multiply(call, workspace, mha::detail::ItemsOn<FarCuda>{*this, workspace});
  }
  template <class T>
  bool gemm(const mha::PackedGemmCall<T, mha::cuda::PackedWeights<T>>& call,
            const mha::Epilogue<T, mha::Identity>& epilogue, Workspace& workspace) const {
    const auto held = enter(workspace);
    return mha::cuda::multiply(call, epilogue.residual, workspace);
  }

  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::require_data_here(call);
    want_far(call);
    auto frame = workspace.frame();
    std::vector<FarLaunch> launched;
    mha::cuda::attend(call, mha::cuda::DeviceFacts{}, Planner{{workspace, frame}, launched});
    launches += static_cast<int>(launched.size());
    last = launched.back();
    FarStream::enqueue([call, launched] {
      gpu::with_guarded_policies(
          call, [&](const auto& any) { mha::cuda::attend(any, mha::cuda::DeviceFacts{}, Replayer{launched.data()}); });
    });
  }

  template <class T, class Source, class M, class S>
  void attend_recorded(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::require_data_here(call);
    want_far(call);
    want_far("the tape", call.states.level);
    FarStream::catch_up();
    const Kernel open;
    gpu::with_guarded_policies(call, [&](const auto& any) {
      auto frame = workspace.frame();
      mha::cuda::attend_recorded(any, mha::cuda::DeviceFacts{}, Launcher{workspace, frame});
    });
  }
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::require_data_here(call.forward);
    want_far(call.forward);
    for (const void* p : {static_cast<const void*>(call.out.data), static_cast<const void*>(call.d_out.data),
                          static_cast<const void*>(call.d_log_sum_exp.data)})
      want_far("a tensor of the backward pass", p);
    want_far("the offsets of the keys", call.key_offsets);
    want_far("the tape", call.level);
    want_far("the tape", call.sum);
    want_far("the sums of the sink", call.sink);
    FarStream::catch_up();
    const Kernel open;
    gpu::with_guarded_backward(call, [&](const auto& any) {
      auto frame = workspace.frame();
      mha::cuda::attend_backward(any, mha::cuda::DeviceFacts{}, Launcher{workspace, frame});
    });
  }

  template <class T, class Source, class M, class S>
  void weights(const mha::AttendCall<T, Source, M, S>& call, const mha::TensorView<mha::Accumulator<T>, 4>& to,
               Workspace& workspace) const {
    const auto held = enter(workspace);
    mha::cuda::require_data_here(call);
    want_far(call);
    want_far("the weights", to.data);
    gpu::with_guarded_policies(call, [&](const auto& any) {
      mha::detail::run_softmax(any, to, mha::detail::ItemsOn<FarCuda>{*this, workspace});
    });
  }

  template <class T>
  requires(mha::cuda::multiplies<T>) void normalize(const mha::NormCall<T>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    for (const void* p : {static_cast<const void*>(call.x.data), static_cast<const void*>(call.residual.data),
                          static_cast<const void*>(call.y.data), static_cast<const void*>(call.sum.data),
                          static_cast<const void*>(call.weight), static_cast<const void*>(call.bias)})
      if (p != nullptr) want_far("an array of a norm", p);
    FarStream::catch_up();
    const Kernel open;
    auto frame = workspace.frame();
    mha::cuda::normalize(call, Launcher{workspace, frame});
  }

  template <class A>
  void normalize_backward(const mha::NormBackwardCall<A>& call, mha::NormRowFacts<A>* facts,
                          Workspace& workspace) const {
    const auto held = enter(workspace);
    for (const void* p : {static_cast<const void*>(call.z.data), static_cast<const void*>(call.dy.data),
                          static_cast<const void*>(call.dz.data), static_cast<const void*>(call.weight),
                          static_cast<const void*>(call.d_weight), static_cast<const void*>(call.d_bias),
                          static_cast<const void*>(facts)})
      want_far("an array of a norm's backward pass", p);
    FarStream::catch_up();
    const Kernel open;
    auto frame = workspace.frame();
    mha::cuda::normalize_backward(call, facts, Launcher{workspace, frame});
  }

  template <mha::Items I> void for_each_item(const I& items, Workspace&) const {
    const auto held = enter();
    FarStream::enqueue([items] {
      for (std::ptrdiff_t i = 0, n = items.rows * items.columns; i < n; ++i)  // as a thread each, never rows at once
        items(i / items.columns, static_cast<Index>(i % items.columns));
    });
  }
  const Index* stage(const Index* numbers, Index n, Workspace::Frame& frame, Workspace& workspace) const {
    const auto held = enter(workspace);
    return workspace.stage(numbers, static_cast<std::size_t>(n), frame);
  }
  void send(const Index* numbers, Index n, Index* to, Workspace& workspace) const {
    const auto held = enter(workspace);
    want_far("where numbers are sent", to);
    workspace.send(numbers, static_cast<std::size_t>(n), to);
  }
  void require_sendable(const Workspace& workspace) const {
    const auto held = enter();
    workspace.require_sendable();
  }
  template <class T> mha::cuda::DeviceArray<T> upload(std::span<const T> from) const {
    const auto held = enter();
    return mha::cuda::DeviceArray<T>(from);
  }
  template <class T> void download(const T* from, std::span<T> to, Workspace& workspace) const {
    const auto held = enter();
    mha::cuda::download(from, to, workspace.stream());
  }
  template <class P> auto keep(const P& policy) const { return mha::on_device(policy, *this); }
  void require_reachable(const char* call, const char* tensor, const void* p) const {
    const auto held = enter();
    mha::cuda::require_device_pointer(call, tensor, p);
  }
  template <class T> std::string explain(const mha::AttendPlan& plan) const {
    return mha::cuda::explain<T>(plan, mha::cuda::DeviceFacts{});
  }

 private:
  struct Launcher {
    Workspace& workspace;
    Workspace::Frame& frame;

    template <class Kernel, class Params>
    void launch(mha::cuda::BlockIndex grid, mha::cuda::Shared bytes, const Params& params) {
      using Machine = gpu::MachineOf<Kernel>;
      gpu::launch<Machine>(grid, Kernel::threads, bytes, [&](Machine& m) { Kernel::run(m, params); });
    }
    template <class A> A* parts(std::ptrdiff_t n) { return frame.template take<A>(static_cast<std::size_t>(n)); }
    unsigned* counters(std::ptrdiff_t n) { return workspace.counters(static_cast<std::size_t>(n)); }
  };
  /// Notes launches.
  struct Planner {
    Launcher from;
    std::vector<FarLaunch>& to;
    FarLaunch next{};

    template <class, class Params> void launch(mha::cuda::BlockIndex grid, mha::cuda::Shared bytes, const Params&) {
      next.grid = grid;
      next.bytes = bytes;
      to.push_back(next);
      next = {};
    }
    template <class A> A* parts(std::ptrdiff_t n) {
      A* const p = from.parts<A>(n);
      next.parts = p;
      return p;
    }
    unsigned* counters(std::ptrdiff_t n) { return next.counters = from.counters(n); }
  };
  /// Makes those that were noted, one after another.
  struct Replayer {
    const FarLaunch* noted;

    template <class Kernel, class Params> void launch(mha::cuda::BlockIndex, mha::cuda::Shared, const Params& params) {
      using Machine = gpu::MachineOf<Kernel>;
      gpu::launch<Machine>(noted->grid, Kernel::threads, noted->bytes, [&](Machine& m) { Kernel::run(m, params); });
      ++noted;
    }
    template <class A> A* parts(std::ptrdiff_t) { return static_cast<A*>(noted->parts); }
    unsigned* counters(std::ptrdiff_t) { return noted->counters; }
  };
};

static_assert(mha::Backend<FarCuda> && mha::PacksWeights<FarCuda, mha::bfloat16>);

template <> struct MemoryOf<FarCuda> : CudaMemory {};

}  // namespace support
