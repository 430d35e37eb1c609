// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "../../core/check.hpp"
#include "../../core/tensor.hpp"
#include "../../core/workspace.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "../simd/epilogue.hpp"
#include "array.hpp"
#include "pack.hpp"
#include "precision.hpp"
#include "product_unit.hpp"
#include "round_sums.hpp"
#include "tile_product.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Parts that numbers of T are split into. A bfloat16 is its own first part and has no others.
template <class T, class Precision>
inline constexpr Index parts_of = std::is_same_v<T, bfloat16> ? Index{1} : Precision::parts;

/// One packed matrix (K, N): its parts lie part_size elements apart; bias has 32 · panels(N) floats, or is null.
struct WeightTiles {
  Index k = 0, n = 0, parts = 0;
  const bfloat16* tiles = nullptr;
  std::size_t part_size = 0;
  const float* bias = nullptr;
};

/// Work below this many padded multiply-adds stays on the calling thread.
inline constexpr double enough_work = 1e7;

/// Packs one matrix and its bias.
template <class Precision, class T, class Threads>
WeightTiles pack_weights(const DenseWeights<T>& from, bfloat16* tiles, float* bias, const Threads& threads) {
  constexpr Index parts = parts_of<T, Precision>;
  const Index k = from.matrix.extent[0], n = from.matrix.extent[1];
  const std::size_t part_size = packed_size(n, k);
  run_tasks(static_cast<double>(part_size) < enough_work, threads, panels(n), [&](Index panel, Index) {
    pack_panel<parts>(from.matrix, panel, tiles + panel_size(k) * static_cast<std::size_t>(panel), part_size);
  });
  if (from.bias.data == nullptr) return {k, n, parts, tiles, part_size, nullptr};
  for (Index j = 0; j < panels(n) * block_side; ++j) bias[j] = j < n ? static_cast<float>(from.bias(j)) : 0.f;
  return {k, n, parts, tiles, part_size, bias};
}

/// to (K, N), in rows = a packed matrix, the sum of its parts in each element, small ones first.
template <class T, class Threads>
void unpack_weights(const WeightTiles& from, const TensorView<T, 2>& to, const Threads& threads) {
  run_tasks(static_cast<double>(from.part_size) < enough_work, threads, panels(from.n), [&](Index panel, Index) {
    const bfloat16* const tiles = from.tiles + panel_size(from.k) * static_cast<std::size_t>(panel);
    const Index first = panel * block_side, count = std::min(block_side, from.n - first);
    for (Index k = 0; k < from.k; ++k) {
      const Index depth = k % tile_depth;
      const bfloat16* const row =
          tiles + std::ptrdiff_t{k / tile_depth} * 2 * tile_size + (depth - depth % 2) * tile_side + depth % 2;
      T* const out = &to(k, first);
      for (Index j = 0; j < count; ++j) {
        const bfloat16* const x = row + (j / tile_side) * tile_size + 2 * (j % tile_side);
        float sum = 0;
        for (Index part = from.parts; part-- > 0;)
          sum += static_cast<float>(x[static_cast<std::size_t>(part) * from.part_size]);
        out[j] = static_cast<T>(sum);
      }
    }
  });
}

