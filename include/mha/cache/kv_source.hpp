// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Consecutive keys of one sequence and key/value head: row i is at key + i·key_stride, contiguous along D. A row of
/// scaled_int8 has its scale before it (mha/core/stored_row.hpp).
template <class T> struct KvRun {
  const T* key;
  const T* value;
  std::ptrdiff_t key_stride, value_stride;
  Index count;
};

/// How much of a source may be there at once as its sequences grow.
struct KvRoom {
  Index keys = 0;                         ///< positions of one sequence
  std::int64_t all = 0;                   ///< of all its sequences together, where they share none
  Index together = detail::longest_axis;  ///< positions that lie side by side, at most
};

/// Keys and values of a batch of sequences, wherever they lie. attention() takes any; a kernel loops over runs and
/// never asks what is behind.
///
/// Members   using Scalar                            of the stored numbers
///           Index batch(), heads(), dim(), value_dim() const
///           Index keys(b) const                     length of sequence b: positions 0 … keys(b) − 1 have been given
///           KvRun<Scalar> run(b, g, begin, end) const   rows of key/value head g from position `begin` on at one
///                                                   stride: at least one, at most end − begin, the same
///                                                   numbers for as long as a call runs
/// On Cuda   trivially copyable, its members MHA_HOST_DEVICE: kernels call them, and the host all but run() and held().
///           They ask run() for dropped positions too: it gives rows that are in memory, whatever they hold
/// Optional  Index held(b, k) const                  the first position from k on that is still there, keys(b) or more
///                                                   if there is none. Dropped positions are hidden from all queries;
///                                                   run() is asked for none but on Cuda, and ends before the next
///           Index held_end(b, k) const              where the positions end that are held from k on; without it
///                                                   the runs are walked along
///           KvRoom room() const                     memory of a call is reserved for so much, so that later calls of
///                                                   longer sequences allocate none
///           void check(const char* call) const      what a call checks on the host before it computes
///           S with_data(f) const                    its Borrowed members replaced by f(member): how tables move to a
///                                                   device
///
/// A whole source, in the user's own code, of sequences that share one head:
///   struct Rows {
///     using Scalar = float;
///     std::vector<float> rows[2];                      // (keys, 64 + 32): a key and its value
///     mha::Index batch() const { return 2; }
///     mha::Index heads() const { return 1; }
///     mha::Index dim() const { return 64; }
///     mha::Index value_dim() const { return 32; }
///     mha::Index keys(mha::Index b) const { return static_cast<mha::Index>(rows[b].size() / 96); }
///     mha::KvRun<float> run(mha::Index b, mha::Index, mha::Index begin, mha::Index end) const {
///       const float* const row = rows[b].data() + 96 * begin;
///       return {row, row + 64, 96, 96, end - begin};
///     }
///   };
///   auto y = mha::attention(q, rows, mha::Causal{});
template <class S>
concept KvSource = requires(const S& source, Index i) {
  typename S::Scalar;
  { source.batch() } -> std::convertible_to<Index>;
  { source.heads() } -> std::convertible_to<Index>;
  { source.dim() } -> std::convertible_to<Index>;
  { source.value_dim() } -> std::convertible_to<Index>;
  { source.keys(i) } -> std::convertible_to<Index>;
  { source.run(i, i, i, i) } -> std::same_as<KvRun<typename S::Scalar>>;
};

/// A source that may have dropped some of its positions.
template <class S>
concept DropsKeys = requires(const S& source, Index i) {
  { source.held(i, i) } -> std::convertible_to<Index>;
};

