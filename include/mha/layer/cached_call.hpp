// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

#include "../block/arguments.hpp"
#include "../block/rows.hpp"
#include "../cache/block_kv.hpp"
#include "../cache/storage.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/overlap.hpp"
#include "../policy/position.hpp"
#include "../positions.hpp"
#include "cache_step.hpp"
#include "call.hpp"
#include "key_values.hpp"
#include "memory_rows.hpp"

/// What a layer call does otherwise where its keys and values go through a cache.
namespace mha::inline MHA_NAMESPACE::detail {

/// The sentences for what a layer may be given after a step.
template <class... Extra> constexpr void check_cached_arguments() {
  check_layer_arguments<Extra...>();
  static_assert(
      !((RaggedArgument<Extra> || OriginArgument<Extra>) || ...),
      "mha: a step of a cache knows the rows and positions of its sequences: give the layer neither Ragged nor "
      "Origin (see mha/layer/cache_step.hpp)");
}
template <class... Extra> constexpr void check_prefill_arguments() {
  static_assert(!(LogSumExpArgument<Extra> || ...),
                "mha: prefill() may take several steps and writes no log-sum-exp: give it to a step, "
                "layer(x, step[i], mha::LogSumExp{…}) (see mha/layer/layer.hpp)");
  static_assert(!(PositionsArgument<Extra> || ...),
                "mha: prefill() may take several steps, Positions are those of one: give them to layer.step(x, cache, "
                "…) or layer(x, step[i], …) (see mha/positions.hpp)");
}

template <class T, LayerStepArgument Step> CallNames layer_names(const TensorView<const T, 3>&, const Step&) {
  return {"layer", "x", "the cache", "the cache"};
}

/// What keys and values are made from: the memory, or x itself where they go to a cache.
template <class B, class T, class Memory>
decltype(auto) memory_of_call(const TensorView<const T, 3>& x, const Memory& memory) {
  if constexpr (LayerStepArgument<Memory>) {
    check_cache_memory<B, Memory>();
    return MemoryRows<T>{x, x};
  } else {
    return (memory);
  }
}

/// The step's rows and positions as the options of a call on x.
template <LayerStepArgument Step, class A> void take_step(const Step& step, Index batch, CallOptions<A>& options) {
  if (batch == 1 && step.sequences() != 1) options.ragged = Ragged{step.offsets()};
  options.origin = Origin(Borrowed<Index>(step.positions()));
  options.planned_keys = step.planned_keys();
  options.whole = step.whole();
}

/// The options of a layer's call: the layer's scale, its dropout, and the rows and positions of a cache's step.
template <class B, class T, class Dropout, class Memory, class... Extra>
CallOptions<Accumulator<T>> layer_options(const Config& config, const Dropout& dropout, [[maybe_unused]] Index batch,
                                          const Memory& memory, const Extra&... extra) {
  static_assert(!(DropoutSeedArgument<Extra> || ...) || !std::same_as<Dropout, NoDropout>,
                "mha: a DropoutSeed for a layer without Dropout: name it in the layer's type, "
                "MultiHeadAttention<float, mha::Cpu, mha::Dropout> (see mha/policy/dropout.hpp)");
  check_drops<B, Extra...>();
  auto options = collect_options<Accumulator<T>>(extra...);
  options.scale = config.scale;
  options.dropout = probability(dropout);
  if constexpr (LayerStepArgument<Memory>)
    take_step(memory, batch, options);
  else if constexpr (is_key_values<Memory>)
    take_projected_offsets(memory.offsets, memory.key.extent(0), options.ragged);
  else if constexpr (KvSource<Memory>)
    check_source<memory_of<B>>("layer", memory, options.ragged);
  return options;
}

/// Keys and values that a call attends to, and where they are made, at what positions: of a call without a cache the
/// buffers themselves, from position 0 on.
template <class T, class Memory>
decltype(auto) source_of(const CallNames& names, const TensorView<const T, 4>& q, const TensorView<const T, 4>& key,
                         const TensorView<const T, 4>& value, const Memory& memory,
                         const std::optional<Ragged>& ragged) {
  if constexpr (LayerStepArgument<Memory>)
    return memory.source();
  else if constexpr (KvSource<Memory>)
    return (memory);
  else
    return kv_of(names, q, shared_by(q, key), shared_by(q, value), ragged);
}

/// Where a call's queries stand, and the keys that it makes.
struct CallPositions {
  RowPositions queries, keys;
};
template <class Memory, class Call> CallPositions positions_of(const Call& call) {
  const RowPositions queries{call.shape.origin, call.q_offsets, call.shape.batch, call.shape.queries};
  if constexpr (LayerStepArgument<Memory>)
    return {queries, queries};
  else if constexpr (KvSource<Memory>)
    return {queries, {}};
  else
    return {queries, {Origins(Index{0}), call.kv.offsets.data, call.shape.batch, call.shape.keys}};
}

/// The same with the Positions of x among a call's arguments, which are those of keys that are made from x too.
template <class Position, class B, class T, class Call, class Memory, class... Extra>
CallPositions positions_of([[maybe_unused]] CallScope<B>& scope, const TensorView<const T, 3>& x,
                           const MemoryRows<T>& made_from, const Call& call, const Memory&, const Extra&... extra) {
  CallPositions at = positions_of<Memory>(call);
  if constexpr ((PositionsArgument<Extra> || ...)) {
    at.queries = each_row_at(find_row_positions<Position>(x, extra...), scope.backend, scope.frame, scope.workspace);
    if (same_view(x, made_from.keys)) at.keys = at.queries;
  }
  return at;
}

/// Where the numbers of a step are for a call in a workspace, as staged() asks.
template <class Step, class Workspace> struct SentNumbers {
  const Step& step;
  const Workspace& workspace;
  const Index* whole;  ///< the origins of the call of which the step is a piece, which its policies have; or null

  const Index* operator()(const Index* list) const { return step.sent(list, workspace); }
};
template <class Memory, class Workspace>
auto sent_numbers([[maybe_unused]] const Memory& memory, [[maybe_unused]] const Workspace& workspace) {
  if constexpr (LayerStepArgument<Memory>)
    return SentNumbers<Memory, Workspace>{memory, workspace,
                                          memory.whole() != nullptr ? memory.whole()->origin.each : nullptr};
  else
    return [](const Index*) -> const Index* { return nullptr; };
}

/// Rows (1, B·n, E) of all sequences of a cache, one after another, as (B, n, E).
template <class T, class Cache> TensorView<T, 3> each_sequence(const TensorView<T, 3>& v, const Cache& cache) {
  const Index sequences = cache.sequences();
  if (v.extent[0] != 1 || sequences == 1) return v;
  require(v.extent[1] % sequences == 0, "layer: ", v.extent[1], " rows are no multiple of the cache's ", sequences,
          " sequences: a step of different rows is made by cache.step()");
  const Index rows = v.extent[1] / sequences;
  return {v.data, {sequences, rows, v.extent[2]}, {rows * v.stride[1], v.stride[1], v.stride[2]}};
}
/// Rows [begin, begin + count) of every sequence.
template <class T> TensorView<T, 3> part_of(const TensorView<T, 3>& v, Index begin, Index count) {
  return {v.data + begin * v.stride[1], {v.extent[0], count, v.extent[2]}, {v.stride[0], v.stride[1], v.stride[2]}};
}

/// Checks the result of a call on x, or its residual.
template <class T, class V>
void require_result(const TensorView<const T, 3>& x, const V& y, Index width, const char* name = "the result") {
  require_data("layer", name, y);
  require_equal("layer", "batch", "x", x.extent[0], name, y.extent[0]);
  require_equal("layer", "length", "x", x.extent[1], name, y.extent[1]);
  require_equal("layer", "width", "the layer's output", width, name, y.extent[2]);
}
template <class B, class T, class... Extra>
void require_residual(const B& backend, const TensorView<const T, 3>& x, Index width, const Extra&... extra) {
  if constexpr ((ResidualArgument<Extra> || ...)) {
    const auto residual = find_rows<Residual, const T>(extra...);
    require_result(x, residual, width, "the residual");
    require_reachable(backend, "layer", "the residual", residual);
  }
}
/// What a call writes is where the backend reaches it. A log-sum-exp lies apart from the result and from a residual,
/// which are written and read after it.
template <class B, class T, class A, class... Extra>
void require_written(const B& backend, const TensorView<T, 3>& y, const TensorView<A, 3>& log_sum_exp,
                     const Extra&... extra) {
  require_reachable(backend, "layer", "the result", y);
  if constexpr ((LogSumExpArgument<Extra> || ...)) {
    require_reachable(backend, "layer", "log-sum-exp", log_sum_exp);
    const NamedArray first[] = {{"log-sum-exp", footprint(log_sum_exp)}};
    const NamedArray later[] = {{"the result", footprint(y)},
                                {"the residual", footprint(find_rows<Residual, const T>(extra...))}};
    require_apart("layer", first, later);
  }
}

/// Checks that all rows of a call fit that is made in steps of at most so many.
template <class T, class Cache>
void require_pieces(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const TensorView<const T, 3>& residual,
                    Index rows, Index most, const Cache& cache) {
  if (rows <= most) return;
  cache.require_room(rows);
  const TensorView<const T, 3> written = y;
  const auto check = [&](const char* name, const TensorView<const T, 3>& read) {
    require(same_view(read, written) || !share_elements(read, y), "prefill: the result overlaps ", name, " and is not ",
            name, " itself: an earlier piece would be written over rows still to be read");
  };
  check("x", x);
  if (residual.data != nullptr) check("the residual", residual);
}

/// An argument of a call as it is for rows [begin, begin + count) of every sequence; a residual that is refused, as it
/// is, so that its sentence stands once.
template <class T, class E, class Cache>
decltype(auto) part_of_argument(E& argument, const Cache& cache, Index begin, Index count) {
  if constexpr (requires { requires ResidualArgument<E> && SequenceOf<decltype(argument.from), T>; }) {
    const auto part = part_of(each_sequence(with_batch(argument.from), cache), begin, count);
    return Residual<std::remove_const_t<decltype(part)>>{part};
  } else {
    return (argument);
  }
}

/// A call that is made in pieces: what a mask or a score depends on, the first query or the number of keys, is that of
/// the whole call.
class WholeCall {
 public:
  WholeCall() = default;
  template <class Cache> WholeCall(const Cache& cache, Index heads, Index rows) {
    for (const auto id : cache.ids()) positions_.push_back(cache.length(id));
    shape_ = {cache.sequences(), heads, rows, 0, Origins(positions_.data())};
    for (const Index position : positions_) {
      shape_.uneven_keys = shape_.uneven_keys || position != positions_[0];
      shape_.keys = std::max(shape_.keys, position + rows);
    }
    shape_.last_meets_last = true;
  }
  WholeCall(WholeCall&&) = default;
  WholeCall& operator=(WholeCall&&) = default;

