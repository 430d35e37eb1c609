// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/items.hpp"
#include "../backend.hpp"
#include "../weights.hpp"
#include "backward.hpp"
#include "device.hpp"
#include "device_machine.cuh"
#include "device_tensor.hpp"
#include "dispatch.hpp"
#include "gemm.hpp"
#include "launch.cuh"
#include "norm_backward_body.hpp"
#include "norm_body.hpp"
#include "on_device.hpp"
#include "packed_weights.hpp"
#include "warpgroup_machine.cuh"
#include "workspace.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace cuda {

template <class Kernel, class Params>
__global__ void __launch_bounds__(Kernel::threads, Kernel::blocks_per_multiprocessor)
    body_kernel(const __grid_constant__ Params params) {
  if constexpr (requires { params.call.mask; }) touch_policies(params.call);
  if constexpr (requires { Kernel::warpgroups; }) {
#if MHA_HAS_WARPGROUPS
    HopperMachine machine;
    Kernel::template run<HopperMachine>(machine, params);
#elif MHA_ON_DEVICE
    __trap();  // a launch that runs_warpgroup_products() rules out
#endif
  } else {
    DeviceMachine machine;
    Kernel::template run<DeviceMachine>(machine, params);
  }
}

/// Launches bodies in a workspace's stream.
struct DeviceLauncher {
  Workspace& workspace;
  Workspace::Frame& frame;

  template <class Kernel, class Params> void launch(BlockIndex grid, Shared bytes, const Params& params) {
    cuda::launch<body_kernel<Kernel, Params>>(
        Kernel::name, dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)),
        Kernel::threads, static_cast<std::size_t>(bytes), params, workspace.stream());
  }
  template <class A> A* parts(std::ptrdiff_t n) { return frame.template take<A>(static_cast<std::size_t>(n)); }
  unsigned* counters(std::ptrdiff_t n) { return workspace.counters(static_cast<std::size_t>(n)); }
};

}  // namespace cuda

/// An NVIDIA GPU of compute capability 8.0 or above: the calling thread's current device at each call, or the one that
/// the value names, mha::Cuda{.device = 1}.
///
/// Device    a named one is current while a call, a layer's packing or a cache's own work runs, and the thread's own is
///           again after that, after exceptions too. Weights, results, caches, tapes, gradients and a workspace stay on
///           the device that they were made on; tensors of the program's own go there by to_device(x, cuda), or while
///           cuda.enter() lives
/// Scalars   bfloat16, half (tensor cores, summed in float); float and double (multiply-adds, never tf32)
/// Memory    tensors, views, LogSumExp and into(y) are the device's: mha::to_device() copies. Policies with data go
///           through mha::on_device(policy), or on_device(policy, cuda), once; a layer does so for its own. Ragged's
///           offsets stay on the host
/// Streams   mha::Cuda::Workspace workspace(stream): a call is enqueued there and returns. A call without one makes its
///           own for the default stream, allocates, and waits when it gives that back
/// Backward  of attention's q, k, v, Sink, bias and scores, see backward.hpp: the gradients of a score's numbers go to
///           the host, and a call that has them waits; of layers and blocks: tapes and gradients, those of a
///           layer's score among them, are the device's, see mha/block/device_gradients.hpp
/// Bits      an output row depends on its own query, keys and mask and on the kernel chosen, run after run the same
/// Errors    CudaError with the name of the call that failed; std::runtime_error where there is no such device;
///           ShapeError that names both devices where a tensor, weights or a workspace are not on the call's
struct Cuda {
  int device = cuda::any_device;  ///< its number; any_device: the current one
  static constexpr const char* name = "Cuda";
  static constexpr Memory memory = Memory::device;
  static constexpr bool drops = true;
  static constexpr bool sums_scores = true;
  static constexpr bool side_by_side = true;
  using Workspace = cuda::Workspace;
  template <class T, int Rank> using Tensor = DeviceTensor<T, Rank>;

