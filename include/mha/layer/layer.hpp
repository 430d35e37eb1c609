// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../call.hpp"
#include "../launch.hpp"
#include "../policy/concat.hpp"
#include "../policy/output.hpp"
#include "../policy/position.hpp"
#include "../policy/projection.hpp"
#include "../policy/qk_norm.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "explain.hpp"
#include "parameters.hpp"
#include "products.hpp"
#include "sequence.hpp"

namespace mha::inline v0 {

/// A multi-head attention layer with one template parameter per role. Users name MultiHeadAttention, which sorts its
/// policies into this order; the code is shared whatever order they were written in.
///
/// Formula   Q = X W_Q + b_Q,  K = X_kv W_K + b_K,  V = X_kv W_V + b_V;  norm and position on Q and K;
///           head_h = attention(Q_h, K_g(h), V_g(h)),  Y = concat(heads) W_O + b_O
/// Source    Vaswani et al. 2017, §3.2.2
template <class T, Backend B, Heads H, Mask M, Score S, SinkPolicy Z, Norm N, Position R, Projection P, Concat C,
          Output O>
class Layer {
 public:
  using Scalar = T;
  using Workspace = typename B::Workspace;

  Layer(const Config& config, M mask, S score, Z sink, N norm, R position)
      : config_(detail::completed<H>(config)),
        parameters_(config_),
        mask_(std::move(mask)),
        score_(std::move(score)),
        sink_(std::move(sink)),
        norm_(std::move(norm)),
        position_(std::move(position)) {
    static_cast<void>(sink_.logits(config_.num_heads));
    if constexpr (requires { norm_.check(); }) norm_.check();
    if constexpr (requires { position_.check(Index{}); }) position_.check(config_.head_dim);
  }

  /// The configuration with every size filled in.
  const Config& config() const { return config_; }

  /// Read-only named views of the weights; null data while the layer has none.
  ParameterViews<const T> parameters() const { return parameters_.views(); }
  std::int64_t parameter_count() const { return parameters_.size(); }

  /// f(ParameterViews<T>&): the only way to change weights, so that nothing made from them can go stale. Backends that
  /// pack weights do so here and in borrow(), once for all calls.
  ///
  /// Errors    ShapeError if the weights are borrowed
  template <class F> void update(F&& f) {
    auto p = parameters_.writable();
    products_ = {};  // should f throw, the calls that follow multiply by the weights as they lie
    f(p);
    products_ = Products(parameters_.views(), O::has_weights);
  }

  /// Draws the weights, e.g. XavierUniform{.seed = 1}.
  template <class Initializer> void initialize(const Initializer& draw) {
    update([&](auto& p) { draw(p); });
  }

  /// Uses weights where they are, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the layer lives.
  /// Without one, whoever owns the memory must outlive this layer. A backend that packs weights reads the matrices here
  /// and not again: the pages of a mapping may be dropped, and weights that changed since are to be borrowed anew.
  ///
  /// Errors    ShapeError if a matrix or vector has not the layer's shape; nothing changes then
  void borrow(const BorrowedWeights<T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }
  void borrow(const ParameterViews<const T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }

  /// Uses another layer's weights, what was packed of them included, under this layer's own mask, score, sink and
  /// position: nothing is copied. Weights that the owner updates are to be borrowed anew, and it must outlive this
  /// layer unless it borrowed them itself.
  ///
  /// Errors    ShapeError if the owner has no weights or a matrix has not the layer's shape; nothing changes then
  template <Mask M2, Score S2, SinkPolicy Z2, Position R2>
  void borrow(const Layer<T, B, H, M2, S2, Z2, N, R2, P, C, O>& owner) {
    parameters_.borrow(owner.parameters(), owner.parameters_.keep_alive(),
                       [&](const ParameterViews<const T>&) { products_ = owner.products_; });
  }

  /// Self-attention.
  ///
  /// Shapes    x (L, E) or (B, L, E)  →  the same; with NoOutput the last axis is Hq·Dv. Ragged: (ΣL, E) and Packed
  /// Then      in any order: masks (they intersect with the layer's), scores (after the layer's), Packed, Origin,
  ///           into(y), LogSumExp, a Workspace. The scale is Config::scale.
  /// Errors    ShapeError if a size is not the configuration's, or the layer has no weights
  template <Sequence X, class... Extra>
  requires(!(detail::MemoryArgument<Extra> || ...)) auto operator()(const X& x, Extra&&... extra) const {
    return run(x, detail::read_sequence(x), extra...);
  }

