// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "../../core/scalar.hpp"
#include "../../core/tensor.hpp"
#include "../executor.hpp"
#include "../simd/isa.hpp"
#include "../simd/widen.hpp"
#include "product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// Matrices as the kernels read them: panel after panel, each (K, panel_columns) in a row, every part from a panel of
/// its own. 16-bit storage stays 16 bit and is widened in registers, and so are the integers of scaled_int8 and
/// scaled_int4, with a scale for each column of weights_per_scale rows; biases are accumulators.
///
/// Memory    the matrices' own size, the last panel of each part filled up with zeros
template <class T> class PackedWeights {
  using A = Accumulator<T>;

 public:
  /// From T, or of integers from what they are rounded from.
  template <class W, class Threads> PackedWeights(std::span<const DenseWeights<W>> parts, const Threads& threads) {
    Index panels = 0;
    for (const DenseWeights<W>& w : parts) {
      const bool has_bias = w.bias.data != nullptr;
      parts_.push_back({w.matrix.extent[0], w.matrix.extent[1], panels, weight_count_, bias_count_, has_bias});
      const Index own = panels_of<T>(w.matrix.extent[1]);
      weight_count_ += panel_size(w.matrix.extent[0]) * static_cast<std::size_t>(own);
      bias_count_ += has_bias ? static_cast<std::size_t>(own) * row_size : 0;
      panels += own;
    }
    panels_ = panels;
    weights_ = aligned_array<T>(weight_count_);
    biases_ = aligned_array<A>(bias_count_);
    write(parts, threads);
  }

  /// Other weights in their place; false, and nothing is written, if they have other shapes.
  template <class Threads> bool rewrite(std::span<const DenseWeights<T>> parts, const Threads& threads) {
    const auto fits = [](const Part& part, const DenseWeights<T>& w) {
      return part.depth == w.matrix.extent[0] && part.columns == w.matrix.extent[1] &&
             part.has_bias == (w.bias.data != nullptr);
    };
    if (!std::equal(parts_.begin(), parts_.end(), parts.begin(), parts.end(), fits)) return false;
    write(parts, threads);
    return true;
  }

  /// to = the matrix of a part, in U, T or its accumulator.
  ///
  /// Shapes    to (K, columns), in rows
  template <class U, class Threads>
  void unpack(Index part, const TensorView<U, 2>& to, IsaLevel level, const Threads& threads) const {
    const Part& own = of(part);
    const auto task = [&](Index p, Index) {
      const Index first = p * panel_columns<T>, count = std::min(panel_columns<T>, own.columns - first);
      if constexpr (is_rounded<T>) {
        constexpr Index few = 32;  // rows, of one group
        static_assert(simd::panel_group<T> % few == 0);
        U rows[std::size_t{few * panel_columns<T>}];
        for (Index k = 0; k < own.depth; k += few) {
          const Index n = std::min(few, own.depth - k);
          const T* const group = panel(part, p, k / simd::panel_group<T> * simd::panel_group<T>);
          simd::widen_panel<U, T>(level, panel(part, p, k), group - simd::panel_lead<T>, n, rows);
          for (Index i = 0; i < n; ++i) std::copy_n(rows + i * panel_columns<T>, count, &to(k + i, first));
        }
      } else {
        for (Index k = 0; k < own.depth; ++k) {
          const T* const from = panel(part, p, k);
          if constexpr (std::is_same_v<T, U>)
            std::copy_n(from, count, &to(k, first));
          else
            simd::widen<U, T>(level, from, 0, 1, count, &to(k, first));
        }
      }
    };
    const bool alone = panel_size(own.depth) * static_cast<std::size_t>(panels_of<T>(own.columns)) < enough_weights;
    run_tasks(alone, threads, panels_of<T>(own.columns), task);
  }

  std::size_t bytes() const { return weight_count_ * sizeof(T) + bias_count_ * sizeof(A); }

  /// Rows of panel p of a part, from row k on; of scaled_int4 the first of a group.
  const T* panel(Index part, Index p, Index k) const { return weights_.get() + at(of(part), p, k); }
  /// The biases of panel p of a part, null for none.
  const A* bias(Index part, Index p) const {
    return of(part).has_bias ? biases_.get() + of(part).biases + static_cast<std::size_t>(p) * row_size : nullptr;
  }

 private:
  struct Part {
    Index depth, columns, first_panel;
    std::size_t weights, biases;  // where they begin
    bool has_bias;
  };

  template <class W, class Threads> void write(std::span<const DenseWeights<W>> parts, const Threads& threads) {
    const auto task = [&](Index panel, Index) {
      std::size_t part = parts.size() - 1;
      while (parts_[part].first_panel > panel) --part;
      pack(parts[part], parts_[part], panel - parts_[part].first_panel);
    };
    run_tasks(weight_count_ < enough_weights, threads, panels_, task);
  }

  static constexpr std::size_t row_size = panel_columns<T>;
  static std::size_t panel_size(Index depth) { return static_cast<std::size_t>(simd::panel_elements<T>(depth)); }

  const Part& of(Index part) const { return parts_[static_cast<std::size_t>(part)]; }
  static std::size_t at(const Part& part, Index p, Index k) {
    return part.weights + static_cast<std::size_t>(p) * panel_size(part.depth) +
           static_cast<std::size_t>(simd::panel_row_at<T>(k));
  }

  template <class W> void pack(const DenseWeights<W>& from, const Part& part, Index p) {
    if constexpr (std::is_same_v<W, T>)
      copy_panel(from.matrix, p, 0, part.depth, weights_.get() + at(part, p, 0));
    else
      for (Index k = 0; k < part.depth; k += depth_block)
        quantize_panel(from.matrix, p, k, std::min(depth_block, part.depth - k), weights_.get() + at(part, p, k));
    if (!part.has_bias) return;
    A* const to = biases_.get() + part.biases + static_cast<std::size_t>(p) * row_size;
    const Index first = p * panel_columns<T>, count = std::min(panel_columns<T>, from.bias.extent[0] - first);
    for (Index j = 0; j < count; ++j) to[j] = static_cast<A>(from.bias(first + j));
  }

  std::vector<Part> parts_;
  Index panels_ = 0;
  std::size_t weight_count_ = 0, bias_count_ = 0;
  std::unique_ptr<T[], AlignedDelete> weights_;
  std::unique_ptr<A[], AlignedDelete> biases_;
};

/// Parts first, first + 1, … as the columns of a product.
template <class T> struct PackedColumns {
  const PackedWeights<T>& weights;
  Index first;

  const T* panel(Index part, Index p, Index k, Index, T*) const { return weights.panel(first + part, p, k); }
  const Accumulator<T>* bias(Index part, Index p) const { return weights.bias(first + part, p); }
  static constexpr const TensorView<const T, 2>* rows() { return nullptr; }
  static constexpr bool uses_scratch() { return false; }
};

/// A product of rows of T by weights stored in W.
template <class T, class W, class Threads>
void gemm(const PackedGemmCall<T, PackedWeights<W>>& call, Workspace& workspace, const Threads& threads,
          const simd::AnyEpilogue<T>& epilogue = {}) {
  const PackedColumns<W> columns{call.weights, call.first};
  multiply(call.a, AnyColumns<W>(columns), call.c, workspace, threads, epilogue);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
