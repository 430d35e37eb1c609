// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../norm.hpp"
#include "machine.hpp"
#include "plan.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// A block of norm_body: a row for each warp.
struct NormShape {
  static constexpr int rows = 4, threads = rows * warp_size;
};

/// The sum of the lanes' numbers, in every lane.
template <class Machine, class A> MHA_KERNEL A sum_of_warp(Machine& m, A x) {
  MHA_UNROLL for (int other = 1; other < warp_size; other *= 2) x += m.shuffle_xor(x, other);
  return x;
}

/// What a norm takes from a row of so many numbers at(j), in every lane: the lanes read neighbours, twice.
template <class A, class Machine, class At>
MHA_KERNEL mha::detail::RowMoments<A> moments_of_row(Machine& m, Index width, bool centred, const A& eps, Index lane,
                                                     const At& at) {
  A mean = A(0), rest = A(0), square = A(0);
  if (centred) {
    const A first = at(0);
    for (Index j = lane; j < width; j += warp_size) mean += at(j) - first;
    mean = first + sum_of_warp(m, mean) / A(width);
  }
  for (Index j = lane; j < width; j += warp_size) {
    const A difference = at(j) - mean;
    rest += difference;
    square = m.fma(difference, difference, square);
  }
  rest = sum_of_warp(m, rest);
  square = sum_of_warp(m, square);
  return mha::detail::moments_of_sums(width, centred, eps, mean, rest, square);
}

/// The norm of rows: a warp's lanes read neighbours, three times, of which the second and third come from a cache.
///
/// Grid      tiles of 4 rows of all sequences
/// Numerics  as RowMoments, each lane's sums in one chain; the same bits on every device
template <class Machine, class T> MHA_KERNEL void norm_body(Machine& m, const NormCall<T>& call) {
  using A = Accumulator<T>;
  const std::ptrdiff_t row = std::ptrdiff_t{m.block().x} * NormShape::rows + m.thread() / warp_size;
  if (row >= std::ptrdiff_t{call.x.extent[0]} * call.x.extent[1]) return;
  const Index b = static_cast<Index>(row / call.x.extent[1]), l = static_cast<Index>(row % call.x.extent[1]);
  const Index width = call.x.extent[2], lane = m.thread() % warp_size;
  const auto moments = moments_of_row<A>(m, width, call.centred, call.eps, lane,
                                         [&](Index j) { return mha::detail::norm_input(call, b, l, j); });
  for (Index j = lane; j < width; j += warp_size) {
    const A z = mha::detail::norm_input(call, b, l, j);
    m.store_global(&call.y(b, l, j), T(moments.normed(z) * call.weight[j] + call.bias[j]));
    if (call.sum.data != nullptr) m.store_global(&call.sum(b, l, j), T(z));
  }
}

struct NormKernel {
  static constexpr const char* name = "norm";
  static constexpr int threads = NormShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class T> MHA_KERNEL static void run(Machine& m, const NormCall<T>& call) {
    norm_body(m, call);
  }
};

/// Launches the norm; a launcher is as launch_attend() has it.
///
/// Errors    ShapeError if the call has more blocks than a grid
template <class T, class Launcher> void normalize(const NormCall<T>& call, Launcher&& launcher) {
  const std::int64_t rows = std::int64_t{call.x.extent[0]} * call.x.extent[1];
  const Index grid = detail::checked_grid((rows + NormShape::rows - 1) / NormShape::rows, NormShape::threads, "norm");
  if (grid > 0) launcher.template launch<NormKernel>({grid, 1, 1}, 0, call);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
