// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "backend/backend.hpp"
#include "backend/weights.hpp"
#include "call.hpp"
#include "core/borrowed.hpp"
#include "core/check.hpp"
#include "core/copy.hpp"
#include "core/items.hpp"
#include "core/math.hpp"
#include "core/overlap.hpp"
#include "policy/call_shape.hpp"

/// From what a caller hands over to what a backend gets: views with four axes, checked sizes, prepared policies.
namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// What the messages of a call name it and its tensors, as the caller wrote them.
struct CallNames {
  const char* call;
  const char *q = "q", *k = "k", *v = "v";

  constexpr CallNames(const char* name) : call(name) {}
  constexpr CallNames(const char* name, const char* queries, const char* keys, const char* values)
      : call(name), q(queries), k(keys), v(values) {}
};

/// The sentence for tensors that the backend's machine does not reach.
template <class B, class... Owners> constexpr void check_memory_of() {
  static_assert(
      (may_lie_in<Owners, memory_of<B>>() && ...),
      "mha: a tensor lies in the memory of another machine than the one this backend computes on: name the backend of "
      "that memory, mha::attention<mha::Cuda>(...), or copy the tensor with mha::to_device() or mha::to_host() (see "
      "mha/backend/cuda/device_tensor.hpp)");
}

/// with_heads(); of a view without elements no address but its first, which may be null, can be computed.
template <class T, int Rank> constexpr TensorView<T, 4> four_heads(const TensorView<T, Rank>& owner) {
  TensorView<T, 4> v = with_heads(owner);
  if (v.size() == 0) v.stride[0] = v.stride[1] = v.stride[2] = 0;
  return v;
}

template <class Owner> constexpr TensorView<const ScalarOf<Owner>, 4> read_heads(const Owner& owner) {
  return four_heads(ViewTraits<Owner>::view(owner));
}

/// Rows contiguous along the last axis, as a KvRun promises: packed once if they are not (Eigen's default is not).
template <class T, class Frame, class Run = SerialItems>
TensorView<const T, 4> unit_rows(const TensorView<const T, 4>& v, Frame& frame, Tensor<T, 4>& copy,
                                 const Run& run = {}) {
  if (v.stride[3] == 1 || v.extent[3] <= 1) return v;
  TensorView<T, 4> to;
  if constexpr (std::is_trivially_copyable_v<T>) {
    to = take_like<T>(frame, v);
  } else {
    copy = owner_like<Tensor<T, 4>>(v);
    to = copy.view();
  }
  run(copy_items(v, to));
  return to;
}

inline void require_no_batch(const char* name, Index batch) {
  require(batch == 1, name, ": a ragged batch has batch ", batch, ", expected 1: offsets tell its sequences apart");
}

/// The positions that an Origin gives so many sequences.
inline Origins given_origins(const char* call, const Origin& origin, Index batch) {
  const Borrowed<Index>& each = origin.positions;
  if (origin.per_sequence) {
    require(each.memory == Memory::host, call,
            ": the positions of Origin are in device memory, they are read and checked on the host");
    require(each.size == batch, call, ": Origin has ", each.size, " positions for a batch of ", batch);
    require(each.data != nullptr || batch == 0, call, ": the data of Origin's ", batch, " positions is null");
  }
  return origin.per_sequence ? Origins(each.data) : Origins(origin.position);
}

/// The positions of so many rows from each origin on stay within an Index; those of sequences with an origin each are
/// rows_of(b).
template <class RowsOf>
void require_positions(const char* call, const Origins& first, Index batch, Index rows, const char* of_rows,
                       const RowsOf& rows_of) {
  constexpr Index furthest = longest_axis;
  const bool each = first.each != nullptr;
  for (Index b = 0; b < (each ? batch : 1); ++b) {
    const Index count = each ? rows_of(b) : rows;
    require(first[b] >= -furthest, call, ": the origin is ", first[b], ", the least is ", -furthest);
    require(std::int64_t{first[b]} + count <= furthest, call, ": the origin ", first[b], " puts ", count, " ", of_rows,
            " beyond position ", furthest);
  }
}

/// Where the rows stand that keys are made from: key j of a sequence at j, or at its origin + j.
inline RowPositions key_positions(const CallNames& names, const std::optional<Ragged>& ragged,
                                  const std::optional<Origin>& origin, Index batch, Index rows) {
  RowPositions at;
  if (ragged) {
    const Borrowed<Index>& k = ragged->keys();
    require_no_batch(names.call, batch);
    require_offsets(names.call, names.k, k, rows);
    at = {Origins(Index{0}), k.data, k.size - 1, longest(k)};
    batch = at.sequences;
    rows = at.longest;
  }
  if (origin) at.first = given_origins(names.call, *origin, batch);
  require_positions(names.call, at.first, batch, rows, "keys", [&](Index) { return rows; });
  return at;
}

