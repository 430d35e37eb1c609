// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../core/scalar.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/transpose.hpp"
#include "../simd/widen.hpp"
#include "tile_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// How one tile's rows go from a call's tensors into scratch and back: with queries in `lanes` lanes, registers of
/// `width`, or in rows.
template <class Call> struct TileLayout {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;

  const Call& call;
  IsaLevel level;
  TileRows rows;
  Index lanes, width;

  /// to (head_dim, lanes) = the queries; lanes without one are 0.
  void pack_lanes(A* to) const {
    const std::ptrdiff_t row_size = lanes;
    if (rows.lanes() < lanes) std::fill_n(to, row_size * call.head_dim, A(0));
    const bool unit = call.q.stride[3] == 1;
    const auto pack = simd::with_isa(level, [](auto isa) {
      return &decltype(isa)::template run<simd::PackBody<A, T>, const T*, std::ptrdiff_t, Index, A*, std::ptrdiff_t>;
    });
    for_each_register(rows, width, [&](Index h, Index i, Index lane, Index n) {
      if (n > 1 && unit) {
        pack(call.query(rows.b, i, h), call.q.stride[1], call.head_dim, to + lane, row_size);
        return;
      }
      for (Index j = 0; j < n; ++j) {
        const T* const from = call.query(rows.b, i + j, h);
        for (Index d = 0; d < call.head_dim; ++d)
          to[d * row_size + lane + j] = static_cast<A>(from[d * call.q.stride[3]]);
      }
    });
  }

  /// to (count, head_dim) = the queries; rows without one are 0.
  void pack_rows(Index count, A* to) const {
    const std::ptrdiff_t dim = call.head_dim, given = rows.lanes();
    if (given < count) std::fill_n(to + given * dim, (count - given) * dim, A(0));
    for_each_row(rows, [&](Index h, Index i, Index lane) {
      const T* const from = call.query(rows.b, i, h);
      A* const row = to + lane * dim;
      if (call.q.stride[3] == 1)
        simd::widen(level, from, 0, 1, call.head_dim, row);
      else
        for (Index d = 0; d < call.head_dim; ++d) row[d] = static_cast<A>(from[d * call.q.stride[3]]);
    });
  }

  /// The call's outputs = those of a state (value_dim, lanes), each row times its factor.
  void store_lanes(const simd::TileState<A>& state, const A* factor) const {
    const std::ptrdiff_t row_size = lanes;
    const bool unit = call.out.stride[3] == 1;
    const auto unpack = simd::with_isa(level, [](auto isa) {
      return &decltype(isa)::template run<simd::UnpackBody<A, T>, const A*, std::ptrdiff_t, const A*, Index, T*,
                                          std::ptrdiff_t>;
    });
    for_each_register(rows, width, [&](Index h, Index i, Index lane, Index n) {
      if (n > 1 && unit)
        unpack(state.out + lane, row_size, factor + lane, call.value_dim, call.output(rows.b, i, h),
               call.out.stride[1]);
      else
        for (Index j = 0; j < n; ++j) {
          T* const to = call.output(rows.b, i + j, h);
          for (Index d = 0; d < call.value_dim; ++d)
            to[d * call.out.stride[3]] = scaled(state.out[d * row_size + lane + j], factor[lane + j]);
        }
      zero_empty(state, h, i, lane, n);
    });
  }

  /// The same from a state (rows, value_dim).
  void store_rows(const simd::TileState<A>& state, const A* factor) const {
    const auto store = simd::with_isa(
        level, [](auto isa) { return &decltype(isa)::template run<simd::StoreRowBody<A, T>, const A*, A, Index, T*>; });
    for_each_row(rows, [&](Index h, Index i, Index lane) {
      const A* const from = state.out + std::ptrdiff_t{lane} * call.value_dim;
      T* const to = call.output(rows.b, i, h);
      if (call.out.stride[3] == 1)
        store(from, factor[lane], call.value_dim, to);
      else
        for (Index d = 0; d < call.value_dim; ++d) to[d * call.out.stride[3]] = scaled(from[d], factor[lane]);
      zero_empty(state, h, i, lane, 1);
    });
  }

 private:
  static T scaled(A x, A factor) {
    x = x * factor;
    simd::round_here(x);
    return static_cast<T>(x + A(0));
  }

  /// Rows that saw nothing: whatever stands in their outputs, NaN times 0 perhaps, is not theirs.
  void zero_empty(const simd::TileState<A>& state, Index h, Index i, Index lane, Index n) const {
    for (Index j = 0; j < n; ++j)
      if (state.sum[lane + j] == A(0)) {
        T* const to = call.output(rows.b, i + j, h);
        for (Index d = 0; d < call.value_dim; ++d) to[d * call.out.stride[3]] = T(A(0));
      }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
