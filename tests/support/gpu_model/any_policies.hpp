// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include <mha/backend/backend.hpp>

#include "shared_memory.hpp"

namespace support::gpu {

using mha::Index;

/// The pairs that a call's policies may be asked about.
struct Inside {
  mha::CallShape shape;
  const Index* q_offsets = nullptr;
  const Index* k_offsets = nullptr;

  template <class Call>
  explicit Inside(const Call& call) : shape(call.shape), q_offsets(call.q_offsets), k_offsets(call.k_offsets) {}

  void check(const char* who, Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    const auto refuse = [&](const char* axis, Index begin, Index end) {
      throw Fault(std::string(who) + " is asked about " + axis + " " + std::to_string(begin) + " to " +
                  std::to_string(end) + ", which the call has not");
    };
    if (b < 0 || b >= shape.batch) refuse("sequence", b, b);
    if (h < 0 || h >= shape.heads) refuse("head", h, h);
    const Index queries = q_offsets != nullptr ? q_offsets[b + 1] - q_offsets[b] : shape.queries;
    const Index keys = k_offsets != nullptr ? k_offsets[b + 1] - k_offsets[b] : shape.keys;
    if (q < shape.origin[b] || q >= q_end || q_end > shape.origin[b] + queries) refuse("query positions", q, q_end);
    if (k < 0 || k >= k_end || k_end > keys) refuse("keys", k, k_end);
  }
};

/// Any mask in one type, so that a kernel body is compiled once for all of them. It asks as the mask itself is asked,
/// and refuses what is not in the call: a mask with data would read past its end.
class AnyMask {
 public:
  static constexpr mha::Role role = mha::Role::mask;

  template <class M>
  AnyMask(const M& mask, const Inside& inside)
      : mask_(&mask), inside_(&inside), visible_(visible<M>), tile_(tile_of<M>) {}

  bool operator()(Index b, Index h, Index q, Index k) const {
    inside_->check("the mask", b, h, q, q + 1, k, k + 1);
    return visible_(mask_, b, h, q, k);
  }
  mha::TileVisibility tile(Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    inside_->check("the mask's tile()", b, h, q, q_end, k, k_end);
    return tile_(mask_, b, h, q, q_end, k, k_end);
  }

 private:
  template <class M> static bool visible(const void* mask, Index b, Index h, Index q, Index k) {
    return (*static_cast<const M*>(mask))(b, h, q, k);
  }
  template <class M>
  static mha::TileVisibility tile_of(const void* mask, Index b, Index h, Index q, Index q_end, Index k, Index k_end) {
    return mha::tile(*static_cast<const M*>(mask), b, h, q, q_end, k, k_end);
  }

  const void* mask_;
  const Inside* inside_;
  bool (*visible_)(const void*, Index, Index, Index, Index);
  mha::TileVisibility (*tile_)(const void*, Index, Index, Index, Index, Index, Index);
};

/// Any score of logits in A, likewise.
template <class A> class AnyScore {
 public:
  static constexpr mha::Role role = mha::Role::score;

  template <class S> AnyScore(const S& score, const Inside& inside) : score_(&score), inside_(&inside), at_(at<S>) {}

  A operator()(A s, Index b, Index h, Index q, Index k) const {
    inside_->check("the score", b, h, q, q + 1, k, k + 1);
    return at_(score_, s, b, h, q, k);
  }

 private:
  template <class S> static A at(const void* score, A s, Index b, Index h, Index q, Index k) {
    return static_cast<A>(mha::at_head(*static_cast<const S*>(score), b, h)(s, b, h, q, k));
  }

  const void* score_;
  const Inside* inside_;
  A (*at_)(const void*, A, Index, Index, Index, Index);
};

/// use(the call with its policies in these types); NoScore stays itself, because bodies fold the scale for it.
template <class T, class Source, class M, class S, class Use>
void with_any_policies(const mha::AttendCall<T, Source, M, S>& call, Use&& use) {
  const Inside inside(call);
  const auto go = [&](const auto& score) {
    use(mha::AttendCall<T, Source, AnyMask, std::remove_cvref_t<decltype(score)>>{
        call.q, call.kv, AnyMask(call.mask, inside), score, call.out, call.log_sum_exp, call.shape, call.kv_heads,
        call.head_dim, call.value_dim, call.scale, call.sink, call.q_offsets, call.k_offsets});
  };
  if constexpr (std::is_same_v<S, mha::NoScore>)
    go(call.score);
  else
    go(AnyScore<mha::Accumulator<T>>(call.score, inside));
}

}  // namespace support::gpu
