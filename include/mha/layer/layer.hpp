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
#include "../policy/sink.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "explain.hpp"
#include "parameters.hpp"
#include "products.hpp"
#include "sequence.hpp"
#include "stages.hpp"

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
  using KeyValues = mha::KeyValues<T, detail::TensorOf<B, T, 4>>;

  Layer(const Config& config, M mask, S score, Z sink, N norm, R position)
      : config_(detail::completed<H>(config)),
        parameters_(config_),
        mask_(std::move(mask)),
        score_(std::move(score)),
        sink_(std::move(sink)),
        norm_(std::move(norm)),
        position_(std::move(position)) {
    static_cast<void>(sink_.own().logits(config_.num_heads));
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

  /// Uses weights where they are, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the layer lives;
  /// without one, their owner must outlive this layer. A backend that packs weights reads the matrices here only: the
  /// pages of a mapping may be dropped, and weights that change are to be borrowed anew.
  ///
  /// Errors    ShapeError if a matrix or vector has not the layer's shape; nothing changes then
  void borrow(const BorrowedWeights<T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }
  void borrow(const ParameterViews<const T>& weights, std::shared_ptr<const void> keep_alive = nullptr) {
    parameters_.borrow(weights, std::move(keep_alive), packing());
  }

  /// Uses another layer's weights under this layer's own policies: nothing is copied, and what was packed of them is
  /// shared too, unless backend or projection policy differ. Borrow anew after an update of the owner's weights; the
  /// owner must outlive this layer unless it borrowed them itself.
  ///
  /// Errors    ShapeError if the owner has no weights or a matrix has not the layer's shape; nothing changes then
  template <Backend B2, Heads H2, Mask M2, Score S2, SinkPolicy Z2, Norm N2, Position R2, Projection P2, Concat C2,
            Output O2>
  void borrow(const Layer<T, B2, H2, M2, S2, Z2, N2, R2, P2, C2, O2>& owner) {
    detail::require(owner.parameters_.present(), "borrow: the owner has 0 of its ", owner.parameter_count(),
                    " weights: call initialize, update or borrow on it first");
    const auto take = [&](const ParameterViews<const T>& w) {
      if constexpr (std::is_same_v<Products, detail::LayerProducts<T, B2, P2>>)
        products_ = owner.products_;
      else
        packing()(w);
    };
    parameters_.borrow(owner.parameters(), owner.parameters_.keep_alive(), take);
  }

  /// Self-attention.
  ///
  /// Shapes    x (L, E) or (B, L, E)  →  the same; with NoOutput the last axis is Hq·Dv. Ragged: (ΣL, E) and Packed
  /// Then      in any order: masks (they intersect with the layer's), scores (after the layer's), Packed, Origin,
  ///           into(y), where y may be x itself, LogSumExp, a Workspace. The scale is Config::scale.
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
    detail::check_memory_of<B, Memory>();
    return run(x, detail::read_sequence(memory), extra...);
  }
  template <Sequence X, class... Extra> auto operator()(const X& x, const KeyValues& memory, Extra&&... extra) const {
    return run(x, memory, extra...);
  }

  /// Keys and values of a memory, projected once.
  ///
  /// Shapes    memory (Lk, E_kv) or (B, Lk, E_kv)
  /// Then      Packed, a Workspace
  template <Sequence Memory, class... Extra> KeyValues project_memory(const Memory& memory, Extra&&... extra) const {
    detail::check_project_arguments<Extra...>();
    detail::check_memory_of<B, Memory>();
    const auto from = detail::read_sequence(memory);
    check_memory(from);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto options = detail::collect_options<Accumulator<T>>(extra...);
    RowPositions at;
    if (options.packed) {
      const auto& k =
          options.packed->key_offsets.size > 0 ? options.packed->key_offsets : options.packed->query_offsets;
      detail::require_no_batch("project_memory", from.extent[0]);
      detail::require_offsets("project_memory", "k", k, from.extent[1]);
      at = {Origins(Index{0}), k.data, k.size - 1, detail::longest(k)};
    }
    detail::require_supported<B>("project_memory");
    detail::require_reachable<B>("project_memory", "memory", from);
    if constexpr (!detail::computes_on_host<B>)
      if (at.offsets != nullptr) at.offsets = B{}.stage(at.offsets, at.sequences + 1, frame, workspace);
    using Made = detail::TensorOf<B, T, 4>;
    KeyValues to{Made(from.extent[0], from.extent[1], config_.num_kv_heads, config_.head_dim),
                 Made(from.extent[0], from.extent[1], config_.num_kv_heads, config_.value_dim)};
    const auto w = parameters_.views();
    const detail::ItemsOn<B> items{workspace};
    const TensorView<T, 2> results[] = {detail::rows_of(to.key.view()), detail::rows_of(to.value.view())};
    products_.run(detail::as_rows(from, frame, items), w, Matrix::key, results, workspace);
    finish_keys(to.key.view(), w, at, items);
    return to;
  }

  /// The softmax of every head, which a call never stores: (B, Hq, Lq, Lk), in the backend's memory.
  template <Sequence X, class... Extra>
  requires(!(detail::MemoryArgument<Extra> || ...)) auto attention_weights(const X& x, Extra&&... extra) const {
    return weights(x, detail::read_sequence(x), extra...);
  }
  template <Sequence X, Sequence Memory, class... Extra>
  auto attention_weights(const X& x, const Memory& memory, Extra&&... extra) const {
    return weights(x, detail::read_sequence(memory), extra...);
  }
  template <Sequence X, class... Extra>
  auto attention_weights(const X& x, const KeyValues& memory, Extra&&... extra) const {
    return weights(x, memory, extra...);
  }

  /// The softmax averaged over the heads: (B, Lq, Lk).
  template <Sequence X, class... Extra> auto mean_attention_weights(const X& x, Extra&&... extra) const {
    Workspace own;
    const detail::ItemsOn<B> items{detail::workspace_or(own, extra...)};
    const auto each = attention_weights(x, extra...);
    detail::TensorOf<B, Accumulator<T>, 3> mean(each.extent(0), each.extent(2), each.extent(3));
    items(detail::mean_over_heads<Accumulator<T>>(each.view(), mean.view()));
    return mean;
  }

  /// What a call of this shape costs, stage by stage; masks of the call intersect with the layer's.
  ///
  /// Errors    ShapeError if a size is negative, or a mask's data does not fit it
  template <Mask... Masks> Cost cost(Index batch, Index queries, Index keys, const Masks&... masks) const {
    return detail::layer_cost<T, N, C, O>(config_, batch, queries, keys,
                                          detail::intersect(mask_.own(), detail::collect_masks(masks...)));
  }

  /// The cost, policies, kernel and memory of such a call, one fact a line.
  template <Mask... Masks> std::string explain(Index batch, Index queries, Index keys, const Masks&... masks) const {
    const CallShape shape{batch, config_.num_heads, queries, keys, keys - queries};
    std::string weights = parameters_.borrowed() ? "borrowed" : parameters_.present() ? "owned" : "none yet";
    if (products_.bytes() > 0) weights += ", packed in " + std::to_string(products_.bytes()) + " bytes";
    return detail::explain_layer<T, B>(config_, cost(batch, queries, keys, masks...), shape, weights,
                                       {P::name, N::name, R::name, C::name, O::name});
  }

 private:
  template <class T2, Backend B2, Heads H2, Mask M2, Score S2, SinkPolicy Z2, Norm N2, Position R2, Projection P2,
            Concat C2, Output O2>
  friend class Layer;

  template <class X, class Memory, class... Extra> auto run(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_arguments<Extra...>();
    static_assert(check_scalars<X, Memory>());
    detail::check_memory_of<B, X>();
    const auto from = detail::read_sequence(x);
    if constexpr ((detail::IntoArgument<Extra> || ...)) {
      forward(from, memory, detail::find_into<T>(extra...), extra...);
    } else {
      const Index width = output_width();
      auto y = [&] {
        using Result = detail::ResultOn<B, X>;
        if constexpr (ViewTraits<X>::rank == 2)
          return Result::make(from.extent[1], width);
        else
          return Result::make(from.extent[0], from.extent[1], width);
      }();
      forward(from, memory, detail::with_batch(view(y)), extra...);
      return y;
    }
  }

  template <class Memory, class... Extra>
  void forward(const TensorView<const T, 3>& x, const Memory& memory, const TensorView<T, 3>& y,
               Extra&... extra) const {
    const Config& c = config_;
    const Index batch = x.extent[0], length = x.extent[1];
    check_x(x);
    check_memory(memory);
    detail::require_data("layer", "the result", y);
    detail::require_equal("layer", "batch", "x", batch, "the result", y.extent[0]);
    detail::require_equal("layer", "length", "x", length, "the result", y.extent[1]);
    detail::require_equal("layer", "width", "the layer's output", output_width(), "the result", y.extent[2]);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto made = detail::projected<B>(c, x, memory, true, frame);
    // The canonical layout (B, L, H, Dv) is already the concatenation (B·L, H·Dv).
    const detail::HeadSizes of_heads{c.num_heads, c.value_dim};
    const auto heads = detail::head_buffers<T, false>(frame, batch, length, {of_heads})[0];
    // Everything is checked before anything is computed: the views' memory is filled below.
    auto checked = detail::attend_call<T, detail::memory_of<B>>(
        "layer", heads, TensorView<const T, 4>(made.q), made.key, made.value,
        detail::intersect(mask_.there(), detail::collect_masks(extra...)),
        detail::chain(score_.there(), detail::collect_scores(extra...)), sink_.there(), options(extra...), frame);
    detail::require_supported<B>("layer");
    detail::require_reachable<B>("layer", "x", x);
    detail::require_reachable<B>("layer", "memory", made.rows);
    detail::require_reachable<B>("layer", "the result", y);
    detail::require_reachable<B>("layer", "log-sum-exp", checked.log_sum_exp);

    const auto call = detail::staged<B>(std::move(checked), frame, workspace);
    const auto w = parameters_.views();
    const detail::ItemsOn<B> items{workspace};
    project(x, made, call, w, frame, workspace);
    detail::run<B>(call, workspace);
    detail::run_gates<B, C, T>(heads, products_.vectors(w).gate, items);
    const TensorView<const T, 2> rows = view(heads.data, batch * length, c.concat_width());
    const auto finish = [&](const TensorView<T, 2>& to) {
      if constexpr (O::has_weights)
        products_.run(rows, w, Matrix::output, {&to, 1}, workspace);
      else
        items(detail::copy_items(rows, to));
    };
    detail::into_rows(y, frame, finish, items);
  }

  template <class X, class Memory, class... Extra>
  auto weights(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_weights_arguments<Extra...>();
    static_assert(check_scalars<X, Memory>());
    detail::check_memory_of<B, X>();
    const auto from = detail::read_sequence(x);
    check_x(from);
    check_memory(memory);
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto made = detail::projected<B>(config_, from, memory, false, frame);
    auto checked = detail::checked_call<T, detail::memory_of<B>>(
        "layer", TensorView<const T, 4>(made.q), made.key,
        detail::intersect(mask_.there(), detail::collect_masks(extra...)),
        detail::chain(score_.there(), detail::collect_scores(extra...)), sink_.there(), options(extra...), frame);
    checked.kv = {made.key, made.key, checked.k_offsets};
    detail::require_supported<B>("layer");
    detail::require_reachable<B>("layer", "x", from);
    detail::require_reachable<B>("layer", "memory", made.rows);
    const auto call = detail::staged<B>(std::move(checked), frame, workspace);
    project(from, made, call, parameters_.views(), frame, workspace);
    return detail::run_weights<B>(call, workspace);
  }

  Index output_width() const { return O::width(config_.concat_width(), config_.d_model); }

  /// Q, K and V of a call, normalised and turned; one product where they are made from the same rows.
  template <class Call>
  void project(const TensorView<const T, 3>& x, const detail::Projected<T>& p, const Call& call,
               const ParameterViews<const T>& w, typename Workspace::Frame& frame, Workspace& workspace) const {
    const detail::ItemsOn<B> items{workspace};
    const TensorView<T, 2> results[] = {detail::rows_of(p.q), detail::rows_of(p.to_key), detail::rows_of(p.to_value)};
    const std::span<const TensorView<T, 2>> to(results, p.to_key.data == nullptr     ? 1u
                                                        : p.to_value.data == nullptr ? 2u
                                                                                     : 3u);
    const auto rows = detail::as_rows(x, frame, items);
    if (to.size() > 1 && !detail::same_view(x, p.rows)) {
      products_.run(rows, w, Matrix::query, to.first(1), workspace);
      products_.run(detail::as_rows(p.rows, frame, items), w, Matrix::key, to.subspan(1), workspace);
    } else {
      products_.run(rows, w, Matrix::query, to, workspace);
    }
    const CallShape& shape = call.shape;
    detail::run_norm<B, T>(norm_, p.q, products_.vectors(w).query_norm, items);
    detail::run_position<B, T>(position_, p.q, {shape.origin, call.q_offsets, shape.batch, shape.queries}, items);
    if (to.size() > 1) finish_keys(p.to_key, w, {Origins(Index{0}), call.k_offsets, shape.batch, shape.keys}, items);
  }

  void finish_keys(const TensorView<T, 4>& keys, const ParameterViews<const T>& w, const RowPositions& at,
                   const detail::ItemsOn<B>& items) const {
    detail::run_norm<B, T>(norm_, keys, products_.vectors(w).key_norm, items);
    detail::run_position<B, T>(position_, keys, at, items);
  }

  /// Packs what is about to be borrowed, before anything else changes.
  auto packing() {
    return [this](const ParameterViews<const T>& w) { products_ = Products(w, O::has_weights); };
  }

  template <class X, class Memory> static constexpr bool check_scalars() {
    constexpr bool same_memory = std::is_same_v<Memory, TensorView<const T, 3>> || detail::is_key_values<Memory>;
    static_assert(std::is_same_v<T, ScalarOf<X>> && same_memory,
                  "mha: the layer's scalar and the input's differ (see mha/layer/multi_head_attention.hpp)");
    return true;
  }

  void require_weights() const {
    detail::require(parameters_.present(), "layer: it has 0 of its ", parameter_count(),
                    " weights: call initialize, update or borrow first");
  }
  void check_x(const TensorView<const T, 3>& x) const {
    require_weights();
    detail::require_rows("x", x);
    detail::require(x.extent[2] == config_.d_model, "layer: x has width ", x.extent[2], " but d_model is ",
                    config_.d_model);
  }
  void check_memory(const TensorView<const T, 3>& memory) const {
    require_weights();
    detail::require_rows("memory", memory);
    detail::require(memory.extent[2] == config_.kv_model, "layer: the keys' rows have width ", memory.extent[2],
                    " but kv_model is ", config_.kv_model);
  }
  void check_memory(const KeyValues& memory) const {
    detail::require_equal("layer", "heads", "key", memory.key.extent(2), "the layer", config_.num_kv_heads);
    detail::require_equal("layer", "head size", "key", memory.key.extent(3), "the layer", config_.head_dim);
    detail::require_equal("layer", "head size", "value", memory.value.extent(3), "the layer", config_.value_dim);
  }
  template <class... Extra> auto options(const Extra&... extra) const {
    auto o = detail::collect_options<Accumulator<T>>(extra...);
    o.scale = config_.scale;
    return o;
  }

  using Products = detail::LayerProducts<T, B, P>;
  using Matrix = detail::LayerMatrix;

  Config config_;
  Parameters<T, P, N, C, O> parameters_;
  Products products_;
  detail::Kept<B, M> mask_;
  detail::Kept<B, S> score_;
  [[no_unique_address]] detail::Kept<B, Z> sink_;
  [[no_unique_address]] N norm_;
  [[no_unique_address]] R position_;
};

}  // namespace mha::inline v0
