// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../cache/books.hpp"
#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class Storage, class F, class B> class KvCache;
template <class Cache> class CacheStep;

/// A step of a cache whose work was recorded, such as in a CUDA graph, to be replayed for steps that follow.
///
/// step.recorded() returns it once each layer was called under the recording. cache.step(recorded, sequences) opens a
/// step that a replay does: launch the graph in the cache's stream, then commit().
///
/// May change    which sequences the step is of, their lengths and pages; the numbers in x. Between replays there
///               may be prompts, forks, truncations, other steps
/// Stays         the cache, made with CacheSizes::recordable; the number of sequences and the rows of each; where x,
///               y and the log-sum-exp are; weights and policies' data; the workspace of the layers' calls, which
///               another call must not make grow
/// Numerics      the bits of the same step without a recording: a recordable cache plans every step for the longest
///               sequence that its storage allows
///
///   // A step of these counts was made before without a recording: the first one allocates.
///   auto step = cache.step(ids, rows);             // numbers are sent before the recording begins
///   cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
///   for (int i = 0; i < layers; ++i) attention[i](x, step[i], mha::into(y), workspace);
///   cudaStreamEndCapture(stream, &graph);          // then instantiate it as `replay`, and launch that for this step
///   const mha::RecordedStep recorded = step.recorded();
///   step.commit();
///   for (;;) {
///     auto next = cache.step(recorded, ids);       // sends the new lengths and pages
///     cudaGraphLaunch(replay, stream);
///     next.commit();
///   }
class RecordedStep {
 public:
  RecordedStep() = default;  ///< of nothing

  std::span<const Index> rows() const { return rows_; }

 private:
  template <class Storage, class F, class B> friend class KvCache;
  template <class Cache> friend class CacheStep;
  RecordedStep(std::uint64_t cache, std::span<const detail::Growth> growths, std::span<const std::uint64_t> versions)
      : cache_(cache), versions_(versions.begin(), versions.end()) {
    for (const detail::Growth& g : growths) rows_.push_back(g.rows);
  }

  void check(std::uint64_t cache, std::size_t sequences) const {
    detail::require(cache_ != 0, "step: the RecordedStep is of no step: step.recorded() returns one");
    detail::require(cache_ == cache, "step: the RecordedStep is of another cache");
    detail::require(sequences == rows_.size(), "step: sequences has size ", sequences,
                    " but the recorded step has size ", rows_.size());
  }

  std::uint64_t cache_ = 0;  ///< no other cache of the process has it
  std::vector<Index> rows_;  ///< (sequences)
  std::vector<std::uint64_t> versions_;
};

namespace detail {

inline std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> serial{0};
  return ++serial;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