/// Sizes and positions of a call. Where the lengths of its sequences differ, the origins are written into memory of the
/// caller's frame.
template <class Frame>
CallShape call_shape(const CallNames& names, Index batch, Index heads, Index queries, const KvSizes& kv,
                     const std::optional<Origin>& origin, const std::optional<Ragged>& ragged, Frame& frame) {
  CallShape shape{batch, heads, queries, kv.longest};
  if (ragged) {
    const Borrowed<Index>& q = ragged->query_offsets;
    require_no_batch(names.call, batch);
    require_offsets(names.call, names.q, q, queries);
    shape = {q.size - 1, heads, longest(q), kv.longest, 0, q.data, false, false, shortest(q)};
  }
  require_equal(names.call, "batch", names.q, shape.batch, names.k, kv.batch);
  for (Index b = 0; b < kv.batch; ++b) {
    const Index keys = kv.keys(b);
    require(keys >= 0 && keys <= longest_axis, names.call, ": ", names.k, " has length ", keys, ", the limit is ",
            longest_axis);
    shape.uneven_keys = shape.uneven_keys || keys != kv.keys(0);
    shape.keys = std::max(shape.keys, keys);
  }
  require(shape.keys <= longest_axis, names.call, ": ", names.k, " has length ", shape.keys, ", the limit is ",
          longest_axis);
  if (ragged || shape.uneven_keys) {
    checked_product(names.call, "a batch of the longest sequence of queries", {shape.batch, shape.queries, heads});
    checked_product(names.call, "a batch of the longest sequence of keys", {shape.batch, shape.keys, heads});
  }
  if (origin) {
    shape.origin = given_origins(names.call, *origin, shape.batch);
  } else if (ragged || shape.uneven_keys) {
    Index* const each = frame.template take_host<Index>(static_cast<std::size_t>(shape.batch));
    for (Index b = 0; b < shape.batch; ++b)
      each[b] = kv.keys(b) - (ragged ? ragged->query_offsets[b + 1] - ragged->query_offsets[b] : queries);
    shape.origin = Origins(each);
  } else {
    shape.origin = shape.keys - queries;
  }
  require_positions(names.call, shape.origin, shape.batch, shape.queries, "queries",
                    [&](Index b) { return shape.queries_of(b); });
  shape.last_meets_last = true;  // unless an origin moves a query
  for (Index b = 0; b < shape.batch; ++b)
    shape.last_meets_last = shape.last_meets_last && shape.queries_end(b) == kv.keys(b);
  return shape;
}

/// The policy a kernel gets, its data in the memory that the backend computes in.
template <Memory where, class P, class... Frame>
constexpr auto prepared_for(const char* name, const P& policy, const CallShape& shape, Frame&... frame) {
  const auto ready = mha::prepared(policy, shape, frame...);
  const auto checked = [&](const auto& data) {
    if constexpr (requires { data.memory; })
      if (data.memory != where && data.size > 0)
        fail(name, where == Memory::host ? ": a policy borrows device memory, but the backend computes on the host"
                                         : ": a policy borrows host memory, but the backend computes on a device: give "
                                           "mha::on_device(policy), made once");
    return data;
  };
  return with_data(ready, checked);
}

// What does not depend on the policies is apart from what does, so that it is compiled once for all of them.

/// A head size that a kernel may pad.
inline void require_head_size(const char* call, const char* name, Index dim) {
  require(dim <= longest_axis, call, ": ", name, " has head size ", dim, ", the limit is ", longest_axis);
}

/// Checks q and the source against each other and the scale.
template <class T, class Frame>
CallShape checked_shape(const CallNames& names, const TensorView<const T, 4>& q, const KvSizes& kv,
                        const CallOptions<Accumulator<T>>& options, Frame& frame) {
  using A = Accumulator<T>;
  require_data(names.call, names.q, q);
  require_equal(names.call, "head size", names.q, q.dim(), names.k, kv.dim);
  require(q.dim() > 0, names.call, ": ", names.q, " has head size 0, it must be at least 1");
  require_head_size(names.call, names.q, q.dim());
  require(q.heads() == 0 || (kv.heads > 0 && q.heads() % kv.heads == 0), names.call, ": ", names.k, " has ", kv.heads,
          " heads, which does not divide ", names.q, "'s ", q.heads(),
          kv.heads > q.heads() ? ": axes are (B, L, H, D), memory in the order (B, H, L, D) is read by mha::view_bhld"
                               : "");
  const CallShape shape =
      call_shape(names, q.batch(), q.heads(), q.length(), kv, options.origin, options.ragged, frame);
  if (options.scale) {
    require(std::isfinite(*options.scale), names.call, ": the scale is ", *options.scale, ", not finite");
    if constexpr (Arithmetic<A>)
      require(std::abs(*options.scale) <= double(std::numeric_limits<A>::max()), names.call, ": the scale ",
              *options.scale, " is beyond the largest number of the accumulator, ",
              double(std::numeric_limits<A>::max()));
  }
  require_probability(names.call, options.dropout);
  return shape;
}