  /// Cross-attention: queries from x, keys and values from memory.
  ///
  /// Shapes    x (Lq, E)  memory (Lk, E_kv), or (B, Lq, E) and (B, Lk, E_kv), or what project_memory() returned
  template <Sequence X, Sequence Memory, class... Extra>
  auto operator()(const X& x, const Memory& memory, Extra&&... extra) const {
    return run(x, detail::read_sequence(memory), extra...);
  }
  template <Sequence X, class... Extra>
  auto operator()(const X& x, const KeyValues<T>& memory, Extra&&... extra) const {
    return run(x, memory, extra...);
  }

  /// Keys and values of a memory, projected once.
  ///
  /// Shapes    memory (Lk, E_kv) or (B, Lk, E_kv)
  /// Then      Packed, a Workspace
  template <Sequence Memory, class... Extra> KeyValues<T> project_memory(const Memory& memory, Extra&&... extra) const {
    detail::check_project_arguments<Extra...>();
    const auto from = detail::read_sequence(memory);
    check_memory(from);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto options = detail::collect_options<Accumulator<T>>(extra...);
    KeyValues<T> to{Tensor<T, 4>(from.extent[0], from.extent[1], config_.num_kv_heads, config_.head_dim),
                    Tensor<T, 4>(from.extent[0], from.extent[1], config_.num_kv_heads, config_.value_dim)};
    const Index* offsets = nullptr;
    Index sequences = from.extent[0];
    if (options.packed) {
      const auto& k =
          options.packed->key_offsets.size > 0 ? options.packed->key_offsets : options.packed->query_offsets;
      detail::require_no_batch("project_memory", from.extent[0]);
      detail::require_offsets("project_memory", "k", k, from.extent[1]);
      offsets = k.data;
      sequences = k.size - 1;
    }
    const Source source{to.key.view(), to.value.view(), to.key.view(), to.value.view(), from};
    const auto w = parameters_.views();
    const TensorView<T, 2> results[] = {detail::rows_of(source.to_key), detail::rows_of(source.to_value)};
    products_.run(detail::as_rows(from, frame), w, Matrix::key, results, workspace);
    finish_keys(source, w, offsets, sequences);
    return to;
  }

  /// The softmax of every head, which a call never stores: (B, Hq, Lq, Lk).
  template <Sequence X, class... Extra>
  requires(!(detail::MemoryArgument<Extra> || ...)) auto attention_weights(const X& x, Extra&&... extra) const {
    return weights(x, detail::read_sequence(x), extra...);
  }
  template <Sequence X, Sequence Memory, class... Extra>
  auto attention_weights(const X& x, const Memory& memory, Extra&&... extra) const {
    return weights(x, detail::read_sequence(memory), extra...);
  }
  template <Sequence X, class... Extra>
  auto attention_weights(const X& x, const KeyValues<T>& memory, Extra&&... extra) const {
    return weights(x, memory, extra...);
  }

  /// The softmax averaged over the heads: (B, Lq, Lk).
  template <Sequence X, class... Extra> auto mean_attention_weights(const X& x, Extra&&... extra) const {
    return detail::mean_over_heads(attention_weights(x, extra...));
  }

  /// What a call of this shape costs, stage by stage; masks of the call intersect with the layer's.
  ///
  /// Errors    ShapeError if a size is negative, or a mask's data does not fit it
  template <Mask... Masks> Cost cost(Index batch, Index queries, Index keys, const Masks&... masks) const {
    return detail::layer_cost<T, N, C, O>(config_, batch, queries, keys,
                                          detail::intersect(mask_, detail::collect_masks(masks...)));
  }

  /// The cost, policies, kernel and memory of such a call, one fact a line.
  template <Mask... Masks> std::string explain(Index batch, Index queries, Index keys, const Masks&... masks) const {
    const CallShape shape{batch, config_.num_heads, queries, keys, keys - queries};
    const std::string weights =
        std::string(!parameters_.present()   ? "none yet"
                    : parameters_.borrowed() ? "borrowed"
                                             : "owned") +
        (products_.bytes() > 0 ? ", packed in " + std::to_string(products_.bytes()) + " bytes" : "");
    return detail::explain_layer<T, B>(config_, cost(batch, queries, keys, masks...), shape, weights,
                                       {P::name, N::name, R::name, C::name, O::name});
  }

 private:
  template <class T2, Backend B2, Heads H2, Mask M2, Score S2, SinkPolicy Z2, Norm N2, Position R2, Projection P2,
            Concat C2, Output O2>
  friend class Layer;

