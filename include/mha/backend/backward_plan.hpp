// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/workspace.hpp"
#include "../policy/call_shape.hpp"
#include "../policy/score_gradient.hpp"
#include "backward.hpp"
#include "executor.hpp"

/// Who computes which part of a backward pass. Every sum has one order, whatever the threads: dQ by ascending keys, dK
/// and dV of a query head by ascending queries, those of a group by ascending head, the sink's by batch and query,
/// those of a table of the score by batch, head, and pieces, of which those of one wave share no element.
namespace mha::inline MHA_NAMESPACE::detail {

/// What a head adds to the gradient of the sink.
template <class Machine> using SinkSum = LongSum<Accumulator<typename Machine::Scalar>>;

/// A call's heads and the memory of those that are computed at once.
///
/// A Machine computes one query head of one sequence in steps: its operands are prepared, pieces (n, m) of queries ×
/// keys are computed, any of them after (n − 1, m) and (n, m − 1), and the sums are stored. It has call(), an
/// AttendBackwardCall, score_tables(), those of its score that have gradients, tiling(), which cuts the work,
/// scratch(frame), a worker's memory, memory(frame) of a head and head(memory, b, h), which has tiles(),
/// query_pieces(), key_pieces(), prepare_queries(tile), prepare_keys(m), pieces(n, end, m, m_end, scratch), for those
/// [n, end) × [m, m_end), store_queries(tile), add_keys(m, memory of another head), store_keys(m), sink() and
/// store_slots(). Their types are its Memory and Scratch.
template <class Machine> class BackwardHeads {
  using T = typename Machine::Scalar;
  using A = Accumulator<T>;
  using Call = std::remove_cvref_t<decltype(std::declval<const Machine&>().call())>;
  using Forward = std::remove_cvref_t<decltype(std::declval<const Call&>().forward)>;

 public:
  explicit BackwardHeads(const Machine& machine)
      : machine_(machine),
        call_(machine.call()),
        f_(call_.forward),
        group_(f_.kv_heads > 0 ? f_.shape.heads / f_.kv_heads : 0) {}

  Index group() const { return group_; }
  /// Key/value heads of all sequences.
  std::int64_t key_heads() const { return std::int64_t{f_.shape.batch} * f_.kv_heads; }
  bool is_large() const {
    constexpr double enough_flop = 2e6;
    return 2 * f_.shape.pairs() * (3. * f_.head_dim + 2. * f_.value_dim) >= enough_flop;
  }
  /// Heads, counted over all sequences, that may be computed at once: those that share a table come one after another.
  Index at_once() const {
    const Index all = f_.shape.batch * f_.shape.heads;
    Index n = all;
    for (int j = 0; j < machine_.score_tables(); ++j) {
      const TableGradient<A, LongSum<A>>& table = call_.score.tables[j];
      if (table.elements != nullptr) continue;
      if (f_.shape.heads > 1 && table.stride[1] == 0)
        n = 1;
      else if (f_.shape.batch > 1 && table.stride[0] == 0)
        n = std::min(n, f_.shape.heads);
    }
    return n;
  }
  /// Tasks that share nothing.
  std::int64_t tasks() const {
    const Index n = at_once(), all = f_.shape.batch * f_.shape.heads;
    return n == all ? key_heads() : n == f_.shape.heads ? f_.kv_heads : 1;
  }
  const auto& tiling() const { return machine_.tiling(); }
  Index queries() const { return f_.shape.queries; }
  Index keys() const { return f_.shape.keys; }

  auto memory(Workspace::Frame& frame) const { return machine_.memory(frame); }
  auto scratch(Workspace::Frame& frame) const { return machine_.scratch(frame); }
  /// Query head i of key/value head g, counted over all sequences.
  auto head(std::int64_t g, Index i, const typename Machine::Memory& memory) const {
    const Index b = static_cast<Index>(g / f_.kv_heads), h = static_cast<Index>(g % f_.kv_heads) * group_ + i;
    return machine_.head(memory, b, h);
  }

 private:
  const Machine& machine_;
  const Call& call_;
  const Forward& f_;
  const Index group_;
};

/// All query heads of a key/value head, one after another, in one thread. `first` has memory for the sums too.
template <class Machine>
void whole_group(const BackwardHeads<Machine>& heads, std::int64_t g, const typename Machine::Memory& first,
                 const typename Machine::Memory& other, const typename Machine::Scratch& scratch,
                 SinkSum<Machine>* sinks) {
  const auto sums = heads.head(g, 0, first);
  for (Index i = 0; i < heads.group(); ++i) {
    const auto& memory = i == 0 ? first : other;
    const auto head = heads.head(g, i, memory);
    for (Index t = 0; t < head.tiles(); ++t) head.prepare_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.prepare_keys(m);
    head.pieces(0, head.query_pieces(), 0, head.key_pieces(), scratch);
    for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
    for (Index m = 0; i > 0 && m < head.key_pieces(); ++m) sums.add_keys(m, other);
    sinks[i] = head.sink();
    head.store_slots();
  }
  for (Index m = 0; m < sums.key_pieces(); ++m) sums.store_keys(m);
}

/// Every key/value head a task, or those of all sequences.
template <class Machine, class Threads>
void backward_by_groups(const BackwardHeads<Machine>& heads, bool alone, Workspace::Frame& frame,
                        const Threads& threads, SinkSum<Machine>* sinks) {
  using Memory = typename Machine::Memory;
  using Scratch = typename Machine::Scratch;
  const Index slots = alone ? 1 : threads.workers();
  Memory* const memory = frame.take<Memory>(2 * static_cast<std::size_t>(slots));
  Scratch* const scratch = frame.take<Scratch>(static_cast<std::size_t>(slots));
  for (Index w = 0; w < slots; ++w) {
    memory[2 * w] = heads.memory(frame);
    memory[2 * w + 1] = heads.group() > 1 ? heads.memory(frame) : memory[2 * w];
    scratch[w] = heads.scratch(frame);
  }
  const auto tasks = static_cast<Index>(heads.tasks()), all = static_cast<Index>(heads.key_heads());
  run_tasks(alone, threads, tasks, [&](Index first, Index worker) MHA_NO_INLINE {
    for (Index g = first; g < all; g += tasks)
      whole_group(heads, g, memory[2 * worker], memory[2 * worker + 1], scratch[worker],
                  sinks + std::ptrdiff_t{g} * heads.group());
  });
}

/// All heads at once, or as many as may be, wave by wave: pieces (n, m) of n + m = w touch different queries and
/// different keys.
template <class Machine, class Threads>
void backward_in_waves(const BackwardHeads<Machine>& heads, Workspace::Frame& frame, const Threads& threads,
                       SinkSum<Machine>* sinks) {
  using Memory = typename Machine::Memory;
  using Scratch = typename Machine::Scratch;
  // Groups follow one another where their heads must, in the same memory.
  const Index group = heads.group(), at_once = heads.at_once(), groups = std::max<Index>(1, at_once / group),
              count = groups * group;
  Memory* const memory = frame.take<Memory>(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) memory[i] = heads.memory(frame);
  Scratch* const scratch = frame.take<Scratch>(static_cast<std::size_t>(threads.workers()));
  for (Index w = 0; w < threads.workers(); ++w) scratch[w] = heads.scratch(frame);
  const Index tiles = heads.tiling().tiles(heads.queries()), rows = heads.tiling().query_pieces(heads.queries()),
              columns = heads.tiling().key_pieces(heads.keys());
  for (std::int64_t begin = 0; begin < heads.key_heads(); begin += groups) {
    const auto head = [&](Index i) { return heads.head(begin + i / group, i % group, memory[i]); };
    threads.run(count * (tiles + columns), [&](Index task, Index) MHA_NO_INLINE {
      const auto h = head(task / (tiles + columns));
      const Index i = task % (tiles + columns);
      if (i < tiles) {
        if (i < h.tiles()) h.prepare_queries(i);
      } else if (i - tiles < h.key_pieces()) {
        h.prepare_keys(i - tiles);
      }
    });
    for (Index from = 0; from < count; from += at_once)
      for (Index wave = 0; wave < rows + columns - 1; ++wave) {
        const Index first = std::max<Index>(0, wave - columns + 1), n = std::min(rows, wave + 1) - first;
        threads.run(at_once * n, [&](Index task, Index worker) MHA_NO_INLINE {
          const auto h = head(from + task / n);
          const Index row = first + task % n, column = wave - row;
          if (row < h.query_pieces() && column < h.key_pieces())
            h.pieces(row, row + 1, column, column + 1, scratch[worker]);
        });
      }
    threads.run(count * tiles + groups * columns, [&](Index task, Index) MHA_NO_INLINE {
      if (task < count * tiles) {
        const auto h = head(task / tiles);
        if (task % tiles < h.tiles()) h.store_queries(task % tiles);
        return;
      }
      const Index g = (task - count * tiles) / columns, m = (task - count * tiles) % columns;
      const auto sums = head(g * group);
      if (m >= sums.key_pieces()) return;
      for (Index i = 1; i < group; ++i) sums.add_keys(m, memory[g * group + i]);
      sums.store_keys(m);
    });
    for (Index i = 0; i < count; ++i) {
      sinks[begin * group + i] = head(i).sink();
      head(i).store_slots();
    }
  }
}

/// All heads of all sequences, of which each has up to 1024 tasks, are counted by an Index.
inline void require_heads(const char* call, const CallShape& shape) {
  const std::int64_t heads = std::int64_t{shape.batch} * shape.heads, most = std::numeric_limits<Index>::max() / 1024;
  require(heads <= most, call, ": ", heads, " heads in the batch, the limit is ", most);
}

/// The backward pass; pieces of a head are shared among the workers where there are fewer key/value heads than those.
template <class Machine, class Threads>
void run_heads(const Machine& machine, Workspace& workspace, const Threads& threads) {
  const BackwardHeads<Machine> heads(machine);
  if (heads.key_heads() == 0) return;
  require_heads("attention_backward", machine.call().forward.shape);
  auto frame = workspace.frame();
  const std::size_t count = static_cast<std::size_t>(heads.key_heads()) * static_cast<std::size_t>(heads.group());
  auto* const sinks = frame.take<SinkSum<Machine>>(count);
  const Index workers = threads.workers();
  const bool alone = workers == 1 || !heads.is_large();
  if (alone || heads.tasks() >= workers)
    backward_by_groups(heads, alone, frame, threads, sinks);
  else
    backward_in_waves(heads, frame, threads, sinks);
  const auto& call = machine.call();
  if (call.sink == nullptr) return;
  const std::size_t per_sequence = static_cast<std::size_t>(call.forward.shape.heads);
  for (std::size_t i = 0; i < count; ++i) call.sink[i % per_sequence] += sinks[i];
}

}  // namespace mha::inline MHA_NAMESPACE::detail
