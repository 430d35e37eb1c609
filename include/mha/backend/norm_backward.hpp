// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../core/dual.hpp"
#include "../core/items.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "backend.hpp"
#include "norm.hpp"
#include "row_sums.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The backward pass of a norm of rows z, as NormCall has it.
///
/// Formula   g = dy ∘ weight;  dz = (g − mean(g) − n mean(g ∘ n)) / √(var(z) + eps), without mean(g) unless centred;
///           d_weight += Σ dy ∘ n,  d_bias += Σ dy, over the rows
/// Shapes    z, dy, dz (M, E), rows contiguous  weight, d_weight, d_bias (E), null for no bias; d_weight null too if
///           neither is wanted
/// Numerics  sums over a row in A, over rows in A within 64 and in LongSum<A> above; where a row of dy is exactly
///           0, its dz is 0, and it adds nothing, whatever stands in z
template <class A> struct NormBackwardCall {
  TensorView<const A, 2> z, dy;
  TensorView<A, 2> dz;
  const A* weight = nullptr;
  A *d_weight = nullptr, *d_bias = nullptr;
  A eps{};
  bool centred = false;
};

/// What the gradients of weight and bias take from a row where another pass than that of its dz adds them up.
template <class A> struct NormRowFacts {
  detail::RowMoments<A> moments;
  A counts;  ///< 0 where dy is exactly 0 in all of the row, else 1
};

namespace detail {

/// So many rows add up in A.
inline constexpr Index norm_block = 64;

/// Blocks of rows as items: sums (blocks, 2 E) take those of the parameters' gradients, the bias' second.
template <class A> struct NormBackwardItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  NormBackwardCall<A> call;
  A* sums;

  NormBackwardItems(const NormBackwardCall<A>& c, A* to)
      : rows((c.z.extent[0] - 1) / norm_block + 1),
        columns(1),
        cost(static_cast<Index>(std::min<std::ptrdiff_t>(std::ptrdiff_t{8} * norm_block * c.z.extent[1], 1 << 28))),
        call(c),
        sums(to) {}

  void operator()(std::ptrdiff_t block, Index) const {
    const Index width = call.z.extent[1];
    A* const own = sums + block * 2 * width;
    std::fill_n(own, 2 * std::ptrdiff_t{width}, A(0));
    const auto end = static_cast<Index>(std::min<std::ptrdiff_t>((block + 1) * norm_block, call.z.extent[0]));
    for (Index i = static_cast<Index>(block * norm_block); i < end; ++i) row(i, own, own + width);
  }

 private:
  MHA_HOST_DEVICE void row(Index i, A* d_weight, A* d_bias) const {
    const Index width = call.z.extent[1];
    bool zero = true;
    for (Index j = 0; j < width && zero; ++j) zero = call.dy(i, j) == A(0);
    if (zero) {
      for (Index j = 0; j < width; ++j) call.dz(i, j) = A(0);
      return;
    }
    const auto m = row_moments<A>(width, call.centred, call.eps, [&](Index j) { return call.z(i, j); });
    const auto normed = [&](Index j) { return m.normed(call.z(i, j)); };
    A along(0), level(0);
    for (Index j = 0; j < width; ++j) {
      const A d = call.dy(i, j), n = normed(j), g = d * call.weight[j];
      d_weight[j] += d * n;
      d_bias[j] += d;
      along += g * n;
      level += g;
    }
    along = along / A(width);
    level = call.centred ? A(level / A(width)) : A(0);
    for (Index j = 0; j < width; ++j)
      call.dz(i, j) = A((call.dy(i, j) * call.weight[j] - level - normed(j) * along) * m.inverse);
  }
};

/// A backend with a kernel for blocks of rows.
template <class B, class A>
concept DifferentiatesNorms = requires(const B backend, const NormBackwardCall<A>& call, A* sums) {
  backend.normalize_backward(call, sums);
};

/// A term of the gradient of the weight.
template <class A> struct NormWeightTerm {
  TensorView<const A, 2> z, dy;
  const NormRowFacts<A>* facts;
  MHA_HOST_DEVICE A operator()(std::ptrdiff_t i, Index j) const {
    return facts[i].counts == A(0) ? A(0) : A(dy(i, j) * facts[i].moments.normed(z(i, j)));
  }
};

/// In memory that the host does not reach.
template <class B, class A>
void run_norm_backward_there(const B& backend, const NormBackwardCall<A>& call, typename B::Workspace& workspace) {
  constexpr bool has = requires(NormRowFacts<A> * facts) { backend.normalize_backward(call, facts, workspace); };
  static_assert(has,
                "mha: this backend has memory of its own and no backward pass of norms: it has no member "
                "normalize_backward(call, facts, workspace) (see mha/backend/norm_backward.hpp)");
  if constexpr (has) {
    const Index rows = call.z.extent[0], width = call.z.extent[1];
    auto frame = workspace.frame();
    NormRowFacts<A>* const facts = frame.template take<NormRowFacts<A>>(static_cast<std::size_t>(rows));
    backend.normalize_backward(call, facts, workspace);
    const ItemsOn<B> items{backend, workspace};
    add_column_sums(rows, NormWeightTerm<A>{call.z, call.dy, facts}, TensorView<A, 1>{call.d_weight, {width}, {1}},
                    items);
    add_column_sums(rows, ElementTerm<A>{call.dy}, TensorView<A, 1>{call.d_bias, {width}, {1}}, items);
  }
}

template <class B, class A>
void run_norm_backward_here(const B& backend, const NormBackwardCall<A>& call, typename B::Workspace& workspace) {
  const Index rows = call.z.extent[0], width = call.z.extent[1];
  auto frame = workspace.frame();
  const std::ptrdiff_t blocks = (rows - 1) / norm_block + 1;
  A* const sums = frame.template take<A>(static_cast<std::size_t>(blocks) * 2 * static_cast<std::size_t>(width));
  if constexpr (DifferentiatesNorms<B, A>)
    backend.normalize_backward(call, sums);
  else
    ItemsOn<B>{backend, workspace}(NormBackwardItems<A>(call, sums));
  const auto add = [&](A* to, std::ptrdiff_t first) {
    if (to == nullptr) return;
    for (Index j = 0; j < width; ++j) {
      LongSum<A> sum(0);
      for (std::ptrdiff_t n = 0; n < blocks; ++n) sum += LongSum<A>(sums[n * 2 * width + first + j]);
      to[j] += static_cast<A>(sum);
    }
  };
  add(call.d_weight, 0);
  add(call.d_bias, width);
}

template <class B, class A>
void run_norm_backward(const B& backend, const NormBackwardCall<A>& call, typename B::Workspace& workspace) {
  if (call.z.extent[0] == 0) return;
  if constexpr (computes_on_host<B>)
    run_norm_backward_here(backend, call, workspace);
  else
    run_norm_backward_there(backend, call, workspace);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
