// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../../core/items.hpp"
#include "../../policy/call_shape.hpp"
#include "../backend.hpp"
#include "../default.hpp"
#include "../epilogue_backward.hpp"
#include "../executor.hpp"
#include "../norm.hpp"
#include "../norm_backward.hpp"
#include "../simd/epilogue.hpp"
#include "../simd/epilogue_backward.hpp"
#include "../simd/norm.hpp"
#include "../simd/norm_backward.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/tile_policies.hpp"
#include "attend.hpp"
#include "backward.hpp"
#include "gemm.hpp"
#include "packed.hpp"
#include "tile_scratch.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The processor: own kernels for dense products and fused attention, chosen at run time by instruction set.
///
/// Lq × Lk is never stored: work memory is O(tile) per thread; 16-bit keys and values are widened as they are read.
/// Scalars   float, double; half and bfloat16 in storage, computed in float
/// Bits      an output row depends on its own query, keys and mask only, not on the threads or on other rows
/// Range     values are weighted and summed before the division by the sum of weights, of which each is 1 at most:
///           finite values above the accumulator's largest number / Lk may make a result infinite
template <class Threads> class CpuWith {
  static_assert(detail::check_executor<Threads>());
  template <class T>
  static constexpr bool computes = (std::is_same_v<Accumulator<T>, float> ||
                                    std::is_same_v<Accumulator<T>, double>)&&!detail::is_scaled_integer<T>;

 public:
  static constexpr const char* name = "Cpu";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;

  CpuWith() requires std::default_initializable<Threads>
  = default;
  explicit CpuWith(Threads threads) : threads_(std::move(threads)) {}

  /// Who runs the tasks of its calls.
  const Threads& threads() const { return threads_; }

  Support supported() const { return {}; }

  template <class T> void gemm(const GemmCall<T>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) detail::cpu::gemm(call, workspace, threads_);
  }

  /// Weights in panels that the kernels of every instruction-set level read from end to end.
  ///
  /// Numerics  the bits of gemm() on the matrices as they lie, for any number of rows
  template <class T>
  requires(computes<T>) detail::cpu::PackedWeights<T> pack(std::span<const DenseWeights<T>> parts)
  const { return {parts, threads_}; }
  /// The same of other weights in the memory of those before; false if they have other shapes.
  template <class T>
  bool pack_into(detail::cpu::PackedWeights<T>& packed, std::span<const DenseWeights<T>> parts) const {
    return packed.rewrite(parts, threads_);
  }
  /// Weights rounded to Q: integers, and a scale for each column of weights_per_scale rows.
  ///
  /// Numerics  gemm() by them has the bits of the rounded numbers in float
  template <class Q, class W>
  requires(detail::is_rounded<Q>&& std::is_same_v<Accumulator<W>, float>) detail::cpu::PackedWeights<Q> quantize(
      std::span<const DenseWeights<W>> parts)
  const { return {parts, threads_}; }
  /// to (K, N), in rows = the matrix of a part, in T: W or its accumulator.
  template <class T, class W>
  void unpack(const detail::cpu::PackedWeights<W>& packed, Index part, const TensorView<T, 2>& to) const {
    packed.unpack(part, to, current_isa(), threads_);
  }
  /// Rows of T by weights packed from W of the same accumulator, such as bfloat16 weights under float.
  ///
  /// Numerics  the bits of weights that were converted to T first, where T is the accumulator
  template <class T, class W>
  requires(std::is_same_v<Accumulator<T>, Accumulator<W>>) void gemm(
      const PackedGemmCall<T, detail::cpu::PackedWeights<W>>& call, Workspace& workspace) const {
    detail::cpu::gemm(call, workspace, threads_);
  }
  /// The same with an epilogue on the accumulators, while they are in the cache.
  ///
  /// Numerics  the activation and the residual are computed in the accumulator's precision and rounded once
  template <class T, class W, class F>
  requires(std::is_same_v<Accumulator<T>, Accumulator<W>>) void gemm(
      const PackedGemmCall<T, detail::cpu::PackedWeights<W>>& call, const Epilogue<T, F>& epilogue,
      Workspace& workspace) const {
    if constexpr (detail::check_activation<F>())
      detail::cpu::gemm(call, workspace, threads_, detail::simd::AnyEpilogue<T>(epilogue, current_isa()));
  }

  /// to = the epilogue of sums of a product, kept in accumulators.
  ///
  /// Numerics  the bits of gemm() with the epilogue
  template <class T, class F>
  requires(computes<T>) void finish(const Epilogue<T, F>& epilogue, const TensorView<const Accumulator<T>, 2>& gate,
                                    const TensorView<const Accumulator<T>, 2>& sum, const TensorView<T, 2>& to,
                                    Workspace& workspace) const {
    const IsaLevel level = current_isa();
    detail::simd::apply_epilogue(detail::simd::AnyEpilogue<T>(epilogue, level), gate, sum, to, level, workspace,
                                 threads_, detail::simd::narrow_kernel<Accumulator<T>, T>(level));
  }
  /// The gradients of those sums.
  template <class A, class F>
  requires(computes<A>&& std::is_same_v<A, Accumulator<A>>) void differentiate(
      const EpilogueBackwardCall<A, F>& call) const {
    detail::simd::differentiate(call, current_isa(), threads_);
  }

  template <class T>
  requires(computes<T>) void normalize(const NormCall<T>& call, Workspace& workspace) const {
    detail::simd::normalize(call, workspace, threads_);
  }
  /// Its backward pass, of blocks of rows.
  template <class A>
  requires(computes<A>&& std::is_same_v<A, Accumulator<A>>) void normalize_backward(const NormBackwardCall<A>& call,
                                                                                    A* sums) const {
    detail::simd::normalize_backward(call, sums, threads_);
  }

  /// Independent items, shared among the threads where they are work enough.
  template <Items I> void for_each_item(const I& items, Workspace&) const { detail::run_items(items, threads_); }

  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const IsaLevel level = current_isa();
      detail::cpu::attend(detail::cpu::any_call(call, level), level, workspace, threads_);
    }
  }

  /// Asked before anything of a backward pass is computed.
  void require_backward(const char* call, const CallShape& shape) const { detail::require_heads(call, shape); }
  /// Gradients; the same bits for any number of threads.
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const IsaLevel level = current_isa();
      detail::cpu::attend_backward(detail::cpu::AnyBackwardCall<T>(call, level), level, workspace, threads_);
    }
  }

  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, TensorView<Accumulator<T>, 4> to, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const IsaLevel level = current_isa();
      detail::cpu::weights(detail::cpu::any_call(call, level), level, to, workspace, threads_);
    }
  }

  /// The kernel of such a call, of its tiles with the most rows.
  template <class T, class Stored = T> std::string explain(const AttendPlan& plan) const {
    using A = Accumulator<T>;
    const IsaLevel level = current_isa();
    const Index group = plan.shape.heads / plan.kv_heads, most = detail::simd::widest_tile<A>(level);
    detail::cpu::SequenceTiles cut(plan.shape.queries, group, most);
    const Index chunks = shared_chunks(plan, cut);
    if (chunks > 0) {
      const std::int64_t tasks = tiles_of(plan, cut) * chunks;
      cut = {plan.shape.queries, group,
             detail::cpu::divided_rows(cut, detail::simd::tile_kernels<A>(level, 1).lanes, chunks, tasks,
                                       threads_.workers())};
    }
    const Index lanes = detail::simd::tile_kernels<A>(level, cut.rows()).lanes;
    const Index few =
        detail::cpu::few_rows_of<A, Stored>(level, cut.rows(), plan.head_dim, plan.value_dim, plan.drops).rows;
    const char* const widened = few > 0 ? " widened as it is read" : " widened block by block";
    return std::string("Cpu: fused online softmax in ") + detail::scalar_name<A>() +
           (std::is_same_v<Stored, A> ? "" : std::string(", ") + detail::scalar_name<Stored>() + widened) +
           ", kernel " + to_string(level) + (few > 0 ? " of few rows" : "") + ", tiles of " +
           std::to_string(few > 0 ? few : lanes) + (few == 1 ? " query x " : " queries x ") +
           std::to_string(detail::cpu::key_block) + " keys, " + detail::workers_in_words(threads_) +
           (chunks > 1 && threads_.workers() > 1 ? detail::simd::explain_chunks(chunks) : std::string()) + ", " +
           std::to_string(
               detail::cpu::TileScratch<A>::bytes(lanes, plan.head_dim, plan.value_dim, !std::is_same_v<Stored, A>)) +
           " bytes of scratch each";
  }
  /// Of a dense product.
  template <class T> std::string explain_product() const {
    return std::string("Cpu: ") + detail::scalar_name<Accumulator<T>>() + ", kernel " + to_string(current_isa()) +
           ", " + detail::workers_in_words(threads_);
  }

 private:
  static std::int64_t tiles_of(const AttendPlan& plan, const detail::cpu::SequenceTiles& cut) {
    return std::int64_t{plan.shape.batch} * plan.kv_heads * cut.tiles();
  }
  /// The chunks of keys that are tasks of their own in such a call, 0 where tiles are enough or there is little work.
  Index shared_chunks(const AttendPlan& plan, const detail::cpu::SequenceTiles& cut) const {
    const CallShape& shape = plan.shape;
    const bool parallel = detail::cpu::enough_work(2 * shape.pairs() * (double(plan.head_dim) + plan.value_dim));
    const bool shares = parallel && detail::simd::too_few_tiles(tiles_of(plan, cut), threads_.workers());
    return shares ? detail::simd::all_chunks(shape.keys) : 0;
  }

  template <class T> static constexpr bool check_scalar() {
    static_assert(computes<T>,
                  "mha: Cpu computes in float or double (half and bfloat16 are storage, scaled_int8 and scaled_int4 "
                  "nothing else): use the backend Reference for other scalars (see "
                  "mha/backend/reference/reference.hpp)");
    return computes<T>;  // the sentence is enough: nothing more is instantiated
  }

  [[no_unique_address]] Threads threads_;
};

}  // namespace mha::inline MHA_NAMESPACE
