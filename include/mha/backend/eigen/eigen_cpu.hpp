// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <utility>

#include "../../core/items.hpp"
#include "../../interop/eigen.hpp"
#include "../backend.hpp"
#include "../backward.hpp"
#include "../executor.hpp"
#include "../weights.hpp"
#include "attend.hpp"
#include "backward.hpp"
#include "product.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The processor by Eigen: dense products and fused attention, forward and backward, as Eigen expressions over tiles.
///
/// It runs on any processor that Eigen runs on, with the instruction set that the program is compiled for: give
/// -march=native. Cpu has kernels of its own, is faster, and chooses the instruction set at run time.
/// Lq × Lk is never stored: work memory is O(tile) per thread; backward also sums as large as q, k and v of the heads
/// that are computed at once.
/// Threads   those of the backend. With OpenMP Eigen adds none of its own, unless the program asks it to by
///           Eigen::setNbThreads; -DEIGEN_DONT_PARALLELIZE forbids it for good
/// Scalars   float, double, long double; half and bfloat16 in storage, computed in float
/// Bits      the same call has the same bits for any number of threads
template <class Threads> class EigenCpuWith {
  static_assert(detail::check_executor<Threads>());
  template <class T>
  static constexpr bool computes = std::floating_point<Accumulator<T>> && !detail::is_scaled_integer<T>;

 public:
  static constexpr const char* name = "EigenCpu";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;

  EigenCpuWith() requires std::default_initializable<Threads>
  = default;
  explicit EigenCpuWith(Threads threads) : threads_(std::move(threads)) {}

  /// Who runs the tasks of its calls.
  const Threads& threads() const { return threads_; }

  Support supported() const { return {}; }

  template <class T> void gemm(const GemmCall<T>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      detail::one_alignment_of_eigen<T>();  // Eigen packs large operands in memory of its own
      detail::eigen::gemm(call, workspace, threads_);
    }
  }

  /// Independent items, shared among the threads where they are work enough.
  template <Items I> void for_each_item(const I& items, Workspace&) const { detail::run_items(items, threads_); }

  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      detail::one_alignment_of_eigen<T>();
      detail::eigen::attend(call, workspace, threads_);
    }
  }

  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, TensorView<Accumulator<T>, 4> to, Workspace&) const {
    if constexpr (check_scalar<T>())
      detail::run_softmax(call, to, [&](const auto& items) { detail::run_items(items, threads_); });
  }

  /// Gradients of the call, from the states that attend() has left.
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      detail::one_alignment_of_eigen<T>();
      detail::eigen::attend_backward(call, workspace, threads_);
    }
  }
  void require_backward(const char* call, const CallShape& shape) const { detail::require_heads(call, shape); }

  template <class T> std::string explain(const AttendPlan& plan) const {
    using A = Accumulator<T>;
    AttendCall<T, ContiguousKv<T>, Full, NoScore> call{};
    call.shape = plan.shape;
    call.kv_heads = plan.kv_heads;
    call.head_dim = plan.head_dim;
    call.value_dim = plan.value_dim;
    const detail::eigen::Tiling tiling(call);
    return std::string("EigenCpu: fused online softmax in ") + detail::scalar_name<A>() + " by Eigen (" +
           Eigen::SimdInstructionSetsInUse() + "), tiles of " + std::to_string(tiling.queries * tiling.heads) +
           " queries x " + std::to_string(tiling.keys) + " keys, " + detail::workers_in_words(threads_);
  }
  /// Of a dense product.
  template <class T> std::string explain_product() const {
    return std::string("EigenCpu: ") + detail::scalar_name<Accumulator<T>>() + " by Eigen (" +
           Eigen::SimdInstructionSetsInUse() + "), " + detail::workers_in_words(threads_);
  }

 private:
  template <class T> static constexpr bool check_scalar() {
    static_assert(computes<T>,
                  "mha: EigenCpu computes in float, double or long double (half and bfloat16 are storage, scaled_int8 "
                  "and scaled_int4 nothing else): use the backend Reference for other scalars (see "
                  "mha/backend/reference/reference.hpp)");
    return computes<T>;  // the sentence is enough: nothing more is instantiated
  }

  [[no_unique_address]] Threads threads_;
};

/// EigenCpu on all threads of the machine, or MHA_NUM_THREADS.
using EigenCpu = EigenCpuWith<ThreadPool>;

}  // namespace mha::inline MHA_NAMESPACE
