// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend.hpp"
#include "../executor.hpp"
#include "attend.hpp"
#include "gemm.hpp"
#include "packed.hpp"

namespace mha::inline v0 {

/// The processor: own kernels for dense products and fused attention, chosen at run time by instruction set.
///
/// Lq × Lk is never stored: work memory is O(tile) per thread, plus a widened copy of K and V for 16-bit storage.
/// Scalars   float, double; half and bfloat16 in storage, computed in float
/// Bits      an output row depends on its own query, keys and mask only, not on the threads or on other rows
template <Executor Threads> class CpuWith {
  template <class T>
  static constexpr bool computes = std::is_same_v<Accumulator<T>, float> || std::is_same_v<Accumulator<T>, double>;

 public:
  static constexpr const char* name = "Cpu";
  using Workspace = mha::Workspace;

  Support supported() const { return {}; }

  template <class T> void gemm(const GemmCall<T>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) detail::cpu::gemm(call, workspace, Threads{});
  }

  /// Weights in panels that the kernels of every instruction-set level read from end to end.
  ///
  /// Numerics  the bits of gemm() on the matrices as they lie, for any number of rows
  template <class T>
  requires(computes<T>) detail::cpu::PackedWeights<T> pack(std::span<const DenseWeights<T>> parts)
  const { return {parts, Threads{}}; }
  template <class T>
  void gemm(const PackedGemmCall<T, detail::cpu::PackedWeights<T>>& call, Workspace& workspace) const {
    detail::cpu::gemm(call, workspace, Threads{});
  }

  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>())
      with_accumulator_kv(call, workspace, [&](const auto& wide) {
        detail::cpu::for_each_tile(wide, workspace, Threads{}, [](auto& tile) { tile.attend(); });
      });
  }

  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, TensorView<Accumulator<T>, 4> to, Workspace& workspace) const {
    if constexpr (check_scalar<T>())
      with_accumulator_kv(call, workspace, [&](const auto& wide) {
        detail::cpu::for_each_tile(wide, workspace, Threads{}, [&](auto& tile) { tile.weights(to); });
      });
  }

  template <class T> std::string explain(const AttendPlan& plan) const {
    using A = Accumulator<T>;
    const auto kernels = detail::simd::tile_kernels<A>(current_isa(), plan.shape.queries);
    const std::size_t per_worker =
        static_cast<std::size_t>(kernels.lanes) * sizeof(A) *
        static_cast<std::size_t>(plan.head_dim + plan.value_dim + 2 * detail::cpu::key_block);
    return std::string("Cpu: fused online softmax in ") + detail::scalar_name<A>() +
           (std::is_same_v<T, A> ? "" : std::string(", ") + detail::scalar_name<T>() + " widened once per call") +
           ", kernel " + to_string(current_isa()) + ", tiles of " + std::to_string(kernels.lanes) + " queries x " +
           std::to_string(detail::cpu::key_block) + " keys, " + Threads::name + " with " +
           std::to_string(Threads{}.workers()) + " workers, " + std::to_string(per_worker) + " bytes of scratch each";
  }

 private:
  template <class T> static constexpr bool check_scalar() {
    static_assert(computes<T>,
                  "mha: Cpu computes in float or double (half and bfloat16 are storage): use the backend Reference for "
                  "other scalars (see mha/backend/reference/reference.hpp)");
    return computes<T>;  // the sentence is enough: nothing more is instantiated
  }

  template <class T, class Source, class M, class S, class F>
  static void with_accumulator_kv(const AttendCall<T, Source, M, S>& call, Workspace& workspace, F&& f) {
    using A = Accumulator<T>;
    if constexpr (std::is_same_v<typename Source::Scalar, A>) {
      f(call);
    } else {
      auto frame = workspace.frame();
      const auto kv = detail::cpu::widened<A>(call, frame);
      f(AttendCall<T, ContiguousKv<A>, M, S>{call.q, kv, call.mask, call.score, call.out, call.log_sum_exp, call.shape,
                                             call.kv_heads, call.head_dim, call.value_dim, call.scale, call.sink,
                                             call.q_offsets, call.k_offsets});
    }
  }
};

/// The default backend: all threads of the machine, or MHA_NUM_THREADS.
using Cpu = CpuWith<ThreadPool>;

}  // namespace mha::inline v0
