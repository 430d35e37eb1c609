// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/copy.hpp"
#include "../backend.hpp"
#include "packed_weights.hpp"
#include "workspace.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// c = a · b + bias by cuBLASLt: operands without a unit stride are packed first, c is then copied to where it goes.
///
/// run(items) runs items where the memory is (core/items.hpp).
template <class T, class Run> void multiply(const GemmCall<T>& call, Workspace& workspace, const Run& run) {
  if (call.c.size() == 0) return;
  auto frame = workspace.frame();
  const auto rows_of_own = [&](const auto& v) { return mha::detail::take_like<T>(frame, v); };
  const auto copy = [&](const auto& from, const auto& to) { run(mha::detail::copy_items<T, 2>(from, to)); };
  const auto fill_rows = [&](const TensorView<const T, 1>& row, const TensorView<T, 2>& to) {
    copy(TensorView<const T, 2>{row.data, {to.extent[0], to.extent[1]}, {0, row.stride[0]}}, to);
  };
  const bool has_bias = call.bias.data != nullptr;
  if (call.a.extent[1] == 0) {  // cuBLASLt has no product of no depth
    if (has_bias) return fill_rows(call.bias, call.c);
    T* const zero = frame.template take<T>(1);
    check(cudaMemsetAsync(zero, 0, sizeof(T), workspace.stream()), "cudaMemsetAsync");
    return fill_rows({zero, {call.c.extent[1]}, {0}}, call.c);
  }
  const auto ready = [&](const TensorView<const T, 2>& v) {
    if (const auto as_it_is = operand(v)) return *as_it_is;
    const auto packed = rows_of_own(v);
    copy(v, packed);
    return *operand(packed);
  };
  const auto own = operand(call.c);
  const bool in_place = own && !own->by_columns;
  const TensorView<T, 2> c = in_place ? call.c : rows_of_own(call.c);

  Product product{data_type<T>, ready(call.a), ready(call.b), *operand(c)};
  if (has_bias && call.bias.stride[0] == 1 && reinterpret_cast<std::uintptr_t>(call.bias.data) % 16 == 0)
    product.bias = call.bias.data;
  auto choice = workspace.products().choose(product);
  if (has_bias && (product.bias == nullptr || !choice.found)) {
    // cuBLASLt has no such epilogue: the bias goes first and the product is added.
    fill_rows(call.bias, c);
    product.bias = nullptr;
    product.accumulates = true;
    choice = workspace.products().choose(product);
  }
  workspace.products().run(product, choice, frame.template take<std::byte>(choice.scratch), workspace.stream());
  if (!in_place) copy(TensorView<const T, 2>(c), call.c);
}

/// Neighbours whose results lie side by side are one product.
template <class T, class Run>
void multiply(const PackedGemmCall<T, PackedWeights<T>>& call, Workspace& workspace, const Run& run) {
  call.weights.require_here();
  for (std::size_t i = 0, end; i < call.c.size(); i = end) {
    TensorView<T, 2> c = call.c[i];
    for (end = i + 1; end < call.c.size(); ++end) {
      const TensorView<T, 2>& next = call.c[end];
      const auto part = static_cast<std::size_t>(call.first) + end;
      if (!call.weights.neighbours(part - 1, part) || next.data != c.data + c.extent[1] * c.stride[1] ||
          next.stride[0] != c.stride[0] || next.stride[1] != c.stride[1])
        break;
      c.extent[1] += next.extent[1];
    }
    const auto first = static_cast<std::size_t>(call.first);
    const DenseWeights<T> w = call.weights.columns(first + i, first + end);
    multiply(GemmCall<T>{call.a, w.matrix, w.bias, c}, workspace, run);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
