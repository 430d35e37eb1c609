// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../cache/kv_source.hpp"
#include "../../config.hpp"
#include "../../core/workspace.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// The keys and values of a call copied to rows one after another, where those of the call's source lie whole pages
/// apart, as those of 16 heads of 64 floats do. Rows a page apart share a few lines of each cache: what a tile has
/// read, the next tile has to fetch from memory again.
///
/// A source of the same keys, which the copy's memory and the call must outlive.
template <class T, class Call> class NearKv {
 public:
  using Scalar = T;

  /// In memory of the frame; exists() says whether the call has such rows, and tiles enough that read all of them.
  template <class Frame> NearKv(const Call& call, std::int64_t tiles, Frame& frame) : call_(call) {
    for (Index b = 0; b < call.shape.batch; ++b) longest_ = std::max(longest_, call.keys(b));
    const std::int64_t size = elements(call, tiles, longest_);
    if (size > 0 && size <= most) rows_ = frame.template take<T>(static_cast<std::size_t>(size));
  }

  /// Elements that calls like this one take as their sequences grow to `room` keys.
  static std::size_t growth(const Call& call, std::int64_t tiles, Index room) {
    Index queries = 0;
    for (Index b = 0; b < call.shape.batch; ++b) queries = std::max(queries, call.queries(b));
    const std::int64_t keys = std::min(std::int64_t{room}, std::int64_t{most_keys} * queries);
    return static_cast<std::size_t>(std::min(elements(call, tiles, keys), most));
  }

  bool exists() const { return rows_ != nullptr; }
  /// Of all sequences.
  Index heads() const { return call_.shape.batch * call_.kv_heads; }

  /// Those of one of the heads.
  void copy(Index head) const {
    const Index b = head / call_.kv_heads, g = head % call_.kv_heads, n = call_.keys(b);
    if (n == 0) return;
    const KvRun<T> from = call_.kv.run(b, g, 0, n), to = run(b, g, 0, n);
    copy_rows(from.key, from.key_stride, n, call_.head_dim, const_cast<T*>(to.key));
    copy_rows(from.value, from.value_stride, n, call_.value_dim, const_cast<T*>(to.value));
  }

  Index keys(Index b) const { return call_.keys(b); }
  KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const T* const head = rows_ + (std::ptrdiff_t{b} * call_.kv_heads + g) * longest_ * row();
    return {head + std::ptrdiff_t{begin} * call_.head_dim,
            head + std::ptrdiff_t{longest_} * call_.head_dim + std::ptrdiff_t{begin} * call_.value_dim, call_.head_dim,
            call_.value_dim, end - begin};
  }

 private:
  static constexpr std::int64_t most = (256 << 20) / static_cast<std::int64_t>(sizeof(T));
  static constexpr std::ptrdiff_t far = 2048 / static_cast<std::ptrdiff_t>(sizeof(T));
  static constexpr Index least_tiles = 10;  // of a head
  static constexpr Index most_keys = 4;     // for each query, in case that masks hide most of them

  std::ptrdiff_t row() const { return std::ptrdiff_t{call_.head_dim} + call_.value_dim; }

  /// Of a copy of so many keys of each sequence, 0 where they are read where they are.
  static std::int64_t elements(const Call& call, std::int64_t tiles, std::int64_t keys) {
    const std::int64_t heads = std::int64_t{call.shape.batch} * call.kv_heads;
    if (tiles < least_tiles * heads || !far_apart(call)) return 0;
    return heads * keys * (std::int64_t{call.head_dim} + call.value_dim);
  }
  /// Whether every sequence is one run of such rows.
  static bool far_apart(const Call& call) {
    if (call.kv.drops()) return false;
    for (Index b = 0; b < call.shape.batch; ++b) {
      const Index n = call.keys(b);
      if (n == 0) continue;
      if (n > std::int64_t{most_keys} * call.queries(b)) return false;
      const KvRun<T> run = call.kv.run(b, 0, 0, n);
      if (run.count != n || run.key_stride < far || run.value_stride < far) return false;
    }
    return true;
  }

  static void copy_rows(const T* from, std::ptrdiff_t stride, Index n, Index dim, T* to) {
    for (Index i = 0; i < n; ++i, from += stride, to += dim) std::copy_n(from, dim, to);
  }

  const Call& call_;
  Index longest_ = 0;
  T* rows_ = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
