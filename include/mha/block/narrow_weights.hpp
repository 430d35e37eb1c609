// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"

/// Weights in 16 bits under wider activations, as checkpoints store them.
namespace mha::inline MHA_NAMESPACE {

/// A scalar that weights are stored in alone.
template <class W>
concept NarrowScalar = std::same_as<W, half> || std::same_as<W, bfloat16>;

namespace detail {

template <class Views> struct PartsOf;  // in parts.hpp

/// The sentence for weights of W under activations of T.
template <class T, class W> constexpr bool check_narrow() {
  constexpr bool fits = NarrowScalar<W> && (std::is_same_v<T, float> || std::is_same_v<T, double>);
  static_assert(fits,
                "mha: borrow() takes weights of the layer's scalar, or half and bfloat16 ones under float or double: "
                "convert these first (see mha/block/narrow_weights.hpp)");
  return fits;
}

/// to = from in another scalar.
///
/// Shapes    the same; null data of what there is none of
template <class W, class T> void widen(const TensorView<const W, 1>& from, const TensorView<T, 1>& to) {
  for (Index i = 0; i < from.extent[0]; ++i) to(i) = static_cast<T>(from(i));
}
template <class W, class T> void widen(const TensorView<const W, 2>& from, const TensorView<T, 2>& to) {
  for (Index i = 0; i < from.extent[0]; ++i)
    for (Index j = 0; j < from.extent[1]; ++j) to(i, j) = static_cast<T>(from(i, j));
}
template <class W, class T> void widen(const TensorView<const W, 3>& from, const TensorView<T, 3>& to) {
  for (Index h = 0; h < from.extent[0]; ++h)
    for (Index i = 0; i < from.extent[1]; ++i)
      for (Index j = 0; j < from.extent[2]; ++j) to(h, i, j) = static_cast<T>(from(h, i, j));
}
/// The same of all that named views show.
template <template <class> class Views, class W, class T>
void widen_parts(const Views<const W>& from, const Views<T>& to) {
  PartsOf<Views<T>>::each([](const char*, const auto& w, const auto& wide) { widen(w, wide); }, from, to);
}

/// "bfloat16, packed only, in 64 bytes", of parameters and the products that are made of them.
template <class Parameters, class Products>
std::string weights_in_words(const Parameters& parameters, const Products& products) {
  const std::string scalar = products.weight_scalar();
  const std::string bytes = std::to_string(products.bytes()) + " bytes";
  if (parameters.packed_only()) return scalar + ", packed only, in " + bytes;
  const std::string packed = products.bytes() > 0 ? ", packed in " + bytes : "";
  return scalar + (parameters.borrowed() ? ", borrowed" : parameters.present() ? ", owned" : ", none yet") + packed;
}

/// What drop_unpacked() says where nothing is packed.
inline void require_packed_weights(bool packed, bool packs, const char* call, const char* backend, const char* what,
                                   std::int64_t count) {
  require(packed || packs, call, ": ", backend, " reads the ", what, "'s ", count,
          " parameters where they are, expected a backend that packs them");
  require(packed, call, ": the ", what, "'s ", count,
          " parameters are not packed, because the last update() threw: call it again");
}

/// What a backward pass says of weights of which a backend packed the only ones and does not unpack them.
inline void require_unpackable_weights(bool readable, const char* call, const char* what, std::int64_t count,
                                       const char* backend) {
  require(readable, call, ": of the ", what, "'s ", count, " parameters only the packed ones are left, which ", backend,
          " does not unpack");
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