/// Matrices packed once, kept by a layer.
template <class T, class Precision> class PackedWeights {
 public:
  template <class Threads> PackedWeights(std::span<const DenseWeights<T>> matrices, const Threads& threads) {
    constexpr Index parts = parts_of<T, Precision>;
    for (const DenseWeights<T>& from : matrices) {
      const Index k = from.matrix.extent[0], n = from.matrix.extent[1];
      tiles_.push_back(aligned_array<bfloat16>(packed_size(n, k) * std::size_t{parts}));
      bias_.emplace_back(from.bias.data == nullptr ? 0u : static_cast<std::size_t>(panels(n) * block_side));
      bytes_ += packed_size(n, k) * sizeof(bfloat16) * std::size_t{parts} + bias_.back().size() * sizeof(float);
    }
    matrices_.resize(matrices.size());
    write(matrices, threads);
  }

  /// Other weights in their place; false, and nothing is written, if they have other shapes.
  template <class Threads> bool rewrite(std::span<const DenseWeights<T>> matrices, const Threads& threads) {
    const auto fits = [](const WeightTiles& tiles, const DenseWeights<T>& w) {
      return tiles.k == w.matrix.extent[0] && tiles.n == w.matrix.extent[1] &&
             (tiles.bias != nullptr) == (w.bias.data != nullptr);
    };
    if (!std::equal(matrices_.begin(), matrices_.end(), matrices.begin(), matrices.end(), fits)) return false;
    write(matrices, threads);
    return true;
  }

  /// to (K, N), in rows = the matrix of a part.
  template <class U, class Threads> void unpack(Index part, const TensorView<U, 2>& to, const Threads& threads) const {
    unpack_weights(matrices_[static_cast<std::size_t>(part)], to, threads);
  }

  std::size_t bytes() const { return bytes_; }
  std::span<const WeightTiles> matrices() const { return matrices_; }

 private:
  template <class Threads> void write(std::span<const DenseWeights<T>> matrices, const Threads& threads) {
    for (std::size_t i = 0; i < matrices.size(); ++i)
      matrices_[i] = pack_weights<Precision>(matrices[i], tiles_[i].get(), bias_[i].data(), threads);
  }

  std::vector<WeightTiles> matrices_;
  std::vector<std::unique_ptr<bfloat16[], AlignedDelete>> tiles_;
  std::vector<std::vector<float>> bias_;
  std::size_t bytes_ = 0;
};