  /// Null of a call in one piece.
  const CallShape* shape() const { return positions_.empty() ? nullptr : &shape_; }

 private:
  std::vector<Index> positions_;
  CallShape shape_;
};

/// The whole call if pieces have at most so many rows for each sequence. Checks that masks and scores fit it, and that
/// a Ring will have dropped nothing that the masks may show to a piece: a later piece is not refused once earlier ones
/// are committed.
template <class B, class M, class S, class Storage, class F, class C, class... Extra>
WholeCall whole_call(const B& backend, const M& mask, const S& score, Index heads, Index rows, Index most,
                     const KvCache<Storage, F, C>& cache, Extra&... extra) {
  if constexpr (std::same_as<Storage, Ring>) {  // others are given all rows in one piece
    if (rows <= most) return {};
    WholeCall call(cache, heads, rows);
    const CallShape& whole = *call.shape();
    CallScope<B> scope(backend, extra...);
    const auto ready = prepared_for<memory_of<B>>("layer", mask, whole, scope.frame);
    static_cast<void>(prepared_for<memory_of<B>>("layer", score, whole, scope.frame));
    Index* const positions = scope.frame.template take_host<Index>(static_cast<std::size_t>(whole.batch));
    Index* const oldest = scope.frame.template take_host<Index>(static_cast<std::size_t>(whole.batch));
    CallShape piece = whole;
    piece.origin = Origins(positions);
    for (Index begin = 0; begin < rows; begin += piece.queries) {
      piece.queries = std::min(most, rows - begin);
      piece.keys = 0;
      for (Index b = 0; b < whole.batch; ++b) {
        positions[b] = whole.origin[b] + begin;
        oldest[b] = cache.oldest(cache.ids()[static_cast<std::size_t>(b)], begin + piece.queries);
        piece.keys = std::max(piece.keys, positions[b] + piece.queries);
      }
      require_dropped_hidden("layer", ready, piece, cache.storage().first, oldest);
    }
    return call;
  } else {
    return {};
  }
}

template <class Cache> void require_short_form(const char* call, const Cache& cache) {
  require(
      cache.layers() == 1, call, ": the cache has ", cache.layers(),
      " layers, expected 1: make a step of it, cache.step(…), and call each layer with its part, layer(x, step[i])");
  require(cache.sequences() > 0, call, ": the cache has no sequence: add() one first");
}

}  // namespace mha::inline MHA_NAMESPACE::detail
