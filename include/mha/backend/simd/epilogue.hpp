// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../../core/workspace.hpp"
#include "../../policy/activation.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "isa.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// What happens to the sums of a product while they are in the cache. The functor is known to its own kernels alone: no
/// product is compiled for it.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Sums c (n, columns) of accumulators, and those of the gate in rows gate_stride apart; the rows of both hold whole
/// registers, of which what lies beyond the columns may be overwritten.
template <class A> struct ActivationArgs {
  const void* activation;
  A* c;
  std::ptrdiff_t stride;
  const A* gate;
  std::ptrdiff_t gate_stride;
  Index n, columns;
  const A *bias = nullptr, *gate_bias = nullptr;  ///< (columns) added to c and to the gate before; null for none
};
template <class A> using ActivationKernel = void (*)(ActivationArgs<A>);

/// c ← F(c + bias), or F(gate + its bias) ∘ (c + bias), F of every element by the same instructions wherever it stands.
///
/// Numbers go through arrays of the body's own, because what may alias keeps a loop scalar. The body is not marked to
/// be inlined always, as others are: the compilers would then leave a long functor out of line, where it is scalar.
/// For bfloat16 results, a functor with for_bfloat16() computes that instead.
template <class A, class F, bool ForBfloat16 = false> struct ActivationBody {
  template <class Isa> MHA_FLATTEN static void run(ActivationArgs<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    LocalCopy<F> activation = *static_cast<const F*>(p.activation);
    for (Index i = 0; i < p.n; ++i) {
      A* const c = p.c + i * p.stride;
      const A* const from = p.gate != nullptr ? p.gate + i * p.gate_stride : c;
      const A* const bias = p.gate != nullptr ? p.gate_bias : p.bias;
      for (Index j = 0; j < p.columns; j += W) {
        alignas(64) A x[std::size_t{W}];
        alignas(64) A y[std::size_t{W}];
        vector_t<A, Isa> v;
        load(v, from + j);
        add(v, bias, j);
        store(+x, v);
        if constexpr (ForBfloat16)
          for (int k = 0; k < W; ++k) y[k] = activation.for_bfloat16(x[k]);
        else
          for (int k = 0; k < W; ++k) y[k] = static_cast<A>(activation(x[k]));
        load(v, +y);
        if (p.gate != nullptr) {
          vector_t<A, Isa> other;
          load(other, c + j);
          add(other, p.bias, j);
          v = v * other;
        }
        store(c + j, v);
      }
    }
  }

 private:
  template <class V> MHA_ALWAYS_INLINE static void add(V& v, const A* bias, Index j) {
    if (bias == nullptr) return;
    V more;
    load(more, bias + j);
    v = v + more;
  }
};

/// c (n, columns) ← c + residual, which is widened before it is added.
template <class A, class T> struct AddBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* c, std::ptrdiff_t stride, Index n, Index columns, const T* residual,
                                    std::ptrdiff_t row_stride, std::ptrdiff_t column_stride) {
    constexpr int W = Vector<A, Isa>::width;
    for (Index i = 0; i < n; ++i, c += stride, residual += row_stride) {
      Index j = 0;
      for (; column_stride == 1 && j + W <= columns; j += W) {
        vector_t<A, Isa> x, r;
        load(x, c + j);
        load_widened<A, Isa>(r, residual + j);
        x = x + r;
        store(c + j, x);
      }
      for (; j < columns; ++j) c[j] += static_cast<A>(residual[j * column_stride]);
    }
  }
};

