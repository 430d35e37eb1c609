// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/epilogue.hpp"
#include "../backend/epilogue_backward.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/activation.hpp"
#include "cost.hpp"
#include "linear_weights.hpp"
#include "packed_matrices.hpp"
#include "rows.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The product of a Linear with what follows it: in one pass where the backend fuses them, else one after the other;
/// by weights that its backend packed once, where it packs, of T or of a narrower scalar, else by the weights where
/// they are.
///
/// Copies share what was packed, what is shared is never changed.
template <class T, class B, class F> class LinearProduct {
  using Packed = PackedMatrices<T, B, F>;
  using Workspace = typename B::Workspace;
  static constexpr bool gated = is_gated<F>;
  static constexpr std::size_t parts = gated ? 2 : 1;
  static constexpr bool plain = std::is_same_v<F, Identity>;

 public:
  LinearProduct() = default;
  /// In the memory of `old` ones, if it is not shared.
  LinearProduct(const B& backend, const LinearViews<const T>& w, LinearProduct old = {})
      : packed_(pack(backend, w, std::move(old.packed_))) {}
  /// By weights that stay in W.
  template <class W>
  requires(keeps_narrow<B, T, W>) static LinearProduct of_narrow(const B& backend, const LinearViews<const W>& w) {
    LinearProduct product;
    product.packed_ = pack(backend, w);
    return product;
  }
  /// By weights that are rounded to Q.
  template <class Q, class W> static LinearProduct rounded_to(const B& backend, const LinearViews<const W>& w) {
    LinearProduct product;
    product.packed_ =
        Packed::template rounded_to<Q>(backend, std::span<const DenseWeights<W>>(matrices(w)).last(parts));
    return product;
  }

  /// Whether the weights are packed, so that the others are not read again.
  bool packed() const { return packed_.present(); }

  /// The scalar that the matrices are read in.
  const char* weight_scalar() const { return packed_.scalar(); }
  double weight_bytes() const { return packed_.weight_bytes(); }
  template <class W> bool are() const { return packed_.template are<W>(); }

  /// Whether readable() has the matrices of which only the packed ones are left.
  bool unpacks() const { return !computes_on_host<B> || packed_.unpacks(); }
  /// Matrices and biases where the backend's products read them; of matrices that are only packed copies in memory of
  /// the frame, without biases.
  ///
  /// Errors    ShapeError if they are on another device
  template <class Frame>
  LinearViews<const T> readable(const B& backend, const LinearViews<const T>& w, bool packed_only,
                                const LinearConfig& sizes, Frame& frame) const {
    if constexpr (computes_on_host<B>) {
      if (!packed_only) return w;
      const auto matrix = [&](std::size_t i) {
        return packed_.unpack(backend, static_cast<Index>(i), sizes.inputs, sizes.outputs, frame);
      };
      LinearViews<const T> there{matrix(parts - 1), {}, {}, {}, {}};
      if (gated) there.gate = matrix(0);
      return there;
    } else {
      if (!packed()) refuse_unpacked();
      packed_.require_here();
      const auto part = [&](std::size_t i) { return packed_.own()->columns(i, i + 1); };
      const DenseWeights<T> last = part(parts - 1);
      LinearViews<const T> there{last.matrix, last.bias, {}, {}, {}};
      if (gated) there.gate = part(0).matrix, there.gate_bias = part(0).bias;
      return there;
    }
  }

  /// Bytes that packed weights take beside the weights themselves.
  std::size_t bytes() const { return packed_.bytes(); }

  /// y = activation(x · w) + residual, whatever of these is in the memory of another. With kept sums, what the
  /// activation is applied to is left there, the gate's first; the result has the same bits.
  ///
  /// Shapes    x (B, L, in)  y (B, L, out)  residual as y, null data for none  kept (B·L, out)
  template <class... Kept>
  void run(const B& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
           const TensorView<const T, 3>& residual, const F& activation, const LinearViews<const T>& w,
           Workspace& workspace, const Kept&... kept) const {
    if (y.size() == 0) return;
    auto frame = workspace.frame();
    const ItemsOn<B> items{backend, workspace};
    const TensorView<const T, 2> rows = as_rows(x, frame, items);
    // A product reads all of x while it writes.
    const bool in_place = rows_collapse(y) && !may_overlap(rows, y);
    const TensorView<T, 3> to = in_place ? y : take_like<T>(frame, y);
    const auto beside = residual_rows(residual, to, frame, items);
    if constexpr (sizeof...(Kept) == 0 || plain)
      run_rows(backend, rows, collapsed(to), beside, activation, w, frame, workspace);
    else
      run_kept(backend, rows, collapsed(to), beside, activation, w, frame, workspace, kept...);
    if (!in_place) items(copy_items(TensorView<const T, 3>(to), y));
  }

 private:
  template <class W> static std::array<DenseWeights<W>, 2> matrices(const LinearViews<const W>& w) {
    return {{{w.gate, w.gate_bias}, {w.weight, w.bias}}};
  }
  template <class W, class... Old> static Packed pack(const B& backend, const LinearViews<const W>& w, Old&&... old) {
    return Packed(backend, std::span<const DenseWeights<W>>(matrices(w)).last(parts), std::forward<Old>(old)...);
  }

  /// Of rows: the residual may be `to` itself, and nothing else overlaps it.
  template <class Frame>
  void run_rows(const B& backend, const TensorView<const T, 2>& x, const TensorView<T, 2>& to,
                const TensorView<const T, 2>& residual, const F& activation, const LinearViews<const T>& w,
                Frame& frame, Workspace& workspace) const {
    if (plain && residual.data == nullptr) return multiply(backend, x, {&to, 1}, w, workspace);
    if (packed_.multiply(backend, x, 0, to, Epilogue<T, F>{activation, residual}, workspace)) return;
    TensorView<T, 2> sums[parts];
    if (!gated && residual.data != to.data)
      sums[0] = to;
    else
      take_sums<B>(frame, to.extent[0], to.extent[1], std::span<TensorView<T, 2>>(sums));
    multiply(backend, x, sums, w, workspace);
    const TensorView<const T, 2> last = sums[parts - 1];
    const TensorView<const T, 2> gate = gated ? TensorView<const T, 2>(sums[0]) : TensorView<const T, 2>{};
    constexpr Index cost = 16;  // of an activation, in numbers read
    const ItemsOn<B> items{backend, workspace};
    items(EpilogueItems<T, F>{to.extent[0], to.extent[1], cost, activation, gate, last, residual, to});
  }

  using A = Accumulator<T>;
  using Sums = std::span<const TensorView<A, 2>>;

  /// run_rows() in two steps, with the sums between them.
  template <class Frame>
  void run_kept(const B& backend, const TensorView<const T, 2>& x, const TensorView<T, 2>& to,
                const TensorView<const T, 2>& residual, const F& activation, const LinearViews<const T>& w,
                Frame& frame, Workspace& workspace, Sums kept) const {
    const ItemsOn<B> items{backend, workspace};
    multiply_wide(backend, x, kept, w, frame, workspace);
    const TensorView<const A, 2> last = kept[parts - 1];
    const TensorView<const A, 2> gate = gated ? TensorView<const A, 2>(kept[0]) : TensorView<const A, 2>{};
    if constexpr (FinishesSums<B, T, F>) {
      backend.finish(Epilogue<T, F>{activation, residual}, gate, last, to, workspace);
    } else {
      constexpr Index cost = 16;  // of an activation, in numbers read
      items(EpilogueItems<T, F, A>{to.extent[0], to.extent[1], cost, activation, gate, last, residual, to});
    }
  }

  /// multiply() into accumulators: not rounded where run_rows() does not round them.
  template <class Frame>
  void multiply_wide(const B& backend, const TensorView<const T, 2>& x, Sums to, const LinearViews<const T>& w,
                     Frame& frame, Workspace& workspace) const {
    const ItemsOn<B> items{backend, workspace};
    if constexpr (std::is_same_v<T, A>) {
      multiply(backend, x, to, w, workspace);
    } else {
      if constexpr (FusesEpilogue<B, T, F> && WidensWeights<B, A, T>)
        if (packed_.own() != nullptr) {
          const auto wide = take_like<A>(frame, x);
          items(convert_items<false>(x, wide));
          return backend.gemm(PackedGemmCall<A, typename Packed::Own>{wide, *packed_.own(), 0, to}, workspace);
        }
      TensorView<T, 2> rounded[parts];
      take_sums<B>(frame, to[0].extent[0], to[0].extent[1], std::span<TensorView<T, 2>>(rounded));
      multiply(backend, x, rounded, w, workspace);
      for (std::size_t i = 0; i < parts; ++i) items(convert_items<false>(TensorView<const T, 2>(rounded[i]), to[i]));
    }
  }

  /// to[i] = x · matrix i with its bias, the gate's first.
  void multiply(const B& backend, const TensorView<const T, 2>& x, std::span<const TensorView<T, 2>> to,
                const LinearViews<const T>& w, Workspace& workspace) const {
    if (packed_.multiply(backend, x, 0, to, workspace)) return;
    if constexpr (computes_on_host<B>) {
      if constexpr (gated) backend.gemm(GemmCall<T>{x, w.gate, w.gate_bias, to.front()}, workspace);
      backend.gemm(GemmCall<T>{x, w.weight, w.bias, to.back()}, workspace);
    } else {
      refuse_unpacked();
    }
  }
  [[noreturn]] static void refuse_unpacked() {
    fail(
        "linear: the weights are not in the backend's memory, because the last update() or borrow() threw: call it "
        "again");
  }

  Packed packed_;
};

