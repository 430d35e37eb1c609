// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../executor.hpp"
#include "head_backward.hpp"

/// Who computes which part of a backward pass. Every sum has one order, whatever the threads: dQ by ascending keys, dK
/// and dV of a query head by ascending queries, those of a group by ascending head, the sink's by batch and query,
/// those of a table of the score by batch, head, and pieces, of which those of one wave share no element.
namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// A call's heads and the memory of those that are computed at once.
template <class T> class BackwardHeads {
  using A = Accumulator<T>;

 public:
  BackwardHeads(const AnyBackwardCall<T>& call, IsaLevel level)
      : call_(call),
        level_(level),
        f_(call.call.forward),
        kernels_(simd::backward_kernels<A>(level, f_.shape.queries)),
        tiling_(kernels_.tile, f_.head_dim, f_.value_dim),
        group_(f_.kv_heads > 0 ? f_.shape.heads / f_.kv_heads : 0) {}

  Index group() const { return group_; }
  /// Key/value heads of all sequences.
  std::int64_t key_heads() const { return std::int64_t{f_.shape.batch} * f_.kv_heads; }
  bool is_large() const {
    constexpr double enough_flop = 2e6;
    return 2.0 * f_.shape.batch * f_.shape.heads * f_.shape.queries * f_.shape.keys *
               (3. * f_.head_dim + 2. * f_.value_dim) >=
           enough_flop;
  }
  /// Heads, counted over all sequences, that may be computed at once: those that share a table come one after another.
  Index at_once() const {
    const Index all = f_.shape.batch * f_.shape.heads;
    Index n = all;
    for (int j = 0; j < call_.score_gradient.tables(); ++j) {
      const PairTable<A, double>& table = call_.call.score.tables[j];
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
  const BackwardTiling& tiling() const { return tiling_; }
  Index queries() const { return f_.shape.queries; }
  Index keys() const { return f_.shape.keys; }

  HeadMemory<A> memory(Workspace::Frame& frame) const {
    return HeadMemory<A>(frame, tiling_, f_.shape.queries, f_.shape.keys, f_.head_dim, f_.value_dim,
                         call_.log_sum_exp_apart(), call_.score_gradient.padded_slots());
  }
  BackwardScratch<A> scratch(Workspace::Frame& frame) const {
    return BackwardScratch<A>(frame, tiling_.lanes, call_.log_sum_exp_apart(), call_.score_gradient.evaluates(),
                              call_.score_gradient.tables());
  }
  /// Query head i of key/value head g, counted over all sequences.
  HeadBackward<T> head(std::int64_t g, Index i, const HeadMemory<A>& memory) const {
    const Index b = static_cast<Index>(g / f_.kv_heads), h = static_cast<Index>(g % f_.kv_heads) * group_ + i;
    return {call_, level_, kernels_, tiling_, memory, b, h};
  }

 private:
  const AnyBackwardCall<T>& call_;
  const IsaLevel level_;
  const simd::AnyCall<T>& f_;
  const simd::BackwardKernels<A> kernels_;
  const BackwardTiling tiling_;
  const Index group_;
};

/// All query heads of a key/value head, one after another, in one thread. `first` has memory for the sums too.
template <class T, class A>
void whole_group(const BackwardHeads<T>& heads, std::int64_t g, const HeadMemory<A>& first, const HeadMemory<A>& other,
                 const BackwardScratch<A>& scratch, double* sinks) {
  const HeadBackward<T> sums = heads.head(g, 0, first);
  for (Index i = 0; i < heads.group(); ++i) {
    const HeadMemory<A>& memory = i == 0 ? first : other;
    const HeadBackward<T> head = heads.head(g, i, memory);
    for (Index t = 0; t < head.tiles(); ++t) head.prepare_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.prepare_keys(m);
    for (Index m = 0; m < head.key_pieces(); ++m)
      for (Index n = 0; n < head.query_pieces(); ++n) head.piece(n, m, scratch);
    for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
    for (Index m = 0; i > 0 && m < head.key_pieces(); ++m) sums.add_keys(m, other);
    sinks[i] = head.sink();
    head.store_slots();
  }
  for (Index m = 0; m < sums.key_pieces(); ++m) sums.store_keys(m);
}

/// Every key/value head a task, or those of all sequences.
template <class T, class Threads>
void backward_by_groups(const BackwardHeads<T>& heads, bool alone, Workspace::Frame& frame, const Threads& threads,
                        double* sinks) {
  using A = Accumulator<T>;
  const Index slots = alone ? 1 : threads.workers();
  HeadMemory<A>* const memory = frame.take<HeadMemory<A>>(2 * static_cast<std::size_t>(slots));
  BackwardScratch<A>* const scratch = frame.take<BackwardScratch<A>>(static_cast<std::size_t>(slots));
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
template <class T, class Threads>
void backward_in_waves(const BackwardHeads<T>& heads, Workspace::Frame& frame, const Threads& threads, double* sinks) {
  using A = Accumulator<T>;
  // Groups follow one another where their heads must, in the same memory.
  const Index group = heads.group(), at_once = heads.at_once(), groups = std::max<Index>(1, at_once / group),
              count = groups * group;
  HeadMemory<A>* const memory = frame.take<HeadMemory<A>>(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) memory[i] = heads.memory(frame);
  BackwardScratch<A>* const scratch = frame.take<BackwardScratch<A>>(static_cast<std::size_t>(threads.workers()));
  for (Index w = 0; w < threads.workers(); ++w) scratch[w] = heads.scratch(frame);
  const Index tiles = heads.tiling().tiles(heads.queries()), rows = heads.tiling().query_pieces(heads.queries()),
              columns = BackwardTiling::key_pieces(heads.keys());
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
          if (row < h.query_pieces() && column < h.key_pieces()) h.piece(row, column, scratch[worker]);
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

/// The backward pass; pieces of a head are shared among the workers where there are fewer key/value heads than those.
template <class T, class Threads>
void attend_backward(const AnyBackwardCall<T>& call, IsaLevel level, Workspace& workspace, const Threads& threads) {
  const BackwardHeads<T> heads(call, level);
  if (heads.key_heads() == 0) return;
  require(heads.key_heads() * heads.group() <= std::numeric_limits<Index>::max() / 1024,
          "attention_backward: ", heads.key_heads() * heads.group(), " heads in the batch, the limit is ",
          std::numeric_limits<Index>::max() / 1024);
  auto frame = workspace.frame();
  const std::size_t count = static_cast<std::size_t>(heads.key_heads()) * static_cast<std::size_t>(heads.group());
  double* const sinks = frame.template take<double>(count);
  const Index workers = threads.workers();
  const bool alone = workers == 1 || !heads.is_large();
  if (alone || heads.tasks() >= workers)
    backward_by_groups(heads, alone, frame, threads, sinks);
  else
    backward_in_waves(heads, frame, threads, sinks);
  if (call.call.sink == nullptr) return;
  const std::size_t per_sequence = static_cast<std::size_t>(call.call.forward.shape.heads);
  for (std::size_t i = 0; i < count; ++i) call.call.sink[i % per_sequence] += sinks[i];
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
