// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/workspace.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "../simd/epilogue.hpp"
#include "../simd/panel_kernel.hpp"
#include "../simd/row_kernel.hpp"
#include "../simd/widen.hpp"
#include "columns.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

using simd::depth_block;

/// c[i] = a · part i + bias for the parts of some columns, cut into tasks of a block of rows × a group of panels, which
/// end with the epilogue of their results. Of a gated one, parts 0 and 1 are the gate and what it is applied to: a
/// group has the same panels of both, and c is one.
///
/// Numerics  per block of depth_block one chain from 0, then added to what came before: the bits of an element do not
///           depend on the tasks, on the other rows, or on how anything lies in memory
template <class T, class S> class DenseProduct {
  using A = Accumulator<T>;
  static_assert(std::is_same_v<Accumulator<S>, A>);

 public:
  static constexpr Index most_rows = 128;  // so many rows of a and the results of a group stay in the L2 cache

  DenseProduct(const TensorView<const T, 2>& a, const AnyColumns<S>& columns, std::span<const TensorView<T, 2>> c,
               IsaLevel isa, Index workers, const simd::AnyEpilogue<T>& epilogue = {})
      : epilogue_(epilogue),
        a_(a),
        columns_(columns),
        c_(c),
        kernel_(simd::panel_kernel<A, S>(isa)),
        wide_kernel_(simd::panel_kernel<A, A>(isa)),
        isa_(isa) {
    in_rows_ = std::is_same_v<T, S> && rows() == 1 && depth() > 0 && columns.rows() != nullptr;
    panels_ = 0;
    for (const auto& part : c_) {
      panels_ += panels_of<T>(part.extent[1]);
      in_place_ = in_place_ && std::is_same_v<T, A> && part.stride[1] == 1 && !epilogue_.reads(part);
    }
    reads_rows_ = std::is_same_v<T, A> && a.stride[1] == 1 && std::abs(a.stride[0]) <= most_apart;
    grain_ = simd::panel_grain<A>(isa);
    row_blocks_ = blocks_of(rows(), most_rows);
    block_rows_ = std::min(rows(), most_rows);
    const Index most = in_rows_ ? most_panels_of_a_row : most_panels / pieces();
    groups_ = blocks_of(panels_, most);
    if (workers > 1)
      groups_ = std::max(groups_, std::min(panels_, blocks_of(most_tasks * workers, std::max(row_blocks_, Index{1}))));
    group_panels_ = groups_ == 0 ? 0 : blocks_of(panels_, groups_);
    const std::int64_t tasks = std::int64_t{row_blocks_} * groups_;
    require(tasks <= std::numeric_limits<Index>::max(), "layer: a product of ", rows(), " rows and ", panels_,
            " panels of columns is ", tasks, " tasks, the limit is ", std::numeric_limits<Index>::max());
  }

  Index tasks() const { return row_blocks_ * groups_; }

  /// Elements that all workers share: the packed rows of a product of one block.
  std::size_t shared() const { return row_blocks_ == 1 && !reads_rows_ ? size(depth_blocks()) * block_size() : 0; }
  /// Elements of scratch for each worker, of accumulators and of columns.
  std::size_t scratch() const { return wide_panel() + wide_panel_size(); }
  std::size_t panel_scratch() const { return columns_.uses_scratch() ? size(depth_block) * size(panel_columns<T>) : 0; }

  /// Before the first task: packs the rows that all share.
  void prepare(A* shared) {
    shared_ = shared;
    if (row_blocks_ != 1 || reads_rows_) return;
    for (Index k = 0; k < depth(); k += depth_block) pack_rows(0, rows(), k, shared + shared_at(k));
  }

  void run(Index task, A* scratch, S* panel_scratch) const {
    const Index first_row = task / groups_ * most_rows, n = std::min(most_rows, rows() - first_row);
    const Index begin = task % groups_ * group_panels_, end = std::min(begin + group_panels_, panels_);
    A* const slots = scratch + packed_rows();
    // Once a panel's sums are complete, while they are in the cache.
    const auto finish = [&](Index part, Index p, Index slot) {
      if (is_gate(part)) return;
      const Target to = target(part, p, slot, first_row, slots);
      const A* const gate = epilogue_.is_gated ? slots + slot_at(slot - (end - begin)) : nullptr;
      epilogue_.apply(isa_, to.c, to.stride, gate, panel_columns<T>, first_row, p * panel_columns<T>, n,
                      count(part, p));
      if (!direct(part, p)) hand_over(part, p, first_row, n, to.c);
    };
    if (depth() == 0)
      return for_each_panel(begin, end, [&](Index part, Index p, Index slot) {
        fill(part, p, target(part, p, slot, first_row, slots), n);
        finish(part, p, slot);
      });
    A* const wide = scratch + wide_panel();
    if constexpr (std::is_same_v<T, S>)
      if (in_rows_) return run_row(begin, end, scratch);
    if (row_blocks_ == 1) {
      // Few rows: the weights are read once, from end to end.
      Index done = 0;
      for_each_panel(begin, end, [&](Index part, Index p, Index slot) {
        if (slot < done) return;
        const Index left = end - begin - (epilogue_.is_gated ? slot % (end - begin) : slot);
        const bool side_by_side = n == 1 && takes_side_by_side(part, p, left);
        done = slot + (side_by_side ? simd::row_panels : 1);
        for (Index k = 0; k < depth(); k += depth_block) {
          const S* const panel = columns_.panel(part, p, k, depth_at(k), panel_scratch);
          const S* const next = panel + simd::panel_elements<S>(depth_at(k));
          add(part, p, k, shared_rows(k), panel, next, target(part, p, slot, 0, slots), n, wide,
              side_by_side ? simd::panel_elements<S>(depth()) : 0);
        }
        for (; slot < done; ++slot, ++p) finish(part, p, slot);
      });
    } else {
      // Many rows: a block of them meets every panel before the next depth.
      for (Index k = 0; k < depth(); k += depth_block) {
        const Rows rows = own_rows(first_row, n, k, scratch);
        const S* first_panel = nullptr;
        for_each_panel(begin, end, [&](Index part, Index p, Index slot) {
          const S* const panel = columns_.panel(part, p, k, depth_at(k), panel_scratch);
          if (slot == 0) first_panel = panel;
          const bool is_last = slot + 1 == (end - begin) * pieces();
          const S* const next =
              is_last ? first_panel + simd::panel_elements<S>(depth_block) : panel + simd::panel_elements<S>(depth());
          add(part, p, k, rows, panel, next, target(part, p, slot, first_row, slots), n, wide);
          if (k + depth_block >= depth()) finish(part, p, slot);
        });
      }
    }
  }

 private:
  /// Panels [begin, end) of the only part, for one row.
  void run_row(Index begin, Index end, A* scratch) const {
    const auto& c = c_[0];
    const Index first = begin * panel_columns<T>, n = std::min((end - begin) * panel_columns<T>, c.extent[1] - first);
    A* const sums = scratch + group_columns();
    // A row's blocks lie one after another.
    const TensorView<const S, 2>& matrix = *columns_.rows();
    simd::row_kernel<A, S>(isa_)({shared_rows(0).data, matrix.data + first, matrix.stride[0], depth(), n,
                                  columns_.bias(0, begin), scratch, sums});
    for (Index j = 0; j < n; ++j) c(0, first + j) = static_cast<T>(sums[j]);
  }

  // Rows farther apart than these 8 KiB meet in the same lines of the caches.
  static constexpr std::ptrdiff_t most_apart = 8192 / static_cast<std::ptrdiff_t>(sizeof(T));
  static constexpr Index most_panels = 24;
  static constexpr Index most_panels_of_a_row = 96;  // whose sums stay in the L1 cache
  static constexpr Index most_tasks = 8;             // for each worker, so that none waits long for the last

  // That widen a panel each time they meet it; integers take more instructions.
  static constexpr Index most_rows_widening = simd::panel_pairs<S> ? 8 : is_rounded<S> ? 16 : 32;

  static constexpr std::size_t size(Index n) { return static_cast<std::size_t>(n); }
  Index rows() const { return a_.extent[0]; }
  Index depth() const { return a_.extent[1]; }
  Index depth_blocks() const { return blocks_of(depth(), depth_block); }
  Index depth_at(Index k) const { return std::min(depth_block, depth() - k); }
  std::size_t block_size() const { return size(block_rows_) * size(depth_block); }
  /// Elements of a worker's own packed rows.
  std::size_t packed_rows() const { return row_blocks_ == 1 || reads_rows_ ? 0 : block_size(); }
  std::ptrdiff_t shared_at(Index k) const { return std::ptrdiff_t{k} * block_rows_; }
  std::size_t slot_size() const { return size(block_rows_) * size(panel_columns<T>); }
  std::size_t group_columns() const { return size(group_panels_) * size(panel_columns<T>); }
  /// Panels that a panel of c is made of.
  Index pieces() const { return epilogue_.is_gated ? 2 : 1; }
  bool is_gate(Index part) const { return epilogue_.is_gated && part == 0; }
  const TensorView<T, 2>& output(Index part) const { return c_[epilogue_.is_gated ? 0 : size(part)]; }
  /// Whether all panels have slots of their own, and not one of each part that kernels cannot write where it belongs.
  bool all_have_slots() const { return !in_place_ || epilogue_.is_gated; }
  std::size_t slots() const { return all_have_slots() ? size(group_panels_ * pieces()) : c_.size(); }
  std::ptrdiff_t slot_at(Index slot) const { return static_cast<std::ptrdiff_t>(slot_size()) * slot; }

  /// Where in a worker's scratch a panel in accumulator precision lies, after the rows and the results.
  std::size_t wide_panel() const { return packed_rows() + (in_rows_ ? 2 * group_columns() : slots() * slot_size()); }
  std::size_t wide_panel_size() const {
    return std::is_same_v<S, A> || block_rows_ <= most_rows_widening ? 0 : size(depth_block) * size(panel_columns<T>);
  }

  /// Columns of panel p of a part.
  Index count(Index part, Index p) const {
    return std::min(panel_columns<T>, output(part).extent[1] - p * panel_columns<T>);
  }
  /// Whether the kernel writes a panel's columns where they belong: it stores whole grains of them.
  bool direct(Index part, Index p) const { return in_place_ && count(part, p) % grain_ == 0 && !is_gate(part); }

  /// Whether panel p and those after it, with so many left in the task, can meet a row together: they are whole, of one
  /// part, and their results lie in a row.
  bool takes_side_by_side(Index part, Index p, Index left) const {
    const Index last = p + simd::row_panels - 1;
    return !columns_.uses_scratch() && left >= simd::row_panels && last < output(part).extent[1] / panel_columns<T>;
  }

  /// Rows of a at a depth, as accumulators: where they lie if they are contiguous and near each other, else packed.
  struct Rows {
    const A* data;
    std::ptrdiff_t stride;
  };
  /// Where a panel's results are computed: in c, or in a slot of the scratch.
  struct Target {
    A* c;
    std::ptrdiff_t stride;
  };
  Target target(Index part, Index p, Index slot, Index first_row, A* slots) const {
    if constexpr (std::is_same_v<T, A>)
      if (direct(part, p)) {
        const auto& c = output(part);
        return {&c(first_row, p * panel_columns<T>), c.stride[0]};
      }
    return {slots + slot_at(all_have_slots() ? slot : part), panel_columns<T>};
  }

  /// The results of a depth of 0, where neither rows nor panels have memory to point into: the bias, or 0.
  void fill(Index part, Index p, const Target& to, Index n) const {
    const A* const bias = columns_.bias(part, p);
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < count(part, p); ++j) to.c[i * to.stride + j] = A(0) + (bias != nullptr ? bias[j] : A(0));
  }

  /// Adds the products of n rows and a panel at depth k to their results, which begin with the bias. Many rows meet the
  /// panel as it stands in `wide`.
  void add(Index part, Index p, Index k, const Rows& rows, const S* panel, const S* next, const Target& to, Index n,
           A* wide, std::ptrdiff_t side_by_side = 0) const {
    const A* const before = k == 0 ? columns_.bias(part, p) : to.c;
    const std::ptrdiff_t stride = k == 0 ? 0 : to.stride;
    const Index depth = depth_at(k), columns = count(part, p);
    if constexpr (!std::is_same_v<S, A>)
      if (n > most_rows_widening) {
        simd::widen_panel(isa_, panel, panel - simd::panel_lead<S>, depth, wide);
        wide_kernel_({rows.data, rows.stride, wide, columns_.uses_scratch() ? panel : next, before, stride, to.c,
                      to.stride, n, depth, columns, 0, simd::panel_row_bytes<S>});
        return;
      }
    kernel_({rows.data, rows.stride, panel, columns_.uses_scratch() ? panel : next, before, stride, to.c, to.stride, n,
             depth, columns, side_by_side});
  }

  /// f(part, panel of the part, panel of the group) for panels [begin, end) of all parts in a row; of a gated epilogue
  /// for those of the gate and then of the other.
  template <class F> void for_each_panel(Index begin, Index end, F&& f) const {
    if (epilogue_.is_gated) {
      for (Index part = 0, slot = 0; part < 2; ++part)
        for (Index p = begin; p < end; ++p, ++slot) f(part, p, slot);
      return;
    }
    Index first = 0;  // panel of the part at hand, among all
    for (Index part = 0; size(part) < c_.size(); ++part) {
      const Index next = first + panels_of<T>(c_[size(part)].extent[1]);
      for (Index p = std::max(first, begin); p < std::min(next, end); ++p) f(part, p - first, p - begin);
      first = next;
    }
  }

  /// Rows [first, first + n), packed into scratch.
  Rows own_rows(Index first, Index n, Index k, A* scratch) const {
    if constexpr (std::is_same_v<T, A>)
      if (reads_rows_) return {a_.pointer(first, k), a_.stride[0]};
    pack_rows(first, n, k, scratch);
    return {scratch, depth_block};
  }
  /// All rows, of which there are few, as prepare() left them.
  Rows shared_rows(Index k) const {
    if constexpr (std::is_same_v<T, A>)
      if (reads_rows_) return {a_.pointer(0, k), a_.stride[0]};
    return {shared_ + shared_at(k), depth_block};
  }

  /// to (n, depth_block) = rows of a at depths [k, k + depth_block).
  void pack_rows(Index first, Index n, Index k, A* to) const {
    const Index d = depth_at(k);
    for (Index i = 0; i < n; ++i, to += depth_block) {
      const T* from = &a_(first + i, k);
      if (a_.stride[1] == 1)
        simd::widen(isa_, from, 0, 1, d, to);
      else
        for (Index j = 0; j < d; ++j, from += a_.stride[1]) to[j] = static_cast<A>(*from);
    }
  }

  /// Writes a panel's sums, in rows of panel_columns, to its part of c.
  void hand_over(Index part, Index p, Index first_row, Index n, const A* from) const {
    const auto& c = output(part);
    const Index columns = count(part, p), first = p * panel_columns<T>;
    if (c.stride[1] == 1) {
      const auto narrow = simd::with_isa(isa_, [](auto tag) {
        return &decltype(tag)::template run<simd::NarrowBody<A, T>, const A*, std::ptrdiff_t, Index, Index, T*,
                                            std::ptrdiff_t>;
      });
      return narrow(from, panel_columns<T>, n, columns, &c(first_row, first), c.stride[0]);
    }
    for (Index i = 0; i < n; ++i, from += panel_columns<T>)
      for (Index j = 0; j < columns; ++j) c(first_row + i, first + j) = static_cast<T>(from[j]);
  }

  const simd::AnyEpilogue<T> epilogue_;
  const TensorView<const T, 2> a_;
  const AnyColumns<S> columns_;
  const std::span<const TensorView<T, 2>> c_;
  const simd::PanelKernel<A, S> kernel_;
  const simd::PanelKernel<A, A> wide_kernel_;
  const IsaLevel isa_;
  Index panels_ = 0, grain_ = 1, row_blocks_ = 0, block_rows_ = 0, groups_ = 0, group_panels_ = 0;
  bool in_place_ = true, in_rows_ = false, reads_rows_ = false;
  const A* shared_ = nullptr;
};

