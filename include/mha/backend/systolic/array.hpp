// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "../../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The shape of a matrix unit: one pass multiplies Rows × Depth activations by Depth × Columns weights that stay put.
/// Work that fills less of it is padded with zeros and takes as long.
template <Index Rows, Index Columns, Index Depth> struct SystolicArray {
  static_assert(Rows > 0 && Columns > 0 && Depth > 0 && Depth % 2 == 0,
                "mha: a SystolicArray has positive sides and an even depth, because bfloat16 operands come in pairs "
                "(see mha/backend/systolic/array.hpp)");
  static constexpr Index rows = Rows, columns = Columns, depth = Depth;
};

/// One instruction of Intel's tile unit.
using AmxArray = SystolicArray<16, 16, 32>;
/// A TPU's matrix unit: TpuArray<128> up to v5, TpuArray<256> from v6.
template <Index Side> using TpuArray = SystolicArray<Side, Side, Side>;

/// Work of an array: passes, the multiply-adds they had room for, and those that were asked for.
struct ArrayUse {
  std::int64_t passes = 0, issued = 0, useful = 0;

  /// How full the array was: 1 if no multiply-add was wasted on padding; 0 if there was no pass.
  constexpr double utilisation() const {
    return issued == 0 ? 0 : static_cast<double>(useful) / static_cast<double>(issued);
  }
  friend constexpr ArrayUse operator+(const ArrayUse& a, const ArrayUse& b) {
    return {a.passes + b.passes, a.issued + b.issued, a.useful + b.useful};
  }
  friend constexpr ArrayUse operator*(std::int64_t n, const ArrayUse& a) {
    return {n * a.passes, n * a.issued, n * a.useful};
  }
  friend constexpr ArrayUse operator-(const ArrayUse& a, const ArrayUse& b) {
    return {a.passes - b.passes, a.issued - b.issued, a.useful - b.useful};
  }
  friend constexpr bool operator==(const ArrayUse&, const ArrayUse&) = default;
};

/// What a product of (m, k) by (k, n) takes.
template <class Array> constexpr ArrayUse array_use(Index m, Index n, Index k) {
  const auto passes = [](Index extent, Index side) { return (std::int64_t{extent} + side - 1) / side; };
  const std::int64_t count = passes(m, Array::rows) * passes(n, Array::columns) * passes(k, Array::depth);
  return {count, count * Array::rows * Array::columns * Array::depth, std::int64_t{m} * n * k};
}

namespace detail::systolic {

/// Sums over all threads. They are added to while a meter lives and cost one read of `meters` otherwise.
struct UseCounters {
  std::atomic<int> meters{0};
  std::atomic<std::int64_t> passes{0}, issued{0}, useful{0};

  static UseCounters& instance() {
    static UseCounters counters;
    return counters;
  }
  ArrayUse read() const { return {passes, issued, useful}; }
};

/// Adds what a kernel has just done.
inline void count_use(const ArrayUse& use) {
  UseCounters& counters = UseCounters::instance();
  if (counters.meters.load(std::memory_order_relaxed) == 0) return;
  counters.passes.fetch_add(use.passes, std::memory_order_relaxed);
  counters.issued.fetch_add(use.issued, std::memory_order_relaxed);
  counters.useful.fetch_add(use.useful, std::memory_order_relaxed);
}

}  // namespace detail::systolic

/// What the arrays of all threads do while it lives.
class ArrayMeter {
 public:
  ArrayMeter() {
    counters().meters.fetch_add(1);
    from_ = counters().read();
  }
  ArrayMeter(const ArrayMeter&) = delete;
  ArrayMeter& operator=(const ArrayMeter&) = delete;
  ~ArrayMeter() { counters().meters.fetch_sub(1); }

  /// The work of calls that ended since.
  ArrayUse use() const { return counters().read() - from_; }

 private:
  static detail::systolic::UseCounters& counters() { return detail::systolic::UseCounters::instance(); }
  ArrayUse from_;
};

}  // namespace mha::inline MHA_NAMESPACE