  template <class X, class Memory, class... Extra> auto run(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_arguments<Extra...>();
    check_scalars<X, Memory>();
    const auto from = detail::read_sequence(x);
    if constexpr ((detail::IntoArgument<Extra> || ...)) {
      forward(from, memory, find_into(extra...), extra...);
    } else {
      const Index width = output_width();
      auto y = [&] {
        if constexpr (ViewTraits<X>::rank == 2)
          return detail::ResultOf<X>::make(from.extent[1], width);
        else
          return detail::ResultOf<X>::make(from.extent[0], from.extent[1], width);
      }();
      forward(from, memory, detail::with_batch(view(y)), extra...);
      return y;
    }
  }

  template <class Memory, class... Extra>
  void forward(const TensorView<const T, 3>& x, const Memory& memory, const TensorView<T, 3>& y,
               Extra&... extra) const {
    const Config& c = config_;
    const Index batch = x.extent[0], length = x.extent[1], concat = c.num_heads * c.value_dim;
    check_x(x);
    check_memory(memory);
    detail::require_data("layer", "the result", y);
    detail::require_equal("layer", "batch", "x", batch, "the result", y.extent[0]);
    detail::require_equal("layer", "length", "x", length, "the result", y.extent[1]);
    detail::require_equal("layer", "width", "the layer's output", output_width(), "the result", y.extent[2]);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto q = buffer(frame, batch, length, c.num_heads, c.head_dim);
    const Source keys = source(memory, true, frame);
    // The canonical layout (B, L, H, Dv) is already the concatenation (B·L, H·Dv).
    const auto heads = buffer(frame, batch, length, c.num_heads, c.value_dim);
    // Everything is checked before anything is computed: the views' memory is filled below.
    const auto call = detail::attend_call<T>("layer", heads, TensorView<const T, 4>(q), keys.key, keys.value,
                                             detail::intersect(mask_, detail::collect_masks(extra...)),
                                             detail::chain(score_, detail::collect_scores(extra...)), sink_,
                                             options(extra...), frame);
    detail::require_supported<B>("layer");

    const auto w = parameters_.views();
    project(x, q, keys, call, w, frame, workspace);
    detail::run<B>(call, workspace);
    if constexpr (C::has_gates) C::template apply<T>(heads, w.gate);
    const TensorView<const T, 2> rows = view(heads.data, batch * length, concat);
    detail::into_rows(y, frame, [&](const TensorView<T, 2>& to) {
      if constexpr (O::has_weights)
        products_.run(rows, w, Matrix::output, {&to, 1}, workspace);
      else
        detail::copy_sequence(detail::with_batch(rows), detail::with_batch(to));
    });
  }

  template <class X, class Memory, class... Extra>
  auto weights(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_weights_arguments<Extra...>();
    check_scalars<X, Memory>();
    const auto from = detail::read_sequence(x);
    const Config& c = config_;
    check_x(from);
    check_memory(memory);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto q = buffer(frame, from.extent[0], from.extent[1], c.num_heads, c.head_dim);
    const Source keys = source(memory, false, frame);
    auto call = detail::checked_call<T>(
        "layer", TensorView<const T, 4>(q), keys.key, detail::intersect(mask_, detail::collect_masks(extra...)),
        detail::chain(score_, detail::collect_scores(extra...)), sink_, options(extra...), frame);
    call.kv = {keys.key, keys.key, call.k_offsets};
    detail::require_supported<B>("layer");
    project(from, q, keys, call, parameters_.views(), frame, workspace);
    return detail::run_weights<B>(call, workspace);
  }

  Index output_width() const { return O::width(config_.num_heads * config_.value_dim, config_.d_model); }

  static TensorView<T, 4> buffer(typename Workspace::Frame& frame, Index batch, Index length, Index heads, Index dim) {
    return view_blhd(detail::take<T>(frame, batch, length, heads * dim), batch, length, heads, dim);
  }

  /// Where a call's keys and values are, and where they are still to be made from.
  struct Source {
    TensorView<const T, 4> key, value;
    TensorView<T, 4> to_key, to_value;  // null data: nothing to make
    TensorView<const T, 3> rows;
  };
  Source source(const TensorView<const T, 3>& memory, bool values, typename Workspace::Frame& frame) const {
    const Config& c = config_;
    Source s;
    s.rows = memory;
    s.to_key = buffer(frame, memory.extent[0], memory.extent[1], c.num_kv_heads, c.head_dim);
    if (values) s.to_value = buffer(frame, memory.extent[0], memory.extent[1], c.num_kv_heads, c.value_dim);
    s.key = s.to_key;
    s.value = s.to_value;
    return s;
  }
  Source source(const KeyValues<T>& memory, bool, typename Workspace::Frame&) const {
    return {memory.key.view(), memory.value.view(), {}, {}, {}};
  }

