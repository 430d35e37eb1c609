// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "../../core/tensor.hpp"
#include "../../core/workspace.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "array.hpp"
#include "pack.hpp"
#include "precision.hpp"
#include "tile_product.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// A bfloat16 is its own first part: its products need no others.
template <class T, class Precision>
using EffectivePrecision = std::conditional_t<std::is_same_v<T, bfloat16>, DefaultPrecision, Precision>;

/// One packed matrix (K, N): its parts lie part_size elements apart; bias has 32 · panels(N) floats, or is null.
struct WeightTiles {
  Index k = 0, n = 0;
  const bfloat16* tiles = nullptr;
  std::size_t part_size = 0;
  const float* bias = nullptr;
};

/// Work below this many padded multiply-adds stays on the calling thread.
inline constexpr double enough_work = 1e7;

/// Packs one matrix and its bias.
template <class Precision, class T, class Threads>
WeightTiles pack_weights(const DenseWeights<T>& from, bfloat16* tiles, float* bias, const Threads& threads) {
  constexpr Index parts = EffectivePrecision<T, Precision>::parts;
  const Index k = from.matrix.extent[0], n = from.matrix.extent[1];
  const std::size_t part_size = packed_size(n, k);
  run_tasks(static_cast<double>(part_size) < enough_work, threads, panels(n), [&](Index panel, Index) {
    pack_panel<parts>(from.matrix, panel, tiles + panel_size(k) * static_cast<std::size_t>(panel), part_size);
  });
  if (from.bias.data == nullptr) return {k, n, tiles, part_size, nullptr};
  for (Index j = 0; j < panels(n) * block_side; ++j) bias[j] = j < n ? static_cast<float>(from.bias(j)) : 0.f;
  return {k, n, tiles, part_size, bias};
}

/// Matrices packed once, kept by a layer.
template <class T, class Precision> class PackedWeights {
 public:
  template <class Threads> PackedWeights(std::span<const DenseWeights<T>> matrices, const Threads& threads) {
    constexpr Index parts = EffectivePrecision<T, Precision>::parts;
    for (const DenseWeights<T>& from : matrices) {
      const Index k = from.matrix.extent[0], n = from.matrix.extent[1];
      tiles_.push_back(aligned_array<bfloat16>(packed_size(n, k) * std::size_t{parts}));
      bias_.emplace_back(from.bias.data == nullptr ? 0u : static_cast<std::size_t>(panels(n) * block_side));
      matrices_.push_back(pack_weights<Precision>(from, tiles_.back().get(), bias_.back().data(), threads));
      bytes_ += packed_size(n, k) * sizeof(bfloat16) * std::size_t{parts} + bias_.back().size() * sizeof(float);
    }
  }

  std::size_t bytes() const { return bytes_; }
  std::span<const WeightTiles> matrices() const { return matrices_; }

 private:
  std::vector<WeightTiles> matrices_;
  std::vector<std::unique_ptr<bfloat16[], AlignedDelete>> tiles_;
  std::vector<std::vector<float>> bias_;
  std::size_t bytes_ = 0;
};

/// Sums (32, 32) + bias → at most 32 × 32 elements of c, rounded to T.
template <class T> struct Finish {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const float* sums, const float* bias, const TensorView<T, 2>* c, Index i, Index j) {
    const Index rows = std::min(block_side, c->extent[0] - i), columns = std::min(block_side, c->extent[1] - j);
    const bool in_place = !std::is_same_v<T, half> && columns == block_side && c->stride[1] == 1;
    for (Index r = 0; r < rows; ++r, sums += block_side) {
      T* const to = c->pointer(i + r, j);
      if constexpr (!std::is_same_v<T, half>)
        if (in_place) {
          row<Isa>(sums, bias, to);
          continue;
        }
      alignas(64) float wide[std::size_t{block_side}];
      row<Isa>(sums, bias, wide);
      for (Index s = 0; s < columns; ++s) to[s * c->stride[1]] = static_cast<T>(wide[s]);
    }
  }

 private:
  template <class Isa, class To> MHA_ALWAYS_INLINE static void row(const float* sums, const float* bias, To* to) {
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index s = 0; s < block_side; s += W) {
      simd::vector_t<float, Isa> x;
      simd::load(x, sums + s);
      if (bias != nullptr) {
        simd::vector_t<float, Isa> y;
        simd::load(y, bias + s);
        x = x + y;
      }
      if constexpr (std::is_same_v<To, float>)
        simd::store(to + s, x);
      else
        store_nearest<Isa>(x, to + s);
    }
  }
};

