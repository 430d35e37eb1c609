// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "kv_source.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Keys and values in pages of one pool: position p of sequence b is in row p mod page of page table(b, p / page).
/// Pages may be shared, lie in any order, and hold anything behind a sequence's last position.
///
/// Shapes    key (pages, page, Hkv, D)  value (pages, page, Hkv, Dv), both contiguous along the last axis; `page` is a
///           power of two, 16 at least. table (B, pages of a sequence) in rows; lengths (B), on the host
/// Errors    ShapeError if the sizes do not agree, or a length or a page number is beyond its memory, as of a call that
///           is given it. A table in device memory is not checked
template <class T> struct PagedKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  Borrowed<Index> table;  ///< page numbers; entries behind a sequence's last page are not read
  Borrowed<Index> lengths;

  MHA_HOST_DEVICE constexpr Index page() const { return key.extent[1]; }
  /// Entries of a row of the table.
  MHA_HOST_DEVICE constexpr Index pages_per_sequence() const {
    return lengths.size > 0 ? table.size / lengths.size : 0;
  }

  MHA_HOST_DEVICE constexpr Index batch() const { return lengths.size; }
  MHA_HOST_DEVICE constexpr Index heads() const { return key.extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const { return key.extent[3]; }
  MHA_HOST_DEVICE constexpr Index value_dim() const { return value.extent[3]; }
  MHA_HOST_DEVICE constexpr Index keys(Index b) const { return lengths[b]; }

  /// The page of a position and its row there.
  MHA_HOST_DEVICE constexpr detail::InBlock in_block(Index b, Index k) const {
    return {table.data[std::ptrdiff_t{b} * pages_per_sequence() + k / page()], k & (page() - 1)};
  }
  MHA_HOST_DEVICE constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const auto [at, row] = in_block(b, begin);
    const Index left = page() - row;
    return {key.pointer(at, row, g, 0), value.pointer(at, row, g, 0), key.stride[1], value.stride[1],
            left < end - begin ? left : end - begin};
  }

  constexpr KvRoom room() const {
    const std::int64_t pool = std::int64_t{key.extent[0]} * page(), each = std::int64_t{pages_per_sequence()} * page();
    const std::int64_t all = pool < each * batch() ? pool : each * batch(), one = each < pool ? each : pool;
    return {static_cast<Index>(one < detail::longest_axis ? one : detail::longest_axis), all, page()};
  }

  void check(const char* call) const {
    using detail::require;
    detail::require_kv_arrays(call, "PagedKv", key, value);
    const Index size = page(), pool = key.extent[0];
    require(size >= 16 && std::has_single_bit(static_cast<unsigned>(size)), call, ": PagedKv has pages of ", size,
            " rows, expected a power of two from 16 on");
    require(batch() == 0 ? table.size == 0 : table.size % batch() == 0, call, ": PagedKv's table has ", table.size,
            " entries, which is no multiple of its ", batch(), " sequences");
    require(table.data != nullptr || table.size == 0, call, ": the data of PagedKv's table is null");
    const Index each = pages_per_sequence();
    const auto room = [&](Index) { return each < detail::longest_axis / size ? each * size : detail::longest_axis; };
    detail::require_key_lengths(call, "PagedKv", lengths, room);
    if (table.memory != Memory::host) return;
    for (Index b = 0; b < batch(); ++b)
      for (Index i = 0; i < detail::blocks_of(lengths[b], size); ++i) {
        const Index at = table.data[std::ptrdiff_t{b} * each + i];
        require(at >= 0 && at < pool, call, ": page ", i, " of sequence ", b, " of PagedKv is ", at, ", the pool has ",
                pool);
      }
  }
  template <class F> constexpr PagedKv with_data(F&& f) const { return {key, value, f(table), f(lengths)}; }
};
template <class K, class V>
PagedKv(TensorView<K, 4>, TensorView<V, 4>, Borrowed<Index>, Borrowed<Index>) -> PagedKv<std::remove_const_t<K>>;

}  // namespace mha::inline MHA_NAMESPACE