/// c[i] (M, Nᵢ) = a (M, K) · weights[i] (K, Nᵢ) + bias, for matrices of one K, and what an epilogue makes of the sums:
/// of a gated one, the first matrix is the gate's, the second the other's, and c is one.
///
/// Where there are rows enough, some 256 of them are a task, which packs them in memory of its worker and makes all
/// that c has of them, 384 columns at a time. Else all rows are packed first, and tasks of as many rows have fewer
/// columns. More than 32 rows go through the depth in steps; what they have summed waits in the second-level cache,
/// where the rows are too, and is finished and rounded after the last step. A step of one panel of weights stays in the
/// first-level cache while all the task's rows pass by.
template <class Array, class Precision, class T> class ArrayProduct {
 public:
  ArrayProduct(const TensorView<const T, 2>& a, std::span<const WeightTiles> weights,
               std::span<const TensorView<T, 2>> c, const simd::AnyEpilogue<T>& epilogue)
      : a_(a),
        weights_(weights),
        c_(c),
        epilogue_(epilogue),
        unit_(dense_unit<Array>()),
        level_(current_isa()),
        round_(round_kernel<T>(unit_.unit, level_)),
        step_tiles_(round_up(unit_.unit == MatrixUnit::amx ? 16 : 32, std::max<Index>(1, Array::depth / tile_depth))) {}

  template <class Threads> void run(Workspace& workspace, const Threads& threads) {
    const Index m = a_.extent[0], k = a_.extent[1];
    double columns = 0;
    for (const WeightTiles& w : weights_) columns += w.n;
    const bool alone = 1.0 * strips(m) * tile_side * k * columns < enough_work;
    const Index workers = alone ? 1 : threads.workers();
    const Index blocks = blocks_of(m, block_side), own = round_up(shares(m), workers);
    // Where each worker has rows enough of its own, none waits for another's or reads them from its cache.
    const bool apart = workers == 1 || own >= 2 * workers;
    row_groups_ = std::min(blocks, apart ? own : shares(m));
    group_rows_ = blocks_of(blocks, row_groups_) * block_side;
    cut_columns(apart ? 1 : workers);
    auto frame = workspace.frame();
    const std::size_t task_sums = static_cast<std::size_t>(pieces() * group_sums());
    float* const sums = frame.take<float>(task_sums * static_cast<std::size_t>(workers));
    part_size_ = packed_size(apart ? group_rows_ : m, k);
    const std::size_t size = part_size_ * std::size_t{row_parts};
    bfloat16* const packed = frame.take<bfloat16>(apart ? size * static_cast<std::size_t>(workers) : size);
    const auto sums_of = [&](Index worker) { return sums + task_sums * static_cast<std::size_t>(worker); };
    if (apart)
      return run_tasks(alone, threads, row_groups_, [&](Index down, Index worker) {
        const Range rows = rows_of(down);
        bfloat16* const panels = packed + size * static_cast<std::size_t>(worker);
        for (Index strip = 0; strip < strips(rows.count); ++strip)
          pack_strip<row_parts>(a_, rows.begin / tile_side + strip, half_panel(panels, strip), part_size_);
        for (Index across = 0; across < column_groups_; ++across) run_task(rows, panels, across, sums_of(worker));
      });
    run_tasks(alone || m <= block_side, threads, strips(m),
              [&](Index strip, Index) { pack_strip<row_parts>(a_, strip, half_panel(packed, strip), part_size_); });
    // Weights meet all rows one after the other where these stay in the second-level cache meanwhile.
    const bool down_first = double(m) * k * row_parts <= kept_rows;
    run_tasks(alone, threads, row_groups_ * column_groups_, [&](Index task, Index worker) {
      const Range rows = rows_of(down_first ? task % row_groups_ : task / column_groups_);
      const Index across = down_first ? task / row_groups_ : task % column_groups_;
      run_task(rows, packed + at(rows.begin, k, 0), across, sums_of(worker));
    });
  }

 private:
  static constexpr Index row_parts = parts_of<T, Precision>;
  static constexpr Index group_rows = 256;      ///< sums of a task down, about
  static constexpr double kept_rows = 1 << 19;  ///< bfloat16 numbers: 1 MiB of the second-level cache

  const WeightTiles& weight(Index matrix) const { return weights_[static_cast<std::size_t>(matrix)]; }
  Index groups(const WeightTiles& w) const { return blocks_of(w.n, group_columns_); }
  /// Matrices of which a task makes sums, and those it has of one.
  Index pieces() const { return epilogue_.is_gated ? 2 : 1; }
  Index group_sums() const { return group_rows_ * group_columns_; }

  /// Groups of about 256 rows, a quarter more at most: for a few that are left over all weights would be read again.
  static Index shares(Index rows) { return std::max<Index>(1, (rows + group_rows / 4 * 3) / group_rows); }

  /// How many columns of a matrix a task has: many, so that its results are long runs of memory.
  void cut_columns(Index workers) {
    constexpr Index tasks_per_worker = 3;
    for (const Index columns : {384, 256, 128}) {
      group_columns_ = columns / pieces();
      column_groups_ = 0;
      for (const WeightTiles& w : weights_) column_groups_ += groups(w);
      column_groups_ /= pieces();
      if (workers == 1 || row_groups_ * column_groups_ >= tasks_per_worker * workers) return;
    }
  }

  /// Rows or columns of c, from the first one on.
  struct Range {
    Index begin, count;
  };
  /// Of a group of rows, whole blocks shared evenly.
  Range rows_of(Index group) const {
    const Index blocks = blocks_of(a_.extent[0], block_side);
    const auto first = [&](Index g) {
      return static_cast<Index>(std::ptrdiff_t{blocks} * g / row_groups_) * block_side;
    };
    return {first(group), std::min(first(group + 1), a_.extent[0]) - first(group)};
  }
  /// Part of the product by one matrix, and its sums in blocks of 32 × 32.
  struct Part {
    const WeightTiles& w;
    Range rows, columns;
    const bfloat16* packed;  ///< its rows
    float* sums;
    std::ptrdiff_t block_stride;  ///< of blocks side by side

    /// The sums of rows from i and columns from j of the part, both multiples of 32.
    float* block(Index i, Index j) const { return sums + j / block_side * block_stride + i * block_side; }
    const float* bias(Index j) const { return w.bias == nullptr ? nullptr : w.bias + columns.begin + j; }
  };
  Part part(Range rows, const bfloat16* packed, Index group, const WeightTiles& w, float* sums) const {
    const Index column = group * group_columns_;
    return {w,      rows, {column, std::min(group_columns_, w.n - column)},
            packed, sums, std::ptrdiff_t{group_rows_} * block_side};
  }

  void run_task(Range rows, const bfloat16* packed, Index group, float* sums) const {
    if (epilogue_.is_gated) {
      const Part gate = part(rows, packed, group, weight(0), sums);
      add_products(gate);
      return run_part(part(rows, packed, group, weight(1), sums + group_sums()), &gate, c_[0]);
    }
    Index matrix = 0;
    while (group >= groups(weight(matrix))) group -= groups(weight(matrix++));
    run_part(part(rows, packed, group, weight(matrix), sums), nullptr, c_[static_cast<std::size_t>(matrix)]);
  }

  /// Results come after all products: beside the unit's tiles vector code runs at half its rate, and what is written
  /// row by row is written twice as fast as block by block.
  void run_part(const Part& p, const Part* gate, const TensorView<T, 2>& c) const {
    add_products(p);
    for (Index i = 0; i < p.rows.count; i += block_side) finish(p, gate, c, i);
  }

  template <class F> static void for_each_block(const Part& p, const F& f) {
    for (Index j = 0; j < p.columns.count; j += block_side)
      for (Index i = 0; i < p.rows.count; i += block_side) f(i, j);
  }

  void add_products(const Part& p) const {
    const Index tiles = depth_tiles(p.w.k);
    if (tiles == 0) {
      std::fill_n(p.sums, group_sums(), 0.f);
      return;
    }
    // Where the weights pass by once, nothing is kept for a second row.
    const bool passes_by = a_.extent[0] > block_side;
    const Index step = passes_by ? step_tiles_ : tiles;
    const UnitScope scope(unit_.unit);
    bool add = false;
    for (const PartProduct& product : Precision::products) {
      if (product.a >= row_parts || product.b >= p.w.parts) continue;
      for (Index k = 0; k < tiles; k += step, add = true)
        for_each_block(p, [&](Index i, Index j) {
          unit_.multiply({.a = activations(p, product.a, i, k),
                          .tile_stride = tile_size,
                          .b = weight_pairs(p.w, product.b, p.columns.begin + j, k),
                          .c = p.block(i, j),
                          .tiles = std::min<Index>(2, strips(p.rows.count - i)),
                          .steps = std::min(step, tiles - k),
                          .add = add,
                          .step_stride = 2 * tile_size,
                          .rows = std::min(block_side, p.rows.count - i),
                          .next = passes_by ? next_weights(p, product.b, i, j, k, step) : 0,
                          .passes_by = passes_by});
        });
      count_use(array_use<Array>(p.rows.count, p.columns.count, p.w.k));
    }
  }

  /// The address of a block's share of the next panel of weights. Each block of rows prefetches a share, and eight
  /// shares are the panel.
  static std::uintptr_t next_weights(const Part& p, Index weight_part, Index i, Index j, Index k, Index step) {
    const Index tiles = depth_tiles(p.w.k), after = j + block_side;
    const std::uint32_t* panel = weight_pairs(p.w, weight_part, p.columns.begin + after, 0);
    if (after < p.columns.count)
      panel = weight_pairs(p.w, weight_part, p.columns.begin + after, k);
    else if (k + step < tiles)
      panel = weight_pairs(p.w, weight_part, p.columns.begin, k + step);
    constexpr std::uintptr_t line_bytes = 64;
    const Index before = i / block_side * next_lines * std::min(step, tiles - k);
    return reinterpret_cast<std::uintptr_t>(panel) + line_bytes * static_cast<std::uintptr_t>(before);
  }

  /// 32 rows of sums → c.
  void finish(const Part& p, const Part* gate, const TensorView<T, 2>& c, Index i) const {
    const Index row = p.rows.begin + i, column = p.columns.begin, rows = std::min(block_side, p.rows.count - i);
    const float* bias = p.bias(0);
    if (epilogue_.activate != nullptr) {
      for (Index j = 0; j < p.columns.count; j += block_side)
        epilogue_.activate({epilogue_.activation, p.block(i, j), block_side,
                            gate == nullptr ? nullptr : gate->block(i, j), block_side, rows, block_side, p.bias(j),
                            gate == nullptr ? nullptr : gate->bias(j)});
      bias = nullptr;
    }
    const TensorView<const T, 2>& residual = epilogue_.residual;
    const bool adds = residual.data != nullptr;
    Index done = 0;
    if (c.stride[1] == 1 && (!adds || residual.stride[1] == 1)) {
      done = p.columns.count / block_side * block_side;
      round_({.sums = p.block(i, 0),
              .bias = bias,
              .to = c.pointer(row, column),
              .stride = c.stride[0],
              .rows = rows,
              .columns = done,
              .block_stride = p.block_stride,
              .residual = adds ? residual.pointer(row, column) : nullptr,
              .residual_stride = residual.stride[0]});
    }
    for (Index j = done; j < p.columns.count; j += block_side)
      finish_block(p.block(i, j), bias == nullptr ? nullptr : bias + j, c, row, column + j, rows,
                   std::min(block_side, p.columns.count - j));
  }

  /// A block that is not whole, or not side by side in c or the residual.
  void finish_block(float* sums, const float* bias, const TensorView<T, 2>& c, Index row, Index column, Index rows,
                    Index columns) const {
    add_bias(bias, sums, rows);
    epilogue_.add_residual(level_, sums, block_side, row, column, rows, columns);
    alignas(64) T rounded[std::size_t{block_side} * std::size_t{block_side}];
    round_({.sums = sums, .bias = nullptr, .to = rounded, .stride = block_side, .rows = rows});
    for (Index r = 0; r < rows; ++r)
      for (Index n = 0; n < columns; ++n) c(row + r, column + n) = rounded[r * block_side + n];
  }

  void add_bias(const float* bias, float* sums, Index n) const {
    if (bias == nullptr) return;
    simd::with_isa(level_, [&](auto isa) {
      isa.template run<simd::AddBody<float, float>>(sums, std::ptrdiff_t{block_side}, n, block_side, bias,
                                                    std::ptrdiff_t{0}, std::ptrdiff_t{1});
    });
  }

  /// Where tile k of the depth lies of the panel of a row or column.
  static std::size_t at(Index side, Index depth, Index k) {
    return panel_size(depth) * static_cast<std::size_t>(side / block_side) +
           panel_size(tile_depth) * static_cast<std::size_t>(k);
  }
  const bfloat16* activations(const Part& p, Index part, Index row, Index k) const {
    return p.packed + part_size_ * static_cast<std::size_t>(part) + at(row, a_.extent[1], k);
  }
  /// Where a strip of rows is packed.
  bfloat16* half_panel(bfloat16* panels, Index strip) const {
    return panels + at(strip * tile_side, a_.extent[1], 0) + strip % 2 * tile_size;
  }
  static const std::uint32_t* weight_pairs(const WeightTiles& w, Index part, Index column, Index k) {
    return reinterpret_cast<const std::uint32_t*>(w.tiles + w.part_size * static_cast<std::size_t>(part) +
                                                  at(column, w.k, k));
  }

  const TensorView<const T, 2> a_;
  const std::span<const WeightTiles> weights_;
  const std::span<const TensorView<T, 2>> c_;
  const simd::AnyEpilogue<T>& epilogue_;
  const ProductUnit unit_;
  const IsaLevel level_;
  const RoundKernel<T> round_;
  const Index step_tiles_;  ///< of the depth at a time: whole passes
  Index row_groups_ = 0, group_rows_ = 0, group_columns_ = 0, column_groups_ = 0;
  std::size_t part_size_ = 0;  ///< bfloat16 numbers between the parts of packed rows
};