/// c[i] (M, Nᵢ) = a (M, K) · weights[i] (K, Nᵢ) + bias, for matrices of one K.
///
/// As many rows as keep every worker busy are packed, then tasks of 256 × 128 sums run on the array; and so on down a.
/// A task goes through the depth in steps; what it has summed waits in the second-level cache, where its rows are too.
template <class Array, class Precision, class T> class ArrayProduct {
 public:
  ArrayProduct(const TensorView<const T, 2>& a, std::span<const WeightTiles> weights,
               std::span<const TensorView<T, 2>> c)
      : a_(a), weights_(weights), c_(c), unit_(dense_unit<Array>()), level_(current_isa()) {
    for (const WeightTiles& w : weights) column_groups_ += groups(w);
  }

  template <class Threads> void run(Workspace& workspace, const Threads& threads) {
    const Index m = a_.extent[0], k = a_.extent[1];
    double columns = 0;
    for (const WeightTiles& w : weights_) columns += w.n;
    const bool alone = 1.0 * strips(m) * tile_side * k * columns < enough_work;
    const Index workers = alone ? 1 : threads.workers();
    const Index together = std::min(m, group_rows * std::max<Index>(2, workers));
    auto frame = workspace.frame();
    float* const sums = frame.take<float>(std::size_t{group_sums} * static_cast<std::size_t>(workers));
    part_size_ = packed_size(together, k);
    rows_ = frame.take<bfloat16>(part_size_ * std::size_t{Used::parts});
    for (first_ = 0; first_ < m; first_ += together) {
      const Index rows = std::min(together, m - first_);
      run_tasks(alone || m <= block_side, threads, strips(rows), [&](Index strip, Index) {
        bfloat16* const to = rows_ + panel_size(k) * static_cast<std::size_t>(strip / 2) + strip % 2 * tile_size;
        pack_strip<Used::parts>(a_, first_ / tile_side + strip, to, part_size_);
      });
      const Index row_groups = (rows + group_rows - 1) / group_rows;
      run_tasks(alone, threads, row_groups * column_groups_, [&](Index task, Index worker) {
        Index matrix = 0, group = task % column_groups_;
        while (group >= groups(weight(matrix))) group -= groups(weight(matrix++));
        multiply(task / column_groups_, group, weight(matrix), c_[static_cast<std::size_t>(matrix)],
                 sums + std::ptrdiff_t{worker} * group_sums);
      });
    }
  }

 private:
  using Used = EffectivePrecision<T, Precision>;
  static constexpr Index group_rows = 256, group_columns = 128;  ///< sums of a task
  static constexpr Index group_sums = group_rows * group_columns;
  static constexpr Index step_tiles = round_up(32, std::max<Index>(1, Array::depth / tile_depth));  ///< whole passes

  const WeightTiles& weight(Index matrix) const { return weights_[static_cast<std::size_t>(matrix)]; }
  static Index groups(const WeightTiles& w) { return (w.n + group_columns - 1) / group_columns; }

  void multiply(Index row_group, Index column_group, const WeightTiles& w, const TensorView<T, 2>& c,
                float* sums) const {
    const Index i_begin = first_ + row_group * group_rows, rows = std::min(group_rows, c.extent[0] - i_begin);
    const Index j_begin = column_group * group_columns, columns = std::min(group_columns, w.n - j_begin);
    const Index tiles = depth_tiles(w.k);
    // Where the weights pass by once, nothing is kept for a second row.
    const Index step = c.extent[0] <= block_side ? std::max<Index>(tiles, 1) : step_tiles;
    if (tiles == 0) std::fill_n(sums, group_sums, 0.f);
    {
      const UnitScope scope(unit_.unit);
      bool add = false;
      for (const PartProduct& part : Used::products)
        for (Index k = 0; k < tiles; k += step, add = true)
          for (Index j = 0; j < columns; j += block_side)
            for (Index i = 0; i < rows; i += block_side)
              unit_.multiply({activations(part.a, i_begin - first_ + i, k), tile_size,
                              weight_pairs(w, part.b, j_begin + j, k), block(sums, i, j),
                              std::min<Index>(2, strips(rows - i)), std::min(step, tiles - k), add, 2 * tile_size,
                              tile_depth, std::min(block_side, rows - i)});
    }
    for (Index j = 0; j < columns; j += block_side)
      for (Index i = 0; i < rows; i += block_side)
        simd::with_isa(level_, [&](auto isa) {
          isa.template run<Finish<T>>(static_cast<const float*>(block(sums, i, j)),
                                      w.bias == nullptr ? nullptr : w.bias + j_begin + j, &c, i_begin + i, j_begin + j);
        });
    for (std::size_t product = 0; product < std::size(Used::products); ++product)
      count_use(array_use<Array>(rows, columns, w.k));
  }

  /// The sums of rows from i and columns from j of a task, both multiples of 32.
  static float* block(float* sums, Index i, Index j) { return sums + (j * group_rows + i * block_side); }
  /// Where tile k of the depth lies of the panel of a row or column.
  static std::size_t at(Index side, Index depth, Index k) {
    return panel_size(depth) * static_cast<std::size_t>(side / block_side) +
           panel_size(tile_depth) * static_cast<std::size_t>(k);
  }
  const bfloat16* activations(Index part, Index row, Index k) const {
    return rows_ + part_size_ * static_cast<std::size_t>(part) + at(row, a_.extent[1], k);
  }
  static const std::uint32_t* weight_pairs(const WeightTiles& w, Index part, Index column, Index k) {
    return reinterpret_cast<const std::uint32_t*>(w.tiles + w.part_size * static_cast<std::size_t>(part) +
                                                  at(column, w.k, k));
  }

  const TensorView<const T, 2> a_;
  const std::span<const WeightTiles> weights_;
  const std::span<const TensorView<T, 2>> c_;
  const ProductUnit unit_;
  const IsaLevel level_;
  Index column_groups_ = 0;
  Index first_ = 0;  ///< the first of the rows that are packed now
  std::size_t part_size_ = 0;
  bfloat16* rows_ = nullptr;
};

