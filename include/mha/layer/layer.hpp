// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "../attention.hpp"
#include "../policy/concat.hpp"
#include "../policy/output.hpp"
#include "../policy/projection.hpp"
#include "config.hpp"
#include "parameters.hpp"

namespace mha::inline v0 {

/// What a layer is called on: one sequence (L, E) or a batch (B, L, E).
template <class T>
concept Sequence = ViewableOfRank<T, 2, 3>;

namespace detail {

template <class T> constexpr TensorView<T, 3> with_batch(const TensorView<T, 3>& v) { return v; }
template <class T> constexpr TensorView<T, 3> with_batch(const TensorView<T, 2>& v) {
  return {v.data, {1, v.extent[0], v.extent[1]}, {0, v.stride[0], v.stride[1]}};
}
template <class Owner> constexpr TensorView<const ScalarOf<Owner>, 3> read_sequence(const Owner& owner) {
  return with_batch<const ScalarOf<Owner>>(ViewTraits<Owner>::view(owner));
}

/// Whether (B, L, E) can be read as (B·L, E): the sequences follow each other at the stride of the rows.
template <class T> constexpr bool rows_collapse(const TensorView<T, 3>& v) {
  return v.extent[0] <= 1 || v.extent[1] == 0 || v.stride[0] == v.extent[1] * v.stride[1];
}
template <class T> constexpr TensorView<T, 2> collapsed(const TensorView<T, 3>& v) {
  return {v.data, {v.extent[0] * v.extent[1], v.extent[2]}, {v.stride[1], v.stride[2]}};
}

template <class E>
concept LayerArgument = Mask<E> || Score<E> || WorkspaceArgument<E> || IntoArgument<E> || LogSumExpArgument<E>;

}  // namespace detail

/// A multi-head attention layer with one template parameter per role. Users name MultiHeadAttention, which sorts its
/// policies into this order; the code is shared whatever order they were written in.
///
/// Formula   Q = X W_Q + b_Q,  K = X_kv W_K + b_K,  V = X_kv W_V + b_V,
///           head_h = attention(Q_h, K_g(h), V_g(h)),  Y = concat(heads) W_O + b_O
/// Source    Vaswani et al. 2017, §3.2.2
template <class T, Backend B, Heads H, Mask M, Score S, class P, class C, class O> class Layer {
 public:
  using Scalar = T;
  using Workspace = typename B::Workspace;

  Layer(const Config& config, M mask, S score)
      : config_(detail::completed<H>(config)), parameters_(config_), mask_(std::move(mask)), score_(std::move(score)) {}

  /// The configuration with every size filled in.
  const Config& config() const { return config_; }

  /// Read-only named views of the weights.
  ParameterViews<const T> parameters() const { return parameters_.views(); }
  std::ptrdiff_t parameter_count() const { return parameters_.size(); }

  /// f(ParameterViews<T>&): the only way to change weights, so that nothing made from them can go stale.
  ///
  /// Errors    ShapeError if the weights are borrowed
  template <class F> void update(F&& f) {
    auto p = parameters_.writable();
    f(p);
  }

  /// Draws the weights, e.g. XavierUniform{.seed = 1}.
  template <class Initializer> void initialize(const Initializer& draw) {
    update([&](auto& p) { draw(p); });
  }

  /// Uses weights where they are, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the layer lives.
  ///
  /// Errors    ShapeError if a matrix or bias has not the layer's shape; nothing changes then
  void borrow(const BorrowedWeights<T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive));
  }

  /// Self-attention.
  ///
  /// Shapes    x (L, E) or (B, L, E)  →  the same; with NoOutput the last axis is Hq·Dv
  /// Then      in any order: masks (they intersect with the layer's), scores (after the layer's), into(y), LogSumExp,
  ///           a Workspace
  /// Errors    ShapeError if a size is not the configuration's
  template <Sequence X, class... Extra>
  requires(!(Sequence<Extra> || ...)) auto operator()(const X& x, Extra&&... extra) const {
    return run(x, x, extra...);
  }

  /// Cross-attention: queries from x, keys and values from memory.
  ///
  /// Shapes    x (Lq, E)  memory (Lk, E_kv), or (B, Lq, E) and (B, Lk, E_kv)
  template <Sequence X, Sequence Memory, class... Extra>
  auto operator()(const X& x, const Memory& memory, Extra&&... extra) const {
    return run(x, memory, extra...);
  }

  /// The softmax of every head, which a call never stores: (B, Hq, Lq, Lk).
  template <Sequence X, class... Extra>
  requires(!(Sequence<Extra> || ...)) auto attention_weights(const X& x, Extra&&... extra) const {
    return weights(x, x, extra...);
  }
  template <Sequence X, Sequence Memory, class... Extra>
  auto attention_weights(const X& x, const Memory& memory, Extra&&... extra) const {
    return weights(x, memory, extra...);
  }

  /// The softmax averaged over the heads: (B, Lq, Lk).
  template <Sequence X, class... Extra> auto mean_attention_weights(const X& x, Extra&&... extra) const {
    const auto each = attention_weights(x, extra...);
    using A = Accumulator<T>;
    Tensor<A, 3> mean(each.extent(0), each.extent(2), each.extent(3));
    for (Index b = 0; b < each.extent(0); ++b)
      for (Index i = 0; i < each.extent(2); ++i)
        for (Index k = 0; k < each.extent(3); ++k) {
          A sum(0);
          for (Index h = 0; h < each.extent(1); ++h) sum += each(b, h, i, k);
          mean(b, i, k) = sum / A(each.extent(1));
        }
    return mean;
  }

  /// What a call of this shape does: sizes, products, kernel, work and memory, one fact a line.
  std::string explain(Index batch, Index queries, Index keys) const {
    const Config& c = config_;
    const CallShape shape{batch, c.num_heads, queries, keys, keys - queries};
    const double q_rows = double(batch) * queries, k_rows = double(batch) * keys;
    const double projections =
        2 * (q_rows * c.d_model * c.query_width() + k_rows * c.kv_model * (double(c.key_width()) + c.value_width()) +
             (O::has_weights ? q_rows * c.num_heads * c.value_dim * c.d_model : 0));
    const double pairs = 2.0 * batch * c.num_heads * queries * keys * (double(c.head_dim) + c.value_dim);
    const auto n = [](auto x) { return std::to_string(x); };
    const auto gflop = [](double flop) { return std::to_string(flop * 1e-9) + " GFLOP"; };
    return "heads:      " + n(c.num_heads) + " query, " + n(c.num_kv_heads) + " key/value, head_dim " + n(c.head_dim) +
           ", value_dim " + n(c.value_dim) + "\nweights:    " + n(parameter_count()) + " " + detail::scalar_name<T>() +
           (parameters_.owned() ? ", owned" : ", borrowed") + ", " + P::name + ", " + C::name + ", " + O::name +
           "\nprojections: " + gflop(projections) + " in dense products" + "\nattention:  " + gflop(pairs) +
           " if every pair were visible; " + B{}.template explain<T>({shape, c.num_kv_heads, c.head_dim, c.value_dim}) +
           "\nworkspace:  " +
           n(static_cast<std::size_t>(q_rows * (c.query_width() + double(c.num_heads) * c.value_dim) +
                                      k_rows * (double(c.key_width()) + c.value_width())) *
             sizeof(T)) +
           " bytes for Q, K, V and the heads\n";
  }

 private:
  /// Q, K, V of one call in workspace memory.
  struct Projected {
    TensorView<T, 4> q, k, v;
  };

  template <class X, class Memory, class... Extra> auto run(const X& x, const Memory& memory, Extra&... extra) const {
    check_arguments<X, Memory, Extra...>();
    const auto from = detail::read_sequence(x);
    const Index width = O::width(C::width(config_.num_heads, config_.value_dim), config_.d_model);
    if constexpr ((detail::IntoArgument<Extra> || ...)) {
      forward(from, detail::read_sequence(memory), find_into(extra...), extra...);
    } else {
      auto y = [&] {
        if constexpr (ViewTraits<X>::rank == 2)
          return detail::ResultOf<X>::make(from.extent[1], width);
        else
          return detail::ResultOf<X>::make(from.extent[0], from.extent[1], width);
      }();
      forward(from, detail::read_sequence(memory), detail::with_batch(view(y)), extra...);
      return y;
    }
  }

  template <class... Extra>
  void forward(const TensorView<const T, 3>& x, const TensorView<const T, 3>& memory, const TensorView<T, 3>& y,
               Extra&... extra) const {
    const Config& c = config_;
    const Index concat = C::width(c.num_heads, c.value_dim);
    check_inputs(x, memory);
    detail::require_data("layer", "the result", y);
    detail::require_equal("layer", "batch", "x", x.extent[0], "the result", y.extent[0]);
    detail::require_equal("layer", "length", "x", x.extent[1], "the result", y.extent[1]);
    detail::require_equal("layer", "width", "the layer's output", O::width(concat, c.d_model), "the result",
                          y.extent[2]);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const Projected p = project(x, memory, true, frame, workspace);
    // The canonical layout (B, L, H, Dv) is already the concatenation (B·L, H·Dv).
    const auto heads =
        view_blhd(take(frame, x.extent[0], x.extent[1], concat), x.extent[0], x.extent[1], c.num_heads, c.value_dim);
    detail::attend_views<B, T>("layer", heads, p.q, p.k, p.v, detail::intersect(mask_, detail::collect_masks(extra...)),
                               detail::chain(score_, detail::collect_scores(extra...)), options(extra...), workspace);
    const TensorView<const T, 2> rows = view(heads.data, x.extent[0] * x.extent[1], concat);
    if constexpr (O::has_weights) {
      const auto w = parameters_.views().output;
      into_rows(y, frame, [&](const TensorView<T, 2>& to) {
        B{}.gemm(GemmCall<T>{rows, w.weight, w.bias, to}, workspace);
      });
    } else {
      into_rows(y, frame, [&](const TensorView<T, 2>& to) {
        for (Index i = 0; i < rows.extent[0]; ++i)
          for (Index j = 0; j < concat; ++j) to(i, j) = rows(i, j);
      });
    }
  }

  template <class X, class Memory, class... Extra>
  auto weights(const X& x, const Memory& memory, Extra&... extra) const {
    check_arguments<X, Memory, Extra...>();
    const auto from = detail::read_sequence(x);
    const auto over = detail::read_sequence(memory);
    check_inputs(from, over);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const Projected p = project(from, over, false, frame, workspace);
    Tensor<Accumulator<T>, 4> to(from.extent[0], config_.num_heads, from.extent[1], over.extent[1]);
    detail::weights_views<B, T>("layer", to.view(), p.q, p.k, detail::intersect(mask_, detail::collect_masks(extra...)),
                                detail::chain(score_, detail::collect_scores(extra...)), options(extra...), workspace);
    return to;
  }

  template <class X, class Memory, class... Extra> static constexpr void check_arguments() {
    static_assert((detail::LayerArgument<Extra> && ...),
                  "mha: after its tensors a layer call takes masks, scores, mha::into(y), LogSumExp and a Workspace "
                  "(see mha/call.hpp)");
    static_assert(std::is_same_v<T, ScalarOf<X>> && std::is_same_v<T, ScalarOf<Memory>>,
                  "mha: the layer's scalar and the input's differ (see mha/layer/multi_head_attention.hpp)");
  }

  void check_inputs(const TensorView<const T, 3>& x, const TensorView<const T, 3>& memory) const {
    detail::require_data("layer", "x", x);
    detail::require_data("layer", "memory", memory);
    detail::require(x.extent[2] == config_.d_model, "layer: x has width ", x.extent[2], " but d_model is ",
                    config_.d_model);
    detail::require(memory.extent[2] == config_.kv_model, "layer: the keys' rows have width ", memory.extent[2],
                    " but kv_model is ", config_.kv_model);
    detail::require_equal("layer", "batch", "x", x.extent[0], "memory", memory.extent[0]);
    for (const auto* v : {&x, &memory})
      detail::require(std::int64_t{v->extent[0]} * v->extent[1] <= std::numeric_limits<Index>::max(),
                      "layer: ", v->extent[0], " sequences of ", v->extent[1], " rows are more than ",
                      std::numeric_limits<Index>::max(), " rows");
  }

  template <class... Extra> auto options(const Extra&... extra) const {
    auto o = detail::collect_options<Accumulator<T>>(extra...);
    o.scale = config_.scale;
    return o;
  }

  template <class E, class... Rest> static auto find_into(const E& first, const Rest&... rest) {
    if constexpr (detail::IntoArgument<E>) {
      static_assert(std::is_same_v<ScalarOf<decltype(first.to)>, T>, "mha: into(y) has another scalar than the layer");
      return detail::with_batch(first.to);
    } else {
      return find_into(rest...);
    }
  }

  static T* take(typename Workspace::Frame& frame, Index batch, Index length, Index width) {
    return frame.template take<T>(static_cast<std::size_t>(batch) * static_cast<std::size_t>(length) *
                                  static_cast<std::size_t>(width));
  }

  Projected project(const TensorView<const T, 3>& x, const TensorView<const T, 3>& memory, bool values,
                    typename Workspace::Frame& frame, Workspace& workspace) const {
    const auto w = parameters_.views();
    const auto q_rows = as_rows(x, frame);
    const auto k_rows = memory.data == x.data ? q_rows : as_rows(memory, frame);
    const auto made = [&](const TensorView<const T, 2>& rows, Index length, const HeadWeights<const T>& weights) {
      const Index columns = weights.head_count() * weights.head_dim();
      T* const data = take(frame, x.extent[0], length, columns);
      P::for_each_product(weights, [&](const ProjectionProduct<T>& product) {
        const TensorView<T, 2> to{
            data + product.first_column, {rows.extent[0], product.matrix.extent[1]}, {columns, 1}};
        B{}.gemm(GemmCall<T>{rows, product.matrix, product.bias, to}, workspace);
      });
      return view_blhd(data, x.extent[0], length, weights.head_count(), weights.head_dim());
    };
    Projected p;
    p.q = made(q_rows, x.extent[1], w.query);
    p.k = made(k_rows, memory.extent[1], w.key);
    if (values) p.v = made(k_rows, memory.extent[1], w.value);
    return p;
  }

  /// (B, L, E) as (B·L, E); copied if the sequences do not follow each other.
  static TensorView<const T, 2> as_rows(const TensorView<const T, 3>& v, typename Workspace::Frame& frame) {
    if (detail::rows_collapse(v)) return detail::collapsed(v);
    const auto copy = view(take(frame, v.extent[0], v.extent[1], v.extent[2]), v.extent[0], v.extent[1], v.extent[2]);
    for (Index b = 0; b < v.extent[0]; ++b)
      for (Index l = 0; l < v.extent[1]; ++l)
        for (Index e = 0; e < v.extent[2]; ++e) copy(b, l, e) = v(b, l, e);
    return detail::collapsed<const T>(copy);
  }

  /// f writes (B·L, E); it ends up in y, whatever y's strides.
  template <class F> static void into_rows(const TensorView<T, 3>& y, typename Workspace::Frame& frame, F&& f) {
    if (detail::rows_collapse(y)) return f(detail::collapsed(y));
    const auto copy = view(take(frame, y.extent[0], y.extent[1], y.extent[2]), y.extent[0], y.extent[1], y.extent[2]);
    f(detail::collapsed(copy));
    for (Index b = 0; b < y.extent[0]; ++b)
      for (Index l = 0; l < y.extent[1]; ++l)
        for (Index e = 0; e < y.extent[2]; ++e) y(b, l, e) = copy(b, l, e);
  }

  Config config_;
  Parameters<T, P, O::has_weights> parameters_;
  M mask_;
  S score_;
};

}  // namespace mha::inline v0