/// Below this much work a product stays on the calling thread; reading the weights costs as much as eight rows.
inline constexpr double enough_flop = 4e6;

template <class T, class S, class Threads>
void multiply(const TensorView<const T, 2>& a, const AnyColumns<S>& columns, std::span<const TensorView<T, 2>> c,
              Workspace& workspace, const Threads& threads, const simd::AnyEpilogue<T>& epilogue = {}) {
  using A = Accumulator<T>;
  double width = 0;
  for (const auto& part : c) width += (epilogue.is_gated ? 2.0 : 1.0) * part.extent[1];
  const bool alone = 2.0 * (a.extent[0] + 8.0) * a.extent[1] * width < enough_flop;
  const Index workers = alone ? 1 : threads.workers();
  DenseProduct<T, S> product(a, columns, c, current_isa(), workers, epilogue);
  if (product.tasks() == 0) return;
  auto frame = workspace.frame();
  product.prepare(frame.template take<A>(product.shared()));
  A* const scratch = frame.template take<A>(product.scratch() * static_cast<std::size_t>(workers));
  S* const panels = frame.template take<S>(product.panel_scratch() * static_cast<std::size_t>(workers));
  const auto task = [&](Index index, Index worker) MHA_NO_INLINE {
    const auto w = static_cast<std::size_t>(worker);
    product.run(index, scratch + product.scratch() * w, panels + product.panel_scratch() * w);
  };
  run_tasks(alone, threads, product.tasks(), task);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
