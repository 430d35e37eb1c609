// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "../simd/isa.hpp"
#include "../simd/tile_lanes.hpp"
#include "product_unit.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The queries and outputs of a tile where the caller has them.
template <class Call> class QueryRows {
  using T = typename Call::Scalar;

 public:
  /// The tile that is likely to be next has its rows `to_next` further, 0 if there is none.
  QueryRows(const Call& call, IsaLevel level, const ProductUnit& unit, const simd::TileLanes& queries, Index to_next)
      : call_(call), level_(level), unit_(unit), queries_(queries), to_next_(to_next) {}

  /// The queries as the array gets them, (steps, lanes / 16, 16 pairs, 16); `rows` is scratch for them.
  void pack(Index steps, bfloat16* rows, std::uint32_t* to) const {
    const Index width = round_up(call_.head_dim, tile_depth);
    if constexpr (std::is_same_v<T, bfloat16>)
      if (const bfloat16* const first = query(0);
          queries_.heads == 1 && queries_.count() == lanes() && width == call_.head_dim && call_.q.stride[3] == 1 &&
          call_.q.stride[1] % 2 == 0 && reinterpret_cast<std::uintptr_t>(first) % alignof(std::uint32_t) == 0)
        return pack_columns(first, call_.q.stride[1], steps, to);
    queries_.for_each_run(call_.q.stride, [&](Index h, Index i, Index lane, Index count, std::ptrdiff_t apart) {
      round_rows<T>(level_, {call_.query(queries_.b, i, h), apart, call_.q.stride[3], count, call_.head_dim},
                    rows + std::ptrdiff_t{lane} * width, width, tile_depth, to_next_);
    });
    const Index count = queries_.count();
    std::fill_n(rows + std::ptrdiff_t{count} * width, std::ptrdiff_t{lanes() - count} * width, bfloat16{});
    pack_columns(rows, width, steps, to);
  }

  /// Asks for the lines that store() is about to overwrite, and the queries of the next tile, a few with each of the
  /// first blocks of keys: all at once would be in the way of keys. Inlined, or g++ takes a function that only fetches
  /// for one that does nothing.
  MHA_ALWAYS_INLINE void fetch(Index first_key, Index keys) const {
    constexpr Index per_line = 64 / Index{sizeof(T)};
    const Index blocks = std::min<Index>(16, (keys + key_block - 1) / key_block),
                rows = (lanes() + blocks - 1) / blocks;
    const Index from = first_key / key_block * rows;
    for (Index i = from; i < std::min(queries_.count(), from + rows); ++i) {
      for (Index d = 0; d < call_.value_dim; d += per_line) __builtin_prefetch(output(i) + d * call_.out.stride[3], 1);
      if (const Index next = queries_.row_of(i) + to_next_; next >= 0 && next < call_.queries(queries_.b))
        for (Index d = 0; d < call_.head_dim; d += per_line)
          __builtin_prefetch(call_.query(queries_.b, next, queries_.head_of(i)) + d * call_.q.stride[3]);
    }
  }

  /// The outputs, from (Dv, lanes), each lane times its factor; `rows` is scratch for them.
  template <class Rows> void store(const float* from, const float* factor, Rows* rows) const {
    queries_.for_each_run(call_.out.stride, [&](Index, Index, Index begin, Index count, std::ptrdiff_t apart) {
      for (Index i = begin; i < begin + count; i += tile_side)
        for (Index d = 0; d < call_.value_dim; d += stored_at_once) {
          unit_.stay_awake();
          const StridedRows<T> to{output(i) + d * call_.out.stride[3], apart, call_.out.stride[3],
                                  std::min(tile_side, begin + count - i),
                                  std::min(stored_at_once, call_.value_dim - d)};
          simd::with_isa(level_, [&](auto isa) {
            decltype(isa)::template run<StoreRowsBody<T>, const float*, const float*>(
                from + std::ptrdiff_t{d} * lanes() + i, factor + i, lanes(), rows, to);
            return 0;
          });
        }
    });
    unit_.stay_awake();
  }

 private:
  Index lanes() const { return unit_.lanes; }
  const T* query(Index lane) const { return call_.query(queries_.b, queries_.row_of(lane), queries_.head_of(lane)); }
  T* output(Index lane) const { return call_.output(queries_.b, queries_.row_of(lane), queries_.head_of(lane)); }

  void pack_columns(const bfloat16* rows, std::ptrdiff_t stride, Index steps, std::uint32_t* to) const {
    const Index columns = lanes() / tile_side;
    for (Index step = 0; step < steps; ++step) {
      unit_.stay_awake();
      simd::with_isa(level_, [&](auto isa) {
        decltype(isa)::template run<PackColumnsBody, const bfloat16*>(rows + step * tile_depth, stride, columns, 1,
                                                                      to + step * columns * tile_words);
        return 0;
      });
    }
  }

  const Call& call_;
  const IsaLevel level_;
  const ProductUnit& unit_;
  const simd::TileLanes queries_;
  const Index to_next_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
