// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../core/scalar.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/tile_lanes.hpp"
#include "../simd/transpose.hpp"
#include "../simd/widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// How one tile's rows go from a call's tensors into scratch and back: with queries in `lanes` lanes, registers of
/// `width`, or in rows.
template <class Call> struct TileLayout {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;

  const Call& call;
  IsaLevel level;
  simd::TileLanes rows;
  Index lanes, width;

  /// to (head_dim, lanes) = the queries; lanes without one are 0.
  void pack_lanes(A* to) const {
    const std::ptrdiff_t row_size = lanes;
    if (rows.count() < lanes) std::fill_n(to, row_size * call.head_dim, A(0));
    const bool unit = call.q.stride[3] == 1;
    const auto pack = simd::with_isa(level, [](auto isa) {
      return &decltype(isa)::template run<simd::PackBody<A, T>, const T*, std::ptrdiff_t, Index, A*, std::ptrdiff_t>;
    });
    rows.for_each_register(call.q.stride, width, [&](Index h, Index i, Index lane, Index n, std::ptrdiff_t apart) {
      const T* from = call.query(rows.b, i, h);
      if (n > 1 && unit) return pack(from, apart, call.head_dim, to + lane, row_size);
      for (Index j = 0; j < n; ++j, from += apart) {
        for (Index d = 0; d < call.head_dim; ++d)
          to[d * row_size + lane + j] = static_cast<A>(from[d * call.q.stride[3]]);
      }
    });
  }

  /// to (count, head_dim) = the queries; rows without one are 0.
  void pack_rows(Index count, A* to) const {
    const std::ptrdiff_t dim = call.head_dim, given = rows.count();
    if (given < count) std::fill_n(to + given * dim, (count - given) * dim, A(0));
    rows.for_each([&](Index h, Index i, Index lane) {
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
    rows.for_each_register(call.out.stride, width, [&](Index h, Index i, Index lane, Index n, std::ptrdiff_t apart) {
      T* const to = call.output(rows.b, i, h);
      if (n > 1 && unit)
        unpack(state.out + lane, row_size, factor + lane, call.value_dim, to, apart);
      else
        for (Index j = 0; j < n; ++j)
          for (Index d = 0; d < call.value_dim; ++d)
            to[j * apart + d * call.out.stride[3]] = scaled(state.out[d * row_size + lane + j], factor[lane + j]);
      for (Index j = 0; j < n; ++j) zero_empty(state, lane + j, to + j * apart);
    });
  }

  /// The same from a state (rows, value_dim).
  void store_rows(const simd::TileState<A>& state, const A* factor) const {
    rows.for_each([&](Index h, Index i, Index lane) {
      const A* const from = state.out + std::ptrdiff_t{lane} * call.value_dim;
      T* const to = call.output(rows.b, i, h);
      if (call.out.stride[3] == 1)
        simd::store_rows(level, from, 0, 1, factor[lane], call.value_dim, to, 0);
      else
        for (Index d = 0; d < call.value_dim; ++d) to[d * call.out.stride[3]] = scaled(from[d], factor[lane]);
      zero_empty(state, lane, to);
    });
  }

 private:
  static T scaled(A x, A factor) {
    x = x * factor;
    simd::round_here(x);
    return static_cast<T>(x + A(0));
  }

  /// A row that saw nothing: whatever stands in its outputs, NaN times 0 perhaps, is not its.
  void zero_empty(const simd::TileState<A>& state, Index lane, T* to) const {
    if (state.sum[lane] != A(0)) return;
    for (Index d = 0; d < call.value_dim; ++d) to[d * call.out.stride[3]] = T(A(0));
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
