// SPDX-License-Identifier: Apache-2.0
// One type for every mask and one for every score, so that a kernel is compiled once for all of them.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>

#include <mha/checked_call.hpp>

namespace support {

/// A policy's own bytes: what a kernel gets among its parameters. Of a policy that cannot be copied byte by byte it has
/// the address, so that the policy must outlive it and is of use on the host only.
class PolicyBytes {
 public:
  using MoveOrigins = std::function<mha::Origins(const mha::Origins&)>;
  template <class P> explicit PolicyBytes(const P& policy) {
    if constexpr (std::is_trivially_copyable_v<P>) {
      static_assert(sizeof(P) <= sizeof(bytes_) && alignof(P) <= 16);
      std::memcpy(bytes_, &policy, sizeof(P));
    } else {
      const P* const at = &policy;
      std::memcpy(bytes_, &at, sizeof(at));
    }
  }
  /// The policy with its origins replaced by move(origins): what a call does that stages them for a device.
  template <class P> static void move_origins(PolicyBytes& bytes, const MoveOrigins& move) {
    if constexpr (std::is_trivially_copyable_v<P>)
      bytes = PolicyBytes(mha::with_data(bytes.as<P>(), [&](const auto& data) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(data)>, mha::Origins>)
          return move(data);
        else
          return data;
      }));
  }
  template <class P> MHA_HOST_DEVICE const P& as() const {
    if constexpr (std::is_trivially_copyable_v<P>)
      return *reinterpret_cast<const P*>(bytes_);
    else
      return **reinterpret_cast<const P* const*>(bytes_);
  }

 private:
  alignas(16) std::byte bytes_[192] = {};
};

/// Any mask. Its code is called through addresses, which are another machine's if entries() ran there.
class AnyMask {
 public:
  static constexpr mha::Role role = mha::Role::mask;
  using Index = mha::Index;

  struct Entries {
    bool (*visible)(const PolicyBytes&, Index, Index, Index, Index);
    mha::TileVisibility (*tile)(const PolicyBytes&, Index, Index, Index, Index, Index, Index);
  };
  template <class M> MHA_HOST_DEVICE static Entries entries() { return {visible<M>, tile_of<M>}; }

  template <class M>
  AnyMask(const M& mask, const Entries& code) : mask_(mask), code_(code), move_(PolicyBytes::move_origins<M>) {}

  template <class F> AnyMask with_data(F&& f) const {
    AnyMask moved = *this;
    move_(moved.mask_, [&](const mha::Origins& origins) { return f(origins); });
    return moved;
  }

  MHA_HOST_DEVICE bool operator()(Index b, Index h, Index q, Index k) const { return code_.visible(mask_, b, h, q, k); }
  MHA_HOST_DEVICE mha::TileVisibility tile(Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    return code_.tile(mask_, b, h, q, q_end, k, k_end);
  }

 private:
  template <class M> MHA_HOST_DEVICE static bool visible(const PolicyBytes& mask, Index b, Index h, Index q, Index k) {
    return mask.as<M>()(b, h, q, k);
  }
  template <class M>
  MHA_HOST_DEVICE static mha::TileVisibility tile_of(const PolicyBytes& mask, Index b, Index h, Index q, Index q_end,
                                                     Index k, Index k_end) {
    return mha::tile(mask.as<M>(), b, h, q, q_end, k, k_end);
  }

  PolicyBytes mask_;
  Entries code_;
  void (*move_)(PolicyBytes&, const PolicyBytes::MoveOrigins&);
};

/// Any score of logits in A, likewise.
template <class A> class AnyScore {
 public:
  static constexpr mha::Role role = mha::Role::score;
  using Index = mha::Index;

  struct Entries {
    A (*at)(const PolicyBytes&, A, Index, Index, Index, Index);
  };
  template <class S> MHA_HOST_DEVICE static Entries entries() { return {at<S>}; }

  template <class S>
  AnyScore(const S& score, const Entries& code) : score_(score), code_(code), move_(PolicyBytes::move_origins<S>) {}

  template <class F> AnyScore with_data(F&& f) const {
    AnyScore moved = *this;
    move_(moved.score_, [&](const mha::Origins& origins) { return f(origins); });
    return moved;
  }

  MHA_HOST_DEVICE A operator()(A s, Index b, Index h, Index q, Index k) const {
    return code_.at(score_, s, b, h, q, k);
  }

 private:
  template <class S> MHA_HOST_DEVICE static A at(const PolicyBytes& score, A s, Index b, Index h, Index q, Index k) {
    return static_cast<A>(mha::at_head(score.as<S>(), b, h)(s, b, h, q, k));
  }

  PolicyBytes score_;
  Entries code_;
  void (*move_)(PolicyBytes&, const PolicyBytes::MoveOrigins&);
};

/// Where a backend that tests give AnyMask and AnyScore runs their code: here, unless it says otherwise.
template <class B> struct EntriesOf {
  template <class T, class Any, class P> static typename Any::Entries get() { return Any::template entries<P>(); }
};

/// A policy of any type until a call prepares it, which makes it AnyMask or AnyScore: what a call does around its
/// kernels is compiled once for all of them, too.
template <class Any> class Unprepared {
 public:
  static constexpr mha::Role role = Any::role;
  using Index = mha::Index;

  /// For calls in T on the backend B.
  template <class B, class T, class P> static Unprepared of(const P& policy) {
    constexpr mha::Memory where = mha::detail::memory_of<B>;
    using Ready = decltype(mha::detail::prepared_for<where>("", policy, mha::CallShape{}));
    return Unprepared([policy, ready = std::make_shared<std::optional<Ready>>()](const mha::CallShape& shape) {
      ready->emplace(mha::detail::prepared_for<where>("attention", policy, shape));
      return Any(**ready, EntriesOf<B>::template get<T, Any, Ready>());
    });
  }

  Any prepared(const mha::CallShape& shape) const { return make_(shape); }

  // What a mask and what a score looks like; nobody asks before it is prepared.
  bool operator()(Index b, Index h, Index q, Index k) const requires(role == mha::Role::mask);
  float operator()(float s, Index b, Index h, Index q, Index k) const requires(role == mha::Role::score);

 private:
  explicit Unprepared(std::function<Any(const mha::CallShape&)> make) : make_(std::move(make)) {}

  std::function<Any(const mha::CallShape&)> make_;
};

/// How a call gets its policies: behind one type for masks and one for scores, or as they are.
enum class PolicyTypes { any, own };

/// AnyMask or AnyScore, as the policy is a mask or a score.
template <class P, class A>
using AnyOf = std::conditional_t<mha::role_of<P>() == mha::Role::mask, AnyMask, AnyScore<A>>;

/// The call with its policies in these two types, each made by any(policy); NoScore stays itself, because bodies fold
/// the scale for it.
template <class T, class Source, class M, class S, class Any, class Use>
void with_any_policies(const mha::AttendCall<T, Source, M, S>& call, const Any& any, Use&& use) {
  const auto go = [&](const auto& score) {
    use(mha::AttendCall<T, Source, AnyMask, std::remove_cvref_t<decltype(score)>>{
        call.q, call.kv, any(call.mask), score, call.out, call.log_sum_exp, call.shape, call.kv_heads, call.head_dim,
        call.value_dim, call.scale, call.sink, call.q_offsets, call.states, call.dropout});
  };
  if constexpr (std::is_same_v<S, mha::NoScore>)
    go(call.score);
  else
    go(any(call.score));
}

}  // namespace support
