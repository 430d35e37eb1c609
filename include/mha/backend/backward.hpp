// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "../core/add_to.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "../policy/score_gradient.hpp"
#include "backend.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Where a gradient goes: a tensor like the one that it is the gradient of, of the call's scalar or of its
/// accumulator, or add_to() of one. Without a tensor, as GradientTo<T>{}, it is not computed.
///
/// Shapes    (L, D), (L, H, D) or (B, L, H, D), any strides
template <class T> class GradientTo {
  using A = Accumulator<T>;

 public:
  GradientTo() = default;
  template <detail::LastingView Owner>
  requires(ViewableOfRank<Owner, 2, 3, 4>) constexpr GradientTo(Owner&& owner) {
    set(view(std::forward<Owner>(owner)));
  }
  template <class View> constexpr GradientTo(const AddTo<View>& sum) : adds_(true) { set(sum.to); }

  /// Whether it has a tensor, if only one without elements.
  constexpr bool given() const { return given_; }
  /// Whether there is anything to write.
  constexpr bool wanted() const { return data_ != nullptr; }
  // How a kernel of another machine finds it: elements of the accumulator if it is wide.
  constexpr void* data() const { return data_; }
  constexpr bool wide() const { return wide_; }
  constexpr bool adds() const { return adds_; }
  /// Extents and strides, without data.
  constexpr const TensorView<const T, 4>& axes() const { return axes_; }
  void require_valid(const char* call, const char* name) const { detail::require_data(call, name, view_as<A>()); }
  /// Of one that is valid.
  void require_own_memory(const char* call, const char* name) const {
    if (wide_)
      detail::require_own_memory(call, name, view_as<A>(), detail::axes_of_heads);
    else
      detail::require_own_memory(call, name, view_as<T>(), detail::axes_of_heads);
  }
  detail::Footprint footprint() const {
    return wide_ ? detail::footprint(view_as<A>()) : detail::footprint(view_as<T>());
  }

  /// Elements from (b, l, h, 0) on.
  constexpr std::ptrdiff_t row(Index b, Index l, Index h) const {
    return b * axes_.stride[0] + l * axes_.stride[1] + h * axes_.stride[2];
  }
  /// Element d of a row ← x, or += x.
  constexpr void put(std::ptrdiff_t row, Index d, const A& x) const {
    const std::ptrdiff_t at = row + d * axes_.stride[3];
    if (wide_)
      write(static_cast<A*>(data_)[at], x);
    else
      write(static_cast<T*>(data_)[at], x);
  }

  /// All elements ← 0, or as they are if gradients are added to them.
  void clear() const {
    if (!wanted() || adds_) return;
    for (Index b = 0; b < axes_.extent[0]; ++b)
      for (Index l = 0; l < axes_.extent[1]; ++l)
        for (Index h = 0; h < axes_.extent[2]; ++h)
          for (Index d = 0; d < axes_.extent[3]; ++d) put(row(b, l, h), d, A(0));
  }

  /// A row whose elements are of T, side by side, and overwritten; nullptr for any other.
  T* plain_row(std::ptrdiff_t row) const {
    const bool plain = (!wide_ || std::is_same_v<T, A>)&&!adds_ && axes_.stride[3] == 1;
    return plain ? static_cast<T*>(data_) + row : nullptr;
  }
  /// Elements [0, n) of a row ← x, or += x.
  void put_row(std::ptrdiff_t row, const A* x, Index n) const {
    if (wide_)
      write_row(static_cast<A*>(data_) + row, x, n);
    else
      write_row(static_cast<T*>(data_) + row, x, n);
  }

 private:
  template <class E> TensorView<E, 4> view_as() const {
    TensorView<E, 4> v{static_cast<E*>(data_), {}, {}};
    for (int a = 0; a < 4; ++a) {
      v.extent[a] = axes_.extent[a];
      v.stride[a] = axes_.stride[a];
    }
    return v;
  }
  template <class E> void write_row(E* to, const A* x, Index n) const {
    const std::ptrdiff_t step = axes_.stride[3];
    if (adds_)
      for (Index d = 0; d < n; ++d) to[d * step] = static_cast<E>(static_cast<A>(to[d * step]) + x[d]);
    else if (step == 1)
      for (Index d = 0; d < n; ++d) to[d] = static_cast<E>(x[d] + A(0));
    else
      for (Index d = 0; d < n; ++d) to[d * step] = static_cast<E>(x[d] + A(0));
  }
  template <class E> constexpr void write(E& to, const A& x) const {
    to = static_cast<E>(adds_ ? static_cast<A>(to) + x : x + A(0));
  }

  template <class E, int Rank> constexpr void set(const TensorView<E, Rank>& given) {
    constexpr bool fits = std::is_same_v<E, T> || std::is_same_v<E, A>;
    static_assert(fits,
                  "mha: a gradient goes to a tensor, not a constant one, of the call's scalar or of its accumulator "
                  "(see mha/backend/backward.hpp)");
    if constexpr (fits) {
      const TensorView<E, 4> v = detail::with_heads(given);
      data_ = v.data;
      given_ = true;
      wide_ = std::is_same_v<E, A>;
      for (int a = 0; a < 4; ++a) {
        axes_.extent[a] = v.extent[a];
        axes_.stride[a] = v.stride[a];
      }
    }
  }

  void* data_ = nullptr;
  bool given_ = false, wide_ = false, adds_ = false;
  TensorView<const T, 4> axes_{};
};

