// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "../../core/copy.hpp"
#include "../../core/workspace.hpp"
#include "../executor.hpp"
#include "../norm.hpp"
#include "isa.hpp"
#include "vector.hpp"
#include "widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows of a NormCall, elements side by side in each.
template <class A, class T> struct NormArgs {
  const T* x;
  const T* residual;  // null for none
  T* y;
  T* sum;  // null for none
  std::ptrdiff_t x_stride, residual_stride, y_stride, sum_stride;
  Index rows, width;
  const A *weight, *bias;
  A eps;
  bool centred;
  A* scratch;  // (width), if T is not A or there is a residual
};
template <class A, class T> using NormKernel = void (*)(NormArgs<A, T>);

/// The norm row by row: the sum with the residual, its mean, the differences to it, the result; every pass but the
/// first reads a row that is in the cache.
template <class A, class T> struct NormBody {
  /// What is left of a row after its whole registers, `filler` behind it.
  template <class Isa> MHA_ALWAYS_INLINE static void load_rest(vector_t<A, Isa>& v, const A* from, Index n, A filler) {
    A numbers[std::size_t{Vector<A, Isa>::width}];
    for (Index i = 0; i < Vector<A, Isa>::width; ++i) numbers[i] = i < n ? from[i] : filler;
    load(v, +numbers);
  }

  template <class Isa> MHA_ALWAYS_INLINE static A total(const vector_t<A, Isa>& sums) {
    constexpr int W = Vector<A, Isa>::width;
    A lanes[std::size_t{W}];
    store(+lanes, sums);
    MHA_UNROLL_8
    for (int half = W / 2; half > 0; half /= 2) {
      MHA_UNROLL_8
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

  /// The row to be normed: x itself, or x + residual in the scratch.
  template <class Isa> MHA_ALWAYS_INLINE static const A* row_of(const NormArgs<A, T>& p, Index i) {
    constexpr int W = Vector<A, Isa>::width;
    const T* const x = p.x + i * p.x_stride;
    if constexpr (std::is_same_v<A, T>)
      if (p.residual == nullptr) return x;
    const T* const residual = p.residual == nullptr ? nullptr : p.residual + i * p.residual_stride;
    T* const sum = p.sum == nullptr ? nullptr : p.sum + i * p.sum_stride;
    Index j = 0;
    for (; j + W <= p.width; j += W) {
      vector_t<A, Isa> z;
      load_widened<A, Isa>(z, x + j);
      if (residual != nullptr) {
        vector_t<A, Isa> r;
        load_widened<A, Isa>(r, residual + j);
        z = z + r;
      }
      store(p.scratch + j, z);
      if (sum != nullptr) store_narrowed<A, Isa>(sum + j, z);
    }
    for (; j < p.width; ++j) {
      const A z = residual == nullptr ? A(x[j]) : A(x[j]) + A(residual[j]);
      p.scratch[j] = z;
      if (sum != nullptr) sum[j] = T(z);
    }
    return p.scratch;
  }

  template <class V, bool Squares> MHA_ALWAYS_INLINE static void add(const V& z, const V& from, V& sum, V& square) {
    const V difference = z - from;
    sum = sum + difference;
    if constexpr (Squares) multiply_add<true>(square, difference, difference);
  }
  template <bool Squares, class V> MHA_ALWAYS_INLINE static void add_at(const A* at, const V& from, V& sum, V& square) {
    V z;
    load(z, at);
    add<V, Squares>(z, from, sum, square);
  }

  /// Sums of differences to a number, and of their squares, in four chains with names: g++ would keep an array of them
  /// in memory.
  template <class Isa, bool Squares>
  MHA_ALWAYS_INLINE static void add_up(const A* row, Index width, A from, A& sum, A& square) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    V origin, s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
    broadcast(origin, from);
    Index j = 0;
    for (; j + 4 * W <= width; j += 4 * W) {
      add_at<Squares>(row + j, origin, s0, q0);
      add_at<Squares>(row + j + W, origin, s1, q1);
      add_at<Squares>(row + j + 2 * W, origin, s2, q2);
      add_at<Squares>(row + j + 3 * W, origin, s3, q3);
    }
    if (j + 2 * W <= width) {
      add_at<Squares>(row + j, origin, s0, q0);
      add_at<Squares>(row + j + W, origin, s1, q1);
      j += 2 * W;
    }
    if (j + W <= width) {
      add_at<Squares>(row + j, origin, s2, q2);
      j += W;
    }
    if (j < width) {
      V z;
      load_rest<Isa>(z, row + j, width - j, from);
      add<V, Squares>(z, origin, s3, q3);
    }
    sum = total<Isa>((s0 + s1) + (s2 + s3));
    if constexpr (Squares) square = total<Isa>((q0 + q1) + (q2 + q3));
  }

  /// Of a row: the mean, 0 if it is not centred, and what makes z its result (z − centre) · scale − correction.
  template <class Isa>
  MHA_ALWAYS_INLINE static void measure(const A* row, Index width, bool centred, A eps, A& mean,
                                        vector_t<A, Isa>& centre, vector_t<A, Isa>& correction,
                                        vector_t<A, Isa>& scale) {
    const A per_element = A(1) / A(width);
    A rest, square;
    mean = A(0);
    if (centred) {
      const A first = row[0];
      add_up<Isa, false>(row, width, first, mean, square);
      mean = first + mean * per_element;
    }
    add_up<Isa, true>(row, width, mean, rest, square);
    rest = centred ? rest * per_element : A(0);
    square = square * per_element - rest * rest;
    const A under = (square < A(0) ? A(0) : square) + eps;
    const A inverse = under == A(0) ? A(0) : A(1) / std::sqrt(under);
    broadcast(centre, mean);
    broadcast(correction, rest * inverse);
    broadcast(scale, inverse);
  }

  template <class Isa> MHA_ALWAYS_INLINE static void run(NormArgs<A, T> p) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    for (Index i = 0; i < p.rows; ++i) {
      const A* const row = row_of<Isa>(p, i);
      A mean;
      V centre, correction, scale;
      measure<Isa>(row, p.width, p.centred, p.eps, mean, centre, correction, scale);
      T* const y = p.y + i * p.y_stride;
      V z, weight, bias;
      Index j = 0;
      for (; j + W <= p.width; j += W) {
        load(z, row + j);
        load(weight, p.weight + j);
        load(bias, p.bias + j);
        store_narrowed<A, Isa>(y + j, V(((z - centre) * scale - correction) * weight + bias));
      }
      if (j < p.width) {
        const Index left = p.width - j;
        load_rest<Isa>(z, row + j, left, mean);
        load_rest<Isa>(weight, p.weight + j, left, A(0));
        load_rest<Isa>(bias, p.bias + j, left, A(0));
        A numbers[std::size_t{W}];
        store(+numbers, V(((z - centre) * scale - correction) * weight + bias));
        for (Index k = 0; k < left; ++k) y[j + k] = T(numbers[k]);
      }
    }
  }
};

