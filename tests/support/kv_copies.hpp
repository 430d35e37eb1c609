// SPDX-License-Identifier: Apache-2.0
// Keys and values of a batch, copied to where a cache would have them; all other memory of the cache is poison.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <mha/cache/paged_kv.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "random.hpp"

namespace support {

/// Sequence b as positions 0 … lengths[b] − 1 of k (B, L, H, D) and v (B, L, H, Dv), in pages of any order. Rows of
/// scaled_int8 are given with their scales.
template <class T> struct PagedCopy {
  mha::Tensor<T, 4> key, value;
  std::vector<mha::Index> table, lengths;

  PagedCopy(Random& random, const mha::TensorView<const T, 4>& k, const mha::TensorView<const T, 4>& v,
            std::vector<mha::Index> given, mha::Index page, mha::Index spare = 3)
      : lengths(std::move(given)) {
    const mha::Index each = (k.length() + page - 1) / page + 1, pool = each * k.batch() + spare;
    key = mha::Tensor<T, 4>(pool, page, k.heads(), k.dim());
    value = mha::Tensor<T, 4>(pool, page, v.heads(), v.dim());
    poison_all(key);
    poison_all(value);
    std::vector<mha::Index> order(static_cast<std::size_t>(pool));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    for (mha::Index b = 0; b < k.batch(); ++b)
      for (mha::Index i = 0; i < each; ++i) {
        // Entries that nobody may read name no page.
        const mha::Index at = order[static_cast<std::size_t>(b * each + i)];
        table.push_back(i * page < lengths[static_cast<std::size_t>(b)] ? at : -1);
        for (mha::Index p = i * page; p < std::min((i + 1) * page, lengths[static_cast<std::size_t>(b)]); ++p)
          for (mha::Index g = 0; g < k.heads(); ++g) {
            for (mha::Index d = 0; d < k.dim(); ++d) key(at, p % page, g, d) = k(b, p, g, d);
            for (mha::Index d = 0; d < v.dim(); ++d) value(at, p % page, g, d) = v(b, p, g, d);
          }
      }
  }
  mha::PagedKv<T> source() const { return {numbers_of(key), numbers_of(value), table, lengths}; }
};

/// The same in a ring of `rows` rows, of which the first `first` positions keep theirs: position after position.
template <class T> struct RingCopy {
  mha::Tensor<T, 4> key, value;
  std::vector<mha::Index> lengths;
  mha::Index first;

  RingCopy(const mha::TensorView<const T, 4>& k, const mha::TensorView<const T, 4>& v, std::vector<mha::Index> given,
           mha::Index rows, mha::Index pinned)
      : key(k.batch(), rows, k.heads(), k.dim()),
        value(v.batch(), rows, v.heads(), v.dim()),
        lengths(std::move(given)),
        first(pinned) {
    poison_all(key);
    poison_all(value);
    for (mha::Index b = 0; b < k.batch(); ++b)
      for (mha::Index p = 0; p < lengths[static_cast<std::size_t>(b)]; ++p) {
        const mha::Index row = p < first ? p : first + (p - first) % (rows - first);
        for (mha::Index g = 0; g < k.heads(); ++g) {
          for (mha::Index d = 0; d < k.dim(); ++d) key(b, row, g, d) = k(b, p, g, d);
          for (mha::Index d = 0; d < v.dim(); ++d) value(b, row, g, d) = v(b, p, g, d);
        }
      }
  }
  mha::RingKv<T> source() const { return {numbers_of(key), numbers_of(value), lengths, first}; }

  /// Whether position k of sequence b is still there.
  bool holds(mha::Index b, mha::Index k) const {
    const mha::Index n = lengths[static_cast<std::size_t>(b)], ring = key.extent(1) - first;
    return k < n && (k < first || k >= n - ring);
  }
};

}  // namespace support