/// c[i] = a · matrices + bias on the array.
template <class Array, class Precision, class T, class Threads>
void multiply(const TensorView<const T, 2>& a, std::span<const WeightTiles> weights,
              std::span<const TensorView<T, 2>> c, Workspace& workspace, const Threads& threads) {
  if (a.extent[0] > 0) ArrayProduct<Array, Precision, T>(a, weights, c).run(workspace, threads);
}

/// A product whose weights are packed for this call alone.
template <class Array, class Precision, class T, class Threads>
void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  const Index k = call.b.extent[0], n = call.b.extent[1];
  if (call.c.extent[0] == 0 || n == 0) return;
  auto frame = workspace.frame();
  bfloat16* const tiles =
      frame.take<bfloat16>(packed_size(n, k) * std::size_t{EffectivePrecision<T, Precision>::parts});
  float* const bias = frame.take<float>(static_cast<std::size_t>(panels(n) * block_side));
  const WeightTiles weights = pack_weights<Precision>(DenseWeights<T>{call.b, call.bias}, tiles, bias, threads);
  multiply<Array, Precision>(call.a, std::span(&weights, 1), std::span(&call.c, 1), workspace, threads);
}

/// A product by weights packed before.
template <class Array, class Precision, class T, class Threads>
void gemm(const PackedGemmCall<T, PackedWeights<T, Precision>>& call, Workspace& workspace, const Threads& threads) {
  multiply<Array, Precision>(call.a,
                             call.weights.matrices().subspan(static_cast<std::size_t>(call.first), call.c.size()),
                             call.c, workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
