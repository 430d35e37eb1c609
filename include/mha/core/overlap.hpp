// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "check.hpp"
#include "view.hpp"

/// Whether arrays that a call reads and writes share memory, whatever their strides.
namespace mha::inline MHA_NAMESPACE::detail {

/// Where the elements of an array lie: at `first` plus any sum of 0 to count − 1 steps of each axis.
struct Footprint {
  /// Steps in bytes, above 0, and more than one element.
  struct Axis {
    std::ptrdiff_t step, count;
  };

  std::uintptr_t first = 0;
  std::ptrdiff_t element = 0;  ///< bytes of one, 0 of an array without elements
  int axes = 0;
  Axis axis[5] = {};

  /// Behind its last byte.
  std::uintptr_t end() const {
    std::ptrdiff_t n = element;
    for (int i = 0; i < axes; ++i) n += axis[i].step * (axis[i].count - 1);
    return first + static_cast<std::uintptr_t>(n);
  }
};

template <class T, int Rank> Footprint footprint(const TensorView<T, Rank>& v) {
  Footprint to;
  if (v.data == nullptr || v.size() == 0) return to;
  to.first = reinterpret_cast<std::uintptr_t>(v.data);
  to.element = sizeof(T);
  for (int a = 0; a < Rank; ++a) {
    if (v.extent[a] <= 1 || v.stride[a] == 0) continue;
    const std::ptrdiff_t step = v.stride[a] * to.element;
    if (step < 0) to.first += static_cast<std::uintptr_t>((v.extent[a] - 1) * step);
    to.axis[to.axes++] = {step < 0 ? -step : step, v.extent[a]};
  }
  return to;
}
/// Of `count` objects one after another.
template <class T> Footprint footprint(const T* objects, std::ptrdiff_t count) {
  if (objects == nullptr || count == 0) return {};
  return {reinterpret_cast<std::uintptr_t>(objects), count * static_cast<std::ptrdiff_t>(sizeof(T)), 0, {}};
}

/// The differences of the addresses of two arrays' elements: d + Σ x·step with least ≤ x ≤ most for each axis. Axes
/// with one step are one, so that where arrays are parts of one matrix few are left.
class Distances {
 public:
  MHA_COLD Distances(const Footprint& a, const Footprint& b) {
    for (int i = 0; i < a.axes; ++i) add(a.axis[i].step, 1 - a.axis[i].count, 0);
    for (int i = 0; i < b.axes; ++i) add(b.axis[i].step, 0, b.axis[i].count - 1);
    for (int i = axes_ - 1; i >= 0; --i) {
      reach_[i].low = reach_[i + 1].low + axis_[i].least * axis_[i].step;
      reach_[i].high = reach_[i + 1].high + axis_[i].most * axis_[i].step;
    }
  }

  /// Whether one of them is from `low` to `high`. A search of more than `tries_` steps, which only arrays make whose
  /// strides do not nest, ends with yes.
  MHA_COLD bool meet(std::ptrdiff_t low, std::ptrdiff_t high, int i = 0) {
    if (i == axes_) return low <= 0 && 0 <= high;
    if (--tries_ < 0) return true;
    const Axis& axis = axis_[i];
    const std::ptrdiff_t first = std::max(axis.least, floor(low - reach_[i + 1].high + axis.step - 1, axis.step));
    const std::ptrdiff_t last = std::min(axis.most, floor(high - reach_[i + 1].low, axis.step));
    for (std::ptrdiff_t x = first; x <= last; ++x)
      if (meet(low - x * axis.step, high - x * axis.step, i + 1)) return true;
    return false;
  }

 private:
  struct Axis {
    std::ptrdiff_t step, least, most;
  };
  struct Reach {
    std::ptrdiff_t low = 0, high = 0;
  };

  static std::ptrdiff_t floor(std::ptrdiff_t x, std::ptrdiff_t step) { return x / step - (x % step < 0 ? 1 : 0); }

  /// The largest steps come first.
  void add(std::ptrdiff_t step, std::ptrdiff_t least, std::ptrdiff_t most) {
    int i = 0;
    while (i < axes_ && axis_[i].step > step) ++i;
    if (i == axes_ || axis_[i].step != step) {
      for (int j = axes_++; j > i; --j) axis_[j] = axis_[j - 1];
      axis_[i] = {step, 0, 0};
    }
    axis_[i].least += least;
    axis_[i].most += most;
  }

