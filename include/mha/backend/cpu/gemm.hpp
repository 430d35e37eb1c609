// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// A dense product whose matrix is packed on the way: the same bits as with packed weights.
template <class T, class Threads> void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  auto frame = workspace.frame();
  A* biases = nullptr;
  if (call.bias.data != nullptr) {
    const Index columns = call.c.extent[1], whole = panels_of<T>(columns) * panel_columns<T>;
    biases = frame.template take<A>(static_cast<std::size_t>(whole));
    for (Index j = 0; j < whole; ++j) biases[j] = j < columns ? static_cast<A>(call.bias(j)) : A(0);
  }
  multiply<T>(call.a, LooseColumns<T>{call.b, biases}, {&call.c, 1}, workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
