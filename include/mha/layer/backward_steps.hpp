// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/row_sums.hpp"
#include "../block/dense_backward.hpp"
#include "../block/rows.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../core/view.hpp"
#include "../policy/position.hpp"
#include "../positions.hpp"
#include "../score_gradients.hpp"
#include "backward_interface.hpp"
#include "backward_items.hpp"
#include "gradients.hpp"
#include "key_value_gradients.hpp"
#include "parameter_views.hpp"

/// The backward pass of what a layer does before and after its attention.
namespace mha::inline MHA_NAMESPACE::detail {

/// The gradient of x after its position becomes that of x before, in place.
///
/// Shapes    gradient (B, L, H, D) of head_buffers(), with offsets (1, B·L, H, D) as well
template <class B, class A, class Position>
void run_position_backward(const Position& position, TensorView<A, 4> gradient, const RowPositions& at,
                           const ItemsOn<B>& run) {
  if (at.offsets != nullptr) gradient.extent[1] *= std::exchange(gradient.extent[0], 1);
  if constexpr (requires { position.for_each_items_back(gradient, at, run); }) {
    position.for_each_items_back(gradient, at, run);
  } else if constexpr (computes_on_host<B> && requires { position.apply_back(gradient, at.first); }) {
    apply_to_sequences(gradient, at, [&](const auto& rows, const Origins& first) { position.apply_back(rows, first); });
  } else {
    static_assert(std::is_same_v<Position, NoPosition>,
                  "mha: this position has no backward pass: it has no member for_each_items_back(gradient, at, f) "
                  "const and, on the host, no apply_back(gradient, first) const that takes rows of the accumulator "
                  "(see mha/policy/position.hpp)");
  }
}

/// What a backward pass reads, and where it writes.
template <class T> struct BackwardTensors {
  using A = Accumulator<T>;

  const RecordedTensors<T>& recorded;
  TensorView<const T, 3> dy;
  RowGradient<T> dx;
  MemoryTo<T> d_memory;
  TensorView<const T, 2> gated;  ///< the heads' outputs as they enter the output projection (B·L, Hq·Dv)
  TensorView<T, 4> d_heads;
  TensorView<A, 4> d_q, d_key, d_value;         ///< side by side where they are made from the same rows, unless the
                                                ///< memory's gradients are apart
  TensorView<A, 4> d_all_key{}, d_all_value{};  ///< those of all keys, where not all were made in the call
  KeyValuesTo<A> key_values{};
  bool of_bias = false;  ///< whether the gradient of an AdditiveBias is computed
};

/// All of a layer's backward pass but the attention itself, which is where the types of masks and scores are. Score is
/// what the gradients of the layer's score are added to: a pointer to their numbers, or on a device its ScoreSumsTo.
/// Gradients with null data have shapes alone and are not computed.
template <class T, class B, class Policies, class Score = TrainedOn<B, T, typename Policies::Score>*>
class LayerBackwardSteps final : public BackwardSteps<Accumulator<T>> {
  using A = Accumulator<T>;
  using Workspace = typename B::Workspace;
  using Norm = typename Policies::Norm;
  using Position = typename Policies::Position;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;
  using Part = DensePart<T>;
  using Gradients = LayerGradientViews<A>;

 public:
  LayerBackwardSteps(const Norm& norm, const Position& position, const ParameterViews<const T>& w,
                     const BackwardTensors<T>& tensors, const Gradients& gradients, Score score, const B& backend,
                     Workspace& workspace, typename Workspace::Frame& frame)
      : norm_(norm),
        position_(position),
        w_(w),
        tensors_(tensors),
        recorded_(tensors.recorded),
        gradients_(gradients),
        score_(score),
        backend_(backend),
        workspace_(workspace),
        items_{backend, workspace},
        dense_(backend, workspace),
        d_heads_(tensors.d_heads),
        d_q_(tensors.d_q),
        d_key_(tensors.d_key),
        d_value_(tensors.d_value) {
    if constexpr (!std::is_same_v<Position, NoPosition>)
      if (recorded_.positions.data != nullptr)
        own_positions_ = each_row_at(recorded_.positions, backend, frame, workspace);
    if (gradients.sink.data == nullptr) return;
    sinks_ = frame.template take<LongSum<A>>(static_cast<std::size_t>(recorded_.sinks));
    if constexpr (computes_on_host<B>)
      for (Index h = 0; h < recorded_.sinks; ++h) sinks_[h] = LongSum<A>(0);
  }

  /// Where the attention adds the gradients of the sink's logits (Hq); null if there are none.
  LongSum<A>* sinks() const { return sinks_; }