/// Where the gradients of a score's own numbers go: those of its slots (B · Hq, count), each written once, and those of
/// its tables, which are 0 before. The last slots are the numbers of scores that accumulate.
///
/// A backend with `static constexpr bool sums_scores = true` writes all of it itself, in its own memory: the slots; the
/// sums of the tables by distance, which are not 0 before; and the elements of `bias`, summed over the axes of stride
/// 0.
template <class A> struct ScoreGradientsTo {
  static constexpr int most_tables = 4;
  LongSum<A>* slots = nullptr;
  int count = 0;
  detail::TableGradient<A, LongSum<A>> tables[std::size_t{most_tables}]{};
  detail::TableGradient<A, LongSum<A>> bias{};  ///< without elements there is nothing to write
};

/// The backward pass of one attention call as a backend gets it: checked, with its policies prepared. `Wanted` says
/// which gradients of the score are computed.
///
/// Formula   of L = ⟨d_out, out⟩ + ⟨d_log_sum_exp, log-sum-exp⟩, with p the weights of forward and t = score(s):
///             D_i  = d_out_i · out_i
///             dt   = p_ik (d_out_i · v_k − D_i) + d_log_sum_exp_i exp(t_ik − log-sum-exp_i),  ds = dt · ∂t/∂s
///             dQ_i = scale Σ_k ds k_k    dK_k = scale Σ_i ds q_i    dV_k = Σ_i p_ik d_out_i
///             with dropout, f the factors:  dt = p_ik (f_ik d_out_i · v_k − D_i) + …,  dV_k = Σ_i f_ik p_ik d_out_i
///             dsink_h = −Σ_i p_i,sink D_i    dθ = Σ dt · ∂t/∂θ for numbers θ of the score
/// Shapes    out, d_out (B, Lq, Hq, Dv)  d_log_sum_exp (B, Hq, Lq), null data for 0  query, key, value as q, k, v
///           sink (Hq), null if not wanted; it is overwritten
/// Numerics  a hidden pair, and so a row that sees nothing, contributes exactly nothing, whatever stands in d_out; a
///           NaN in a visible pair propagates
/// Source    Dao et al. 2022 (FlashAttention), appendix B.2
template <class T, class Source, class M, class S, class Wanted = NoScoreGradients> struct AttendBackwardCall {
  using Scalar = T;
  using WantedGradients = Wanted;

  AttendCall<T, Source, M, S> forward;  ///< without its out, log_sum_exp and states
  TensorView<const T, 4> out, d_out;
  TensorView<const Accumulator<T>, 3> d_log_sum_exp;
  const Accumulator<T>* level;  ///< as forward's attend() has written them
  const Accumulator<T>* sum;
  GradientTo<T> query, key, value;
  LongSum<Accumulator<T>>* sink = nullptr;
  const Index* key_offsets = nullptr;  ///< of a ragged batch
  ScoreGradientsTo<Accumulator<T>> score{};

  /// The same call with another forward part, such as one whose policies have lost their types.
  template <class OtherWanted = Wanted, class OtherSource, class OtherMask, class OtherScore>
  constexpr AttendBackwardCall<T, OtherSource, OtherMask, OtherScore, OtherWanted> with(
      AttendCall<T, OtherSource, OtherMask, OtherScore> other) const {
    return {std::move(other), out, d_out, d_log_sum_exp, level, sum, query, key, value, sink, key_offsets, score};
  }

  /// Row i of sequence b of out or d_out (Dv).
  constexpr const T* row(const TensorView<const T, 4>& v, Index b, Index i, Index h) const {
    return forward.q_offsets != nullptr ? v.pointer(0, forward.q_offsets[b] + i, h, 0) : v.pointer(b, i, h, 0);
  }
  constexpr Accumulator<T> row_d_log_sum_exp(Index b, Index h, Index i) const {
    if (d_log_sum_exp.data == nullptr) return Accumulator<T>(0);
    return forward.q_offsets != nullptr ? d_log_sum_exp(0, h, forward.q_offsets[b] + i) : d_log_sum_exp(b, h, i);
  }
  /// Where the gradients of query i, and of key k, of sequence b begin in their destinations.
  constexpr std::ptrdiff_t query_row(Index b, Index i, Index h) const {
    return row_of(query, forward.q_offsets, b, i, h);
  }
  constexpr std::ptrdiff_t key_row(const GradientTo<T>& to, Index b, Index k, Index g) const {
    return row_of(to, key_offsets, b, k, g);
  }

 private:
  static constexpr std::ptrdiff_t row_of(const GradientTo<T>& to, const Index* offsets, Index b, Index i, Index h) {
    return offsets != nullptr ? to.row(0, offsets[b] + i, h) : to.row(b, i, h);
  }
};

/// A backend with a backward pass of attention.
template <class B, class T>
concept DifferentiatesAttention = requires(const B backend, typename B::Workspace& workspace,
                                           const AttendBackwardCall<T, ContiguousKv<T>, Full, NoScore>& call) {
  backend.attend_backward(call, workspace);
};

namespace detail {

/// Refuses a backward pass that is too large for the backend, where it says so, before anything is computed.
template <class B> void require_backward_fits(const B& backend, const char* call, const CallShape& shape) {
  if constexpr (requires { backend.require_backward(call, shape); }) backend.require_backward(call, shape);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
