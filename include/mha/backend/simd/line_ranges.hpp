// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../config.hpp"
#include "../../core/stored_row.hpp"

/// Rows of keys and values as they lie in storage, and the lines of memory that kernels of few rows ask for in advance.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// `count` rows at data + i·stride.
template <class T> struct StoredRows {
  const T* data;
  std::ptrdiff_t stride;
  Index count;
};

/// Runs of rows, one after another: the pages of a block of keys.
template <class T> struct RowRuns {
  const StoredRows<T>* data = nullptr;
  Index count = 0;
};

/// Memory without a gap, in whole lines of the cache; `begin` is the first line's, or inside it where the memory ends
/// in one line more than there are from `begin` to `end`.
struct LineRange {
  static constexpr std::ptrdiff_t line = 64;  // bytes
  const char *begin, *end;

  MHA_ALWAYS_INLINE static std::ptrdiff_t in_line(const void* at) {
    return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(at) % line);
  }
};

/// What will be wanted soon: ranges of lines, in the order of memory, which is what the hardware goes on with.
struct LineRanges {
  const LineRange* data = nullptr;
  Index count = 0;
  bool near = false;  ///< to the first-level cache, else to the second
};

/// The lines of rows of `dim` numbers, in `to`, which has room for as many ranges as there are rows.
template <class T> LineRanges line_ranges(const RowRuns<T>& rows, Index dim, LineRange* to) {
  constexpr std::ptrdiff_t line = LineRange::line;
  LineRange* at = to;
  const Index width = row_elements<T>(dim);
  for (const StoredRows<T>* run = rows.data; dim > 0 && run != rows.data + rows.count; ++run) {
    const bool joined = run->stride == width;  // rows without a gap are one
    const Index ranges = joined ? std::min(run->count, Index{1}) : run->count;
    const std::ptrdiff_t elements = joined ? std::ptrdiff_t{width} * run->count : width;
    const std::ptrdiff_t bytes = elements * static_cast<std::ptrdiff_t>(sizeof(T));
    const std::ptrdiff_t whole = (bytes + line - 1) / line * line;
    const T* row = run->data - row_lead<T>;
    for (LineRange* const end = at + ranges; at != end; ++at, row += run->stride) {
      const std::ptrdiff_t before = LineRange::in_line(row);
      const char* const begin = reinterpret_cast<const char*>(row) - (before + bytes > whole ? 0 : before);
      *at = {begin, begin + whole};
    }
  }
  return {to, static_cast<Index>(at - to)};
}

/// Asks for what will be wanted soon, a few lines at a time: many at once would keep the loads of the moment waiting.
class Ahead {
 public:
  MHA_ALWAYS_INLINE explicit Ahead(const LineRanges& next)
      : range_(next.data), last_(next.data + next.count), near_(next.near) {}

  /// In step `at` of Steps that read Bytes together: for as many, spread over every second step.
  template <int Bytes, int Steps> MHA_ALWAYS_INLINE void ask(int at) {
    constexpr int lines = Bytes > line ? Bytes / line : 1, apart = Steps % 2 == 0 ? 2 : 1;
    if ((at + 1) % apart != 0) return;
    const int count = lines * (at + 1) / Steps - lines * (at + 1 - apart) / Steps;
    if (count == 0) return;
    if (end_ - line_ < count * line) [[unlikely]]
      return one_by_one(count);
    ask_for(line_, count);
    line_ += count * line;
  }

 private:
  static constexpr std::ptrdiff_t line = LineRange::line;

  MHA_ALWAYS_INLINE void ask_for(const char* from, int count) const {
    if (near_) {
      MHA_UNROLL_8
      for (int i = 0; i < count; ++i) __builtin_prefetch(from + i * line, 0, 3);
    } else {
      MHA_UNROLL_8
      for (int i = 0; i < count; ++i) __builtin_prefetch(from + i * line, 0, 2);
    }
  }

  /// Lines of which some are not in this range any more.
  MHA_ALWAYS_INLINE void one_by_one(int count) {
    for (; count > 0; --count, line_ += line) {
      if (line_ == end_) {
        if (range_ == last_) return;
        line_ = range_->begin;
        end_ = range_->end;
        ++range_;
        if (LineRange::in_line(line_) != 0) ask_for(end_ - 1, 1);  // the one line more
      }
      ask_for(line_, 1);
    }
  }

  const char *line_ = nullptr, *end_ = nullptr;
  const LineRange *range_, *last_;
  const bool near_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
