// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/view.hpp"
#include "../../policy/call_shape.hpp"
#include "../backend.hpp"
#include "forward_shape.hpp"
#include "machine.hpp"

/// Which kernel a call gets, with which grid: host code without the toolkit, asked by the launcher, by explain() and by
/// the tests alike.
namespace mha::inline MHA_NAMESPACE::cuda {

/// What a plan must know of a device. The defaults are those of an H100.
struct DeviceFacts {
  Index multiprocessors = 132;
  Shared shared_bytes = 227 * 1024;  ///< the most a block may ask for
  bool warpgroups = false;           ///< products of warpgroups: the device has them, the program was compiled for them
};

/// What a plan must know of a call.
struct CallFacts {
  CallShape shape;
  Index kv_heads = 0, head_dim = 0, value_dim = 0;
  RowLayout layout = RowLayout::any;

  Index group() const { return shape.heads / kv_heads; }
};

template <class T> constexpr bool on_tensor_cores = std::is_same_v<T, bfloat16> || std::is_same_v<T, half>;

template <class... Shapes> struct ShapeList { static constexpr int size = sizeof...(Shapes); };

/// The shapes of the forward body that are shipped: a call gets the first that holds its head sizes and that the device
/// has the shared memory for.
using ForwardShapes = ShapeList<ForwardShape<32, 32, 128, 64, 4, RowLayout::aligned>,    //
                                ForwardShape<64, 64, 128, 64, 4, RowLayout::aligned>,    //
                                ForwardShape<96, 96, 128, 32, 4, RowLayout::aligned>,    //
                                ForwardShape<128, 128, 128, 32, 4, RowLayout::aligned>,  //
                                ForwardShape<192, 128, 128, 32, 4, RowLayout::aligned>,  //
                                ForwardShape<192, 192, 128, 32, 8, RowLayout::aligned>,  //
                                ForwardShape<256, 256, 128, 32, 8, RowLayout::aligned>,  //
                                ForwardShape<64, 64, 128, 64, 4, RowLayout::any>,        //
                                ForwardShape<128, 128, 64, 64, 4, RowLayout::any>,       //
                                ForwardShape<256, 256, 64, 32, 4, RowLayout::any>>;

/// Those of the warpgroup body, likewise. Where registers allow it, blocks of one warpgroup each fill a multiprocessor:
/// while one multiplies, another has its softmax, and no barrier joins them. On an H100 that was 4 to 32 % above one
/// block of two with twice the keys.
using WarpgroupShapes = ShapeList<WarpgroupShape<64, 64, 1, 64, 3>,    //
                                  WarpgroupShape<128, 128, 1, 64, 2>,  //
                                  WarpgroupShape<192, 128, 1, 64, 2>,  //
                                  WarpgroupShape<256, 256, 2, 64, 1>>;

/// f(Shape{}) for the shape of this number.
template <class F, class... Shapes> void with_shape(ShapeList<Shapes...>, int number, F&& f) {
  int i = 0;
  ((i++ == number ? f(Shapes{}) : void()), ...);
}

/// A launch of the forward body or of the warpgroup body.
struct ForwardPlan {
  int shape = -1;           ///< number in ForwardShapes or WarpgroupShapes; negative: none holds this call
  bool warpgroups = false;  ///< which of the two
  RowBlocks blocks;
  Index grid = 0;
  int threads = 0;
  Shared shared_bytes = 0;

  explicit operator bool() const { return shape >= 0; }
};

/// f(Shape{}) for the shape of a plan.
template <class F> void with_forward_shape(const ForwardPlan& plan, F&& f) {
  if (plan.warpgroups)
    with_shape(WarpgroupShapes{}, plan.shape, f);
  else
    with_shape(ForwardShapes{}, plan.shape, f);
}

namespace detail {

/// Whether every row of a view begins and ends on 16 bytes and is contiguous.
template <class T> bool rows_aligned(const TensorView<T, 4>& v) {
  constexpr std::ptrdiff_t unit = 16 / sizeof(T);
  bool aligned = reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.extent[3] % unit == 0 && v.stride[3] == 1;
  for (int a = 0; a < 3; ++a) aligned = aligned && (v.extent[a] <= 1 || v.stride[a] % unit == 0);
  return aligned;
}
/// Of a source that shows where its keys and values are; another says so itself: `bool rows_aligned() const`.
template <class Source> bool rows_aligned(const Source& source) {
  if constexpr (requires { source.rows_aligned(); })
    return source.rows_aligned();
  else if constexpr (requires {
                       source.key.stride;
                       source.value.stride;
                     })
    return rows_aligned(source.key) && rows_aligned(source.value);
  else
    return false;
}

/// The blocks of a launch, which an Index must hold.
inline Index checked_grid(std::int64_t blocks, int threads, const char* call = "attention") {
  mha::detail::require(blocks <= std::numeric_limits<Index>::max(), call, ": ", blocks, " blocks of ", threads,
                       " threads, the limit is ", std::numeric_limits<Index>::max());
  return static_cast<Index>(blocks);
}

}  // namespace detail

template <class Call> CallFacts facts(const Call& call) {
  const bool aligned = detail::rows_aligned(call.q) && detail::rows_aligned(call.out) && detail::rows_aligned(call.kv);
  return {call.shape, call.kv_heads, call.head_dim, call.value_dim, aligned ? RowLayout::aligned : RowLayout::any};
}

/// The launch for a call in 16 bits; none if a head size is above 256.
///
/// Errors    ShapeError if the call has more blocks than a grid
inline ForwardPlan forward_plan(const CallFacts& call, const DeviceFacts& device) {
  ForwardPlan plan;
  const auto choose = [&](auto shapes, bool warpgroups) {
    for (int i = 0; i < shapes.size && !plan; ++i)
      with_shape(shapes, i, [&](auto shape) {
        using Shape = decltype(shape);
        if (call.head_dim > Shape::head_dim || call.value_dim > Shape::value_dim) return;
        if (Shape::layout == RowLayout::aligned && call.layout != RowLayout::aligned) return;
        if (Shape::shared_bytes > device.shared_bytes) return;
        plan.shape = i;
        plan.warpgroups = warpgroups;
        plan.threads = Shape::threads;
        plan.shared_bytes = Shape::shared_bytes;
        plan.blocks.row_tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows;
      });
  };
  constexpr Index narrow = 32;  // half of a panel
  if (device.warpgroups && (call.head_dim > narrow || call.value_dim > narrow)) choose(WarpgroupShapes{}, true);
  choose(ForwardShapes{}, false);
  if (!plan) return plan;
  const std::int64_t heads = std::int64_t{call.shape.batch} * call.shape.heads;
  plan.grid = detail::checked_grid(heads * plan.blocks.row_tiles, plan.threads);
  plan.blocks = RowBlocks::of(plan.blocks.row_tiles, call.shape.batch, call.shape.heads, call.group(),
                              std::int64_t{2} * call.shape.keys * (call.head_dim + call.value_dim));
  return plan;
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
