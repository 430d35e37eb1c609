// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "../backend/backend.hpp"
#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../policy/activation.hpp"
#include "linear_product.hpp"
#include "linear_weights.hpp"
#include "narrow_weights.hpp"
#include "packed_matrices.hpp"
#include "quantized_weights.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a Linear remembers between calls: its configuration, its backend, and its weights with what the backend packed
/// of them. A base of Linear.
template <class T, class B, class F> class LinearMemory {
  using Products = detail::LinearProduct<T, B, F>;

 public:
  [[nodiscard]] const LinearConfig& config() const { return parameters_.config(); }
  /// What it computes on, unless a call is given another.
  [[nodiscard]] const B& backend() const { return backend_; }

  /// Read-only named views of the weights; null data while there are none, or only packed ones.
  [[nodiscard]] LinearViews<const T> parameters() const { return parameters_.views(); }
  [[nodiscard]] std::int64_t parameter_count() const { return parameters_.size(); }
  /// The memory of those that the backend packed; 0 if there are none.
  [[nodiscard]] std::size_t packed_bytes() const { return products_.bytes(); }

  /// f(const LinearViews<T>&): the only way to change weights, element by element. Backends that pack weights do so
  /// here and in borrow(), once for all calls. If f throws, what it has written stays; if there were none before, there
  /// are none, and only another Linear that borrowed them in f still reads them.
  ///
  /// Errors    ShapeError if the weights are borrowed, or dropped by drop_unpacked(), even by f itself
  template <class Change> void update(Change&& f) {
    detail::write_and_pack(parameters_, products_, f, [this](const LinearViews<const T>& w, Products old) {
      return Products(backend_, w, std::move(old));
    });
  }

  /// Draws the weights, e.g. XavierUniform{.seed = 1}.
  template <class Initializer> void initialize(const Initializer& draw) {
    update([&](const auto& p) { draw(p); });
  }

  /// Uses weights where they are, of any strides, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the
  /// Linear lives; without one, their owner must outlive it and keep them (a Linear frees its own in borrow(),
  /// quantize(), drop_unpacked() and when it is assigned to), unless it borrows them already. A backend that packs
  /// weights multiplies by them as they are now, but backward() reads them where they are: borrow again what has
  /// changed.
  ///
  /// Errors    ShapeError if a matrix or vector does not have the configuration's shape; nothing changes then
  void borrow(const BorrowedLinear<T>& w, std::shared_ptr<const void> keep_alive = nullptr) {
    borrow(detail::views_of(w), std::move(keep_alive));
  }
  /// Another Linear's weights: down.borrow(other.parameters()).
  template <std::same_as<LinearViews<const T>> Views>
  void borrow(const Views& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive),
                       [&](const LinearViews<const T>& w) { products_ = Products(backend_, w); });
  }

  /// Weights in half or bfloat16 under float or double: linear.borrow(mha::BorrowedLinear<mha::bfloat16>{.weight = …}).
  /// Cpu packs their own 16 bits and widens them as it multiplies; Systolic packs a bfloat16 as one part in any
  /// precision; another backend gets them as T. They are read here only, and `keep_alive` is let go.
  ///
  /// Bits      those of the same weights borrowed in T; of infinities on Systolic, and on EigenCpu, nearly
  /// Memory    that of the packed weights, on Reference and EigenCpu that of a copy in T
  /// Errors    as above
  template <class W>
  requires(!std::same_as<W, T>) void borrow(const BorrowedLinear<W>& w, std::shared_ptr<const void> = nullptr) {
    borrow(detail::views_of(w));
  }
  template <class W>
  requires(!std::same_as<W, T>) void borrow(const LinearViews<const W>& weights,
                                            std::shared_ptr<const void> = nullptr) {
    if constexpr (detail::check_narrow<T, W>()) {
      const LinearViews<const W> w = parameters_.checked(weights);
      if constexpr (detail::keeps_narrow<B, T, W>) {
        products_ = Products::of_narrow(backend_, w);
        parameters_.keep_packed_only();
      } else {
        borrow_copy("borrow", w, [](const auto&) {});
      }
    }
  }

  /// Weights that are rounded to 8 bits, or 4: linear.quantize({.weight = …}), linear.quantize<mha::scaled_int4>(…); of
  /// half or bfloat16 under float or double linear.quantize(mha::BorrowedLinear<mha::bfloat16>{.weight = …}). Cpu packs
  /// the integers, and widens them as it multiplies rows of float; elsewhere on the host a matrix becomes what was
  /// rounded, in T. They are read here only; update() is refused afterwards, as for borrowed ones.
  ///
  /// Formula   a column's numbers in each block of weights_per_scale<Q> rows are integers times a scale s. In 8 bits
  ///           both are those of quantize_row(). In 4 bits, of 32 rows, s is the number of largest magnitude (of equal
  ///           ones the first) times -1/8, rounded to bfloat16, and an integer the number / s, rounded to nearest even,
  ///           at most 7. Biases are not rounded
  /// Numerics  in 4 bits a number is changed by |s| / 2 at most, beyond 7 s by 1.04 |s|. NaN and infinities make
  ///           their block NaN, as numbers of double beyond float's; blocks below 1e-20 become 0, numbers
  ///           beyond 3.389e38 count as that
  /// Bits      those of the rounded numbers borrowed in T
  /// Memory    on Cpu, under float, a byte for a number and 4 for a scale, or half a byte and 2; columns filled up to a
  ///           multiple of 48
  /// Errors    as borrow()
  template <class Q = scaled_int8, class W = T> void quantize(const BorrowedLinear<W>& w) {
    quantize<Q>(detail::views_of(w));
  }
  template <class Q = scaled_int8, class W> void quantize(const LinearViews<const W>& weights) {
    if constexpr (detail::check_quantized<Q, T, W, B>()) {
      const LinearViews<const W> w = parameters_.checked(weights, "quantize");
      if constexpr (detail::keeps_rounded<B, T, W, Q>) {
        products_ = Products::template rounded_to<Q>(backend_, w);
        parameters_.keep_packed_only();
      } else {
        borrow_copy("quantize", w, [](const LinearViews<T>& copy) {
          detail::round_weights<Q>(copy.weight);
          detail::round_weights<Q>(copy.gate);
        });
      }
    }
  }
  /// The same of the weights that it has, its own or borrowed; of packed ones that are in Q already nothing.
  ///
  /// Errors    ShapeError if there are none, or only packed ones of another kind
  template <class Q = scaled_int8> void quantize() {
    require_weights("quantize");
    if (keeps<Q>()) return;
    require_readable("quantize");
    quantize<Q>(parameters());
  }

  /// Frees the Linear's own weights, or lets go of those that it borrows: those that the backend packed are enough for
  /// every call. Nothing can be read by parameters() or written by update() then, until weights are borrowed.
  ///
  /// Errors    ShapeError if there are no weights, the backend does not pack them, as Reference and EigenCpu, or the
  ///           last update() threw
  void drop_unpacked() {
    require_packed("drop_unpacked");
    parameters_.keep_packed_only(parameters_.version());
  }

 protected:
  static constexpr bool gated = detail::is_gated<F>;

  LinearMemory(const LinearConfig& config, B backend) : parameters_(config), backend_(std::move(backend)) {}

  void require_weights(const char* call) const {
    detail::require(parameters_.present(), call, ": expected ", parameter_count(),
                    " weights, got 0: call initialize, update or borrow first");
  }
  void require_packed(const char* call) const {
    require_weights(call);
    detail::require_packed_weights(products_.packed(), PacksWeights<B, T>, call, B::name, "Linear", parameter_count());
  }
  /// Whether its products read weights in Q.
  template <class Q> bool keeps() const { return products_.template are<Q>(); }
  /// Whether parameters() shows all weights.
  void require_readable(const char* call) const {
    require_weights(call);
    detail::require_unpacked(!parameters_.packed_only(), call, "Linear", parameter_count());
  }

  detail::LinearParameters<T, gated> parameters_;
  [[no_unique_address]] B backend_;
  Products products_;

 private:
  /// A copy of weights in T, after change(copy).
  template <class W, class Change>
  void borrow_copy(const char* call, const LinearViews<const W>& w, const Change& change) {
    const auto copy = std::make_shared<Tensor<T, 1>>();
    borrow(parameters_.widened(w, *copy, call, change), copy);
    if (products_.packed()) parameters_.keep_packed_only();
  }
};

}  // namespace mha::inline MHA_NAMESPACE
