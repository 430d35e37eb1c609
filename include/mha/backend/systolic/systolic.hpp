// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../../core/items.hpp"
#include "../backend.hpp"
#include "../default.hpp"
#include "../executor.hpp"
#include "../norm.hpp"
#include "../simd/epilogue.hpp"
#include "../simd/epilogue_backward.hpp"
#include "../simd/norm.hpp"
#include "../simd/norm_backward.hpp"
#include "../simd/tile_policies.hpp"
#include "array.hpp"
#include "attend.hpp"
#include "backward.hpp"
#include "cached_tiles.hpp"
#include "gemm.hpp"
#include "group_plan.hpp"
#include "kernels.hpp"
#include "precision.hpp"
#include "tile_product.hpp"
#include "unit.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A TPU's way on a processor: operands rounded to bfloat16, products summed in float on a systolic array of this
/// shape.
///
/// AmxArray runs on the machine's matrix unit, MHA_MATRIX_UNIT or the best one (see unit.hpp); an array of another
/// shape, and AmxArray where no unit is, runs as portable code that adds in the array's order; attention adds at most
/// 64 products in a pass, a step of its softmax. Precision is that of dense products; attention's own, q kᵀ and
/// weights · v, are single products of bfloat16 whatever the Precision.
///
/// Scalars   float, bfloat16, half: rounded to bfloat16 on entry, results in the same scalar
/// Numerics  relative error of a rounded operand 2⁻⁸ or less. Subnormal numbers count as zero in products on hardware,
///           and so do results in bfloat16 of dense products where the level is avx512. Gradients: as
///           detail::systolic::attend_backward() says
/// Bits      an output row depends on its own query, keys and mask and on the unit, not on the threads or on other rows
template <class Array, class Precision, class Threads> class Systolic {
  static_assert(detail::check_executor<Threads>());

 public:
  static constexpr const char* name = "Systolic";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;
  /// Of a cache that stores T.
  template <class T>
  requires(std::is_same_v<Accumulator<T>, float>) using CachedTiles = detail::systolic::CachedTiles<T>;

  Systolic() requires std::default_initializable<Threads>
  = default;
  explicit Systolic(Threads threads) : threads_(std::move(threads)) {}

  /// Who runs the tasks of its calls.
  const Threads& threads() const { return threads_; }

  Support supported() const { return {}; }

  template <class T> void gemm(const GemmCall<T>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) detail::systolic::gemm<Array, Precision>(call, workspace, threads_);
  }

  /// Weights rounded and laid in tiles once.
  template <class T> detail::systolic::PackedWeights<T, Precision> pack(std::span<const DenseWeights<T>> parts) const {
    if constexpr (check_scalar<T>())
      return {parts, threads_};
    else
      __builtin_unreachable();
  }
  /// The same of other weights in the memory of those before; false if they have other shapes.
  template <class T>
  bool pack_into(detail::systolic::PackedWeights<T, Precision>& packed, std::span<const DenseWeights<T>> parts) const {
    return packed.rewrite(parts, threads_);
  }
  /// to (K, N), in rows = the matrix of a part, in T.
  ///
  /// Numerics  as the products read it: rounded to the parts of the Precision
  template <class T, class W>
  void unpack(const detail::systolic::PackedWeights<W, Precision>& packed, Index part,
              const TensorView<T, 2>& to) const {
    packed.unpack(part, to, threads_);
  }
  /// Rows of T by weights packed from W, such as bfloat16 weights under float, which have one part in any precision.
  ///
  /// Numerics  the bits of weights that were converted to float first, unless a weight or a number of a row is infinite
  ///           or rounds to infinity
  template <class T, class W>
  requires(std::is_same_v<Accumulator<T>, Accumulator<W>>) void gemm(
      const PackedGemmCall<T, detail::systolic::PackedWeights<W, Precision>>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) detail::systolic::gemm<Array, Precision>(call, workspace, threads_);
  }
  /// The same with an epilogue on the sums, while they are in the cache.
  ///
  /// Numerics  the activation and the residual are computed in float and rounded once
  template <class T, class W, class F>
  requires(std::is_same_v<Accumulator<T>, Accumulator<W>>) void gemm(
      const PackedGemmCall<T, detail::systolic::PackedWeights<W, Precision>>& call, const Epilogue<T, F>& epilogue,
      Workspace& workspace) const {
    if constexpr (check_scalar<T>() && detail::check_activation<F>())
      detail::systolic::gemm<Array, Precision>(call, workspace, threads_,
                                               detail::simd::AnyEpilogue<T>(epilogue, current_isa()));
  }

  /// to = the epilogue of sums of a product, kept in float.
  ///
  /// Numerics  the bits of gemm() with the epilogue; in more than one part an infinite bfloat16 weight gives those of
  ///           rows of float
  template <class T, class F>
  requires(std::is_same_v<Accumulator<T>, float>) void finish(const Epilogue<T, F>& epilogue,
                                                              const TensorView<const float, 2>& gate,
                                                              const TensorView<const float, 2>& sum,
                                                              const TensorView<T, 2>& to, Workspace& workspace) const {
    const IsaLevel level = current_isa();
    detail::simd::apply_epilogue(detail::simd::AnyEpilogue<T>(epilogue, level), gate, sum, to, level, workspace,
                                 threads_,
                                 detail::systolic::narrow_kernel<T>(detail::systolic::unit_for<Array>(), level));
  }

  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const detail::systolic::Kernels kernels = this->kernels();
      detail::systolic::attend(detail::systolic::any_call(call, kernels.level), kernels, workspace, threads_);
    }
  }

  /// Asked before anything of a backward pass is computed.
  void require_backward(const char* call, const CallShape& shape) const { detail::require_heads(call, shape); }
  /// Gradients; the same bits for any number of threads.
  template <class T, class Source, class M, class S, class Wanted>
  requires(std::is_same_v<Accumulator<T>, float>) void attend_backward(
      const AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    const auto kernels = detail::systolic::backward_kernels_of<Array>();
    detail::systolic::attend_backward(detail::systolic::AnyBackwardCall<T>(call, kernels.level), kernels, workspace,
                                      threads_);
  }

  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, TensorView<Accumulator<T>, 4> to, Workspace& workspace) const {
    if constexpr (check_scalar<T>()) {
      const detail::systolic::Kernels kernels = this->kernels();
      detail::systolic::weights(detail::systolic::any_call(call, kernels.level), kernels, to, workspace, threads_);
    }
  }

  /// In float: nothing of a norm is rounded to bfloat16 but its result, where that is the scalar.
  template <class T>
  requires(std::is_same_v<Accumulator<T>, float>) void normalize(const NormCall<T>& call, Workspace& workspace) const {
    detail::simd::normalize(call, workspace, threads_);
  }

  /// The gradients of an epilogue's sums and of norms, in float too.
  template <class F> void differentiate(const EpilogueBackwardCall<float, F>& call) const {
    detail::simd::differentiate(call, current_isa(), threads_);
  }
  void normalize_backward(const NormBackwardCall<float>& call, float* sums) const {
    detail::simd::normalize_backward(call, sums, threads_);
  }

  /// Independent items, shared among the threads where they are work enough.
  template <Items I> void for_each_item(const I& items, Workspace&) const { detail::run_items(items, threads_); }

  template <class T> std::string explain(const AttendPlan& plan) const {
    const auto n = [](Index x) { return std::to_string(x); };
    const auto full = [](const ArrayUse& use) {
      char text[16];
      std::snprintf(text, sizeof text, "%.0f %%", 100 * use.utilisation());
      return std::string(text);
    };
    return std::string("Systolic: ") + detail::scalar_name<T>() +
           (std::is_same_v<T, bfloat16> ? "" : " rounded to bfloat16") + ", sums in float, array of " + n(Array::rows) +
           " x " + n(Array::columns) + " x " + n(Array::depth) + " " + how() + ", head size " + n(plan.head_dim) +
           " fills " + full(array_use<Array>(Array::rows, Array::columns, plan.head_dim)) + " of it, value size " +
           n(plan.value_dim) + " " + full(array_use<Array>(plan.value_dim, Array::columns, Array::depth)) +
           ", attention's own products in bfloat16 whatever the precision, dense products in " + Precision::name +
           " precision, " + detail::workers_in_words(threads_) + explain_chunks(plan);
  }
  /// Of a dense product.
  template <class T> std::string explain_product() const {
    return std::string("Systolic: ") + detail::scalar_name<T>() + " in " + Precision::name +
           " precision, sums in float, " + how() + ", " + detail::workers_in_words(threads_);
  }

 private:
  template <class T> static constexpr bool check_scalar() {
    constexpr bool rounds = std::is_same_v<Accumulator<T>, float>;
    static_assert(
        rounds,
        "mha: Systolic multiplies bfloat16 and sums in float, which would throw a double's digits away: use Cpu "
        "or Reference (see mha/backend/systolic/systolic.hpp)");
    return rounds;  // the sentence is enough: nothing more is instantiated
  }

  /// Whether these workers share keys.
  std::string explain_chunks(const AttendPlan& plan) const {
    detail::systolic::GroupPlan groups(plan.shape, plan.kv_heads, plan.head_dim, plan.value_dim, kernels().product,
                                       threads_.workers());
    const auto all = [&](const detail::systolic::GroupPlan& of) {
      return of.groups(plan.shape.queries) * plan.shape.batch;
    };
    const auto parts = [&](const detail::systolic::GroupPlan& of) { return all(of) * of.chunks; };
    groups.share_chunks(detail::simd::all_chunks(plan.shape.keys), all, parts);
    return groups.chunks > 1 ? detail::simd::explain_chunks(groups.chunks) : std::string();
  }

  static detail::systolic::Kernels kernels() {
    return detail::systolic::kernels_of<Array>(detail::systolic::attention_unit<Array>(), current_isa());
  }

  static std::string how() {
    if constexpr (!std::is_same_v<Array, AmxArray>) return "emulated (no hardware has this shape)";
    if (current_unit() != MatrixUnit::portable) return std::string("on the unit ") + to_string(current_unit());
    const std::string& reason = missing(MatrixUnit::amx);
    return "emulated (" + (reason.empty() ? std::string("MHA_MATRIX_UNIT or force_unit() says so") : reason) + ")";
  }

  [[no_unique_address]] Threads threads_;
};

}  // namespace mha::inline MHA_NAMESPACE
