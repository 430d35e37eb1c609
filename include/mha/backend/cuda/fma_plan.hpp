// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "few_queries_body.hpp"
#include "fma_body.hpp"
#include "plan.hpp"
#include "row_blocks.hpp"
#include "split.hpp"

/// The launches of the bodies on multiply-adds and of those for few queries: host code without the toolkit.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Shapes of fma_body for scalar T, narrow ones first.
template <class T>
using FmaShapes = std::conditional_t<std::is_same_v<T, double>, ShapeList<FmaShape<double, 64>, FmaShape<double, 128>>,
                                     ShapeList<FmaShape<float, 64>, FmaShape<float, 128>, FmaShape<float, 256>>>;

/// A launch of fma_body.
struct FmaPlan {
  int shape = -1;  ///< number in FmaShapes; negative: the device lacks the shared memory for one
  RowBlocks blocks;
  Index value_parts = 1;
  bool q_stays = false, aligned = false;
  Index grid = 0;
  int threads = 0;
  Shared shared_bytes = 0;

  explicit operator bool() const { return shape >= 0; }
  template <class Call> FmaParams<Call> params(const Call& call) const {
    return {call, blocks, value_parts, q_stays, aligned};
  }
};

/// Shapes of few_queries_body for scalar T: few rows before many, narrow ones before wide ones.
template <class T> struct FewShapesOf {
  using type = ShapeList<FewShape<FewOnMma<T, 64>>, FewShape<FewOnMma<T, 128>>, FewShape<FewOnMma<T, 256>>>;
};
template <> struct FewShapesOf<float> {
  using type =
      ShapeList<FewShape<FewOnFma<float, 1, 64>>, FewShape<FewOnFma<float, 1, 128>>, FewShape<FewOnFma<float, 4, 64>>,
                FewShape<FewOnFma<float, 4, 128>>, FewShape<FewOnFma<float, 2, 256>>>;
};
template <> struct FewShapesOf<double> {
  using type = ShapeList<FewShape<FewOnFma<double, 2, 64>>, FewShape<FewOnFma<double, 2, 128>>,
                         FewShape<FewOnFma<double, 2, 256>>>;
};
template <class T> using FewShapes = typename FewShapesOf<T>::type;

/// A launch of few_queries_body.
struct FewPlan {
  int shape = -1;  ///< number in FewShapes; negative: another body serves the call better
  Index splits = 1, passes = 1, most = 0;
  bool aligned = false;
  Index grid = 0;
  int threads = 0;
  Shared shared_bytes = 0;
  std::ptrdiff_t parts = 0;     ///< numbers of the accumulator, at a multiple of 16 bytes; any contents
  std::ptrdiff_t counters = 0;  ///< zero before the first launch

  explicit operator bool() const { return shape >= 0; }
  template <class Call>
  FewParams<Call> params(const Call& call, Accumulator<typename Call::Scalar>* part_memory,
                         unsigned* counter_memory) const {
    return {call, splits, passes, most, aligned, part_memory, counter_memory};
  }
};

/// The launch of the multiply-add body for a call: any head sizes and layouts.
///
/// Errors    ShapeError if the call has more blocks than a grid
template <class T> FmaPlan fma_plan(const CallFacts& call, const DeviceFacts& device) {
  FmaPlan plan;
  for (int i = 0; i < FmaShapes<T>::size; ++i)
    with_shape(FmaShapes<T>{}, i, [&](auto shape) {
      using Shape = decltype(shape);
      const bool wide_enough = plan && Index{plan.value_parts} == 1;
      if (wide_enough || Shape::bytes(call.head_dim, false) > device.shared_bytes) return;
      plan.shape = i;
      plan.value_parts = (call.value_dim + Shape::values - 1) / Shape::values;
      plan.threads = Shape::threads;
      // Asked first, because the bytes of wider heads may be more than a Shared holds.
      const Index widest = device.shared_bytes / Shape::q_slice * Shape::depth;
      plan.q_stays = call.head_dim <= widest && Shape::bytes(call.head_dim, true) <= device.shared_bytes;
      plan.shared_bytes = Shape::bytes(call.head_dim, plan.q_stays);
      plan.blocks.row_tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows;
    });
  if (!plan) return plan;
  if (plan.value_parts < 1) plan.value_parts = 1;
  const std::int64_t heads = std::int64_t{call.shape.batch} * call.shape.heads;
  plan.aligned = call.layout == RowLayout::aligned;
  plan.grid = detail::checked_grid(heads * plan.blocks.row_tiles * plan.value_parts, plan.threads);
  plan.blocks.heads = call.shape.heads;
  plan.blocks.all = static_cast<Index>(heads);
  plan.blocks.together = call.group();
  return plan;
}

/// Queries of a sequence in one head that are few: more fill a tile of the other bodies.
inline constexpr Index few_queries = 8;

/// The launch of the body for few queries; none if there are many, a head size is above 256, or the device lacks the
/// shared memory.
///
/// Errors    ShapeError if the call has more blocks than a grid
template <class T> FewPlan few_plan(const CallFacts& call, const DeviceFacts& device) {
  FewPlan plan;
  plan.most = call.shape.queries;
  const std::int64_t rows = std::int64_t{call.group()} * call.shape.queries;
  const Index width = call.head_dim > call.value_dim ? call.head_dim : call.value_dim;
  Index best_passes = 0;
  for (int i = 0; i < FewShapes<T>::size; ++i)
    with_shape(FewShapes<T>{}, i, [&](auto shape) {
      using Shape = decltype(shape);
      constexpr SplitLimits limits{.least_tiles = 2 * Shape::warps};
      const Shared most = Shape::bytes(limits.most_chunks);
      if (width > Shape::width || most > device.shared_bytes) return;
      if (call.shape.queries > few_queries && rows > Shape::rows) return;
      const Index passes = static_cast<Index>((rows + Shape::rows - 1) / Shape::rows);
      if (plan && passes >= best_passes) return;
      best_passes = passes;
      plan.shape = i;
      plan.passes = passes;
      plan.threads = Shape::threads;
      const std::int64_t groups = std::int64_t{call.shape.batch} * call.kv_heads * passes;
      const Index blocks_at_once = device.multiprocessors * (2 * most <= device.shared_bytes ? 2 : 1);
      plan.splits = split_count(detail::checked_grid(groups, Shape::threads),
                                (call.shape.keys + Shape::keys - 1) / Shape::keys, blocks_at_once, limits);
      plan.shared_bytes = Shape::bytes(plan.splits);
      plan.parts = SplitParts{plan.splits, Shape::rows, Shape::width}.size(groups);
      plan.counters = plan.splits > 1 ? groups : 0;
      plan.grid = detail::checked_grid(groups * plan.splits, plan.threads);
    });
  plan.aligned = call.layout == RowLayout::aligned;
  return plan;
}

/// The launch of that body for the sequences of a ragged call that have few queries, where others have more; none if
/// there are no such. Each keeps its keys among the heads of a group, and these are split, whatever stands beside it.
///
/// Errors    ShapeError if the call has more blocks than a grid
template <class T> FewPlan few_plan_beside(CallFacts call, const DeviceFacts& device) {
  const Index fewest = call.shape.fewest_queries;
  if (fewest == 0 || fewest > few_queries || call.shape.queries <= few_queries) return {};
  call.shape.queries = few_queries;
  return few_plan<T>(call, device);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
