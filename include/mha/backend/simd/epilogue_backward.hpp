// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../policy/activation_derivative.hpp"
#include "../epilogue_backward.hpp"
#include "../executor.hpp"
#include "isa.hpp"
#include "vector.hpp"

/// The backward pass of what happens to the sums of a product. As in epilogue.hpp, the functor is known to its own
/// kernels alone.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows of an EpilogueBackwardCall: (n, columns), those of sum and gate sums_stride apart, those of d_sum and d_gate
/// to_stride.
template <class A> struct DerivativeArgs {
  const void* activation;
  const A *sum, *gate, *dy;  // gate null for none
  A *d_sum, *d_gate;
  std::ptrdiff_t sums_stride, dy_stride, to_stride;
  Index n, columns;
};
template <class A> using DerivativeKernel = void (*)(DerivativeArgs<A>);

/// Element by element as the formula is written, by the same instructions wherever an element stands; numbers go
/// through arrays of the body's own as in ActivationBody.
template <class A, class F> struct DerivativeBody {
  template <class Isa> MHA_ALWAYS_INLINE static void read(A* to, const A* from, Index count) {
    constexpr int W = Vector<A, Isa>::width;
    if (count == W) {
      vector_t<A, Isa> v;
      load(v, from);
      store(to, v);
    } else {
      for (Index k = 0; k < W; ++k) to[k] = k < count ? from[k] : A(0);
    }
  }
  template <class Isa> MHA_ALWAYS_INLINE static void write(A* to, const A* from, Index count) {
    constexpr int W = Vector<A, Isa>::width;
    if (count == W) {
      vector_t<A, Isa> v;
      load(v, from);
      store(to, v);
    } else {
      for (Index k = 0; k < count; ++k) to[k] = from[k];
    }
  }

  template <class Isa> MHA_FLATTEN static void run(DerivativeArgs<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    LocalCopy<F> activation = *static_cast<const F*>(p.activation);
    for (Index i = 0; i < p.n; ++i)
      for (Index j = 0; j < p.columns; j += W) {
        const Index count = std::min(Index{W}, p.columns - j);
        alignas(64) A x[std::size_t{W}];
        alignas(64) A d[std::size_t{W}];
        alignas(64) A y[std::size_t{W}];
        read<Isa>(+d, p.dy + i * p.dy_stride + j, count);
        if (p.gate == nullptr) {
          read<Isa>(+x, p.sum + i * p.sums_stride + j, count);
          for (int k = 0; k < W; ++k) y[k] = gradient_times(d[k], derivative_at(activation, x[k]));
        } else {
          alignas(64) A other[std::size_t{W}];
          read<Isa>(+x, p.gate + i * p.sums_stride + j, count);
          read<Isa>(+other, p.sum + i * p.sums_stride + j, count);
          for (int k = 0; k < W; ++k) y[k] = gradient_times(d[k], A(other[k] * derivative_at(activation, x[k])));
          write<Isa>(p.d_gate + i * p.to_stride + j, +y, count);
          for (int k = 0; k < W; ++k) y[k] = gradient_times(d[k], static_cast<A>(activation(x[k])));
        }
        write<Isa>(p.d_sum + i * p.to_stride + j, +y, count);
      }
  }
};

/// The derivative of an activation that has lost its type, which must outlive this.
template <class A> struct AnyDerivative {
  const void* activation;
  DerivativeKernel<A> kernel;

  template <class F> AnyDerivative(const F& f, IsaLevel level) : activation(&f) {
    kernel = with_isa(level, [](auto isa) -> DerivativeKernel<A> {
      return &decltype(isa)::template run<DerivativeBody<A, F>, DerivativeArgs<A>>;
    });
  }
};

/// The tensors of an EpilogueBackwardCall whose activation has lost its type, rows shared among the threads where they
/// are work enough.
template <class A, class Threads>
void differentiate(const AnyDerivative<A>& derivative, const EpilogueBackwardCall<A, Identity>& call,
                   const Threads& threads) {
  constexpr double enough = 1 << 14;  // numbers; below, waking threads takes longer than the work
  constexpr Index tasks_per_worker = 4;
  const Index rows = call.sum.extent[0], columns = call.sum.extent[1];
  const bool alone = double(rows) * columns < enough;
  const Index tasks = alone ? 1 : std::min(rows, tasks_per_worker * threads.workers());
  run_tasks(alone, threads, tasks, [&](Index task, Index) {
    const auto first = [&](Index t) { return static_cast<Index>(std::int64_t{rows} * t / tasks); };
    const std::ptrdiff_t row = first(task);
    const auto at = [row](const auto& v) { return v.data == nullptr ? nullptr : v.data + row * v.stride[0]; };
    derivative.kernel({derivative.activation, at(call.sum), at(call.gate), at(call.dy), at(call.d_sum), at(call.d_gate),
                       call.sum.stride[0], call.dy.stride[0], call.d_sum.stride[0],
                       first(task + 1) - static_cast<Index>(row), columns});
  });
}

/// The gradients of an epilogue's sums.
template <class A, class F, class Threads>
void differentiate(const EpilogueBackwardCall<A, F>& call, IsaLevel level, const Threads& threads) {
  const auto run = [&](const auto& activation) {
    differentiate(AnyDerivative<A>(activation, level), {{}, call.gate, call.sum, call.dy, call.d_gate, call.d_sum},
                  threads);
  };
  if constexpr (is_gated<F>)
    run(call.activation.activation);
  else
    run(call.activation);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