  Support supported() const {
    if (Support there = cuda::device_exists(device); !there.ok) return there;
    const int major = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor, device);
    if (major < 8)
      return {false, "the device has compute capability " + std::to_string(major) + ".x, 8.0 is the least"};
    return {};
  }

  /// While what it returns lives, the device is current.
  [[nodiscard]] cuda::DeviceGuard enter() const { return cuda::DeviceGuard(device); }
  /// For a call in the workspace.
  [[nodiscard]] cuda::DeviceGuard enter(Workspace& workspace) const { return cuda::entered(device, workspace); }

  /// c = a · b + bias, see gemm.hpp.
  template <class T> void gemm(const GemmCall<T>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const auto held = enter(workspace);
      cuda::multiply(call, workspace, detail::ItemsOn<Cuda>{*this, workspace});
    }
  }

  /// Gradients of weights, c += a · b, see gemm.hpp.
  template <class T> void gemm(const GemmSumCall<T>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    cuda::multiply(call, workspace, detail::ItemsOn<Cuda>{*this, workspace});
  }

  template <class T> cuda::PackedWeights<T> pack(std::span<const DenseWeights<T>> parts) const {
    static_assert(check_scalar<T>());
    if (const Support support = supported(); !support.ok)
      detail::throw_error(std::runtime_error(std::string("layer: Cuda cannot run here: ") + support.reason));
    const auto held = enter();
    return cuda::PackedWeights<T>(parts);
  }
  template <class T> void gemm(const PackedGemmCall<T, cuda::PackedWeights<T>>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    cuda::multiply(call, workspace, detail::ItemsOn<Cuda>{*this, workspace});
  }
  /// The same with a residual. False, and nothing is computed, where cuBLASLt cannot add it on the way.
  template <class T>
  bool gemm(const PackedGemmCall<T, cuda::PackedWeights<T>>& call, const Epilogue<T, Identity>& epilogue,
            Workspace& workspace) const {
    const auto held = enter(workspace);
    return cuda::multiply(call, epilogue.residual, workspace);
  }

  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_call<T, Source, M, S>()) {
      const auto held = enter(workspace);
      cuda::require_data_here(call);
      auto frame = workspace.frame();
      cuda::attend(call, device_facts(), cuda::DeviceLauncher{workspace, frame});
    }
  }

  template <class T, class Source, class M, class S>
  void attend_recorded(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_call<T, Source, M, S>()) {
      const auto held = enter(workspace);
      cuda::require_data_here(call);
      auto frame = workspace.frame();
      cuda::attend_recorded(call, device_facts(), cuda::DeviceLauncher{workspace, frame});
    }
  }

  /// Gradients, see backward.hpp: of q, k, v, a Sink and a score.
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    if constexpr (check_call<T, Source, M, S>()) {
      const auto held = enter(workspace);
      cuda::require_data_here(call.forward);
      auto frame = workspace.frame();
      cuda::attend_backward(call, device_facts(), cuda::DeviceLauncher{workspace, frame});
    }
  }

  /// The softmax itself, by pairs and then by rows, in the accumulator.
  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, const TensorView<Accumulator<T>, 4>& to,
               Workspace& workspace) const {
    if constexpr (check_call<T, Source, M, S>()) {
      const auto held = enter(workspace);
      cuda::require_data_here(call);
      detail::run_softmax(call, to, detail::ItemsOn<Cuda>{*this, workspace});
    }
  }

  /// Norms of rows, a warp a row.
  template <class T>
  requires(cuda::multiplies<T>) void normalize(const NormCall<T>& call, Workspace& workspace) const {
    const auto held = enter(workspace);
    auto frame = workspace.frame();
    cuda::normalize(call, cuda::DeviceLauncher{workspace, frame});
  }

  /// Their backward pass, likewise.
  template <class A>
  void normalize_backward(const NormBackwardCall<A>& call, NormRowFacts<A>* facts, Workspace& workspace) const {
    const auto held = enter(workspace);
    auto frame = workspace.frame();
    cuda::normalize_backward(call, facts, cuda::DeviceLauncher{workspace, frame});
  }

  template <Items I> void for_each_item(const I& items, Workspace& workspace) const {
    const auto held = enter();
    cuda::run_items(items, workspace.stream());
  }
  const Index* stage(const Index* numbers, Index n, Workspace::Frame& frame, Workspace& workspace) const {
    const auto held = enter(workspace);
    return workspace.stage(numbers, static_cast<std::size_t>(n), frame);
  }
  void send(const Index* numbers, Index n, Index* to, Workspace& workspace) const {
    const auto held = enter(workspace);
    workspace.send(numbers, static_cast<std::size_t>(n), to);
  }
  void require_sendable(const Workspace& workspace) const {
    const auto held = enter();
    workspace.require_sendable();
  }
  template <class T> cuda::DeviceArray<T> upload(std::span<const T> from) const {
    const auto held = enter();
    return cuda::DeviceArray<T>(from);
  }
  template <class T> void download(const T* from, std::span<T> to, Workspace& workspace) const {
    const auto held = enter();
    cuda::download(from, to, workspace.stream());
  }
  template <class P> auto keep(const P& policy) const { return on_device(policy, *this); }
  void require_reachable(const char* call, const char* tensor, const void* p) const {
    const auto held = enter();
    cuda::require_device_pointer(call, tensor, p);
  }

  /// The kernel of such a call on the device, or on an H100 where there is none.
  template <class T> std::string explain(const AttendPlan& plan) const {
    if (!supported().ok)
      return "Cuda: " + cuda::explain<T>(plan, cuda::DeviceFacts{}) + ", planned for an H100: no device is here";
    const auto held = enter();
    const std::string text = cuda::explain<T>(plan, device_facts());
    const bool without = cuda::on_tensor_cores<T> && !cuda::runs_warpgroup_products() &&
                         cuda::device_attribute(cudaDevAttrComputeCapabilityMajor, device) == 9;
    return "Cuda: " + text + (without ? "; this program has no code for sm_90a, which is faster on this device" : "");
  }

 private:
  template <class T, class Source, class M, class S> static constexpr bool check_call() {
    constexpr bool travels = std::is_trivially_copyable_v<M> && std::is_trivially_copyable_v<S>;
    static_assert(
        travels,
        "mha: a mask or score is not trivially copyable, so that no kernel can read it: give a policy that owns "
        "memory of the host as mha::on_device(policy), and instead of a lambda with captures write a struct "
        "whose operator() is MHA_HOST_DEVICE (see mha/backend/cuda/on_device.hpp)");
    constexpr bool source_travels = std::is_trivially_copyable_v<Source>,
                   one_scalar = std::is_same_v<T, typename Source::Scalar>;
    static_assert(source_travels,
                  "mha: Cuda reads sources that are trivially copyable, such as views of device memory "
                  "(see mha/cache/kv_source.hpp)");
    static_assert(one_scalar, "mha: Cuda reads keys and values of the call's own scalar (see mha/cache/kv_source.hpp)");
    return check_scalar<T>() && travels && source_travels && one_scalar;
  }
  template <class T> static constexpr bool check_scalar() {
    static_assert(cuda::multiplies<T>,
                  "mha: Cuda computes in mha::bfloat16, mha::half (pointers to CUDA's own 16-bit types: "
                  "reinterpret_cast), float and double: use the backend Reference for other scalars "
                  "(see mha/backend/reference/reference.hpp)");
    return cuda::multiplies<T>;
  }

  cuda::DeviceFacts device_facts() const {
    return {cuda::device_attribute(cudaDevAttrMultiProcessorCount, device),
            cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device), cuda::runs_warpgroup_products()};
  }
};

static_assert(Backend<Cuda> && PacksWeights<Cuda, bfloat16>);

}  // namespace mha::inline MHA_NAMESPACE