/// c[i] = a · matrices + bias on the array, or what the epilogue makes of it.
template <class Array, class Precision, class T, class Threads>
void multiply(const TensorView<const T, 2>& a, std::span<const WeightTiles> weights,
              std::span<const TensorView<T, 2>> c, Workspace& workspace, const Threads& threads,
              const simd::AnyEpilogue<T>& epilogue = {}) {
  if (a.extent[0] > 0) ArrayProduct<Array, Precision, T>(a, weights, c, epilogue).run(workspace, threads);
}

/// A product whose weights are packed for this call alone.
template <class Array, class Precision, class T, class Threads>
void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  const Index k = call.b.extent[0], n = call.b.extent[1];
  if (call.c.extent[0] == 0 || n == 0) return;
  auto frame = workspace.frame();
  bfloat16* const tiles = frame.take<bfloat16>(packed_size(n, k) * std::size_t{parts_of<T, Precision>});
  float* const bias = frame.take<float>(static_cast<std::size_t>(panels(n) * block_side));
  const WeightTiles weights = pack_weights<Precision>(DenseWeights<T>{call.b, call.bias}, tiles, bias, threads);
  multiply<Array, Precision>(call.a, std::span(&weights, 1), std::span(&call.c, 1), workspace, threads);
}

/// A product of rows of T by weights packed before, of W.
template <class Array, class Precision, class T, class W, class Threads>
void gemm(const PackedGemmCall<T, PackedWeights<W, Precision>>& call, Workspace& workspace, const Threads& threads,
          const simd::AnyEpilogue<T>& epilogue = {}) {
  const std::size_t matrices = call.c.size() * (epilogue.is_gated ? 2 : 1);
  multiply<Array, Precision>(call.a, call.weights.matrices().subspan(static_cast<std::size_t>(call.first), matrices),
                             call.c, workspace, threads, epilogue);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