/// The epilogue of a product whose activation, which must outlive it, has lost its type.
template <class T> struct AnyEpilogue {
  using A = Accumulator<T>;

  const void* activation = nullptr;
  ActivationKernel<A> activate = nullptr;  ///< null for none
  bool is_gated = false;
  TensorView<const T, 2> residual{};  ///< null data for none

  AnyEpilogue() = default;
  template <class F>
  AnyEpilogue(const Epilogue<T, F>& epilogue, IsaLevel level)
      : is_gated(detail::is_gated<F>), residual(epilogue.residual) {
    if constexpr (detail::is_gated<F>)
      set(epilogue.activation.activation, level);
    else if constexpr (!std::is_same_v<F, Identity>)
      set(epilogue.activation, level);
  }

  /// Whether memory of the residual and of c, which an epilogue would overwrite, may be the same.
  bool reads(const TensorView<T, 2>& c) const {
    if (residual.data == nullptr) return false;
    const auto [first, last] = range(residual);
    const auto [begin, end] = range(c);
    return first <= end && begin <= last;
  }

  /// Finishes sums (n, columns) that belong at (row, column) of c.
  void apply(IsaLevel level, A* c, std::ptrdiff_t stride, const A* gate, std::ptrdiff_t gate_stride, Index row,
             Index column, Index n, Index columns) const {
    if (activate != nullptr) {
      const bool one_run = stride == columns && (gate == nullptr || gate_stride == columns);
      activate({activation, c, stride, gate, gate_stride, one_run ? 1 : n, one_run ? n * columns : columns});
    }
    add_residual(level, c, stride, row, column, n, columns);
  }

  void add_residual(IsaLevel level, A* c, std::ptrdiff_t stride, Index row, Index column, Index n,
                    Index columns) const {
    if (residual.data == nullptr) return;
    const auto add = with_isa(level, [](auto isa) {
      return &decltype(isa)::template run<AddBody<A, T>, A*, std::ptrdiff_t, Index, Index, const T*, std::ptrdiff_t,
                                          std::ptrdiff_t>;
    });
    add(c, stride, n, columns, &residual(row, column), residual.stride[0], residual.stride[1]);
  }

 private:
  template <class F> void set(const F& f, IsaLevel level) {
    constexpr bool for_bfloat16 = std::is_same_v<T, bfloat16> && requires(float x) { f.for_bfloat16(x); };
    activation = &f;
    activate = with_isa(level, [](auto isa) -> ActivationKernel<A> {
      return &decltype(isa)::template run<ActivationBody<A, F, for_bfloat16>, ActivationArgs<A>>;
    });
  }

  struct Range {
    std::uintptr_t first, last;
  };
  /// The addresses of a view's first and last element in memory.
  template <class V> static Range range(const V& view) {
    std::ptrdiff_t low = 0, high = 0;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const std::ptrdiff_t end = view.stride[axis] * (std::max(view.extent[axis], Index{1}) - 1);
      (end < 0 ? low : high) += end;
    }
    const auto data = reinterpret_cast<std::uintptr_t>(view.data);
    constexpr auto size = static_cast<std::ptrdiff_t>(sizeof(T));
    return {data + static_cast<std::uintptr_t>(low * size), data + static_cast<std::uintptr_t>(high * size)};
  }
};

/// to = the epilogue of sums of a product in accumulators, row by row, rounded by `narrow`.
///
/// Shapes    gate, sum, to (M, N), any strides; gate null data unless the epilogue is gated; sum, gate and the residual
///           may be `to` itself, and overlap it in no other way
template <class T, class Threads>
void apply_epilogue(const AnyEpilogue<T>& epilogue, const TensorView<const Accumulator<T>, 2>& gate,
                    const TensorView<const Accumulator<T>, 2>& sum, const TensorView<T, 2>& to, IsaLevel level,
                    Workspace& workspace, const Threads& threads, NarrowKernel<Accumulator<T>, T> narrow) {
  using A = Accumulator<T>;
  constexpr double enough = 1 << 14;  // numbers; below, waking threads takes longer than the work
  constexpr Index tasks_per_worker = 4, whole = 64 / static_cast<Index>(sizeof(A));
  const Index rows = to.extent[0], columns = to.extent[1], width = (columns + whole - 1) / whole * whole;
  if (rows == 0) return;
  const bool alone = double(rows) * columns < enough;
  const Index workers = alone ? 1 : threads.workers(), tasks = alone ? 1 : std::min(rows, tasks_per_worker * workers);
  auto frame = workspace.frame();
  A* const scratch = frame.template take<A>(2 * static_cast<std::size_t>(width) * static_cast<std::size_t>(workers));
  const auto read = [&](const TensorView<const A, 2>& from, Index row, A* into) {
    if (from.stride[1] == 1)
      widen(level, &from(row, 0), 0, 1, columns, into);
    else
      for (Index j = 0; j < columns; ++j) into[j] = static_cast<A>(from(row, j));
  };
  run_tasks(alone, threads, tasks, [&](Index task, Index worker) {
    A *const c = scratch + 2 * std::ptrdiff_t{width} * worker, *const g = c + width;
    std::fill_n(c, 2 * std::ptrdiff_t{width}, A(0));  // what lies beyond the columns is computed, too
    const auto first = [&](Index t) { return static_cast<Index>(std::int64_t{rows} * t / tasks); };
    for (Index row = first(task); row < first(task + 1); ++row) {
      read(sum, row, c);
      if (epilogue.is_gated) read(gate, row, g);
      epilogue.apply(level, c, width, epilogue.is_gated ? g : nullptr, width, row, 0, 1, columns);
      if (to.stride[1] == 1)
        narrow(c, width, 1, columns, &to(row, 0), columns);
      else
        for (Index j = 0; j < columns; ++j) to(row, j) = static_cast<T>(c[j]);
    }
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