/// Whether the backend's product has the epilogue in it whatever the call.
template <class B, class T, class F> constexpr bool fuses_always = false;
template <class B, class T, class F>
requires(FusesEpilogue<B, T, F>) constexpr bool fuses_always<B, T, F> =
    requires(const B backend, const PackedGemmCall<T, typename PackedBy<T, B>::type>& call,
             const Epilogue<T, F>& epilogue, typename B::Workspace& workspace) {
  { backend.gemm(call, epilogue, workspace) } -> std::same_as<void>;
};

/// What a backend says of a dense product.
template <class T, class B> std::string explain_product(const B& backend) {
  if constexpr (requires { backend.template explain_product<T>(); })
    return backend.template explain_product<T>();
  else
    return B::name;
}

/// The product, weights, activation and kernel of a call of a Linear, one fact a line.
template <class T, class F, class B>
std::string linear_in_words(const B& backend, const StageCost& c, const LinearConfig& sizes, Index rows,
                            const std::string& weights) {
  const auto n = [](auto x) { return count_in_words(x); };
  return "product:     (" + n(rows) + ", " + n(sizes.inputs) + ") x (" + n(sizes.inputs) + ", " + n(sizes.outputs) +
         ")" + stage_in_words(is_gated<F> ? ", twice, " : ", ", c.flop, c.bytes) + "\nweights:     " + n(c.parameters) +
         " " + weights +                             //
         "\nactivation:  " + activation_name<F>() +  //
         "\nkernel:      " + explain_product<T>(backend) +
         (fuses_always<B, T, F>    ? ", fused epilogue\n"
          : FusesEpilogue<B, T, F> ? ", epilogue fused where it can be\n"
                                   : ", epilogue in a pass of its own\n");
}

}  // namespace mha::inline MHA_NAMESPACE::detail
