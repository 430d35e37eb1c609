// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../core/scalar.hpp"
#include "machine.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// The parts of sums, added in order.
///
/// Shapes    from (parts, size)  to (size), or rows of `columns` of them, or elements (extent) of these strides
/// Grid      blocks of 128 sums
template <class A> struct PartSumParams {
  const LongSum<A>* from = nullptr;
  Index parts = 1;
  std::ptrdiff_t size = 0;
  LongSum<A>* to = nullptr;
  A* elements = nullptr;
  std::ptrdiff_t stride[4] = {};
  Index extent[4] = {};
  std::ptrdiff_t columns = 0, pitch = 0;  ///< of `to`, where its rows lie apart
};
struct PartSumShape {
  static constexpr int threads = 128;
};
template <class Machine, class A> MHA_KERNEL void part_sum_body(Machine& m, const PartSumParams<A>& p) {
  const std::ptrdiff_t i = std::ptrdiff_t{m.block().x} * PartSumShape::threads + m.thread();
  if (i >= p.size) return;
  LongSum<A> sum(0);
  for (Index part = 0; part < p.parts; ++part) sum += p.from[part * p.size + i];
  if (p.elements == nullptr) {
    m.store_global(p.to + (p.columns > 0 ? i / p.columns * p.pitch + i % p.columns : i), sum);
    return;
  }
  std::ptrdiff_t rest = i, at = 0;
  MHA_UNROLL for (int a = 3; a >= 0; --a) {
    at += rest % p.extent[a] * p.stride[a];
    rest /= p.extent[a];
  }
  m.store_global(p.elements + at, static_cast<A>(sum));
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