template <class A, class T> NormKernel<A, T> norm_kernel(IsaLevel level) {
  return with_isa(
      level, [](auto isa) -> NormKernel<A, T> { return &decltype(isa)::template run<NormBody<A, T>, NormArgs<A, T>>; });
}

/// Rows shared among the threads where they are work enough. The bits of a row depend on nothing but the row, the
/// parameters and the level.
template <class T, class Threads>
void normalize(const NormCall<T>& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  constexpr double enough = 1 << 18;  // numbers; below, waking threads takes longer than the work
  constexpr Index tasks_per_worker = 4;
  auto frame = workspace.frame();
  const auto read = [&](const TensorView<const T, 3>& v) {
    if (v.data == nullptr || v.stride[2] == 1 || v.extent[2] <= 1) return v;
    const auto rows = take_like<T>(frame, v);
    run_items(copy_items(v, rows), threads);
    return TensorView<const T, 3>(rows);
  };
  const auto written = [&](const TensorView<T, 3>& v) {
    return v.data == nullptr || v.stride[2] == 1 || v.extent[2] <= 1 ? v : take_like<T>(frame, v);
  };
  const auto x = read(call.x), residual = read(call.residual);
  const auto y = written(call.y), sum = written(call.sum);

  const Index length = x.extent[1], width = x.extent[2], rows = x.extent[0] * length;
  const bool alone = double(rows) * width < enough;
  const Index workers = alone ? 1 : threads.workers(), tasks = alone ? 1 : std::min(rows, tasks_per_worker * workers);
  const bool staged = !std::is_same_v<T, A> || residual.data != nullptr;
  const std::size_t row = (static_cast<std::size_t>(width) + 15) / 16 * 16;  // whole lines of the cache
  A* const scratch = staged ? frame.template take<A>(row * static_cast<std::size_t>(workers)) : nullptr;
  const NormKernel<A, T> kernel = norm_kernel<A, T>(current_isa());
  run_tasks(alone, threads, tasks, [&](Index task, Index worker) {
    const Index end = static_cast<Index>(std::ptrdiff_t{rows} * (task + 1) / tasks);
    for (Index r = static_cast<Index>(std::ptrdiff_t{rows} * task / tasks), n; r < end; r += n) {
      const Index b = r / length, l = r % length;
      n = std::min(end - r, length - l);
      kernel({x.pointer(b, l, 0), residual.data == nullptr ? nullptr : residual.pointer(b, l, 0), y.pointer(b, l, 0),
              sum.data == nullptr ? nullptr : sum.pointer(b, l, 0), x.stride[1], residual.stride[1], y.stride[1],
              sum.stride[1], n, width, call.weight, call.bias, call.eps, call.centred,
              staged ? scratch + row * static_cast<std::size_t>(worker) : nullptr});
    }
  });
  if (y.data != call.y.data) run_items(copy_items(TensorView<const T, 3>(y), call.y), threads);
  if (sum.data != call.sum.data) run_items(copy_items(TensorView<const T, 3>(sum), call.sum), threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