  /// dy back to the heads' outputs.
  void before() override {
    auto frame = workspace_.frame();
    const TensorView<const T, 2> dy = as_rows(tensors_.dy, frame, items_);
    const TensorView<T, 2> to = rows_of(d_heads_);
    if constexpr (Output::has_weights) {
      const Part part[] = {output_part<T>(w_.output.weight, gradients_.output.weight, gradients_.output.bias)};
      dense_.add_weights(tensors_.gated, dense_.gradient(dy, frame), part);
      if (to.size() > 0) backend_.gemm(GemmCall<T>{dy, transposed(w_.output.weight), {}, to}, workspace_);
    } else {
      items_(copy_items(dy, to));
    }
    if constexpr (Concat::has_gates) gates();
  }

  void score([[maybe_unused]] const ScoreSums<A>& sums) override {
    using Own = typename Policies::Score;
    if constexpr (trains_on<B, T, Own> && !computes_on_host<B>) {
      if (score_.sums != nullptr) score_.sums->add(sums, score_.to, items_);
    } else if constexpr (trains_on<B, T, Own>) {
      if (score_ == nullptr) return;
      if constexpr (count_biases < Own >> 0 && !sums_scores<B>)
        if (tensors_.of_bias)  // its table is among those of the sums
          return add_all_gradients<WantedScoreGradients<true, true>, Own>(*score_, sums);
      add_all_gradients<WantedScoreGradients<false, true>, Own>(*score_, sums);
    }
  }

  /// Gradients of Q, K and V back to the rows that they were made from.
  void after(const RowPositions& queries, const RowPositions& keys) override {
    if (tensors_.d_all_key.data != nullptr)
      items_(KeyGradientItems<A>(tensors_.d_all_key, tensors_.d_all_value, d_key_, d_value_, tensors_.key_values.key,
                                 tensors_.key_values.value, queries, keys));
    const bool own = own_positions_.offsets != nullptr, cached = recorded_.keys == KeysFrom::cache,
               beside = recorded_.keys == KeysFrom::x || cached;
    const RowPositions& of_x = own ? own_positions_ : queries;
    run_position_backward<B, A>(position_, d_q_, of_x, items_);
    if constexpr (Norm::has_weights) norm(recorded_.q_before_norm, w_.query_norm, d_q_, gradients_.query_norm);
    const bool turned_as_x = cached || (own && same_view(recorded_.x, recorded_.memory.keys));
    if (recorded_.made_keys()) turn_back_keys(turned_as_x ? of_x : keys);
    const Part parts[] = {{w_.query, gradients_.query}, {w_.key, gradients_.key}, {w_.value, gradients_.value}};
    const std::span<const Part> all(parts);
    project(recorded_.x, d_q_, beside ? all : all.first(1), tensors_.dx);
    if (recorded_.keys == KeysFrom::memory) to_memory(all.subspan(1));
    if (sinks_ != nullptr) items_(JoinSums<LongSum<A>, A>{1, recorded_.sinks, 1, 1, sinks_, gradients_.sink});
  }

  /// Gradients of keys and values alone back to the rows of the memory that they were made from.
  void memory_back(const RowPositions& keys) {
    turn_back_keys(keys);
    const Part parts[] = {{w_.key, gradients_.key}, {w_.value, gradients_.value}};
    to_memory(parts);
  }

 private:
  void to_memory(std::span<const Part> parts) const {
    const MemoryTo<T>& to = tensors_.d_memory;
    if (!to.apart) return project(recorded_.memory.keys, d_key_, parts, to);
    project(recorded_.memory.keys, d_key_, parts.first(1), to);
    project(recorded_.memory.values, d_value_, parts.subspan(1), to.values);
  }

  /// The gradient of keys back to before their position and their norm.
  void turn_back_keys(const RowPositions& at) {
    run_position_backward<B, A>(position_, d_key_, at, items_);
    if constexpr (Norm::has_weights) norm(recorded_.key_before_norm, w_.key_norm, d_key_, gradients_.key_norm);
  }

  /// Sums over the rows (b, l) of d of what f(b, l, sums) adds.
  template <class U, class F> void add_sums(const TensorView<U, 4>& d, const F& f, const TensorView<A, 1>& to) const {
    const Index length = d.extent[1];
    const auto row = [f, length](std::ptrdiff_t i, LongSum<A>* sums) {
      f(static_cast<Index>(i / length), static_cast<Index>(i % length), sums);
    };
    const Index cost = 4 * d.extent[2] * d.extent[3];
    add_row_sums<A>(std::ptrdiff_t{d.extent[0]} * length, cost, row, to, items_);
  }

