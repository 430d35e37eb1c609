// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Consecutive keys of one sequence and key/value head: row i is at key + i·key_stride, contiguous along D.
template <class T> struct KvRun {
  const T* key;
  const T* value;
  std::ptrdiff_t key_stride, value_stride;
  Index count;
};

/// Where keys and values live, by absolute position: run(b, g, begin, end) gives the rows from `begin` on that lie at
/// one stride, at least one and at most end − begin of them. A kernel loops over runs and never asks what is behind.
template <class S>
concept KvSource = requires(const S& source, Index i) {
  typename S::Scalar;
  { source.run(i, i, i, i) } -> std::same_as<KvRun<typename S::Scalar>>;
};

/// Keys and values in two strided arrays; any range is one run.
///
/// Shapes    key (B, Lk, Hkv, D)  value (B, Lk, Hkv, Dv), both contiguous along the last axis. Ragged: (1, ΣLk, Hkv, ·)
///           and offsets (B + 1), sequence b in rows offsets[b] … offsets[b + 1] − 1
template <class T> struct ContiguousKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  const Index* offsets = nullptr;

  MHA_HOST_DEVICE constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const Index sequence = offsets != nullptr ? 0 : b, row = offsets != nullptr ? offsets[b] + begin : begin;
    return {key.pointer(sequence, row, g, 0), value.pointer(sequence, row, g, 0), key.stride[1], value.stride[1],
            end - begin};
  }
};

template <class Source> inline constexpr bool is_one_run = false;  ///< run() reaches to the end of the sequence
template <class T> inline constexpr bool is_one_run<ContiguousKv<T>> = true;

}  // namespace mha::inline MHA_NAMESPACE
