// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "call.hpp"
#include "core/check.hpp"
#include "core/overlap.hpp"
#include "policy/score_gradient.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// What a tape knows of the call that it recorded.
struct RecordedCall {
  Index batch, sequences, queries, keys, heads, kv_heads, head_dim, value_dim;
  double scale;
  DropoutDraws dropout;
};
/// And of each of its sequences.
struct RecordedSequence {
  Index queries, keys, origin;
};

inline void require_recorded(const char* name, const RecordedCall& was, const RecordedCall& is) {
  const auto same = [&](const char* what, Index before, Index now) {
    require(before == now, name, ": the tape is of a call with ", what, " ", before, " but this one has ", now);
  };
  same("batch", was.batch, is.batch);
  same("sequences", was.sequences, is.sequences);
  same("query length", was.queries, is.queries);
  same("key length", was.keys, is.keys);
  same("query heads", was.heads, is.heads);
  same("key heads", was.kv_heads, is.kv_heads);
  same("head size", was.head_dim, is.head_dim);
  same("value head size", was.value_dim, is.value_dim);
  require(was.scale == is.scale, name, ": the tape is of a call with scale ", was.scale, " but this one has ",
          is.scale);
  require(was.dropout == is.dropout, name, ": the tape is of a call with ",
          was.dropout.exist() ? "another Dropout or DropoutSeed" : "no Dropout, or without its DropoutSeed");
}
inline void require_recorded(const char* name, Index sequence, const RecordedSequence& was,
                             const RecordedSequence& is) {
  const auto same = [&](const char* what, Index before, Index now) {
    require(before == now, name, ": the tape is of a call whose sequence ", sequence, " has ", what, " ", before,
            " but here it has ", now);
  };
  same("query length", was.queries, is.queries);
  same("key length", was.keys, is.keys);
  same("Origin", was.origin, is.origin);
}

/// Whether one of a score's AdditiveBiases shares memory with these elements.
template <class S> bool has_bias_in(const S& score, const Footprint& of) {
  if constexpr (is_chain<S>)
    return has_bias_in(score.first, of) || has_bias_in(score.second, of);
  else if constexpr (is_bias<S>)
    return share_bytes(of, footprint(score.bias));
  else
    return false;
}

/// What a recorded call writes shares nothing with what the backward pass reads again: these arrays, and the
/// AdditiveBiases of the call's score.
template <class S>
void require_recorded_apart(const char* call, const NamedArray& written, std::span<const NamedArray> read,
                            const S& score) {
  const auto apart = [&](bool shares, const char* name) {
    require(!shares, call, ": ", written.name, " overlaps ", name, ", which the backward pass of the tape reads");
  };
  for (const NamedArray& other : read) apart(share_bytes(written.at, other.at), other.name);
  apart(has_bias_in(score, written.at), "the AdditiveBias");
}

}  // namespace detail

