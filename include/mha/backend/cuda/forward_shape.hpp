// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "row_blocks.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// How rows lie in memory: `aligned` rows are contiguous and begin and end on 16 bytes, so that they are copied
/// asynchronously; `any` are read element by element.
enum class RowLayout : unsigned char { aligned, any };

/// How a block of the forward body cuts its work.
///
/// Shapes    queries (Rows, D)  keys (Keys, D)  values (Keys, Dv), each warp (Rows / Warps) rows of queries
/// Cost      registers of a thread: outputs Rows·Dv and logits Rows·Keys over 32·Warps threads; shared memory: queries
///           and two stages of keys and values
template <int D, int Dv, int Rows, int Keys, int Warps, RowLayout Layout> struct ForwardShape {
  static_assert(Rows % (16 * Warps) == 0 && Keys % 16 == 0 && Keys <= 64);
  static constexpr int head_dim = D, value_dim = Dv, rows = Rows, keys = Keys, warps = Warps, warpgroups = 0;
  static constexpr RowLayout layout = Layout;
  static constexpr int threads = warp_size * Warps;
  static constexpr int blocks_per_multiprocessor = Warps <= 4 ? 2 : 1;  ///< for __launch_bounds__

  static constexpr int strips = Rows / (16 * Warps);              ///< of 16 rows, of a warp
  static constexpr bool keeps_queries = strips == 1 && D <= 192;  ///< in registers
  static constexpr bool has_registers_for_run = strips > 1;

  using Query = SharedRows<D>;
  using Key = SharedRows<D>;
  using Value = SharedRows<Dv>;
  using Output = Value;
  static constexpr Shared query_bytes = Rows * Query::bytes;
  static constexpr Shared output_bytes = Rows * Value::bytes;  ///< takes the place of the queries
  static constexpr Shared head_bytes = query_bytes > output_bytes ? query_bytes : output_bytes;
  static constexpr Shared key_bytes = Keys * Key::bytes, value_bytes = Keys * Value::bytes;
  static constexpr Shared shared_bytes = head_bytes + 2 * (key_bytes + value_bytes);
};

/// How a block of the warpgroup body cuts its work: 64 rows of queries for each warpgroup.
///
/// Shapes    queries (64 · Warpgroups, D)  keys (Keys, D)  values (Keys, Dv)
/// Cost      registers of a thread: Dv / 2 of outputs, Keys / 2 of logits and Keys / 4 of weights
template <int D, int Dv, int Warpgroups, int Keys, int Blocks> struct WarpgroupShape {
  static constexpr int head_dim = D, value_dim = Dv, rows = 64 * Warpgroups, keys = Keys;
  static constexpr int warps = 4 * Warpgroups, warpgroups = Warpgroups;
  static constexpr RowLayout layout = RowLayout::aligned;
  static constexpr int threads = warp_size * warps;
  static constexpr int blocks_per_multiprocessor = Blocks;  ///< for __launch_bounds__

  static constexpr int strips = 1;
  static constexpr bool has_registers_for_run = true;

  using Query = SharedPanels<D, rows>;
  using Key = SharedPanels<D, Keys>;
  using Value = SharedPanels<Dv, Keys>;
  using Output = SharedPanels<Dv, rows>;
  static constexpr Shared head_bytes = Query::all_bytes > Output::all_bytes ? Query::all_bytes : Output::all_bytes;
  static constexpr Shared key_bytes = Key::all_bytes, value_bytes = Value::all_bytes;
  static constexpr Shared shared_bytes = head_bytes + 2 * (key_bytes + value_bytes);
};

/// What a launch of the forward body gets.
template <class Call> struct ForwardParams {
  Call call;
  RowBlocks blocks;
};

/// A call whose kernels leave its row states: a type of its own, so that those of other calls are as they are.
template <class Call> struct Recorded : Call {};
template <class Call> inline constexpr bool records = false;
template <class Call> inline constexpr bool records<Recorded<Call>> = true;

/// The state of a row, its level a natural logit: exp(logit − level) sums to `sum`.
template <class Machine, class Call, class A>
MHA_KERNEL void record_row(Machine& m, const Call& call, Index b, Index h, Index i, A level, A sum) {
  const std::ptrdiff_t at = call.row_state(b, h, i);
  m.store_global(call.states.level + at, level);
  m.store_global(call.states.sum + at, sum);
}

/// Whether a mask costs a kernel next to no registers.
template <class Mask> inline constexpr bool is_light = std::is_empty_v<Mask>;

}  // namespace mha::inline MHA_NAMESPACE::cuda
