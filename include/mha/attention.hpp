// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#include "call.hpp"
#include "core/check.hpp"
#include "core/online_softmax.hpp"

namespace mha::inline v0 {

namespace detail {

/// One head (L, D) or all of them (B, L, H, D), as four axes.
template <class T> constexpr TensorView<T, 4> with_heads(const TensorView<T, 4>& v) { return v; }
template <class T> constexpr TensorView<T, 4> with_heads(const TensorView<T, 2>& v) {
  return {v.data, {1, v.extent[0], 1, v.extent[1]}, {0, v.stride[0], 0, v.stride[1]}};
}

template <class Owner> constexpr auto read_heads(const Owner& owner) {
  TensorView<const ScalarOf<Owner>, 4> v = with_heads(ViewTraits<Owner>::view(owner));
  return v;
}

/// Rows contiguous along the last axis, as a KvRun promises: packed once if they are not (Eigen's column-major
/// default).
template <class T>
TensorView<const T, 4> unit_rows(const TensorView<const T, 4>& v, Workspace::Frame& frame, Tensor<T, 4>& copy) {
  if (v.stride[3] == 1 || v.extent[3] <= 1) return v;
  TensorView<T, 4> to;
  if constexpr (std::is_trivially_copyable_v<T>) {
    to = view(frame.take<T>(static_cast<std::size_t>(v.size())), v.extent[0], v.extent[1], v.extent[2], v.extent[3]);
  } else {
    copy = Tensor<T, 4>(v.extent[0], v.extent[1], v.extent[2], v.extent[3]);
    to = copy.view();
  }
  for (Index b = 0; b < v.extent[0]; ++b)
    for (Index l = 0; l < v.extent[1]; ++l)
      for (Index h = 0; h < v.extent[2]; ++h)
        for (Index d = 0; d < v.extent[3]; ++d) to(b, l, h, d) = v(b, l, h, d);
  return to;
}

template <class B> void require_supported(const char* call) {
  const Support support = B{}.supported();
  if (!support.ok) throw std::runtime_error(std::string(call) + ": " + B::name + " cannot run here: " + support.reason);
}

/// Checks q and k against each other and prepares the policies: everything of a call but its values and outputs.
template <class T, class M, class S>
auto checked_call(const char* name, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k, const M& mask,
                  const S& score, const CallOptions<Accumulator<T>>& options) {
  using A = Accumulator<T>;
  require_data(name, "q", q);
  require_data(name, "k", k);
  require_equal(name, "batch", "q", q.batch(), "k", k.batch());
  require_equal(name, "head size", "q", q.dim(), "k", k.dim());
  require(q.dim() > 0, name, ": q has head size 0, the least is 1");
  require(q.heads() == 0 || (k.heads() > 0 && q.heads() % k.heads() == 0), name, ": k has ", k.heads(),
          " heads, which does not divide q's ", q.heads());
  const CallShape shape{q.batch(), q.heads(), q.length(), k.length(),
                        options.origin ? *options.origin : k.length() - q.length()};
  require(std::int64_t{shape.origin} + shape.queries <= std::numeric_limits<Index>::max() / 2 &&
              shape.origin >= -(std::numeric_limits<Index>::max() / 2),
          name, ": the origin ", shape.origin, " puts ", shape.queries, " queries beyond position ",
          std::numeric_limits<Index>::max() / 2);
  if (options.scale) require(std::isfinite(*options.scale), name, ": the scale is ", *options.scale, ", not finite");
  const auto on_host = [&](const auto& borrowed) {
    if (borrowed.memory != Memory::host)
      fail(name, ": a policy borrows device memory, but the backend computes on the host");
    return borrowed;
  };
  const auto ready_mask = mha::prepared(with_data(mask, on_host), shape);
  const auto ready_score = mha::prepared(with_data(score, on_host), shape);
  AttendCall<T, ContiguousKv<T>, std::remove_const_t<decltype(ready_mask)>, std::remove_const_t<decltype(ready_score)>>
      call{q, {k, k}, ready_mask, ready_score, {}, {}, shape, k.heads(), q.dim(), q.dim(), A(0)};
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(double(q.dim()));
  call.scale = static_cast<A>(scale);
  return call;
}

template <class B, class T, class M, class S>
void attend_views(const char* name, const TensorView<T, 4>& out, const TensorView<const T, 4>& q,
                  const TensorView<const T, 4>& k, const TensorView<const T, 4>& v, const M& mask, const S& score,
                  const CallOptions<Accumulator<T>>& options, typename B::Workspace& workspace) {
  require_data(name, "v", v);
  require_data(name, "out", out);
  require_equal(name, "batch", "k", k.batch(), "v", v.batch());
  require_equal(name, "length", "k", k.length(), "v", v.length());
  require_equal(name, "heads", "k", k.heads(), "v", v.heads());
  require_equal(name, "batch", "q", q.batch(), "out", out.batch());
  require_equal(name, "length", "q", q.length(), "out", out.length());
  require_equal(name, "heads", "q", q.heads(), "out", out.heads());
  require_equal(name, "head size", "v", v.dim(), "out", out.dim());
  auto call = checked_call<T>(name, q, k, mask, score, options);
  if (options.log_sum_exp) {
    const auto& to = *options.log_sum_exp;
    require_data(name, "log-sum-exp", to);
    require_equal(name, "batch", "q", q.batch(), "log-sum-exp", to.extent[0]);
    require_equal(name, "heads", "q", q.heads(), "log-sum-exp", to.extent[1]);
    require_equal(name, "length", "q", q.length(), "log-sum-exp", to.extent[2]);
    call.log_sum_exp = to;
  }
  require_supported<B>(name);
  auto frame = workspace.frame();
  Tensor<T, 4> key_copy, value_copy;
  call.kv = {unit_rows(k, frame, key_copy), unit_rows(v, frame, value_copy)};
  call.value_dim = v.dim();
  call.out = out;
  if (out.size() > 0) B{}.attend(call, workspace);
}

template <class B, class T, class M, class S>
void weights_views(const char* name, const TensorView<Accumulator<T>, 4>& to, const TensorView<const T, 4>& q,
                   const TensorView<const T, 4>& k, const M& mask, const S& score,
                   const CallOptions<Accumulator<T>>& options, typename B::Workspace& workspace) {
  static_assert(
      requires(const B backend, AttendCall<T, ContiguousKv<T>, Full, NoScore> call) {
        backend.weights(call, to, workspace);
      },
      "mha: this backend does not return attention weights: it has no member weights(call, to, workspace) "
      "(see mha/backend/backend.hpp)");
  auto call = checked_call<T>(name, q, k, mask, score, options);
  require_supported<B>(name);
  auto frame = workspace.frame();
  Tensor<T, 4> key_copy;
  const TensorView<const T, 4> rows = unit_rows(k, frame, key_copy);
  call.kv = {rows, rows};
  if (to.size() > 0) B{}.weights(call, to, workspace);
}

}  // namespace detail

/// q, k, v of attention(): one head (L, D) or (B, L, H, D).
template <class T>
concept AttentionTensor = ViewableOfRank<T, 2, 4>;

/// Scaled dot-product attention into memory of the caller's.
///
/// Formula   out = softmax(score(scale · q kᵀ) where the mask allows) v
/// Shapes    q (B, Lq, Hq, D)  k (B, Lk, Hkv, D)  v (B, Lk, Hkv, Dv)  out (B, Lq, Hq, Dv), any strides; or one head
/// each,
///           (Lq, D)  (Lk, D)  (Lk, Dv)  (Lq, Dv). Query head h reads key/value head h / (Hq / Hkv).
/// Then      in any order: masks (they intersect), scores (they chain as written), Scale (default 1/√D), Origin,
///           LogSumExp, a Workspace
/// Units     logits in natural-log scale; mask true = visible
/// Numerics  accumulates in Accumulator<T>; fully masked row → 0; a hidden key contributes nothing, not even NaN
/// Cost      4·B·Hq·(visible pairs)·D FLOP; Lq × Lk is never stored; no allocation once the workspace has grown
/// Errors    ShapeError if the sizes do not agree, Hq % Hkv != 0, data is null or the scale is not finite
/// Source    Vaswani et al. 2017, §3.2.1, eq. 1; Dao et al. 2022
template <Backend B = Cpu, AttentionTensor Out, AttentionTensor Q, AttentionTensor K, AttentionTensor V, class... Extra>
void attention_into(Out&& out, const Q& q, const K& k, const V& v, Extra&&... extra) {
  using T = ScalarOf<Q>;
  static_assert(std::is_same_v<T, ScalarOf<K>> && std::is_same_v<T, ScalarOf<V>> && std::is_same_v<T, ScalarOf<Out>>,
                "mha: attention needs q, k, v and out of one scalar type (see mha/attention.hpp)");
  detail::check_call_arguments<Extra...>();
  typename B::Workspace own;
  const TensorView<T, 4> to = detail::with_heads(ViewTraits<std::remove_cvref_t<Out>>::view(out));
  detail::attend_views<B, T>("attention", to, detail::read_heads(q), detail::read_heads(k), detail::read_heads(v),
                             detail::collect_masks(extra...), detail::collect_scores(extra...),
                             detail::collect_options<Accumulator<T>>(extra...), detail::workspace_or(own, extra...));
}

/// attention_into() with the result returned: a row-major Eigen matrix for Eigen inputs, a Tensor otherwise.
template <Backend B = Cpu, AttentionTensor Q, AttentionTensor K, AttentionTensor V, class... Extra>
auto attention(const Q& q, const K& k, const V& v, Extra&&... extra) {
  const auto queries = detail::read_heads(q);
  const auto values = detail::read_heads(v);
  auto out = [&] {
    if constexpr (ViewTraits<Q>::rank == 2)
      return detail::ResultOf<Q>::make(queries.length(), values.dim());
    else
      return detail::ResultOf<Q>::make(queries.batch(), queries.length(), queries.heads(), values.dim());
  }();
  attention_into<B>(out, q, k, v, extra...);
  return out;
}

/// The softmax itself, which attention() never stores: B·Hq·Lq·Lk numbers. Hidden pairs are 0.
///
/// Shapes    q (B, Lq, Hq, D)  k (B, Lk, Hkv, D), or one head each  →  (B, Hq, Lq, Lk)
/// Then      masks, scores, Scale, Origin, a Workspace
/// Errors    ShapeError as for attention_into
template <Backend B = Cpu, AttentionTensor Q, AttentionTensor K, class... Extra>
Tensor<Accumulator<ScalarOf<Q>>, 4> attention_weights(const Q& q, const K& k, Extra&&... extra) {
  using T = ScalarOf<Q>;
  static_assert(std::is_same_v<T, ScalarOf<K>>, "mha: attention_weights needs q and k of one scalar type");
  detail::check_call_arguments<Extra...>();
  typename B::Workspace own;
  const auto queries = detail::read_heads(q);
  const auto keys = detail::read_heads(k);
  Tensor<Accumulator<T>, 4> to(queries.batch(), queries.heads(), queries.length(), keys.length());
  detail::weights_views<B, T>("attention_weights", to.view(), queries, keys, detail::collect_masks(extra...),
                              detail::collect_scores(extra...), detail::collect_options<Accumulator<T>>(extra...),
                              detail::workspace_or(own, extra...));
  return to;
}

/// Joins attention over other keys into a first part, so that both together are attention over all of them.
///
/// Formula   lse = log(exp(lse₁) + exp(lse₂)),  out = out₁·exp(lse₁ − lse) + out₂·exp(lse₂ − lse)
/// Shapes    out, other_out (B, Lq, H, Dv)  log_sum_exp, other_log_sum_exp (B, H, Lq), natural; an empty part changes
///           nothing
/// Errors    ShapeError if the sizes do not agree
/// Source    Dao et al. 2023 (FlashAttention-2), §3.1
template <ViewableOfRank<4> Out, ViewableOfRank<3> Lse, ViewableOfRank<4> OtherOut, ViewableOfRank<3> OtherLse>
void merge(Out&& out, Lse&& log_sum_exp, const OtherOut& other_out, const OtherLse& other_log_sum_exp) {
  using T = ScalarOf<Out>;
  using A = ScalarOf<Lse>;
  const TensorView<T, 4> o = ViewTraits<std::remove_cvref_t<Out>>::view(out);
  const TensorView<A, 3> l = ViewTraits<std::remove_cvref_t<Lse>>::view(log_sum_exp);
  const TensorView<const T, 4> p = ViewTraits<OtherOut>::view(other_out);
  const TensorView<const A, 3> m = ViewTraits<OtherLse>::view(other_log_sum_exp);
  const char* const axis[4] = {"batch", "length", "heads", "head size"};
  for (int a = 0; a < 4; ++a) detail::require_equal("merge", axis[a], "out", o.extent[a], "the other out", p.extent[a]);
  const int of_out[3] = {0, 2, 1};
  for (int a = 0; a < 3; ++a) {
    detail::require_equal("merge", axis[of_out[a]], "out", o.extent[of_out[a]], "log-sum-exp", l.extent[a]);
    detail::require_equal("merge", axis[of_out[a]], "out", o.extent[of_out[a]], "the other log-sum-exp", m.extent[a]);
  }
  detail::require_data("merge", "out", o);
  detail::require_data("merge", "the other out", p);
  detail::require_data("merge", "log-sum-exp", l);
  detail::require_data("merge", "the other log-sum-exp", m);
  for (Index b = 0; b < o.batch(); ++b)
    for (Index h = 0; h < o.heads(); ++h)
      for (Index i = 0; i < o.length(); ++i) {
        const auto w = merge_weights(l(b, h, i), m(b, h, i));
        for (Index d = 0; d < o.dim(); ++d) {
          // An empty part is 0 by rule; what its memory holds is not looked at.
          const A first = w.first == A(0) ? A(0) : w.first * A(o(b, i, h, d));
          const A second = w.second == A(0) ? A(0) : w.second * A(p(b, i, h, d));
          o(b, i, h, d) = T(first + second);
        }
        l(b, h, i) = w.log_sum_exp;
      }
}

}  // namespace mha::inline v0