/// What attention leaves for its backward pass: two numbers for each row. Calls reuse its memory, on one
/// device.
///
///   mha::AttentionTape<float> tape;
///   const auto out = mha::attention(q, k, v, mha::Causal{}, mha::record(tape));
///   const auto g = mha::attention_backward(d_out, q, k, v, out, tape, mha::Causal{});
///
/// Shapes    level and sum (B, Hq, Lq)
template <class T, class B> class AttentionTape {
 public:
  using Scalar = T;
  using OnBackend = B;

  AttentionTape() = default;
  AttentionTape(const AttentionTape&) = default;
  AttentionTape(AttentionTape&& other) noexcept
      : level_(std::move(other.level_)),
        sum_(std::move(other.sum_)),
        call_(other.call_),
        sequences_(std::move(other.sequences_)),
        recorded_(std::exchange(other.recorded_, false)) {}
  // Two, not one by value: that could not throw, and nor could the implicit copy assignment of what has a tape.
  AttentionTape& operator=(const AttentionTape& other) requires(
      std::copy_constructible<detail::TensorOf<B, Accumulator<T>, 1>>) {
    return *this = AttentionTape(other);
  }
  AttentionTape& operator=(AttentionTape&& other) noexcept {
    AttentionTape taken(std::move(other));  // which may be this one
    level_ = std::move(taken.level_);
    sum_ = std::move(taken.sum_);
    call_ = taken.call_;
    sequences_ = std::move(taken.sequences_);
    recorded_ = taken.recorded_;
    return *this;
  }
  ~AttentionTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return recorded_; }

  // What calls do with it.

  /// Memory for the rows of this call.
  ///
  /// Errors    ShapeError if what is there is on another device than the backend computes on, naming both, or there are
  ///           more rows than an Index holds; the tape is as it was then
  template <class Call> RowStates<Accumulator<T>> begin(const B& backend, const char* name, const Call& call) {
    require_reachable(backend, name);
    const auto rows = static_cast<std::size_t>(call.q.batch()) * static_cast<std::size_t>(call.q.heads()) *
                      static_cast<std::size_t>(call.q.length());
    constexpr Index longest = std::numeric_limits<Index>::max();
    detail::require(rows <= static_cast<std::size_t>(longest), name, ": the call has ", rows,
                    " rows of heads, the limit of a tape is ", longest);
    recorded_ = false;
    if (rows > level_.size()) {
      level_ = {};
      sum_ = {};
      Memory level(static_cast<Index>(rows)), sum(static_cast<Index>(rows));  // both or neither
      level_ = std::move(level);
      sum_ = std::move(sum);
    }
    call_ = recorded_call(call);
    sequences_.clear();
    for (Index b = 0; b < call.shape.batch; ++b) sequences_.push_back(recorded_sequence(call, b));
    return {level_.data(), sum_.data()};
  }
  void end() { recorded_ = true; }

  /// Refuses a call that cannot be the recorded one, or is on another device.
  template <class Call> void require_of(const B& backend, const char* name, const Call& call) const {
    detail::require(recorded_, name, ": nothing was recorded on the tape: give mha::record(tape) to attention()");
    detail::require_recorded(name, call_, recorded_call(call));
    for (Index b = 0; b < call.shape.batch; ++b)
      detail::require_recorded(name, b, sequences_[static_cast<std::size_t>(b)], recorded_sequence(call, b));
    require_reachable(backend, name);
  }
  const Accumulator<T>* level() const { return level_.data(); }
  const Accumulator<T>* sum() const { return sum_.data(); }

 private:
  using Memory = detail::TensorOf<B, Accumulator<T>, 1>;

  void require_reachable(const B& backend, const char* name) const {
    if (level_.size() > 0) detail::require_reachable(backend, name, "the tape", level_.view());
  }
  static double of(const Accumulator<T>& scale) {
    if constexpr (std::convertible_to<Accumulator<T>, double>)
      return static_cast<double>(scale);
    else
      return 0;  // a scalar of the user's own
  }
  template <class Call> static detail::RecordedCall recorded_call(const Call& call) {
    return {call.q.batch(), call.shape.batch, call.q.length(), call.shape.keys, call.q.heads(),
            call.kv_heads,  call.head_dim,    call.value_dim,  of(call.scale),  call.dropout};
  }
  template <class Call> static detail::RecordedSequence recorded_sequence(const Call& call, Index b) {
    return {call.queries(b), call.keys(b), call.position(b, 0)};
  }

  Memory level_, sum_;
  detail::RecordedCall call_{};
  std::vector<detail::RecordedSequence> sequences_;
  bool recorded_ = false;
};

/// attention(q, k, v, mha::record(tape)): the call leaves on the tape what attention_backward() needs of it. The output
/// has the same bits as without.
template <class T, class B> [[nodiscard]] constexpr Record<T, B> record(AttentionTape<T, B>& tape) { return {&tape}; }
/// Refused in one sentence.
template <class T, class B> Record<T, B> record(const AttentionTape<T, B>&&) {
  static_assert(detail::valid<T>,
                "mha: record(tape) of a temporary tape: what it records would be gone: name it first "
                "(see mha/tape.hpp)");
  return {};
}

}  // namespace mha::inline MHA_NAMESPACE
