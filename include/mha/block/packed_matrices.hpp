// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../core/rounded_weights.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/activation.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Whether weights of W under T stay so, and not as T.
template <class B, class T, class W> constexpr bool keeps_narrow = computes_on_host<B>&& WidensWeights<B, T, W>;

/// backend.gemm(call, epilogue, workspace): false, and nothing is computed, if the backend says so; one that says
/// nothing always computes.
template <class B, class Call, class E, class Workspace>
bool gemm_with_epilogue(const B& backend, const Call& call, const E& epilogue, Workspace& workspace) {
  if constexpr (std::is_void_v<decltype(backend.gemm(call, epilogue, workspace))>) {
    backend.gemm(call, epilogue, workspace);
    return true;
  } else {
    return backend.gemm(call, epilogue, workspace);
  }
}

/// Weights of some narrower scalar that a backend packed, their type lost: only who packs them compiles a product by
/// them.
template <class T, class B, class F = Identity> class NarrowWeights {
 public:
  using Workspace = typename B::Workspace;

  NarrowWeights(const char* scalar, double bytes_each, bool can_unpack)
      : scalar_name(scalar), weight_bytes(bytes_each), unpacks(can_unpack) {}
  virtual ~NarrowWeights() = default;

  virtual std::size_t bytes() const = 0;
  /// to[i] = x · part first + i with its bias.
  virtual void multiply(const B& backend, const TensorView<const T, 2>& x, Index first,
                        std::span<const TensorView<T, 2>> to, Workspace& workspace) const = 0;
  /// to = the product by part first, or first, the gate, and the next, with its epilogue. False, and nothing is
  /// computed, if the backend does not fuse them.
  virtual bool multiply(const B& backend, const TensorView<const T, 2>& x, Index first, const TensorView<T, 2>& to,
                        const Epilogue<T, F>& epilogue, Workspace& workspace) const = 0;

  /// to (K, N), in rows = the matrix of a part, if the backend unpacks.
  virtual void unpack(const B& backend, Index part, const TensorView<T, 2>& to) const = 0;

  const char* const scalar_name;
  const double weight_bytes;
  const bool unpacks;
};

/// Those that are stored in W, which the backend made a Packed of.
template <class T, class B, class F, class W, class Packed>
class NarrowWeightsOf final : public NarrowWeights<T, B, F> {
  using Workspace = typename B::Workspace;
  static constexpr bool can_unpack = requires(const B& backend, const Packed& packed, const TensorView<T, 2>& to) {
    backend.unpack(packed, Index{}, to);
  };

 public:
  explicit NarrowWeightsOf(Packed packed)
      : NarrowWeights<T, B, F>(mha::detail::scalar_name<W>(), bytes_of_weight<W>(), can_unpack),
        packed_(std::move(packed)) {}

  std::size_t bytes() const override { return packed_.bytes(); }

  void multiply(const B& backend, const TensorView<const T, 2>& x, Index first, std::span<const TensorView<T, 2>> to,
                Workspace& workspace) const override {
    backend.gemm(PackedGemmCall<T, Packed>{x, packed_, first, to}, workspace);
  }

  bool multiply(const B& backend, const TensorView<const T, 2>& x, Index first, const TensorView<T, 2>& to,
                const Epilogue<T, F>& epilogue, Workspace& workspace) const override {
    using Call = PackedGemmCall<T, Packed>;
    constexpr bool fuses = requires(const Call& call) { backend.gemm(call, epilogue, workspace); };
    if constexpr (fuses)
      return gemm_with_epilogue(backend, Call{x, packed_, first, {&to, 1}}, epilogue, workspace);
    else
      return false;
  }

  void unpack(const B& backend, Index part, const TensorView<T, 2>& to) const override {
    if constexpr (can_unpack) backend.unpack(packed_, part, to);
  }

 private:
  Packed packed_;
};

/// f(views) writes parameters, pack(views, old products) makes the products by them, in the memory of the old ones
/// where it is not shared. Should one of them throw, the calls that follow multiply by the weights where they are; if
/// there were none before, there are none.
///
/// Errors    ShapeError if the parameters are not the owner's to write, before f or after it, which may have borrowed
///           others
template <class Parameters, class Products, class F, class Pack>
void write_and_pack(Parameters& parameters, Products& products, F& f, const Pack& pack) {
  const bool none_before = !parameters.present();
  const auto views = parameters.writable();
  Products old = std::exchange(products, {});
  MHA_TRY {
    f(views);
    parameters.require_own();
    products = pack(std::as_const(parameters).views(), std::move(old));
  }
  MHA_CATCH(...) {
    if (none_before) parameters.forget(views);
    MHA_RETHROW;
  }
}