/// Checks the outputs against q and the values' head size.
template <class T>
void require_fitting(const CallNames& names, const TensorView<T, 4>& out, const TensorView<const T, 4>& q,
                     Index value_dim, const CallOptions<Accumulator<T>>& options) {
  require_data(names.call, "out", out);
  require_head_size(names.call, names.v, value_dim);
  require_equal(names.call, "batch", names.q, q.batch(), "out", out.batch());
  require_equal(names.call, "length", names.q, q.length(), "out", out.length());
  require_equal(names.call, "heads", names.q, q.heads(), "out", out.heads());
  require_equal(names.call, "head size", names.v, value_dim, "out", out.dim());
  require_own_memory(names.call, "out", out, axes_of_heads);
  if (!options.log_sum_exp) return;
  const auto& to = *options.log_sum_exp;
  require_data(names.call, "log-sum-exp", to);
  require_equal(names.call, "batch", names.q, q.batch(), "log-sum-exp", to.extent[0]);
  require_equal(names.call, "heads", names.q, q.heads(), "log-sum-exp", to.extent[1]);
  require_equal(names.call, "length", names.q, q.length(), "log-sum-exp", to.extent[2]);
  require_own_memory(names.call, "log-sum-exp", to, axes_of_logits);
}

/// Two tensors as a source, checked against q; their rows are contiguous by the time a kernel reads them.
template <class T>
ContiguousKv<T> kv_of(const CallNames& names, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
                      const TensorView<const T, 4>& v, const std::optional<Ragged>& ragged) {
  require_data(names.call, names.v, v);
  require_equal(names.call, "batch", names.k, k.batch(), names.v, v.batch());
  require_equal(names.call, "length", names.k, k.length(), names.v, v.length());
  require_equal(names.call, "heads", names.k, k.heads(), names.v, v.heads());
  require_data(names.call, names.q, q);
  require_data(names.call, names.k, k);
  require_equal(names.call, "batch", names.q, q.batch(), names.k, k.batch());
  if (!ragged) return {k, v};
  const Borrowed<Index>&of_q = ragged->query_offsets, &of_k = ragged->keys();
  require_no_batch(names.call, q.batch());
  require_offsets(names.call, names.q, of_q, q.length());
  require_offsets(names.call, names.k, of_k, k.length());
  require(of_q.size == of_k.size, names.call, ": Ragged has ", of_q.size - 1, " query sequences but ", of_k.size - 1,
          " key sequences");
  return {k, v, of_k};
}

/// Checks a source that a call was given, and that the call leaves the lengths of the keys to it.
template <Memory where, class S>
void check_source(const char* call, const S& source, const std::optional<Ragged>& ragged) {
  require(!ragged || ragged->key_offsets.size == 0, call, ": Ragged has ", ragged ? ragged->key_offsets.size : 0,
          " key offsets, but the lengths of the keys are the source's own: give the query offsets alone");
  if constexpr (requires { source.check(call); }) source.check(call);
  if constexpr (where == Memory::host)
    source_with_data(source, [&](const auto& data) {
      if constexpr (requires { data.memory; })
        require(data.memory == Memory::host || data.size == 0, call,
                ": the source borrows device memory, but the backend computes on the host");
      return data;
    });
}

/// A call as the longest for which it is repeated: all sequences have `keys` keys, the last of which meets the last
/// query. No keys: the call as it is.
template <class Frame> CallShape planned_shape(const char* call, CallShape shape, Index keys, Frame& frame) {
  if (keys == 0) return shape;
  checked_product(call, "a batch of the longest sequence of keys", {shape.batch, keys, shape.heads});
  Index* const last = frame.template take_host<Index>(static_cast<std::size_t>(shape.batch));
  for (Index b = 0; b < shape.batch; ++b) last[b] = keys - shape.queries_of(b);
  return {shape.batch, shape.heads, shape.queries,       keys, Origins(last), shape.query_offsets,
          true,        false,       shape.fewest_queries};
}