namespace detail {

/// The first position from k on that the source still holds.
template <class S> MHA_HOST_DEVICE constexpr Index held(const S& source, Index b, Index k) {
  if constexpr (DropsKeys<S>)
    return source.held(b, k);
  else
    return k;
}

/// Where the positions end that the source holds from k on, `end` at most; k is held.
template <class S> MHA_HOST_DEVICE constexpr Index held_end(const S& source, Index b, Index k, Index end) {
  if constexpr (!DropsKeys<S>) {
    return end;
  } else if constexpr (requires { source.held_end(b, k); }) {
    const Index stop = source.held_end(b, k);
    return stop < end ? stop : end;
  } else {
    while (k < end && source.held(b, k) == k) k += source.run(b, 0, k, end).count;
    return k < end ? k : end;
  }
}

/// Where a cache keeps a position of a sequence: in which of its blocks, and as what position of that block.
struct InBlock {
  Index block, position;
};

template <class S>
concept MovesData = requires(const S& source, const SameData& f) {
  { source.with_data(f) } -> std::same_as<S>;
};

/// The source with every Borrowed member replaced by f(member). One whose with_data() is that of a base is left as it
/// is: it could not be moved.
template <class S, class F> constexpr S source_with_data(const S& source, F&& f) {
  if constexpr (MovesData<S>)
    return source.with_data(f);
  else
    return source;
}

}  // namespace detail

/// Keys and values in two strided arrays; any range is one run.
///
/// Shapes    key (B, Lk, Hkv, D)  value (B, Lk, Hkv, Dv), both contiguous along the last axis. Ragged: (1, ΣLk, Hkv, ·)
///           and offsets (B + 1), sequence b in rows offsets[b] … offsets[b + 1] − 1. lengths (B): of each sequence the
///           first lengths[b] rows are filled; all if not given. Both are on the host
/// Errors    ShapeError if the sizes do not agree, as of a call that is given it
template <class T> struct ContiguousKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  Borrowed<Index> offsets{}, lengths{};

  MHA_HOST_DEVICE constexpr Index batch() const { return offsets.data != nullptr ? offsets.size - 1 : key.extent[0]; }
  MHA_HOST_DEVICE constexpr Index heads() const { return key.extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const { return key.extent[3]; }
  MHA_HOST_DEVICE constexpr Index value_dim() const { return value.extent[3]; }
  MHA_HOST_DEVICE constexpr Index keys(Index b) const { return lengths.data != nullptr ? lengths[b] : rows(b); }

  MHA_HOST_DEVICE constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const bool ragged = offsets.data != nullptr;
    const Index sequence = ragged ? 0 : b, row = ragged ? offsets[b] + begin : begin;
    return {key.pointer(sequence, row, g, 0), value.pointer(sequence, row, g, 0), key.stride[1], value.stride[1],
            end - begin};
  }

  /// Only where lengths say how much of the rows is filled.
  constexpr KvRoom room() const {
    if (lengths.data == nullptr || offsets.data != nullptr) return {};
    return {key.extent[1], std::int64_t{key.extent[0]} * key.extent[1]};
  }

  void check(const char* call) const;
  template <class F> constexpr ContiguousKv with_data(F&& f) const { return {key, value, f(offsets), f(lengths)}; }

 private:
  MHA_HOST_DEVICE constexpr Index rows(Index b) const {
    return offsets.data != nullptr ? offsets[b + 1] - offsets[b] : key.extent[1];
  }
};
template <class K, class V>
ContiguousKv(TensorView<K, 4>, TensorView<V, 4>, Borrowed<Index> = {}, Borrowed<Index> = {})
    -> ContiguousKv<std::remove_const_t<K>>;