  /// Q, K and V of a call, normalised and turned; one product where they are made from the same rows.
  template <class Call>
  void project(const TensorView<const T, 3>& x, const TensorView<T, 4>& q, const Source& s, const Call& call,
               const ParameterViews<const T>& w, typename Workspace::Frame& frame, Workspace& workspace) const {
    const TensorView<T, 2> results[] = {detail::rows_of(q), detail::rows_of(s.to_key), detail::rows_of(s.to_value)};
    const std::span<const TensorView<T, 2>> to(results, s.to_key.data == nullptr     ? 1u
                                                        : s.to_value.data == nullptr ? 2u
                                                                                     : 3u);
    const auto rows = detail::as_rows(x, frame);
    if (to.size() > 1 && !detail::same_view(x, s.rows)) {
      products_.run(rows, w, Matrix::query, to.first(1), workspace);
      products_.run(detail::as_rows(s.rows, frame), w, Matrix::key, to.subspan(1), workspace);
    } else {
      products_.run(rows, w, Matrix::query, to, workspace);
    }
    if constexpr (N::has_weights) norm_.template apply<T>(q, w.query_norm);
    turn(q, call.shape.origin, call.q_offsets, call.shape.batch);
    if (to.size() > 1) finish_keys(s, w, call.k_offsets, call.shape.batch);
  }

  void finish_keys(const Source& s, const ParameterViews<const T>& w, const Index* offsets, Index sequences) const {
    if constexpr (N::has_weights) norm_.template apply<T>(s.to_key, w.key_norm);
    turn(s.to_key, Origins(Index{0}), offsets, sequences);
  }

  /// Packs what is about to be borrowed, before anything else changes.
  auto packing() {
    return [this](const ParameterViews<const T>& w) { products_ = Products(w, O::has_weights); };
  }

  /// Lets the position of every row enter, sequence by sequence where the rows are packed.
  void turn(const TensorView<T, 4>& x, const Origins& first, const Index* offsets, Index sequences) const {
    if constexpr (requires { position_.apply(x, first); }) {
      if (offsets == nullptr) return position_.apply(x, first);
      for (Index b = 0; b < sequences; ++b) {
        TensorView<T, 4> sequence = x;
        sequence.data += offsets[b] * x.stride[1];
        sequence.extent[1] = offsets[b + 1] - offsets[b];
        position_.apply(sequence, Origins(first[b]));
      }
    }
  }

  template <class X, class Memory> static constexpr void check_scalars() {
    constexpr bool same_memory = std::is_same_v<Memory, TensorView<const T, 3>> || detail::is_key_values<Memory>;
    static_assert(std::is_same_v<T, ScalarOf<X>> && same_memory,
                  "mha: the layer's scalar and the input's differ (see mha/layer/multi_head_attention.hpp)");
  }

  void check_x(const TensorView<const T, 3>& x) const {
    detail::require(parameters_.present(), "layer: it has 0 of its ", parameter_count(),
                    " weights: call initialize, update or borrow first");
    detail::require_rows("x", x);
    detail::require(x.extent[2] == config_.d_model, "layer: x has width ", x.extent[2], " but d_model is ",
                    config_.d_model);
  }
  void check_memory(const TensorView<const T, 3>& memory) const {
    detail::require(parameters_.present(), "layer: it has 0 of its ", parameter_count(),
                    " weights: call initialize, update or borrow first");
    detail::require_rows("memory", memory);
    detail::require(memory.extent[2] == config_.kv_model, "layer: the keys' rows have width ", memory.extent[2],
                    " but kv_model is ", config_.kv_model);
  }
  void check_memory(const KeyValues<T>& memory) const {
    detail::require_equal("layer", "heads", "key", memory.key.extent(2), "the layer", config_.num_kv_heads);
    detail::require_equal("layer", "head size", "key", memory.key.extent(3), "the layer", config_.head_dim);
    detail::require_equal("layer", "head size", "value", memory.value.extent(3), "the layer", config_.value_dim);
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

  using Products = detail::LayerProducts<T, B, P>;
  using Matrix = detail::LayerMatrix;

  Config config_;
  Parameters<T, P, N, C, O> parameters_;
  Products products_;
  M mask_;
  S score_;
  [[no_unique_address]] Z sink_;
  [[no_unique_address]] N norm_;
  [[no_unique_address]] R position_;
};

}  // namespace mha::inline v0