/// Checks q and a source against each other and prepares the policies: everything of a call but its outputs.
template <class T, Memory where = Memory::host, class Kv, class M, class S, class Sink, class Frame>
auto checked_call(const CallNames& names, const TensorView<const T, 4>& q, const Kv& kv, const M& mask, const S& score,
                  const Sink& sink, const CallOptions<Accumulator<T>>& options, Frame& frame) {
  using A = Accumulator<T>;
  const KvSizes sizes = kv_sizes(kv);
  const CallShape now = checked_shape<T>(names, q, sizes, options, frame);
  const CallShape shape = planned_shape(names.call, now, options.planned_keys, frame);
  const CallShape whole =
      options.whole != nullptr ? planned_shape(names.call, *options.whole, options.planned_keys, frame) : shape;
  const auto ready_mask = prepared_for<where>(names.call, mask, whole, frame);
  const auto ready_score = prepared_for<where>(names.call, score, whole, frame);
  if constexpr (requires { kv.require_hidden(names.call, ready_mask, shape); })
    kv.require_hidden(names.call, ready_mask, shape);
  AttendCall<T, Kv, std::remove_const_t<decltype(ready_mask)>, std::remove_const_t<decltype(ready_score)>> call{
      q, kv, ready_mask, ready_score, {}, {}, shape, sizes.heads, q.dim(), sizes.value_dim, A(0)};
  call.shape.origin = now.origin;
  using Real = std::conditional_t<std::is_same_v<A, long double>, long double, double>;
  call.scale = static_cast<A>(options.scale ? Real(*options.scale) : 1 / std::sqrt(Real(q.dim())));
  call.sink = sink.logits(q.heads());
  require(call.sink.memory == where || call.sink.size == 0, names.call, ": the Sink's logits are in ",
          where == Memory::host ? "device memory, but the backend computes on the host"
                                : "host memory, but the backend computes on a device: give mha::on_device(sink)");
  if (options.ragged) call.q_offsets = options.ragged->query_offsets.data;
  call.dropout = dropout_draws(options.dropout, options.dropout_seed);
  return call;
}

/// A whole call over any source, checked before anything is computed.
template <class T, Memory where = Memory::host, class Kv, class M, class S, class Sink, class Frame>
auto attend_call(const CallNames& names, const TensorView<T, 4>& out, const TensorView<const T, 4>& q, const Kv& kv,
                 const M& mask, const S& score, const Sink& sink, const CallOptions<Accumulator<T>>& options,
                 Frame& frame) {
  require_fitting<T>(names, out, q, static_cast<Index>(kv.value_dim()), options);
  auto call = checked_call<T, where>(names, q, kv, mask, score, sink, options, frame);
  if (options.log_sum_exp) call.log_sum_exp = *options.log_sum_exp;
  call.out = out;
  return call;
}

/// `Records`: its row states are wanted.
template <bool Records = false, class B, class Call>
MHA_NO_INLINE void run(const B& backend, const Call& call, typename B::Workspace& workspace) {
  if (call.q.batch() == 0 || call.q.heads() == 0 || call.q.length() == 0) return;
  if constexpr (Records && requires { backend.attend_recorded(call, workspace); })
    backend.attend_recorded(call, workspace);
  else
    backend.attend(call, workspace);
}

/// The same for the backward pass of a call.
template <class B, class Call>
MHA_NO_INLINE void run_backward(const B& backend, const Call& call, typename B::Workspace& workspace) {
  if (!computes_on_host<B> || sums_scores<B> || (call.forward.shape.batch > 0 && call.forward.shape.heads > 0))
    return backend.attend_backward(call, workspace);  // sums of its own are cleared there alone
  call.key.clear();
  call.value.clear();
}

/// The softmax of a call, (B, Hq, Lq, Lk), a tensor of the backend's memory.
template <class B, class Call>
MHA_NO_INLINE auto run_weights(const B& backend, const Call& call, typename B::Workspace& workspace) {
  using A = Accumulator<typename Call::Scalar>;
  static_assert(
      requires(TensorView<A, 4> to) { backend.weights(call, to, workspace); },
      "mha: this backend does not return attention weights: it has no member weights(call, to, workspace) "
      "(see mha/backend/backend.hpp)");
  const CallShape& shape = call.shape;
  TensorOf<B, A, 4> to(shape.batch, shape.heads, shape.queries, shape.keys);
  const TensorView<A, 4> all = to.view();
  if (all.size() > 0) backend.weights(call, all, workspace);
  if (all.size() > 0 && call.dropout.exist()) ItemsOn<B>{backend, workspace}(drop_items(call.dropout, shape, all));
  return to;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