namespace detail {

/// Row numbers that cut `rows` rows into sequences.
inline void require_offsets(const char* name, const char* tensor, const Borrowed<Index>& offsets, Index rows) {
  require(offsets.memory == Memory::host, name, ": the offsets of ", tensor,
          " are in device memory, they are read and checked on the host");
  require(offsets.size >= 1 && offsets.data != nullptr, name, ": Ragged has ", offsets.size, " offsets for ", tensor,
          ", expected one more than there are sequences");
  require(offsets[0] == 0, name, ": the first offset of ", tensor, " is ", offsets[0], ", it must be 0");
  for (Index b = 1; b < offsets.size; ++b)
    require(offsets[b] >= offsets[b - 1], name, ": the offsets of ", tensor, " decrease from ", offsets[b - 1], " to ",
            offsets[b], " at sequence ", b - 1);
  require(offsets[offsets.size - 1] == rows, name, ": the last offset of ", tensor, " is ", offsets[offsets.size - 1],
          " but there are ", rows, " rows");
}

/// Rows of the longest sequence.
inline Index longest(const Borrowed<Index>& offsets) {
  Index n = 0;
  for (Index b = 1; b < offsets.size; ++b) n = std::max(n, offsets[b] - offsets[b - 1]);
  return n;
}
/// Rows of the shortest sequence that has some; 0 if none has.
inline Index shortest(const Borrowed<Index>& offsets) {
  Index n = 0;
  for (Index b = 1; b < offsets.size; ++b)
    if (const Index rows = offsets[b] - offsets[b - 1]; rows > 0 && (n == 0 || rows < n)) n = rows;
  return n;
}

/// The key and value arrays of a source: they agree on every axis but the last, whose elements are contiguous.
template <class T>
void require_kv_arrays(const char* call, const char* source, const TensorView<const T, 4>& key,
                       const TensorView<const T, 4>& value) {
  require_data(call, "key", key);
  require_data(call, "value", value);
  const char* const axis[] = {"axis 0 of extent", "axis 1 of extent", "heads"};
  for (int a = 0; a < 3; ++a) require_equal(call, axis[a], "key", key.extent[a], "value", value.extent[a]);
  const auto unit = [&](const char* name, const TensorView<const T, 4>& v) {
    require(v.stride[3] == 1 || v.extent[3] <= 1, call, ": ", source, "'s ", name, " has stride ", v.stride[3],
            " along its last axis, it must be 1");
  };
  unit("key", key);
  unit("value", value);
}

/// One length a sequence, read on the host, from 0 to what the memory of a sequence holds.
template <class Room>
void require_key_lengths(const char* call, const char* source, const Borrowed<Index>& lengths, const Room& room) {
  require(lengths.memory == Memory::host, call, ": the lengths of ", source,
          " are in device memory, they are read and checked on the host");
  require(lengths.data != nullptr || lengths.size == 0, call, ": the data of ", source, "'s ", lengths.size,
          " lengths is null");
  for (Index b = 0; b < lengths.size; ++b)
    require(lengths[b] >= 0 && lengths[b] <= room(b), call, ": sequence ", b, " of ", source, " has length ",
            lengths[b], ", expected 0 to ", room(b));
}

}  // namespace detail

template <class T> void ContiguousKv<T>::check(const char* call) const {
  detail::require_kv_arrays(call, "ContiguousKv", key, value);
  if (offsets.data != nullptr) {
    detail::require(key.extent[0] == 1, call, ": ContiguousKv has offsets and batch ", key.extent[0], ", expected 1");
    detail::require_offsets(call, "ContiguousKv", offsets, key.extent[1]);
  }
  if (lengths.data == nullptr && lengths.size == 0) return;
  detail::require(lengths.size == batch(), call, ": ContiguousKv has ", lengths.size, " lengths for ", batch(),
                  " sequences");
  detail::require_key_lengths(call, "ContiguousKv", lengths, [&](Index b) { return rows(b); });
}

template <class Source> inline constexpr bool is_one_run = false;  ///< run() reaches to the end of the sequence
template <class T> inline constexpr bool is_one_run<ContiguousKv<T>> = true;

namespace detail {

/// What the checks of a call ask of its source, whatever its type.
struct KvSizes {
  Index batch, heads, dim, value_dim;
  Index longest;  ///< of no sequences
  const void* source;
  Index (*keys_of)(const void*, Index);

  Index keys(Index b) const { return keys_of(source, b); }
};
template <class S> KvSizes kv_sizes(const S& source) {
  Index longest = 0;
  if constexpr (is_one_run<S>)
    if (source.offsets.data == nullptr && source.lengths.data == nullptr) longest = source.key.extent[1];
  return {static_cast<Index>(source.batch()),
          static_cast<Index>(source.heads()),
          static_cast<Index>(source.dim()),
          static_cast<Index>(source.value_dim()),
          longest,
          &source,
          [](const void* s, Index b) { return static_cast<Index>(static_cast<const S*>(s)->keys(b)); }};
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
