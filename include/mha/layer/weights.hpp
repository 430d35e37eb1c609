// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../block/narrow_weights.hpp"
#include "../block/quantized_weights.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"
#include "config.hpp"
#include "parameters.hpp"
#include "policies.hpp"
#include "products.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a layer remembers between calls: its configuration, its backend, its weights with what the backend packed of
/// them, and the policies that keys of these weights depend on. A base of Layer.
template <class T, Backend B, class Policies> class LayerWeights {
  using Norm = typename Policies::Norm;
  using Output = typename Policies::Output;
  using Products = detail::LayerProducts<T, B>;
  static constexpr bool may_be_zero_centered = requires(const Norm& norm) { norm.zero_centered; };

 public:
  /// The configuration with every size filled in.
  [[nodiscard]] const Config& config() const { return config_; }

  /// What it computes on, unless a call is given another.
  [[nodiscard]] const B& backend() const { return backend_; }

  /// Read-only named views of the weights; null data while the layer has none, and for matrices
  /// and biases of which only packed ones are left.
  [[nodiscard]] ParameterViews<const T> parameters() const { return parameters_.views(); }
  [[nodiscard]] std::int64_t parameter_count() const { return parameters_.size(); }
  /// The memory of the matrices that the backend packed, which layers share after borrow(layer); 0 if there are none.
  [[nodiscard]] std::size_t packed_bytes() const { return products_.bytes(); }

  /// f(const ParameterViews<T>&): the only way to change weights, so that nothing made from them can go stale: element
  /// by element, or p.query = matrix. Backends that pack weights do so here and in borrow(), once for all calls. Where
  /// a layer that called borrow(*this) still holds these weights, they are written in new memory, and it keeps the old.
  /// If f throws, what it has written stays, and calls read the weights as they are, unpacked, until the next update();
  /// if there were none before, there are none, and views of them that f kept are of freed memory.
  ///
  /// Errors    ShapeError if the weights are borrowed, or dropped by drop_unpacked(), even by f itself
  template <class F> void update(F&& f) {
    detail::write_and_pack(parameters_, products_, f, [this](const ParameterViews<const T>& w, Products old) {
      return Products(backend_, w, Output::has_weights, std::move(old));
    });
  }

  /// Draws the weights, e.g. XavierUniform{.seed = 1}. Of a QkNorm{.zero_centered = true} they are stored less 1.
  template <class Initializer> void initialize(const Initializer& draw) {
    update([&](auto& p) {
      draw(p);
      if constexpr (may_be_zero_centered) {
        if (!norm_.zero_centered) return;
        for (const TensorView<T, 1>* w : {&p.query_norm, &p.key_norm})
          for (Index d = 0; d < w->extent[0]; ++d) (*w)(d) = T(Accumulator<T>((*w)(d)) - Accumulator<T>(1));
      }
    });
  }

  /// Uses weights where they are, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the layer lives;
  /// without one, their owner must outlive this layer and keep them, unless they are those that it borrows already:
  /// borrow(owner) of a layer, below, needs neither. A backend that packs weights reads the matrices here only: the
  /// pages of a mapping may be dropped, and weights that change are to be borrowed anew.
  ///
  /// Errors    ShapeError if a matrix or vector does not have the layer's shape; nothing changes then
  void borrow(const BorrowedWeights<T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }
  template <std::same_as<ParameterViews<const T>> Views>
  void borrow(const Views& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }

  /// Weights in half or bfloat16 under float or double, BorrowedWeights<bfloat16>{.query = …} or the parameters() of a
  /// layer of that scalar. They are read here only, and not kept alive: Cpu and Systolic pack the matrices from
  /// their own scalar, everything else is converted to T.
  ///
  /// Bits      as a Linear's
  template <detail::WeightsOfAnother<T> Weights>
  void borrow(const Weights& weights, std::shared_ptr<const void> = nullptr) {
    if constexpr (detail::check_narrow<T, detail::WeightScalar<Weights>>())
      products_ = Products::template take<T>(backend_, parameters_, parameters_.checked(weights));
  }

  /// Weights whose matrices are rounded to 8 bits, layer.quantize({.query = …}), or to 4,
  /// layer.quantize<mha::scaled_int4>({.query = …}); of half or bfloat16 under float or double
  /// layer.quantize(mha::BorrowedWeights<mha::bfloat16>{.query = …}). They are read here only; update() is refused
  /// afterwards, as for borrowed ones.
  ///
  /// Formula, Numerics, Bits, Memory    as a Linear's
  /// Errors    as borrow()
  template <class Q = scaled_int8, class Weights = BorrowedWeights<T>>
  requires(requires { typename detail::WeightScalar<Weights>; }) void quantize(const Weights& weights) {
    if constexpr (detail::check_quantized<Q, T, detail::WeightScalar<Weights>, B>())
      products_ = Products::template take<Q>(backend_, parameters_, parameters_.checked(weights, "quantize"));
  }
  /// The same of the weights that it has, its own or borrowed; of packed ones that are in Q already nothing.
  ///
  /// Errors    ShapeError if there are none, or only packed ones of another kind
  template <class Q = scaled_int8> void quantize() {
    require_weights("quantize");
    if (products_.template are<Q>()) return;
    detail::require_unpacked(!parameters_.packed_only(), "quantize", "layer", parameter_count());
    quantize<Q>(parameters_.views());
  }

  /// Frees the layer's matrices, or lets go of borrowed ones: the packed ones are enough for every call. parameters()
  /// shows only norms and gates then, and update() is refused, until weights are borrowed.
  ///
  /// Errors    ShapeError if there are no weights, the backend does not pack them, as Reference and EigenCpu, or the
  ///           last update() threw
  void drop_unpacked() {
    require_weights("drop_unpacked");
    products_.require_packed(B::name, parameter_count());
    parameters_.keep_packed_only(parameters_.views(), parameters_.version());
  }

  /// Uses another layer's weights under this layer's own policies: nothing is copied, and what was packed of them is
  /// shared too, unless the backends' types differ. This layer keeps these weights, whatever becomes of the owner:
  /// after its update(), borrow(), quantize() or drop_unpacked() it computes with those that it borrowed, until it
  /// borrows anew.
  /// Only weights that the owner borrowed without a keep_alive must outlive this layer. With equal norm and position
  /// they share KeyValues.
  ///
  /// Errors    ShapeError if the owner has no weights or a matrix does not have the layer's shape; nothing changes then
  template <Backend OtherBackend, class OtherPolicies>
  void borrow(const LayerWeights<T, OtherBackend, OtherPolicies>& owner) {
    detail::require(owner.parameters_.present(), "borrow: expected ", owner.parameter_count(),
                    " weights, got 0: call initialize, update or borrow on it first");
    const auto take = [&](const ParameterViews<const T>& w) {
      if constexpr (std::is_same_v<B, OtherBackend>)
        products_ = owner.products_;
      else
        packing()(w);
    };
    parameters_.share(owner.parameters_, take, std::is_same_v<B, OtherBackend>,
                      detail::same_policy(norm_, owner.norm_) && detail::same_policy(position_, owner.position_));
  }

 protected:
  LayerWeights(const Config& completed, B backend, Norm norm, typename Policies::Position position)
      : parameters_(completed),
        config_(completed),
        backend_(std::move(backend)),
        norm_(std::move(norm)),
        position_(std::move(position)) {
    if constexpr (requires { norm_.check(); }) norm_.check();
    if constexpr (requires { position_.check(Index{}); }) position_.check(config_.head_dim);
  }

  void require_weights(const char* call) const {
    detail::require(parameters_.present(), call, ": expected ", parameter_count(),
                    " weights, got 0: call initialize, update or borrow first");
  }

  Parameters<T, Policies> parameters_;  // first: if a copy assignment throws, nothing has changed
  Config config_;
  [[no_unique_address]] B backend_;
  Products products_;
  // Not [[no_unique_address]], nor are Layer's: nvcc 13 fails over empty members of a class and its base where a lambda
  // of the class is compiled for the GPU too (--expt-relaxed-constexpr).
  Norm norm_;
  typename Policies::Position position_;

 private:
  template <class, Backend, class> friend class LayerWeights;

  /// Packs what is about to be borrowed, before anything else changes.
  auto packing() {
    return [this](const ParameterViews<const T>& w) { products_ = Products(backend_, w, Output::has_weights); };
  }
};

}  // namespace mha::inline MHA_NAMESPACE
