// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../cache/books.hpp"
#include "../cache/kv_source.hpp"
#include "../cache/step_lists.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "cache_memory.hpp"
#include "config.hpp"
#include "recorded_step.hpp"
#include "step_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// What may be stored as F: numbers that are accumulated as F's are.
template <class T, class F> constexpr bool stores = meets_rows_of<T, F> && !is_scaled_integer<T>;

/// Rows (Σn, Hkv, ·) or (B, n, Hkv, ·) as (B, n, Hkv, ·).
template <class T, class Owner> TensorView<const T, 4> cached_rows(const Owner& owner) {
  const TensorView<const T, ViewTraits<Owner>::rank> v = ViewTraits<Owner>::view(owner);
  return four_axes(v);
}

/// Checks that a tensor (B, n, …) has the step's rows: all of them one after another, or n for each sequence.
inline void require_step_rows(const char* call, const char* name, Index batch, Index length,
                              std::span<const Growth> growths, Index rows) {
  const Index sequences = static_cast<Index>(growths.size());
  if (batch == 1) return require(length == rows, call, ": ", name, " has ", length, " rows, but the step has ", rows);
  require(batch == sequences, call, ": ", name, " has batch ", batch, ", but the step has ", sequences, " sequences");
  for (std::size_t b = 0; b < growths.size(); ++b)
    require(growths[b].rows == length, call, ": ", name, " has ", length, " rows a sequence, but the step has ",
            growths[b].rows, " for sequence ", b);
}

}  // namespace detail

