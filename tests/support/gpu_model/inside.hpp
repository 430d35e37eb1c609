// SPDX-License-Identifier: Apache-2.0
// Policies that refuse what lies outside the call: a mask with data would read past its end.
#pragma once

#include <string>

#include <mha/backend/backward.hpp>
#include <mha/backend/cuda/forward_body.hpp>

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

/// use(the backward pass with both its policies so).
template <class T, class Source, class M, class S, class Wanted, class Use>
void with_guarded_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& c, Use&& use) {
  const auto& f = c.forward;
  const Inside inside{f.shape, f.q_offsets, nullptr, &f.kv,
                      [](const void* kv, Index b) { return static_cast<const Source*>(kv)->keys(b); }};
  const auto go = [&](const auto& score) {
    using Score = std::remove_cvref_t<decltype(score)>;
    use(mha::AttendBackwardCall<T, Source, AnyMask, Score, Wanted>{
        {f.q, f.kv, any_inside<mha::Accumulator<T>>(f.mask, inside), score, f.out, f.log_sum_exp, f.shape, f.kv_heads,
         f.head_dim, f.value_dim, f.scale, f.sink, f.q_offsets, f.states, f.dropout},
        c.out,
        c.d_out,
        c.d_log_sum_exp,
        c.level,
        c.sum,
        c.query,
        c.key,
        c.value,
        c.sink,
        c.key_offsets,
        c.score});
  };
  if constexpr (std::is_same_v<S, mha::NoScore> || Wanted::bias || Wanted::parameters)
    go(f.score);
  else
    go(AnySlope<mha::Accumulator<T>>(f.score, inside));
}

/// use(the call with both its policies so).
template <class T, class Source, class M, class S, class Use>
void with_guarded_policies(const mha::AttendCall<T, Source, M, S>& call, Use&& use) {
  const Inside inside{call.shape, call.q_offsets, nullptr, &call.kv,
                      [](const void* kv, Index b) { return static_cast<const Source*>(kv)->keys(b); }};
  with_any_policies(
      call, [&](const auto& policy) { return any_inside<mha::Accumulator<T>>(policy, inside); }, use);
}

}  // namespace support::gpu
