// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../executor.hpp"
#include "../norm_backward.hpp"
#include "isa.hpp"
#include "norm.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// One block of rows of a NormBackwardCall.
template <class A> struct NormBackwardArgs {
  const A *z, *dy;
  A* dz;
  std::ptrdiff_t z_stride, dy_stride, dz_stride;
  Index rows, width;
  const A* weight;
  A *d_weight, *d_bias;  // (width), overwritten
  A eps;
  bool centred;
};
template <class A> using NormBackwardKernel = void (*)(NormBackwardArgs<A>);

/// Row by row: the mean and the differences to it as NormBody has them, the sums along the row, the result. What is
/// left of a row after its whole registers goes through registers filled with zeros.
template <class A> struct NormBackwardBody {
  template <class Isa> using V = vector_t<A, Isa>;

  template <class Isa> MHA_ALWAYS_INLINE static void read(V<Isa>& v, const A* from, Index count, A filler) {
    if (count >= Vector<A, Isa>::width)
      load(v, from);
    else
      NormBody<A, A>::template load_rest<Isa>(v, from, count, filler);
  }
  template <class Isa> MHA_ALWAYS_INLINE static void write(A* to, const V<Isa>& v, Index count) {
    if (count >= Vector<A, Isa>::width) return store(to, v);
    A numbers[std::size_t{Vector<A, Isa>::width}];
    store(+numbers, v);
    for (Index k = 0; k < count; ++k) to[k] = numbers[k];
  }

  template <class Isa> MHA_ALWAYS_INLINE static void run(NormBackwardArgs<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    const A per_element = A(1) / A(p.width);
    std::fill_n(p.d_weight, p.width, A(0));
    std::fill_n(p.d_bias, p.width, A(0));
    for (Index i = 0; i < p.rows; ++i) {
      const A *const z = p.z + i * p.z_stride, *const dy = p.dy + i * p.dy_stride;
      A* const dz = p.dz + i * p.dz_stride;
      Index first = 0;
      while (first < p.width && dy[first] == A(0)) ++first;
      if (first == p.width) {
        std::fill_n(dz, p.width, A(0));
        continue;
      }
      A mean;
      V<Isa> centre, correction, scale, along{}, level{};
      NormBody<A, A>::template measure<Isa>(z, p.width, p.centred, p.eps, mean, centre, correction, scale);
      V<Isa> x, d, weight, sum;
      for (Index j = 0; j < p.width; j += W) {
        const Index count = p.width - j;
        read<Isa>(x, z + j, count, mean);
        read<Isa>(d, dy + j, count, A(0));
        read<Isa>(weight, p.weight + j, count, A(0));
        x = (x - centre) * scale - correction;
        weight = weight * d;
        along = along + weight * x;
        level = level + weight;
        read<Isa>(sum, p.d_weight + j, count, A(0));
        sum = sum + d * x;
        write<Isa>(p.d_weight + j, sum, count);
        read<Isa>(sum, p.d_bias + j, count, A(0));
        sum = sum + d;
        write<Isa>(p.d_bias + j, sum, count);
      }
      V<Isa> mean_along, mean_level;
      broadcast(mean_along, NormBody<A, A>::template total<Isa>(along) * per_element);
      broadcast(mean_level, p.centred ? NormBody<A, A>::template total<Isa>(level) * per_element : A(0));
      for (Index j = 0; j < p.width; j += W) {
        const Index count = p.width - j;
        read<Isa>(x, z + j, count, mean);
        read<Isa>(d, dy + j, count, A(0));
        read<Isa>(weight, p.weight + j, count, A(0));
        x = (x - centre) * scale - correction;
        x = (weight * d - mean_level - x * mean_along) * scale;
        write<Isa>(dz + j, x, count);
      }
    }
  }
};

template <class A> NormBackwardKernel<A> norm_backward_kernel(IsaLevel level) {
  return with_isa(level, [](auto isa) -> NormBackwardKernel<A> {
    return &decltype(isa)::template run<NormBackwardBody<A>, NormBackwardArgs<A>>;
  });
}

/// Blocks of rows shared among the threads where they are work enough; sums as NormBackwardItems has them.
template <class A, class Threads>
void normalize_backward(const NormBackwardCall<A>& call, A* sums, const Threads& threads) {
  constexpr double enough = 1 << 16;  // numbers; below, waking threads takes longer than the work
  const Index rows = call.z.extent[0], width = call.z.extent[1], blocks = (rows - 1) / norm_block + 1;
  const NormBackwardKernel<A> kernel = norm_backward_kernel<A>(current_isa());
  run_tasks(double(rows) * width < enough, threads, blocks, [&](Index block, Index) {
    const std::ptrdiff_t row = std::ptrdiff_t{block} * norm_block;
    A* const own = sums + std::ptrdiff_t{block} * 2 * width;
    kernel({call.z.data + row * call.z.stride[0], call.dy.data + row * call.dy.stride[0],
            call.dz.data + row * call.dz.stride[0], call.z.stride[0], call.dy.stride[0], call.dz.stride[0],
            std::min(norm_block, rows - static_cast<Index>(row)), width, call.weight, own, own + width, call.eps,
            call.centred});
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