/// One layer's part of a step: layer(x, step[i]) writes the keys and values of x's rows into the cache and attends to
/// all that the cache holds of their sequences.
template <class Cache> class LayerStep {
 public:
  static constexpr bool is_layer_step = true;
  static constexpr Memory memory = Cache::memory;
  using Scalar = typename Cache::Scalar;

  LayerStep(Cache& cache, Index layer) : cache_(&cache), layer_(layer), step_(cache.steps_) {}

  // Every member throws a ShapeError if the step has ended. What they return lasts as long as the step.

  Index sequences() const { return static_cast<Index>(now().growths.size()); }
  /// Of all sequences together.
  Index rows() const { return static_cast<Index>(now().to_row.size()); }
  /// (sequences + 1): sequence b is rows offsets()[b] … offsets()[b + 1] − 1.
  std::span<const Index> offsets() const { return now().offsets; }
  /// (sequences): the position of each sequence's first row.
  std::span<const Index> positions() const { return now().positions; }

  /// The layer's keys and values up to and with the rows of the step, which are to be written before they are read.
  auto source() const { return open().source(layer_); }

  /// Where a list of the step's numbers is in the memory of the cache's backend, for calls in this workspace; null
  /// where they copy it themselves.
  template <class Workspace> const Index* sent(const Index* list, const Workspace& workspace) const {
    return open().sent(list, workspace);
  }

  /// Checks that the cache is one of a layer of these sizes.
  void check_sizes(const Config& c, const char* call = "layer") const {
    static_cast<void>(open());
    detail::require(!cache_->shape_.values_in_keys, call,
                    ": the cache has its values in its keys (KvShape::values_in_keys), a layer stores both: use "
                    "append() and attention() over source()");
    const auto agree = [call](const char* axis, Index own, Index stored) {
      detail::require_equal(call, axis, "the layer", own, "the cache", stored);
    };
    agree("key/value heads", c.num_kv_heads, cache_->shape_.heads);
    agree("head size", c.head_dim, cache_->shape_.dim);
    agree("value head size", c.value_dim, cache_->shape_.value_dim);
  }

  /// The step as a call of x (B, n, E), or ragged if its sequences have different rows.
  CallShape shape(Index heads) const {
    CallShape all{sequences(), heads, 0, 0, Origins(positions().data())};
    for (const detail::Growth& g : now().growths) {
      const detail::Growth& first = growth(0);
      if (g.rows != first.rows) all.query_offsets = offsets().data();
      all.uneven_keys = all.uneven_keys || g.length + g.rows != first.length + first.rows;
      all.queries = std::max(all.queries, g.rows);
      all.keys = std::max(all.keys, g.length + g.rows);
    }
    if (all.query_offsets != nullptr) all.fewest_queries = detail::shortest(offsets());
    all.last_meets_last = true;
    return all;
  }
  /// The keys that a recordable cache plans the step for; 0 of others: those there are.
  Index planned_keys() const { return open().planned_keys(); }

  /// The same rows as a piece of a longer call, if it is not null; it must outlive them.
  LayerStep within(const CallShape* whole) const {
    LayerStep piece = *this;
    piece.whole_ = whole;
    return piece;
  }
  const CallShape* whole() const { return whole_; }
  CallShape planned(CallShape shape) const {
    shape.keys = std::max(shape.keys, planned_keys());
    shape.uneven_keys = shape.uneven_keys || planned_keys() > 0;
    shape.last_meets_last = shape.last_meets_last && planned_keys() == 0;
    return shape;
  }
  /// Of queries and keys.
  double pairs() const {
    double sum = 0;
    for (const detail::Growth& g : now().growths) sum += double(g.rows) * (g.length + g.rows);
    return sum;
  }
  /// Positions of sequence b that are there after the step.
  Index kept(Index b) const {
    const auto [slot, length, rows] = growth(b);
    const detail::Gone gone = cache_->book_.gone(slot, length + rows);
    return length + rows - (gone.oldest - gone.first);
  }
  std::string cache_in_words() const {
    std::string free;
    if constexpr (requires { cache_->free_pages(); }) free = ", " + std::to_string(cache_->free_pages()) + " free";
    return detail::in_words(open().storage_) + free +
           detail::sizes_in_words<Scalar>(cache_->shape_, cache_->sizes_, cache_->bytes(),
                                          cache_->memory_.tile_bytes());
  }

  /// Checks that a layer may write that is called on rows (B, n, E): its sizes, its weights, once, and the rows of the
  /// step.
  void check(const Config& c, std::uint64_t weights_version, Index batch, Index length, const char* call = "layer",
             const char* name = "x") const {
    using detail::require;
    check_sizes(c, call);
    detail::require_step_rows(call, name, batch, length, now().growths, rows());
    require(!cache_->written_[static_cast<std::size_t>(layer_)], call, ": layer ", layer_,
            " of the cache was written in this step already");
    cache_->versions_.check(now().growths, layer_, weights_version, call);
  }

  /// Writes keys (B, n, Hkv, D) and values (B, n, Hkv, Dv) of the step's rows in their order.
  template <class T, class Run>
  void write(const TensorView<const T, 4>& key, const TensorView<const T, 4>& value, std::uint64_t weights_version,
             const Run& run) const {
    open().write(layer_, key, value, weights_version, run);
  }

 private:
  Cache& open() const {
    detail::require(cache_->open_.there && cache_->steps_ == step_, "layer: the step has ended");
    return *cache_;
  }
  const detail::StepNumbers& now() const { return open().now_; }
  const detail::Growth& growth(Index b) const { return now().growths[static_cast<std::size_t>(b)]; }

  Cache* cache_;
  Index layer_;
  std::uint64_t step_;  ///< which of the cache's steps it is of
  const CallShape* whole_ = nullptr;
};

