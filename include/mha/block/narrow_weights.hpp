// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/activation.hpp"

/// Weights in 16 bits under wider activations, as checkpoints store them.
namespace mha::inline MHA_NAMESPACE {

/// A scalar that weights are stored in alone.
template <class W>
concept NarrowScalar = std::same_as<W, half> || std::same_as<W, bfloat16>;

namespace detail {

/// The sentence for weights of W under activations of T.
template <class T, class W> constexpr bool check_narrow() {
  constexpr bool fits = NarrowScalar<W> && (std::is_same_v<T, float> || std::is_same_v<T, double>);
  static_assert(fits,
                "mha: borrow() takes weights of the layer's scalar, or half and bfloat16 ones under float or double: "
                "convert these first (see mha/block/narrow_weights.hpp)");
  return fits;
}

/// Whether weights of W under T stay so, and not as T.
template <class B, class T, class W> constexpr bool keeps_narrow = computes_on_host<B>&& WidensWeights<B, T, W>;

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

/// Weights of some narrower scalar that a backend packed, their type lost: only who packs them compiles a product by
/// them.
template <class T, class B, class F = Identity> class NarrowWeights {
 public:
  using Workspace = typename B::Workspace;

  NarrowWeights(const char* scalar, std::size_t size) : scalar_name(scalar), scalar_size(size) {}
  virtual ~NarrowWeights() = default;

  virtual std::size_t bytes() const = 0;
  /// to[i] = x · part first + i with its bias.
  virtual void multiply(const B& backend, const TensorView<const T, 2>& x, Index first,
                        std::span<const TensorView<T, 2>> to, Workspace& workspace) const = 0;
  /// to = the product by the first part, or the first two, with its epilogue. False, and nothing is computed, if the
  /// backend does not fuse them.
  virtual bool multiply(const B& backend, const TensorView<const T, 2>& x, const TensorView<T, 2>& to,
                        const Epilogue<T, F>& epilogue, Workspace& workspace) const = 0;

  const char* const scalar_name;
  const std::size_t scalar_size;  ///< bytes
};

template <class T, class B, class F, class W> class NarrowWeightsOf final : public NarrowWeights<T, B, F> {
  using Packed = typename PackedBy<W, B>::type;
  using Workspace = typename B::Workspace;

 public:
  NarrowWeightsOf(const B& backend, std::span<const DenseWeights<W>> parts)
      : NarrowWeights<T, B, F>(mha::detail::scalar_name<W>(), sizeof(W)), packed_(backend.pack(parts)) {}

  std::size_t bytes() const override { return packed_.bytes(); }

  void multiply(const B& backend, const TensorView<const T, 2>& x, Index first, std::span<const TensorView<T, 2>> to,
                Workspace& workspace) const override {
    backend.gemm(PackedGemmCall<T, Packed>{x, packed_, first, to}, workspace);
  }

  bool multiply(const B& backend, const TensorView<const T, 2>& x, const TensorView<T, 2>& to,
                const Epilogue<T, F>& epilogue, Workspace& workspace) const override {
    using Call = PackedGemmCall<T, Packed>;
    constexpr bool fuses = requires(const Call& call) { backend.gemm(call, epilogue, workspace); };
    if constexpr (fuses) backend.gemm(Call{x, packed_, 0, {&to, 1}}, epilogue, workspace);
    return fuses;
  }

 private:
  Packed packed_;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