/// The matrices of dense products with their biases, packed once by a backend that packs, in T or in a narrower scalar;
/// none on another backend, or before they are packed.
///
/// Copies share them; what is shared is never changed.
template <class T, class B, class F = Identity> class PackedMatrices {
  using Workspace = typename B::Workspace;

 public:
  using Own = typename PackedBy<T, B>::type;

  PackedMatrices() = default;
  /// In the memory of `old`, if it is not shared and its matrices had the same shapes.
  PackedMatrices([[maybe_unused]] const B& backend, [[maybe_unused]] std::span<const DenseWeights<T>> matrices,
                 [[maybe_unused]] PackedMatrices old = {}) {
    if constexpr (PacksInto<B, T>)
      if (old.own_.use_count() == 1) {
        std::atomic_thread_fence(std::memory_order_acquire);  // after the last reads of another that is gone
        if (backend.pack_into(*old.own_, matrices)) {
          own_ = std::move(old.own_);
          return;
        }
      }
    old = {};
    if constexpr (PacksWeights<B, T>) own_ = std::make_shared<Own>(backend.pack(matrices));
  }
  /// In W.
  template <class W>
  requires(keeps_narrow<B, T, W>) PackedMatrices(const B& backend, std::span<const DenseWeights<W>> matrices)
      : narrow_(narrow<W>(backend.pack(matrices))) {}
  /// Rounded to Q.
  template <class Q, class W>
  requires(QuantizesWeights<B, T, W, Q>) static PackedMatrices
      rounded_to(const B& backend, std::span<const DenseWeights<W>> matrices) {
    PackedMatrices r;
    r.narrow_ = narrow<Q>(backend.template quantize<Q>(matrices));
    return r;
  }

  bool present() const { return own_ != nullptr || narrow_ != nullptr; }
  /// Errors    ShapeError that names both devices if they are not on the current one
  void require_here() const {
    if constexpr (requires { own_->require_here(); })
      if (own_ != nullptr) own_->require_here();
  }
  /// Those in T; nullptr if there are none, or narrower ones.
  const Own* own() const { return own_.get(); }

  /// What a product reads, packed or not.
  const char* scalar() const { return narrow_ != nullptr ? narrow_->scalar_name : scalar_name<T>(); }
  double weight_bytes() const { return narrow_ != nullptr ? narrow_->weight_bytes : bytes_of_weight<T>(); }
  template <class W> bool are() const { return std::string_view(scalar()) == scalar_name<W>(); }
  std::size_t bytes() const {
    if (narrow_ != nullptr) return narrow_->bytes();
    if constexpr (PacksWeights<B, T>)
      if (own_ != nullptr) return own_->bytes();
    return 0;
  }

  /// Whether unpack() writes them.
  bool unpacks() const { return narrow_ != nullptr ? narrow_->unpacks : UnpacksWeights<B, T, T> && own_ != nullptr; }
  /// A matrix in rows, in memory of the frame.
  template <class Frame>
  TensorView<const T, 2> unpack(const B& backend, Index part, Index rows, Index columns, Frame& frame) const {
    const TensorView<T, 2> to =
        view(frame.template take<T>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns)), rows, columns);
    if (narrow_ != nullptr)
      narrow_->unpack(backend, part, to);
    else if constexpr (UnpacksWeights<B, T, T>)
      backend.unpack(*own_, part, to);
    return to;
  }

  /// to[i] = x · matrix first + i with its bias, in one pass over x. False, and nothing is computed, if there are none.
  ///
  /// Shapes    x (M, K)  to[i] (M, columns)
  bool multiply(const B& backend, const TensorView<const T, 2>& x, Index first, std::span<const TensorView<T, 2>> to,
                Workspace& workspace) const {
    if (narrow_ != nullptr) {
      narrow_->multiply(backend, x, first, to, workspace);
      return true;
    }
    if constexpr (PacksWeights<B, T>)
      if (own_ != nullptr) {
        backend.gemm(PackedGemmCall<T, Own>{x, *own_, first, to}, workspace);
        return true;
      }
    return false;
  }

  /// to = the product by matrix first, or first, the gate, and the next, with its epilogue. False, and nothing is
  /// computed, also if the backend does not fuse them.
  bool multiply(const B& backend, const TensorView<const T, 2>& x, Index first, const TensorView<T, 2>& to,
                const Epilogue<T, F>& epilogue, Workspace& workspace) const {
    if (narrow_ != nullptr) return narrow_->multiply(backend, x, first, to, epilogue, workspace);
    if constexpr (FusesEpilogue<B, T, F>)
      if (own_ != nullptr)
        return gemm_with_epilogue(backend, PackedGemmCall<T, Own>{x, *own_, first, {&to, 1}}, epilogue, workspace);
    return false;
  }

 private:
  template <class W, class P> static std::shared_ptr<const NarrowWeights<T, B, F>> narrow(P packed) {
    return std::make_shared<const NarrowWeightsOf<T, B, F, W, P>>(std::move(packed));
  }

  std::shared_ptr<Own> own_;                              // written only where it has one owner
  std::shared_ptr<const NarrowWeights<T, B, F>> narrow_;  // instead of own_
};

}  // namespace mha::inline MHA_NAMESPACE::detail
