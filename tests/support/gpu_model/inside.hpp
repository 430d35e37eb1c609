// SPDX-License-Identifier: Apache-2.0
// Policies that refuse what lies outside the call: a mask with data would read past its end.
#pragma once

#include <string>

#include <mha/backend/backward.hpp>
#include <mha/backend/cuda/forward_body.hpp>
#include <mha/backend/cuda/gradient_params.hpp>
#include <mha/backend/cuda/gradient_split.hpp>

#include "../any_policies.hpp"
#include "shared_memory.hpp"

/// Light masks are behind this type too: without a score the host model runs bodies as they are for those.
template <> inline constexpr bool mha::cuda::is_light<support::AnyMask> = true;

namespace support::gpu {

using mha::Index;

/// The pairs that a call's policies may be asked about.
struct Inside {
  mha::CallShape shape;
  const Index* q_offsets = nullptr;
  const Index* k_offsets = nullptr;
  const void* kv = nullptr;  ///< asked for the keys of a sequence, if it is there
  Index (*keys_of)(const void*, Index) = nullptr;

  void check(const char* who, Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    const auto refuse = [&](const char* axis, Index begin, Index end) {
      throw Fault(std::string(who) + " is asked about " + axis + " " + std::to_string(begin) + " to " +
                  std::to_string(end) + ", which the call has not");
    };
    if (b < 0 || b >= shape.batch) refuse("sequence", b, b);
    if (h < 0 || h >= shape.heads) refuse("head", h, h);
    const Index queries = q_offsets != nullptr ? q_offsets[b + 1] - q_offsets[b] : shape.queries;
    const Index keys = kv != nullptr          ? keys_of(kv, b)
                       : k_offsets != nullptr ? k_offsets[b + 1] - k_offsets[b]
                                              : shape.keys;
    if (q < shape.origin[b] || q >= q_end || q_end > shape.origin[b] + queries) refuse("query positions", q, q_end);
    if (k < 0 || k >= k_end || k_end > keys) refuse("keys", k, k_end);
  }
};

/// A mask or a score that lives elsewhere, asked as it is itself asked.
template <class P> struct Guarded {
  static constexpr mha::Role role = mha::role_of<P>();
  const P* policy;
  const Inside* inside;

  bool operator()(Index b, Index h, Index q, Index k) const requires(role == mha::Role::mask) {
    inside->check("the mask", b, h, q, q + 1, k, k + 1);
    return (*policy)(b, h, q, k);
  }
  mha::TileVisibility tile(Index b, Index h, Index q, Index q_end, Index k, Index k_end) const
      requires(role == mha::Role::mask) {
    inside->check("the mask's tile()", b, h, q, q_end, k, k_end);
    return mha::tile(*policy, b, h, q, q_end, k, k_end);
  }
  template <class A>
  requires(role == mha::Role::score) A operator()(A s, Index b, Index h, Index q, Index k) const {
    inside->check("the score", b, h, q, q + 1, k, k + 1);
    return static_cast<A>(mha::at_head(*policy, b, h)(s, b, h, q, k));
  }
};

/// Any mask or score behind one type, guarded. Both arguments must outlive it.
template <class A, class P> auto any_inside(const P& policy, const Inside& inside) {
  using Any = AnyOf<P, A>;
  return Any(Guarded<P>{&policy, &inside}, Any::template entries<Guarded<P>>());
}

/// Any score of logits in A that tells its derivative, guarded. Both arguments must outlive it.
template <class A> class AnySlope {
 public:
  static constexpr mha::Role role = mha::Role::score;
  template <class S>
  AnySlope(const S& score, const Inside& inside)
      : score_(&score), inside_(&inside), at_([](const void* from, A s, Index b, Index h, Index q, Index k) {
          const auto lifted = mha::detail::lifted<mha::NoScoreGradients, mha::Dual<A>>(
              mha::at_head(*static_cast<const S*>(from), b, h), 0, 0);
          return lifted(mha::Dual<A>::variable(s), b, h, q, k);
        }) {}

  A operator()(A s, Index b, Index h, Index q, Index k) const { return at(s, b, h, q, k).value; }
  A derivative(A s, A, Index b, Index h, Index q, Index k) const { return at(s, b, h, q, k).derivative[0]; }

 private:
  mha::Dual<A> at(A s, Index b, Index h, Index q, Index k) const {
    inside_->check("the score", b, h, q, q + 1, k, k + 1);
    return at_(score_, s, b, h, q, k);
  }
  const void* score_;
  const Inside* inside_;
  mha::Dual<A> (*at_)(const void*, A, Index, Index, Index, Index);
};

/// The pairs of a call.
template <class T, class Source, class M, class S> Inside inside_of(const mha::AttendCall<T, Source, M, S>& c) {
  return {c.shape, c.q_offsets, nullptr, &c.kv,
          [](const void* kv, Index b) { return static_cast<const Source*>(kv)->keys(b); }};
}
/// The call with other policies.
template <class T, class Source, class M, class S, class OtherMask, class OtherScore>
mha::AttendCall<T, Source, OtherMask, OtherScore> with_policies(const mha::AttendCall<T, Source, M, S>& c,
                                                                const OtherMask& mask, const OtherScore& score) {
  return {c.q,        c.kv,        mask,    score,  c.out,       c.log_sum_exp, c.shape,  c.kv_heads,
          c.head_dim, c.value_dim, c.scale, c.sink, c.q_offsets, c.states,      c.dropout};
}
/// A call whose score is behind AnySlope; NoScore stays itself.
template <class Call> struct SlopedCallOf { using type = Call; };
template <class T, class Source, class M, class S>
requires(!std::is_same_v<S, mha::NoScore>) struct SlopedCallOf<mha::AttendCall<T, Source, M, S>> {
  using type = mha::AttendCall<T, Source, M, AnySlope<mha::Accumulator<T>>>;
};
template <class Call> using SlopedCall = typename SlopedCallOf<Call>::type;

/// What a kernel gets, of dQ, dK or dV with the call's score so: such kernels are compiled once for all scores. Those
/// of a score's own numbers get it as it is.
template <class Params> struct KernelParams {
  const Params& params;
  explicit KernelParams(const Params& p) : params(p) {}
};
template <class Call>
requires(!std::is_same_v<Call, SlopedCall<Call>>) struct KernelParams<mha::cuda::GradientParams<Call>> {
  using Slope = AnySlope<typename mha::cuda::GradientParams<Call>::A>;
  Inside inside;
  mha::cuda::GradientParams<SlopedCall<Call>> params;
  explicit KernelParams(const mha::cuda::GradientParams<Call>& p)
      : inside(inside_of(p.call)),
        params{with_policies(p.call, p.call.mask, Slope(p.call.score, inside)),
               p.out,
               p.d_out,
               p.d_log_sum_exp,
               p.level,
               p.sum,
               p.rows,
               p.query,
               p.key,
               p.value,
               p.sink,
               p.aligned,
               p.shares,
               p.blocks,
               p.parts,
               p.first_sequence,
               p.first_row} {}
};
template <class Call>
requires(!std::is_same_v<Call, SlopedCall<Call>>) struct KernelParams<mha::cuda::SharedGradientParams<Call>> {
  using Slope = AnySlope<typename mha::cuda::GradientParams<Call>::A>;
  Inside inside;
  mha::cuda::SharedGradientParams<SlopedCall<Call>> params;
  explicit KernelParams(const mha::cuda::SharedGradientParams<Call>& p)
      : inside(inside_of(p.call)), params{with_policies(p.call, p.call.mask, Slope(p.call.score, inside)),
                                          p.shares,
                                          p.slice,
                                          p.from,
                                          p.to,
                                          p.columns} {}
};

/// use(the backward pass with both its policies so); a score whose own numbers' gradients are wanted stays itself.
template <class T, class Source, class M, class S, class Wanted, class Use>
void with_guarded_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& c, Use&& use) {
  const Inside inside = inside_of(c.forward);
  const auto mask = any_inside<mha::Accumulator<T>>(c.forward.mask, inside);
  if constexpr (std::is_same_v<S, mha::NoScore> || Wanted::bias || Wanted::parameters)
    use(c.with(with_policies(c.forward, mask, c.forward.score)));
  else
    use(c.with(with_policies(c.forward, mask, AnySlope<mha::Accumulator<T>>(c.forward.score, inside))));
}

/// use(the call with both its policies so).
template <class T, class Source, class M, class S, class Use>
void with_guarded_policies(const mha::AttendCall<T, Source, M, S>& call, Use&& use) {
  const Inside inside = inside_of(call);
  with_any_policies(
      call, [&](const auto& policy) { return any_inside<mha::Accumulator<T>>(policy, inside); }, use);
}

}  // namespace support::gpu