/// Rows that are added to sequences of a cache, through all layers of a model. The cache is as it was until commit();
/// a step that ends without it, by an exception too, has not happened: no position and no page is taken, and steps that
/// follow give the bits that they would have given. A cache has one step at a time.
///
///   auto step = cache.step(sequences, rows);
///   for (int i = 0; i < layers; ++i) attention[i](x, step[i], mha::into(y));
///   step.commit();
template <class Cache> class CacheStep {
 public:
  explicit CacheStep(Cache& cache) : cache_(&cache) {}
  CacheStep(const CacheStep&) = delete;
  CacheStep& operator=(const CacheStep&) = delete;
  ~CacheStep() {
    if (cache_ != nullptr) cache_->drop();
  }

  /// (sequences + 1): of the rows of all sequences, those of sequence b are offsets()[b] … offsets()[b + 1] − 1, as
  /// long as the step lasts.
  std::span<const Index> offsets() const { return open("offsets").now_.offsets; }

  /// The part of layer i.
  ///
  /// Errors    ShapeError if the cache has no such layer, or the step was committed
  LayerStep<Cache> operator[](Index layer) const {
    open("step").require_layer("step", layer);
    return {*cache_, layer};
  }

  /// Writes keys and values that were made elsewhere, normalised and turned to their positions.
  ///
  /// Shapes    key (Σn, Hkv, D) or (B, n, Hkv, D)  value (Σn, Hkv, Dv) or (B, n, Hkv, Dv)
  /// Errors    ShapeError if a size does not agree, this layer was written in this step, or the cache has its values in
  ///           its keys. What a Ring drops by it is no error here: attention over source() refuses a mask that may show
  ///           it
  template <ViewableOfRank<3, 4> K, ViewableOfRank<3, 4> V>
  void append(Index layer, const K& key, const V& value) const {
    using T = ScalarOf<K>;
    static_assert(std::same_as<T, ScalarOf<V>>,
                  "mha: append() takes keys and values of one scalar (see "
                  "mha/layer/cache_step.hpp)");
    check_numbers<T>();
    static_assert(
        detail::may_lie_in<K, Cache::memory>() && detail::may_lie_in<V, Cache::memory>(),
        "mha: append() takes keys and values in the memory of the cache: copy them first with mha::to_device() or "
        "mha::to_host() (see mha/layer/cache_step.hpp)");
    detail::require(!open("append").shape_.values_in_keys,
                    "append: the cache has its values in its keys (KvShape::values_in_keys), expected keys alone");
    append_rows(layer, detail::cached_rows<T>(key), detail::cached_rows<T>(value));
  }
  /// The same for a cache that has its values in its keys, KvShape::values_in_keys.
  template <ViewableOfRank<3, 4> K> void append(Index layer, const K& key) const {
    using T = ScalarOf<K>;
    check_numbers<T>();
    static_assert(detail::may_lie_in<K, Cache::memory>(),
                  "mha: append() takes keys in the memory of the cache: copy them first with mha::to_device() or "
                  "mha::to_host() (see mha/layer/cache_step.hpp)");
    detail::require(open("append").shape_.values_in_keys, "append: the cache stores keys and values, expected both");
    const auto keys = detail::cached_rows<T>(key);
    auto no_values = keys;
    no_values.extent[3] = 0;
    append_rows(layer, keys, no_values);
  }

  /// What layer i attends to, after append() or project_memory(), in a step of 0 rows at once: attention(q,
  /// step.source(i), mha::Ragged{step.offsets()}, …), layer(x, step.source(i)). It lasts as long as the step. That the
  /// step's rows were written is not checked: until then they hold anything.
  auto source(Index layer) const {
    open("source").require_layer("source", layer);
    return cache_->source(layer);
  }

  /// What a recording of this step may be replayed for.
  ///
  /// Errors    ShapeError if the cache is not recordable, or not every layer was called
  [[nodiscard]] RecordedStep recorded() const {
    const Cache& cache = open("recorded");
    detail::require(cache.sizes_.recordable, "recorded: make the cache with CacheSizes{.recordable = true}");
    cache.require_written("recorded");
    const auto versions = cache.versions_.written();
    for (std::size_t layer = 0; layer < versions.size(); ++layer)
      detail::require(versions[layer] != 0, "recorded: layer ", layer,
                      " of the cache was written by append(), expected a call of a layer");
    return {cache.serial_, cache.now_.growths, versions};
  }

  /// Makes the rows part of their sequences.
  ///
  /// Errors    ShapeError if a layer has not written; the step stays open
  void commit() {
    open("commit").commit();
    cache_ = nullptr;
  }
  /// Makes these rows part of their sequences, the i-th of a sequence's as its i-th new position, and drops the others:
  /// of a tree of drafts the branch that was accepted.
  ///
  /// Shapes    rows: numbers of rows of x, all sequences' one after another, ascending: a list, in braces too
  /// Errors    ShapeError as commit(), or if a row is not of the step or does not follow the one before, or the cache's
  ///           stream is being recorded; the step stays open
  void commit(const detail::RowCounts& rows) {
    Cache& cache = open("commit");
    cache.require_written("commit");
    cache.now_.check_kept(rows.all());
    cache.require_sendable();
    cache.copies_.reserve(rows.all().size());
    cache.now_.keep(rows.all(), cache.copies_);
    detail::RowCopies of_tiles;  // none: tiles are made again
    cache.memory_.copy(cache.copies_, of_tiles);
    cache.now_.describe(cache.book_);
    for (Index layer = 0; layer < cache.layers(); ++layer)
      cache.keep_tiles(layer, cache.now_.positions, cache.memory_.items());
    cache.commit();
    for (const detail::Growth& g : cache.now_.growths) cache.book_.truncate(g.slot, g.length + g.rows);
    cache_ = nullptr;
  }
  // Refused in one sentence.
  template <std::integral Number> void commit(Number) {
    static_assert(detail::valid<Number>,
                  "mha: step.commit(rows) takes the numbers of the rows that are kept, not how many they are: a list, "
                  "step.commit({0, 3, 5}), in braces for one row too (see mha/layer/cache_step.hpp)");
  }

 private:
  template <class T> static constexpr void check_numbers() {
    static_assert(!std::same_as<T, scaled_int8>,
                  "mha: append() takes numbers, which a cache of scaled_int8 rounds itself, not rows of scaled_int8 "
                  "(see mha/layer/cache_step.hpp)");
  }
  Cache& open(const char* call) const {
    detail::require(cache_ != nullptr, call, ": the step was committed");
    return *cache_;
  }
  template <class T>
  void append_rows(Index layer, const TensorView<const T, 4>& key, const TensorView<const T, 4>& value) const {
    Cache& cache = *cache_;
    cache.require_layer("append", layer);
    detail::require(!cache.written_[static_cast<std::size_t>(layer)], "append: layer ", layer,
                    " of the cache was written in this step already");
    check_rows(cache, "key", key, cache.shape_.dim);
    check_rows(cache, "value", value, cache.shape_.own_value_dim());
    cache.memory_.require_reachable("append", "key", key);
    cache.memory_.require_reachable("append", "value", value);
    cache.write(layer, key, value, 0, cache.memory_.items());
  }
  template <class T>
  static void check_rows(const Cache& cache, const char* name, const TensorView<const T, 4>& v, Index dim) {
    detail::require_data("append", name, v);
    detail::require_equal("append", "heads", name, v.heads(), "the cache", cache.shape_.heads);
    detail::require_equal("append", "head size", name, v.dim(), "the cache", dim);
    detail::require_step_rows("append", name, v.batch(), v.length(), cache.now_.growths,
                              static_cast<Index>(cache.now_.to_row.size()));
  }

  Cache* cache_;
};

namespace detail {

template <class T>
concept LayerStepArgument = requires {
  requires std::remove_cvref_t<T>::is_layer_step;
};
/// The sentence for a cache that the backend does not reach.
template <class B, LayerStepArgument Step> constexpr void check_cache_memory() {
  static_assert(Step::memory == memory_of<B>,
                "mha: the KvCache is in the memory of another machine than the one this backend computes on: make it "
                "by make_cache() of a layer on that backend (see mha/layer/kv_cache.hpp)");
}

/// Where the rows (B, n, ·) of a step's sequences stand, or (1, Σn, ·) one sequence after another.
template <LayerStepArgument Step> RowPositions positions_of_step(const Step& step, Index batch) {
  const CallShape shape = step.shape(1);
  const bool side_by_side = batch == 1 && shape.batch != 1;
  return {shape.origin, side_by_side ? step.offsets().data() : nullptr, shape.batch, shape.queries};
}

/// Whether what follows the memory of a project_memory() begins with one.
template <class... Extra> constexpr bool begins_with_step = false;
template <class First, class... Rest> constexpr bool begins_with_step<First, Rest...> = LayerStepArgument<First>;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
