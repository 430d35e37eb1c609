// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../backend/epilogue.hpp"
#include "../block/narrow_weights.hpp"
#include "../block/packed_matrices.hpp"
#include "../block/quantized_weights.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/tensor.hpp"
#include "../policy/projection.hpp"
#include "parameters.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The matrices of a layer, in the order they are packed in.
enum class LayerMatrix : int { query, key, value, output };

/// Weights of a layer other than matrices.
template <class T> struct LayerVectors { TensorView<const T, 1> query_norm, key_norm, gate; };

template <class T, class B> struct UploadedBy { using type = void; };
template <class T, class B>
requires(!computes_on_host<B>) struct UploadedBy<T, B> {
  using type = std::remove_cvref_t<decltype(std::declval<const B&>().upload(std::span<const T>()))>;
};

/// A layer's dense products: by weights that its backend packed once, where it packs, of T or of a narrower scalar;
/// else by the weights where they are.
///
/// Copies share what was packed; what is shared is never changed. Without it, as before the first pack(), the
/// products are the same, only slower.
template <class T, class B> class LayerProducts {
  using Packed = PackedMatrices<T, B>;
  using Uploaded = typename UploadedBy<T, B>::type;
  struct Absent {};

 public:
  LayerProducts() = default;
  /// In the memory of `old` ones, if it is not shared.
  LayerProducts(const B& backend, const ParameterViews<const T>& w, bool has_output, LayerProducts old = {}) {
    if constexpr (PacksWeights<B, T>)
      packed_ = with_parts(w, has_output, [&](std::span<const DenseWeights<T>> parts) {
        return Packed(backend, parts, std::move(old.packed_));
      });
    if constexpr (!computes_on_host<B>) {
      std::vector<T> row;
      const TensorView<const T, 1> parts[] = {w.query_norm, w.key_norm, w.gate};
      for (const auto& v : parts)
        for (Index i = 0; i < v.extent[0]; ++i) row.push_back(v(i));
      vectors_ = std::make_shared<const Uploaded>(backend.upload(std::span<const T>(row)));
    }
  }

  /// By weights in another scalar, or rounded to Q, and parameters that fit them. Nothing changes if a weight is wrong
  /// or memory is short.
  template <class Q, class Policies, class W>
  static LayerProducts take(const B& backend, Parameters<T, Policies>& parameters, const ParameterViews<const W>& w) {
    constexpr bool has_output = Policies::Output::has_weights;
    if constexpr (is_rounded<Q> ? keeps_rounded<B, T, W, Q> : keeps_narrow<B, T, W>) {
      LayerProducts products;
      products.packed_ = with_parts(w, has_output, [&](std::span<const DenseWeights<W>> parts) {
        if constexpr (is_rounded<Q>)
          return Packed::template rounded_to<Q>(backend, parts);
        else
          return Packed(backend, parts);
      });
      parameters.keep_packed_only(w);
      return products;
    } else {
      const auto wide = std::make_shared<Parameters<T, Policies>>(parameters.config());
      wide->write(w, [](const ParameterViews<T>& copy) {
        if constexpr (is_rounded<Q>) round_weights<Q>(copy);
      });
      LayerProducts products(backend, wide->views(), has_output);
      if (products.packed())
        parameters.keep_packed_only(wide->views());
      else
        parameters.borrow(wide->views(), wide);
      return products;
    }
  }

  /// Whether the matrices are packed, so that the others are not read again.
  bool packed() const { return packed_.present(); }
  void require_packed(const char* backend, std::int64_t count) const {
    require_packed_weights(packed(), PacksWeights<B, T>, "drop_unpacked", backend, "layer", count);
  }

  /// The scalar that the matrices are read in.
  const char* weight_scalar() const { return packed_.scalar(); }
  double weight_bytes() const { return packed_.weight_bytes(); }
  template <class W> bool are() const { return packed_.template are<W>(); }

  /// The norms' weights and the gates where the backend reads them.
  LayerVectors<T> vectors(const ParameterViews<const T>& w) const {
    LayerVectors<T> v{w.query_norm, w.key_norm, w.gate};
    if constexpr (!computes_on_host<B>) {
      require_uploaded();
      const T* at = vectors_->data();
      TensorView<const T, 1>* const parts[] = {&v.query_norm, &v.key_norm, &v.gate};
      for (auto* part : parts) {
        part->data = at;
        part->stride[0] = 1;
        at += part->extent[0];
      }
    }
    return v;
  }

  /// Whether readable() has the matrices of which only the packed ones are left.
  bool unpacks() const { return !computes_on_host<B> || packed_.unpacks(); }
  /// All weights where the backend's products and items read them; matrices of heads as one, biases not. Of matrices
  /// that are only packed, of these shapes, copies in memory of the frame.
  ///
  /// Errors    ShapeError if they are on another device
  template <class Frame>
  ParameterViews<const T> readable(const B& backend, const ParameterViews<const T>& w, bool packed_only,
                                   const ParameterViews<const T>& shapes, Frame& frame) const {
    if constexpr (computes_on_host<B>) {
      if (!packed_only) return w;
      ParameterViews<const T> there = w;
      const auto matrix = [&](LayerMatrix which, Index rows, Index columns) {
        return packed_.unpack(backend, static_cast<Index>(which), rows, columns, frame);
      };
      const auto heads = [&](LayerMatrix which, const HeadWeights<const T>& of) {
        return one_head(matrix(which, of.model(), of.head_count() * of.head_dim()));
      };
      there.query.heads = heads(LayerMatrix::query, shapes.query);
      there.key.heads = heads(LayerMatrix::key, shapes.key);
      there.value.heads = heads(LayerMatrix::value, shapes.value);
      if (const Index* const output = shapes.output.weight.extent; output[0] > 0)
        there.output.weight = matrix(LayerMatrix::output, output[0], output[1]);
      return there;
    } else {
      require_uploaded();
      packed_.require_here();
      ParameterViews<const T> there;
      const auto matrix = [&](LayerMatrix which) {
        const auto part = static_cast<std::size_t>(which);
        return packed_.own()->columns(part, part + 1).matrix;
      };
      there.query.heads = one_head(matrix(LayerMatrix::query));
      there.key.heads = one_head(matrix(LayerMatrix::key));
      there.value.heads = one_head(matrix(LayerMatrix::value));
      if (shapes.output.weight.extent[0] > 0) there.output.weight = matrix(LayerMatrix::output);
      const LayerVectors<T> own = vectors(w);
      there.query_norm = own.query_norm;
      there.key_norm = own.key_norm;
      there.gate = own.gate;
      return there;
    }
  }

  /// Bytes that packed weights take beside the weights themselves.
  std::size_t bytes() const { return packed_.bytes(); }

  /// to[i] = rows · matrix first + i, with its bias: one pass over the rows where weights are packed.
  ///
  /// Shapes    rows (B·L, E)  to[i] (B·L, columns)
  void run(const B& backend, const TensorView<const T, 2>& rows, const ParameterViews<const T>& w, LayerMatrix first,
           std::span<const TensorView<T, 2>> to, typename B::Workspace& workspace) const {
    if (packed_.multiply(backend, rows, static_cast<Index>(first), to, workspace)) return;
    if constexpr (!computes_on_host<B>) require_uploaded();
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto matrix = static_cast<LayerMatrix>(static_cast<std::size_t>(first) + i);
      if (matrix == LayerMatrix::output)
        backend.gemm(GemmCall<T>{rows, w.output.weight, w.output.bias, to[i]}, workspace);
      else
        project(backend, rows,
                matrix == LayerMatrix::query ? w.query
                : matrix == LayerMatrix::key ? w.key
                                             : w.value,
                to[i], workspace);
    }
  }

  /// to = rows · the output matrix, with its bias, + residual, which may be `to` itself.
  ///
  /// Shapes    rows (B·L, Hq·Dv)  to and residual (B·L, E)
  template <class Frame>
  void run_output(const B& backend, const TensorView<const T, 2>& rows, const ParameterViews<const T>& w,
                  const TensorView<T, 2>& to, const TensorView<const T, 2>& residual, Frame& frame,
                  typename B::Workspace& workspace) const {
    constexpr auto output = LayerMatrix::output;
    if (packed_.multiply(backend, rows, static_cast<Index>(output), to, Epilogue<T>{{}, residual}, workspace)) return;
    const TensorView<T, 2> sum = residual.data == to.data ? take_like<T>(frame, to) : to;
    run(backend, rows, w, output, {&sum, 1}, workspace);
    ItemsOn<B>{backend, workspace}(sum_items<T>(sum, residual, to));
  }

 private:
  static TensorView<const T, 3> one_head(const TensorView<const T, 2>& m) {
    return {m.data, {1, m.extent[0], m.extent[1]}, {0, m.stride[0], m.stride[1]}};
  }

  /// pack(the matrices, in the order of LayerMatrix).
  template <class W, class F>
  static Packed with_parts(const ParameterViews<const W>& w, bool has_output, const F& pack) {
    Tensor<W, 2> side_by_side[3];  // heads with memory of their own
    const DenseWeights<W> parts[] = {whole(w.query, side_by_side[0]),
                                     whole(w.key, side_by_side[1]),
                                     whole(w.value, side_by_side[2]),
                                     {w.output.weight, w.output.bias}};
    return pack(std::span<const DenseWeights<W>>(parts, has_output ? std::size_t{4} : std::size_t{3}));
  }

  template <class Q> static void round_weights(const ParameterViews<T>& w) {
    for (const HeadWeights<T>* heads : {&w.query, &w.key, &w.value})
      for (Index h = 0; h < heads->head_count(); ++h) mha::detail::round_weights<Q>(heads->head(h));
    mha::detail::round_weights<Q>(w.output.weight);
  }

  static void project(const B& backend, const TensorView<const T, 2>& rows, const HeadWeights<const T>& weights,
                      const TensorView<T, 2>& to, typename B::Workspace& workspace) {
    if (weights.is_matrix())
      return backend.gemm(GemmCall<T>{rows, weights.matrix(), weights.bias_row(), to}, workspace);
    const Index dim = weights.head_dim();
    for (Index h = 0; h < weights.head_count(); ++h) {
      const TensorView<T, 2> part{to.data + h * dim * to.stride[1], {to.extent[0], dim}, {to.stride[0], to.stride[1]}};
      backend.gemm(GemmCall<T>{rows, weights.head(h), weights.head_bias(h), part}, workspace);
    }
  }

  /// All heads as one matrix; copied side by side if each has memory of its own.
  template <class W> static DenseWeights<W> whole(const HeadWeights<const W>& w, Tensor<W, 2>& copy) {
    if (w.is_matrix()) return {w.matrix(), w.bias_row()};
    const Index columns = w.head_count() * w.head_dim();
    copy = Tensor<W, 2>(std::int64_t{w.model()} + 1, columns);  // the bias in the last row
    for (Index h = 0; h < w.head_count(); ++h)
      for (Index d = 0; d < w.head_dim(); ++d) {
        for (Index e = 0; e < w.model(); ++e) copy(e, h * w.head_dim() + d) = w.heads(h, e, d);
        if (w.bias.data != nullptr) copy(w.model(), h * w.head_dim() + d) = w.bias(h, d);
      }
    DenseWeights<W> r{mha::view(std::as_const(copy).data(), w.model(), columns), {}};
    if (w.bias.data != nullptr) r.bias = mha::view(&std::as_const(copy)(w.model(), 0), columns);
    return r;
  }

  void require_uploaded() const {
    require(packed(),
            "layer: the weights are not in the backend's memory, because the last update() or borrow() threw: "
            "call it again");
  }

  Packed packed_;
  [[no_unique_address]] std::conditional_t<computes_on_host<B>, Absent, std::shared_ptr<const Uploaded>> vectors_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
