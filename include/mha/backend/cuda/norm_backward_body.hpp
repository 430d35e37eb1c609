// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../norm_backward.hpp"
#include "machine.hpp"
#include "norm_body.hpp"
#include "plan.hpp"

/// The backward pass of norms of rows: dz, and what the sums over the rows need of each.
namespace mha::inline MHA_NAMESPACE::cuda {

template <class A> struct NormBackwardParams {
  NormBackwardCall<A> call;
  NormRowFacts<A>* facts;
};

/// dz and the facts of rows: a warp's lanes read neighbours, as those of norm_body.
///
/// Grid      tiles of 4 rows
/// Numerics  as NormBackwardCall, each lane's sums in one chain; the same bits on every device
template <class Machine, class A> MHA_KERNEL void norm_backward_body(Machine& m, const NormBackwardParams<A>& p) {
  const NormBackwardCall<A>& call = p.call;
  const std::ptrdiff_t row = std::ptrdiff_t{m.block().x} * NormShape::rows + m.thread() / warp_size;
  if (row >= call.z.extent[0]) return;
  const Index width = call.z.extent[1], lane = m.thread() % warp_size;
  bool zero = true;
  for (Index j = lane; j < width; j += warp_size) zero = zero && call.dy(row, j) == A(0);
  const bool counts = !m.all(zero);
  mha::detail::RowMoments<A> moments{A(0), A(0), A(0)};
  if (counts)
    moments = moments_of_row<A>(m, width, call.centred, call.eps, lane, [&](Index j) { return call.z(row, j); });
  if (lane == 0) {
    NormRowFacts<A>* const to = p.facts + row;
    m.store_global(&to->moments.mean, moments.mean);
    m.store_global(&to->moments.rest, moments.rest);
    m.store_global(&to->moments.inverse, moments.inverse);
    m.store_global(&to->counts, counts ? A(1) : A(0));
  }
  A along(0), level(0);
  if (counts)
    for (Index j = lane; j < width; j += warp_size) {
      const A g = call.dy(row, j) * call.weight[j];
      along = m.fma(g, moments.normed(call.z(row, j)), along);
      level += g;
    }
  along = sum_of_warp(m, along) / A(width);
  level = call.centred ? A(sum_of_warp(m, level) / A(width)) : A(0);
  for (Index j = lane; j < width; j += warp_size) {
    const A g = call.dy(row, j) * call.weight[j];
    m.store_global(&call.dz(row, j),
                   counts ? A((g - level - moments.normed(call.z(row, j)) * along) * moments.inverse) : A(0));
  }
}

struct NormBackwardKernel {
  static constexpr const char* name = "norm backward";
  static constexpr int threads = NormShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class A> MHA_KERNEL static void run(Machine& m, const NormBackwardParams<A>& p) {
    norm_backward_body(m, p);
  }
};

/// Launches it; a launcher is as launch_attend() has it.
///
/// Errors    ShapeError if the call has more blocks than a grid
template <class A, class Launcher>
void normalize_backward(const NormBackwardCall<A>& call, NormRowFacts<A>* facts, Launcher&& launcher) {
  const std::int64_t rows = call.z.extent[0];
  const Index grid =
      detail::checked_grid((rows + NormShape::rows - 1) / NormShape::rows, NormShape::threads, "norm backward");
  if (grid > 0) launcher.template launch<NormBackwardKernel>({grid, 1, 1}, 0, NormBackwardParams<A>{call, facts});
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
