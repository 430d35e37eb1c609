// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/copy.hpp"
#include "../backend.hpp"
#include "../gemm_sum.hpp"
#include "packed_weights.hpp"
#include "workspace.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// Whether cuBLASLt can add the vector as it lies; not if there is none.
template <class T> bool can_add(const TensorView<const T, 1>& v) {
  return v.data != nullptr && v.stride[0] == 1 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
}

/// A factor as cuBLASLt reads it: where it is, or packed in memory of the frame.
template <class T, class Run> Operand factor(const TensorView<const T, 2>& v, Workspace::Frame& frame, const Run& run) {
  if (const auto as_it_is = operand(v)) return *as_it_is;
  const auto packed = mha::detail::take_like<T>(frame, v);
  run(mha::detail::copy_items<T, 2>(v, packed));
  return *operand(packed);
}

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
  const auto own = operand(call.c);
  const bool in_place = own && !own->by_columns;
  const TensorView<T, 2> c = in_place ? call.c : rows_of_own(call.c);

  Product product{
      .type = data_type<T>, .a = factor(call.a, frame, run), .b = factor(call.b, frame, run), .c = *operand(c)};
  if (can_add(call.bias)) product.bias = call.bias.data;
  auto choice = workspace.products().choose(product);
  if (has_bias && (product.bias == nullptr || !choice.found)) {
    // cuBLASLt has no such epilogue: the bias goes first and the product is added.
    fill_rows(call.bias, c);
    product.bias = nullptr;
    product.added = product.c;
    choice = workspace.products().choose(product);
  }
  workspace.products().run(product, choice, frame.template take<std::byte>(choice.scratch), workspace.stream());
  if (!in_place) copy(TensorView<const T, 2>(c), call.c);
}

/// c += a · b by cuBLASLt, in the accumulator's precision throughout.
template <class T, class Run> void multiply(const GemmSumCall<T>& call, Workspace& workspace, const Run& run) {
  using A = Accumulator<T>;
  if (call.c.size() == 0 || call.a.extent[1] == 0) return;
  auto frame = workspace.frame();
  const auto own = operand(call.c);
  const bool in_place = own && !own->by_columns;
  const TensorView<A, 2> c = in_place ? call.c : mha::detail::take_like<A>(frame, call.c);
  if (!in_place) run(mha::detail::copy_items<A, 2>(call.c, c));
  const Operand sum = *operand(c);
  const Product product{.type = data_type<T>,
                        .a = factor(call.a, frame, run),
                        .b = factor(call.b, frame, run),
                        .c = sum,
                        .added = sum,
                        .result = data_type<A>};
  const auto choice = workspace.products().choose(product);
  workspace.products().run(product, choice, frame.template take<std::byte>(choice.scratch), workspace.stream());
  if (!in_place) run(mha::detail::copy_items<A, 2>(c, call.c));
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

/// A product with its residual by one call of cuBLASLt. False, and nothing is computed, for views that it cannot read
/// or write as they lie, and where it has no algorithm.
///
/// An activation goes over the results in a pass of its own: cuBLASLt says neither what its RELU and GELU make of NaN
/// and infinities nor how near they are.
template <class T>
bool multiply(const PackedGemmCall<T, PackedWeights<T>>& call, const TensorView<const T, 2>& residual,
              Workspace& workspace) {
  call.weights.require_here();
  if (residual.data == nullptr || call.c[0].size() == 0 || call.a.extent[1] == 0) return false;
  const auto part = static_cast<std::size_t>(call.first);
  const DenseWeights<T> w = call.weights.columns(part, part + 1);
  const auto a = operand(call.a), b = operand(w.matrix), added = operand(residual);
  const auto c = operand(call.c[0]);
  const bool has_bias = w.bias.data != nullptr;
  if (!a || !b || !c || c->by_columns || !added || added->by_columns || (has_bias && !can_add(w.bias))) return false;
  Product product{.type = data_type<T>, .a = *a, .b = *b, .c = *c, .added = *added};
  if (has_bias) product.bias = w.bias.data;
  const auto choice = workspace.products().choose(product);
  if (!choice.found) return false;
  auto frame = workspace.frame();
  workspace.products().run(product, choice, frame.template take<std::byte>(choice.scratch), workspace.stream());
  return true;
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