  void gates() const {
    constexpr bool has = requires(const T* x, T* d) {
      Concat::template row_backward<T, LongSum<A>>(x, Index{}, *x, d);
    };
    static_assert(has,
                  "mha: this concatenation has no backward pass: it has no member row_backward(x, n, gate, d) "
                  "(see mha/policy/concat.hpp)");
    if constexpr (has && !computes_on_host<B>) {
      auto frame = workspace_.frame();
      const std::ptrdiff_t rows = std::ptrdiff_t{d_heads_.batch()} * d_heads_.length();
      const Index heads = d_heads_.heads();
      using Sum = LongSum<A>;
      Sum* const at = frame.template take<Sum>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads));
      const TensorView<Sum, 2> sums{at, {static_cast<Index>(rows), heads}, {heads, 1}};
      items_(GateBackwardItems<T, Concat>{rows, heads, 4 * d_heads_.dim(), recorded_.heads, d_heads_, w_.gate, sums});
      add_column_sums<A>(rows, ElementTerm<Sum>{sums}, gradients_.gate, items_);
    } else if constexpr (has)
      add_sums(
          d_heads_,
          [x = recorded_.heads, d = d_heads_, gate = w_.gate](Index b, Index l, LongSum<A>* sums) {
            for (Index h = 0; h < d.extent[2]; ++h)
              sums[h] += Concat::template row_backward<T, LongSum<A>>(x.pointer(b, l, h, 0), d.extent[3], gate(h),
                                                                      d.pointer(b, l, h, 0));
          },
          gradients_.gate);
  }

  /// d, the gradient of normed rows, becomes that of the rows before.
  void norm(const TensorView<const T, 4>& x, const TensorView<const T, 1>& weight, const TensorView<A, 4>& d,
            const TensorView<A, 1>& to) const {
    constexpr bool has = requires(const Norm& n, LongSum<A>* sums) {
      n.row_backward(x.data, x.stride[3], weight, d.data, sums);
    };
    static_assert(has,
                  "mha: this norm has no backward pass: it has no member row_backward(x, step, weight, d, sums) "
                  "(see mha/policy/qk_norm.hpp)");
    if constexpr (has && !computes_on_host<B>) {
      auto frame = workspace_.frame();
      const std::ptrdiff_t rows = std::ptrdiff_t{d.batch()} * d.length(), all = rows * d.heads();
      A* const sums = frame.template take<A>(static_cast<std::size_t>(all) * static_cast<std::size_t>(d.dim()));
      items_(HeadNormBackwardItems<T, Norm>{rows, d.heads(), 8 * d.dim(), norm_, x, weight, d, sums});
      add_column_sums<A>(all, FlatTerm<A>{sums, d.dim()}, to, items_);
    } else if constexpr (has)
      add_sums(
          d,
          [x, weight, d, n = norm_](Index b, Index l, LongSum<A>* sums) {
            for (Index h = 0; h < d.extent[2]; ++h)
              n.row_backward(x.pointer(b, l, h, 0), x.stride[3], weight, d.pointer(b, l, h, 0), sums);
          },
          to);
  }

  /// What was made from these rows by `parts`, the gradients of which lie beside each other from `first` on.
  void project(const TensorView<const T, 3>& from, const TensorView<A, 4>& first, std::span<const Part> parts,
               const RowGradient<T>& to) const {
    auto frame = workspace_.frame();
    Index width = 0;
    for (const Part& part : parts) width += part.columns();
    const auto d = dense_.of_sums({first.data, {from.extent[0] * from.extent[1], width}, {width, 1}}, frame);
    dense_.add_weights(as_rows(from, frame, items_), d, parts);
    if (to.to.size() == 0) return;
    into_rows(
        to, frame, [&](const TensorView<T, 2>& rows) { dense_.rows(d, parts, rows); }, items_);
  }

  const Norm& norm_;
  const Position& position_;
  const ParameterViews<const T> w_;
  const BackwardTensors<T> tensors_;
  const RecordedTensors<T>& recorded_;
  const Gradients gradients_;
  const Score score_;
  const B& backend_;
  Workspace& workspace_;
  const ItemsOn<B> items_;
  const DenseBackward<T, B> dense_;
  const TensorView<T, 4> d_heads_;
  const TensorView<A, 4> d_q_, d_key_, d_value_;
  RowPositions own_positions_{};  ///< of the rows of x, if the call was given Positions
  LongSum<A>* sinks_ = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
