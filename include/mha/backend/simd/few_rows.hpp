// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../config.hpp"
#include "few_rows_kernels.hpp"
#include "isa.hpp"
#include "tile_kernels.hpp"
#include "vector.hpp"

/// Which kernels a tile of few rows runs on, if such kernels serve it.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// The kernels of a tile of at most `rows` rows, one register wide, over keys and values as they are stored.
template <class A, class T> struct FewRowsKernels {
  Index rows = 0;
  void (*scores)(RowRuns<T> keys, const A* q, Index dim, A* s, std::ptrdiff_t s_stride, LineRanges next) = nullptr;
  /// The same for widened keys.
  void (*wide_scores)(RowRuns<A> keys, const A* q, Index dim, A* s, std::ptrdiff_t s_stride, LineRanges next) = nullptr;
  void (*softmax)(A* s, std::ptrdiff_t stride, Index rows, Index n, A slope, A* max, A* rescale) = nullptr;
  void (*values)(RowRuns<T> values, const A* p, std::ptrdiff_t p_stride, const A* rescale, Index dim, A* out, A* sum,
                 LineRanges next) = nullptr;
  void (*merge)(TileState<A> total, TileState<A> part, A slope, Index dim, Index rows) = nullptr;
};

/// The kernels of Rows rows for twice as many: the second time keys and values are in the cache.
template <class A, class T, int Rows, class Isa> struct TwiceRows {
  template <class S>
  static void scores(RowRuns<S> keys, const A* q, Index dim, A* s, std::ptrdiff_t s_stride, LineRanges next) {
    constexpr decltype(FewRowsKernels<A, S>::scores) once = &Isa::template run<FewScoresBody<A, S, Rows>>;
    once(keys, q, dim, s, s_stride, next);
    once(keys, q + Rows * std::ptrdiff_t{dim}, dim, s + Rows * s_stride, s_stride, {});
  }
  static void values(RowRuns<T> values, const A* p, std::ptrdiff_t p_stride, const A* rescale, Index dim, A* out,
                     A* sum, LineRanges next) {
    constexpr decltype(FewRowsKernels<A, T>::values) once = &Isa::template run<FewValuesBody<A, T, Rows>>;
    once(values, p, p_stride, rescale, dim, out, sum, next);
    once(values, p + Rows * p_stride, p_stride, rescale + Rows, dim, out + Rows * std::ptrdiff_t{dim}, sum + Rows, {});
  }
};

/// The kernels of Rows rows at one level.
template <class A, class T, class Isa, int Rows> constexpr FewRowsKernels<A, T> make_few_rows_kernels() {
  FewRowsKernels<A, T> few{Rows};
  few.softmax = &Isa::template run<FewSoftmaxBody<A>>;
  few.merge = &Isa::template run<FewMergeBody<A>>;
  // Of 16 rows the kernels of eight, twice; so do values of eight whose sums would leave no registers for them.
  if constexpr (Rows == 16) {
    few.scores = &TwiceRows<A, T, 8, Isa>::template scores<T>;
    few.wide_scores = &TwiceRows<A, T, 8, Isa>::template scores<A>;
  } else {
    few.scores = &Isa::template run<FewScoresBody<A, T, Rows>>;
    few.wide_scores = &Isa::template run<FewScoresBody<A, A, Rows>>;
  }
  if constexpr (Rows == 16 || (Rows == 8 && Isa::registers < 32))
    few.values = &TwiceRows<A, T, Rows / 2, Isa>::values;
  else
    few.values = &Isa::template run<FewValuesBody<A, T, Rows>>;
  return few;
}

/// Rows = 0 where another tile serves better: too many rows, sizes that do not fill registers, or a level that is not
/// worth the kernels.
template <class A, class T>
FewRowsKernels<A, T> few_rows_kernels(IsaLevel level, Index rows, Index head_dim, Index value_dim) {
  return with_isa(level, [&](auto isa) -> FewRowsKernels<A, T> {
    using Isa = decltype(isa);
    constexpr Index width = Vector<A, Isa>::width;
    constexpr Index columns = FewScoresBody<A, T, 1>::template columns_of<Isa>();
    if (head_dim % width != 0 || head_dim % columns != 0 || value_dim == 0 || value_dim % width != 0) return {};
    if constexpr (width >= 4 && !Isa::minimal) {
      if (rows <= 1) return make_few_rows_kernels<A, T, Isa, 1>();
      if (rows <= 2) return make_few_rows_kernels<A, T, Isa, 2>();
      if (rows <= 4) return make_few_rows_kernels<A, T, Isa, 4>();
    }
    if constexpr (width >= 8 && !Isa::minimal)
      if (rows <= 8) return make_few_rows_kernels<A, T, Isa, 8>();
    // Queries in lanes would widen 16-bit storage to memory first; of float they are slower where keys are in memory.
    if constexpr (width >= 16)
      if (rows <= 16) return make_few_rows_kernels<A, T, Isa, 16>();
    return {};
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