  Axis axis_[10] = {};
  Reach reach_[11];  ///< of the axes from this one on
  int axes_ = 0, tries_ = 1 << 14;
};

/// Whether two arrays share a byte.
inline bool share_bytes(const Footprint& a, const Footprint& b) {
  if (a.element == 0 || b.element == 0 || a.end() <= b.first || b.end() <= a.first) return false;
  const auto apart = static_cast<std::ptrdiff_t>(b.first - a.first);
  return Distances(a, b).meet(1 - b.element - apart, a.element - 1 - apart);
}

/// Whether two views share an element: parts of one matrix, whose addresses interleave, do not.
template <class A, int RankA, class B, int RankB>
bool share_elements(const TensorView<A, RankA>& a, const TensorView<B, RankB>& b) {
  return share_bytes(footprint(a), footprint(b));
}

/// Whether two views show the same elements in the same order.
template <class T> constexpr bool same_view(const TensorView<T, 3>& a, const TensorView<T, 3>& b) {
  bool same = a.data == b.data;
  for (int axis = 0; axis < 3; ++axis)
    same = same && a.extent[axis] == b.extent[axis] && a.stride[axis] == b.stride[axis];
  return same;
}

/// Whether each axis steps over all that the axes of smaller steps reach, as those of a whole tensor do.
template <class T, int Rank> bool axes_nest(const TensorView<T, Rank>& v) {
  bool inside[std::size_t{Rank}] = {};
  std::ptrdiff_t reach = 1;
  for (int n = 0; n < Rank; ++n) {
    int least = -1;
    const auto step = [&](int a) { return v.stride[a] < 0 ? -v.stride[a] : v.stride[a]; };
    for (int a = 0; a < Rank; ++a)
      if (!inside[a] && v.extent[a] > 1 && (least < 0 || step(a) < step(least))) least = a;
    if (least < 0) return true;
    if (step(least) < reach) return false;
    inside[least] = true;
    reach += step(least) * (v.extent[least] - 1);
  }
  return true;
}

/// The first axis along which two elements of one view share bytes; Rank if none does. An element is written once then.
template <class T, int Rank> int self_overlapping_axis(const TensorView<T, Rank>& v) {
  if (v.size() == 0 || axes_nest(v)) return Rank;
  for (int a = 0; a < Rank; ++a) {
    if (v.extent[a] <= 1) continue;
    TensorView<T, Rank> first = v, rest = v;  // elements that differ along the axis, moved to its begin
    first.extent[a] = 1;
    rest.extent[a] -= 1;
    rest.data += v.stride[a];
    if (share_elements(first, rest)) return a;
  }
  return Rank;
}

// The axes of what calls write, as errors name them.
inline constexpr const char* axes_of_rows[3] = {"batch", "length", "width"};
inline constexpr const char* axes_of_heads[4] = {"batch", "length", "heads", "head size"};
inline constexpr const char* axes_of_logits[3] = {"batch", "heads", "length"};
inline constexpr const char* axes_of_pairs[4] = {"batch", "heads", "queries", "keys"};

/// What a call writes, a view that require_data() has passed, has memory of its own for each element.
///
/// Errors    ShapeError that names the axis, its extent and its stride
template <class T, int Rank>
void require_own_memory(const char* call, const char* name, const TensorView<T, Rank>& v,
                        const char* const (&axes)[std::size_t{Rank}]) {
  const int a = self_overlapping_axis(v);
  if (a == Rank) return;
  fail(call, ": ", name, " overlaps itself: its axis ", axes[a], " has ", v.extent[a], " elements and stride ",
       v.stride[a], ", expected memory of its own for each element");
}

/// An array of a call, as its errors name it.
struct NamedArray {
  const char* name;
  Footprint at;
};

/// What a call writes shares nothing with what else it writes, nor with what it reads.
inline void require_apart(const char* call, std::span<const NamedArray> written, std::span<const NamedArray> read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto apart = [&](const NamedArray& other) {
      require(!share_bytes(written[i].at, other.at), call, ": ", written[i].name, " overlaps ", other.name,
              ", expected separate memory");
    };
    for (const NamedArray& other : read) apart(other);
    for (std::size_t j = i + 1; j < written.size(); ++j) apart(written[j]);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail
