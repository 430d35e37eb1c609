// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "../../cache/kv_source.hpp"
#include "../../config.hpp"
#include "../../core/stored_row.hpp"
#include "../../core/workspace.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// The keys and values of a call copied to rows one after another, where those of the call's source lie 2 KiB apart and
/// more, as those of 8 heads of 64 floats do. Rows so far apart share a few lines of each cache: what a tile has read,
/// the next tile has to fetch from memory again.
///
/// A source of the same keys, which the copy's memory and the call must outlive.
template <class T, class Call> class NearKv {
 public:
  using Scalar = T;

  /// In memory of the frame, if it has so much; exists() says whether the call has such rows, and tiles enough that
  /// read them. read(n) says whether the tiles of one head of each sequence read n keys, each as often as it is read.
  template <class Read, class Frame>
  NearKv(const Call& call, std::int64_t tiles, const Read& read, Frame& frame) : NearKv(call, tiles) {
    if (!wanted(tiles) || !read(least_reads * static_cast<double>(all_keys_))) return;
    MHA_TRY {
      first_ = frame.template take<std::int64_t>(static_cast<std::size_t>(call.shape.batch));
      rows_ = frame.template take<T>(static_cast<std::size_t>(elements(all_keys_)));
    }
    MHA_CATCH(const std::bad_alloc&) { return; }  // the tiles read the rows where they are
    std::int64_t first = 0;
    for (Index b = 0; b < call.shape.batch; ++b)
      first_[b] = sequences_ == 1 ? 0 : std::exchange(first, first + call.keys(b));
  }

  /// Takes what calls with as many queries take at most, as the source grows to all that it has room for.
  template <class Frame> static void take_growth(const Call& call, std::int64_t tiles, Frame& frame) {
    const NearKv now(call, tiles);
    if (!now.wanted(tiles)) return;
    const std::int64_t room = call.kv.room().keys;
    std::int64_t keys = 0;
    for (Index b = 0; b < call.shape.batch; ++b) keys += std::min(room, most_keys_of(call, call.queries(b)));
    frame.template take<std::int64_t>(static_cast<std::size_t>(call.shape.batch));
    frame.template take<T>(static_cast<std::size_t>(std::min(now.elements(keys), most_elements)));
  }

  bool exists() const { return rows_ != nullptr; }
  /// Of all sequences; of one where all read the same rows.
  Index heads() const { return static_cast<Index>(all_heads()); }

  /// Those of one of the heads.
  void copy(Index head) const {
    const Index b = head / call_.kv_heads, g = head % call_.kv_heads, n = call_.keys(b);
    for (Index k = 0; k < n;) {
      const KvRun<T> from = call_.kv.run(b, g, k, n), to = run(b, g, k, n);
      copy_rows(from.key, from.key_stride, from.count, key_row_, const_cast<T*>(to.key));
      copy_rows(from.value, from.value_stride, from.count, value_row_, const_cast<T*>(to.value));
      k += from.count;
    }
  }

  Index keys(Index b) const { return call_.keys(b); }
  KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const std::ptrdiff_t n = call_.keys(b);
    const T* const head = rows_ + (first_[b] * call_.kv_heads + g * n) * row() + row_lead<T>;
    return {head + std::ptrdiff_t{begin} * key_row_, head + n * key_row_ + std::ptrdiff_t{begin} * value_row_, key_row_,
            value_row_, end - begin};
  }

 private:
  static constexpr double most_elements = (256 << 20) / static_cast<double>(sizeof(T));
  static constexpr std::ptrdiff_t far = 2048 / static_cast<std::ptrdiff_t>(sizeof(T));
  static constexpr Index least_tiles = 10;      // of a head
  static constexpr Index least_reads = 5;       // of a key, on average: masks hide some
  static constexpr std::int64_t most_keys = 4;  // for each query of each head that reads them

  NearKv(const Call& call, std::int64_t tiles)
      : call_(call),
        key_row_(row_elements<T>(call.head_dim)),
        value_row_(row_elements<T>(call.value_dim)),
        sequences_(tiles >= std::int64_t{least_tiles} * call.kv_heads && one_for_all() ? 1 : call.shape.batch) {
    for (Index b = 0; b < sequences_; ++b) all_keys_ += call.keys(b);
  }

  /// Whether the first sequence's rows, each head's in one run, are those of all.
  bool one_for_all() const {
    if (call_.shape.batch < 2 || call_.kv.drops() || call_.keys(0) == 0) return false;
    const Index n = call_.keys(0);
    if (call_.kv.run(0, 0, 0, n).key_stride < far) return false;
    for (Index b = 1; b < call_.shape.batch; ++b) {
      if (call_.keys(b) != n) return false;
      for (Index g = 0; g < call_.kv_heads; ++g) {
        const KvRun<T> first = call_.kv.run(0, g, 0, n), run = call_.kv.run(b, g, 0, n);
        if (first.count != n || run.count != n || run.key != first.key || run.value != first.value) return false;
        if (run.key_stride != first.key_stride || run.value_stride != first.value_stride) return false;
      }
    }
    return true;
  }

  static std::int64_t most_keys_of(const Call& call, std::int64_t queries) {
    return most_keys * queries * (call.shape.heads / call.kv_heads);
  }
  /// Of those that read the rows of sequence b.
  std::int64_t queries(Index b) const {
    if (sequences_ == call_.shape.batch) return call_.queries(b);
    std::int64_t all = 0;
    for (Index other = 0; other < call_.shape.batch; ++other) all += call_.queries(other);
    return all;
  }
  std::int64_t all_heads() const { return std::int64_t{sequences_} * call_.kv_heads; }
  std::ptrdiff_t row() const { return std::ptrdiff_t{key_row_} + value_row_; }
  double elements(std::int64_t keys) const {
    return static_cast<double>(keys) * static_cast<double>(call_.kv_heads) * static_cast<double>(row());
  }

  /// Whether so many tiles read keys whose first run, of each sequence, has such rows.
  bool wanted(std::int64_t tiles) const {
    if (all_keys_ == 0 || elements(all_keys_) > most_elements) return false;
    if (tiles < least_tiles * all_heads() || call_.kv.drops()) return false;
    for (Index b = 0; b < sequences_; ++b) {
      const Index n = call_.keys(b);
      if (n == 0) continue;
      if (n > most_keys_of(call_, queries(b))) return false;
      const KvRun<T> run = call_.kv.run(b, 0, 0, n);
      if (run.key_stride < far || run.value_stride < far) return false;
    }
    return true;
  }

  static void copy_rows(const T* from, std::ptrdiff_t stride, Index n, Index elements, T* to) {
    // No pointer is moved behind the last row, which may be where the address space ends.
    for (Index i = 0; i < n; ++i)
      std::copy_n(from + i * stride - row_lead<T>, elements, to + std::ptrdiff_t{i} * elements - row_lead<T>);
  }

  const Call& call_;
  const Index key_row_, value_row_;  ///< elements of a row
  const Index sequences_;            ///< that are copied
  std::int64_t all_keys_ = 0;
  std::int64_t* first_ = nullptr;  ///< of each sequence of the call, among the keys of all that are copied
  T* rows_ = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
