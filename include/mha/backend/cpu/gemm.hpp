// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// A dense product whose matrix is packed on the way, once where many rows meet it: the same bits as with packed
/// weights.
template <class T, class Threads> void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  auto frame = workspace.frame();
  const Index columns = call.c.extent[1], panels = panels_of<T>(columns), whole = panels * panel_columns<T>;
  LooseColumns<T> loose{call.b, nullptr};
  if (call.bias.data != nullptr) {
    A* const biases = frame.template take<A>(static_cast<std::size_t>(whole));
    for (Index j = 0; j < whole; ++j) biases[j] = j < columns ? static_cast<A>(call.bias(j)) : A(0);
    loose.biases = biases;
  }
  if (call.a.extent[0] > DenseProduct<T, T>::most_rows) {
    const Index depth = call.b.extent[0];
    const std::size_t size = static_cast<std::size_t>(depth) * panel_columns<T>,
                      all = size * static_cast<std::size_t>(panels);
    T* const packed = frame.template take<T>(all);
    run_tasks(all < enough_weights, threads, panels,
              [&](Index p, Index) { copy_panel(call.b, p, 0, depth, packed + size * static_cast<std::size_t>(p)); });
    loose.packed = packed;
  }
  multiply(call.a, AnyColumns<T>(loose), std::span<const TensorView<T, 2>>(&call.c, 1), workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
