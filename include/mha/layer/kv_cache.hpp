// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../cache/kv_shape.hpp"
#include "../cache/saved_sequence.hpp"
#include "../cache/sequence_book.hpp"
#include "../cache/step_lists.hpp"
#include "../cache/step_plan.hpp"
#include "../cache/tiled_books.hpp"
#include "../cache/version_book.hpp"
#include "../core/check.hpp"
#include "cache_memory.hpp"
#include "cache_pages.hpp"
#include "cache_step.hpp"
#include "recorded_step.hpp"
#include "step_memory.hpp"
#include "step_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The keys and values of all layers of a model for several sequences, stored as F, in memory taken when it is made.
///
/// Stored    F is the layer's scalar, or one that is accumulated as it is: half and bfloat16 of a layer of float, or
///           scaled_int8, whose rows are rounded as quantize_row() says and are on the host alone
/// Storage   Contiguous, Ring or Paged (mha/cache/storage.hpp)
/// Memory    the host's, where that of a layer on Systolic keeps once more what the unit reads in another order; or
///           that of a backend B with memory of its own, such as Cuda; books stay on the host. What the cache does
///           itself (copies, append(), save(), restore()) runs in a workspace: steps in another stream are ordered with
///           it by the caller, and copy a step's numbers in each layer, not once
/// Numerics  a row of a result depends on its query, the stored rows and the mask alone, bit for bit on Cpu and
///           Systolic, whatever storage, steps (but for CausalTopLeft and the like, which count from each), forks and
///           other sequences. In the layer's own scalar: as layer(x)
/// Threads   one at a time
/// Errors    every call that throws leaves the cache as it was, but for a CudaError. ShapeError if a sequence is not of
///           this cache, and while a step is open of save(), pages_needed(), pages_freed() and of every call or move
///           that would change the cache
/// Moves     SequenceIds and RecordedSteps are of the cache that has the sequences now; one moved from has no layer
///
///   auto cache = mha::make_cache(layer, mha::Contiguous{.length = 4096});
template <class Storage, class F, class B = OnHost> class KvCache : public CachePages<KvCache<Storage, F, B>, Storage> {
  static_assert(detail::check_cache_scalar<F, B>());

 public:
  static constexpr Memory memory = detail::memory_of<B>;
  using Scalar = F;
  using Workspace = typename B::Workspace;
  using Step = CacheStep<KvCache>;

  /// Errors    ShapeError if a size is below 1, all together are beyond the limits, or values_in_keys are wider than
  ///           the keys; std::bad_alloc
  KvCache(const KvShape& shape, const Storage& storage, const CacheSizes& sizes = {}, const B& backend = {},
          Workspace workspace = Workspace())
      : shape_(shape),
        storage_(storage),
        sizes_(detail::checked_recordable<Storage, B>(detail::checked_sizes(shape, storage, sizes))),
        sequences_(sizes.sequences),
        book_(detail::book_of(storage, sizes.sequences, decltype(memory_)::tile_extents)),
        memory_(shape, sizes.layers, book_.extents(), detail::extents_of_tiles(book_), backend, std::move(workspace)),
        versions_(sizes.sequences, sizes.layers),
        sent_(sizes.sequences, detail::table_width(book_)),
        plan_(sizes.sequences),
        now_(static_cast<std::size_t>(sizes.sequences)) {
    written_.resize(static_cast<std::size_t>(sizes.layers));
    copies_.reserve(static_cast<std::size_t>(sizes.sequences));
  }
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] const Storage& storage() const { return storage_; }
  [[nodiscard]] Index layers() const { return static_cast<Index>(written_.size()); }
  /// The number of sequences, and the most that there is memory for.
  [[nodiscard]] Index sequences() const { return sequences_.size(); }
  [[nodiscard]] Index max_sequences() const { return sequences_.capacity(); }
  /// In the order in which they were added; layer.prefill() and layer.step() read their rows so.
  [[nodiscard]] std::span<const SequenceId> ids() const { return sequences_.all(); }
  /// The most rows that a step adds to a sequence.
  [[nodiscard]] Index max_rows() const { return book_.rewind(); }
  /// Errors    ShapeError if so many rows more would make one of the sequences longer than the storage allows
  void require_room(Index rows) const {
    for (std::size_t i = 0; i < ids().size(); ++i)
      detail::require_room("prefill", i, length(ids()[i]), rows, book_.limit());
  }
  /// Errors    ShapeError if the cache's stream is being recorded, as of step(), reorder() and a fork() that copies
  void require_sendable() const { sent_.check(memory_.items()); }
  /// The memory of keys and values, and of what a matrix unit keeps beside them.
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }
  /// What the rows of a position's key and value take in all layers, without what a matrix unit keeps beside them.
  [[nodiscard]] std::size_t position_bytes() const { return detail::position_bytes<F>(shape_, sizes_); }

  /// A new sequence without positions. Errors: CacheFull if there is no memory for one more.
  SequenceId add() {
    require_closed("add");
    return made("add", [](Index) {});
  }

  /// A new sequence with the first `length` positions of another, or with all. Paged shares them, others copy them.
  ///
  /// Errors    CacheFull as add(); ShapeError if the other is shorter, or a Ring lacks what a query at `length` needs
  SequenceId fork(SequenceId id, std::optional<Index> length = {}) {
    require_closed("fork");
    if (!std::same_as<Storage, Paged>) require_sendable();  // rows are copied
    const Index from = sequences_.slot("fork", id), all = sequences_.length(from), count = length.value_or(all);
    detail::require_rewind("fork", book_, from, all, count);
    return made("fork", [&](Index to) {
      book_.fork(from, to, count, copies_);
      copy();
      versions_.copy(from, to);
      sequences_.set_length(to, count);
    });
  }

  void remove(SequenceId id) {
    require_closed("remove");
    const Index slot = sequences_.slot("remove", id);
    book_.remove(slot);
    sequences_.remove(slot);
  }

  /// Takes positions back: the sequence has its first `length` ones. Errors: ShapeError unless can_truncate().
  void truncate(SequenceId id, Index length) {
    require_closed("truncate");
    const Index slot = sequences_.slot("truncate", id);
    detail::require_rewind("truncate", book_, slot, sequences_.length(slot), length);
    book_.truncate(slot, length);
    sequences_.set_length(slot, length);
  }
  /// Whether truncate() and fork() may go back to this length. A Ring goes back by its `rows`, counted from the last
  /// position that the sequence, or the one that it was forked from, ever had; to its `first` positions; and to any
  /// while it has dropped none.
  [[nodiscard]] bool can_truncate(SequenceId id, Index length) const {
    const Index slot = sequences_.slot("can_truncate", id);
    return length >= 0 && length <= sequences_.length(slot) && book_.can_truncate(slot, length);
  }

  /// Beam search: beams[i] becomes what beams[from[i]] was. Paged copies nothing; other storages copy those that are
  /// taken more than once, over those that are not taken: if copying fails on a device, nothing else has changed.
  /// Errors: ShapeError if there are not as many sources as beams, a source is none of them, or a beam is named twice.
  void reorder(const detail::SequenceList& beams, const detail::ListOrOne<Index>& from) {
    require_closed("reorder");
    const std::span<const Index> sources = plan_.sources(beams.all().size(), from.all());
    require_sendable();
    const std::span<const Index> slots = plan_.slots("reorder", sequences_, beams.all());
    now_.lengths.clear();
    for (const Index slot : slots) now_.lengths.push_back(sequences_.length(slot));
    book_.reorder(slots, sources, now_.lengths, copies_, [&] { copy(); });
    versions_.reorder(slots, sources);
    for (std::size_t i = 0; i < slots.size(); ++i)
      sequences_.set_length(slots[i], now_.lengths[static_cast<std::size_t>(sources[i])]);
  }

  [[nodiscard]] Index length(SequenceId id) const { return sequences_.length(sequences_.slot("length", id)); }
  /// The first position behind those that a Ring has dropped, or will have with so many rows more; 0 if none.
  [[nodiscard]] Index oldest(SequenceId id, Index rows = 0) const {
    const Index slot = sequences_.slot("oldest", id), length = sequences_.length(slot);
    return book_.gone(slot, length + std::min(rows, book_.limit() - length)).oldest;
  }

  /// Rows for sequences, rows[i] for sequences[i]: memory is reserved for all of them. Both are an array, such as a
  /// std::vector, or a list in braces; `sequences` may be one SequenceId, and `rows` a number, that of each.
  ///
  /// A step of 0 rows only reads: it may name a sequence several times, as for beams that attend to one memory, with
  /// max_sequences() names in all.
  ///
  /// Errors    CacheFull if there is not enough memory for all; ShapeError if a sequence is not of this cache, is named
  ///           twice in a step that adds rows, gets more than max_rows(), would become longer than the storage allows,
  ///           if there are more than max_sequences() names, or a step is open
  [[nodiscard]] Step step(const detail::SequenceList& sequences, const detail::RowCounts& rows) {
    require_closed("step");
    open(sequences.all(), rows);
    return Step(*this);
  }
  /// So many rows for every sequence, in the order of ids().
  [[nodiscard]] Step step(Index rows) { return step(ids(), rows); }
  /// The recorded step's rows for as many sequences: what was recorded writes and reads them when it is replayed.
  ///
  /// Errors    as above; ShapeError too if the step was another cache's or of another number of sequences, or a
  ///           sequence was made by other weights
  template <std::same_as<RecordedStep> Recorded>
  [[nodiscard]] Step step(const Recorded& recorded, const detail::SequenceList& sequences) {
    require_closed("step");
    recorded.check(serial_, sequences.all().size());
    open(sequences.all(), recorded.rows_, recorded.versions_);
    for (Index layer = 0; layer < sizes_.layers; ++layer)
      wrote(layer, recorded.versions_[static_cast<std::size_t>(layer)]);
    return Step(*this);
  }

  /// A sequence as bytes that restore() reads, in this or another cache: of any storage that keeps what there is.
  [[nodiscard]] std::vector<std::byte> save(SequenceId id) const {
    require_closed("save");
    const Index slot = sequences_.slot("save", id), length = sequences_.length(slot);
    const detail::Gone gone = book_.gone(slot, 0);
    detail::SavedSequence<F> saved(shape_, sizes_.layers, length, gone);
    memory_.read(detail::kept_rows(book_, slot, length, gone), [&](std::span<const F> layer) { saved.put(layer); });
    return std::move(saved).bytes();
  }

  /// A new sequence with the positions of a saved one.
  ///
  /// Errors    CacheFull as add() and step(); ShapeError if it was saved by another version, of other layers, sizes or
  ///           scalar, is cut short, longer than this cache allows, or without positions that this storage keeps
  SequenceId restore(std::span<const std::byte> bytes) { return restored(bytes, {}); }
  /// The same, which shares the pages of another sequence as far as both begin with the same numbers, bit for bit in
  /// all layers: a fork that was saved shares again what it shared with `like`.
  SequenceId restore(std::span<const std::byte> bytes, SequenceId like) requires(std::same_as<Storage, Paged>) {
    return restored(bytes, like);
  }

 private:
  friend CachePages<KvCache, Storage>;
  friend LayerStep<KvCache>;
  friend CacheStep<KvCache>;

  void require_closed(const char* call) const { open_.require_none(call); }
  void require_layer(const char* call, Index layer) const {
    detail::require(layer >= 0 && layer < layers(), call, ": there is no layer ", layer, ", the cache has ", layers());
  }

  /// A new sequence that fill(slot) gives its positions; if that throws, there is none.
  template <class Fill> SequenceId made(const char* call, const Fill& fill) {
    const SequenceId id = sequences_.add(call);
    const Index slot = sequences_.slot(call, id);
    book_.add(slot);
    versions_.clear(slot);
    MHA_TRY { fill(slot); }
    MHA_CATCH(...) {
      book_.remove(slot);
      sequences_.remove(slot);
      MHA_RETHROW;
    }
    return id;
  }

  /// A sequence of bytes; of a Paged a fork of the one that is like it, as far as they are the same.
  SequenceId restored(std::span<const std::byte> bytes, std::optional<SequenceId> like) {
    require_closed("restore");
    detail::SavedRows<F> saved(bytes, shape_, sizes_.layers);
    detail::require(saved.length() <= book_.limit(), "restore: the saved sequence has length ", saved.length(),
                    ", the cache's limit is ", book_.limit());
    const Index source = like ? sequences_.slot("restore", *like) : 0;
    return made("restore", [&](Index slot) {
      Index shared = 0;
      if constexpr (std::same_as<Storage, Paged>) {
        if (like) {
          shared = saved.same(memory_, detail::kept_rows(book_, source, sequences_.length(source), {}));
          book_.fork(source, slot, shared, copies_);
        }
        book_.fill(slot, shared, saved.length(), saved.gone(), copies_);
        copy();
      } else {
        book_.fill(slot, saved.length(), saved.gone());
      }
      now_.describe(book_, slot, saved.length());
      const detail::Gone gone = book_.gone(slot, 0);  // of a smaller Ring more than were gone
      const detail::Gone but = shared > 0 ? detail::Gone{0, shared} : gone;
      const std::vector<Index> rows = detail::kept_rows(book_, slot, saved.length(), but);
      Tensor<F, 2> of_layer(static_cast<Index>(rows.size()), static_cast<Index>(detail::stored_position<F>(shape_)));
      for (Index layer = 0; layer < sizes_.layers && !rows.empty(); ++layer) {
        saved.take(of_layer, but);
        memory_.fill(layer, rows, of_layer);
        keep_tiles(layer, std::array{shared}, memory_.items());
      }
      sequences_.set_length(slot, saved.length());
    });
  }
  /// What a step adds, or throws.
  std::span<const detail::Growth> planned(const char* call, std::span<const SequenceId> sequences,
                                          const detail::RowCounts& rows) const {
    return plan_.growths(call, sequences_, sequences, rows, book_.limit());
  }
  /// Reserves memory for a step's rows, or throws and changes nothing. `versions`: of the weights that will make them,
  /// of each layer, if they are known.
  void open(std::span<const SequenceId> sequences, const detail::RowCounts& rows,
            std::span<const std::uint64_t> versions = {}) {
    require_sendable();
    const std::span<const detail::Growth> growths = planned("step", sequences, rows);
    for (std::size_t layer = 0; layer < versions.size(); ++layer)
      versions_.check(growths, static_cast<Index>(layer), versions[layer]);
    now_.begin(book_, growths);  // what may throw comes before anything changes
    book_.reserve(growths, copies_);
    MHA_TRY {
      copy();
      now_.describe(book_);
      sent_.send(now_, memory_.items());
    }
    MHA_CATCH(...) {
      book_.drop();
      MHA_RETHROW;
    }
    std::fill(written_.begin(), written_.end(), false);
    open_.there = true;
    steps_ = detail::next_serial();
  }
  void copy() { memory_.copy(copies_, detail::copies_of_tiles(book_, copies_)); }
  auto source(Index layer) const { return memory_.template source<Storage>(layer, now_, book_); }
  template <class Run> void keep_tiles(Index layer, std::span<const Index> from, const Run& run) {
    memory_.template keep_tiles<Storage>(layer, now_, book_, from, run);
  }

  template <class W> const Index* sent(const Index* list, const W& workspace) const {
    if constexpr (detail::SendsNumbers<B> && std::same_as<W, Workspace>)
      if (detail::same_order(workspace, memory_.items().workspace)) return sent_.there(list);
    detail::require(!sizes_.recordable,
                    "layer: a recordable cache sends a step's numbers in a stream of its own, the layer is called in "
                    "another: make the cache with a Workspace of that stream, make_cache(…, workspace)");
    return nullptr;
  }

  template <class T, class Run>
  void write(Index layer, const TensorView<const T, 4>& key, const TensorView<const T, 4>& value,
             std::uint64_t weights_version, const Run& run) {
    static_assert(detail::stores<T, F> || std::same_as<T, scaled_int8>,  // which append() refuses
                  "mha: the cache's scalar has another accumulator than the layer's: float, half and bfloat16 are "
                  "stored in each other and in scaled_int8, double in itself (see mha/layer/kv_cache.hpp)");
    if constexpr (detail::stores<T, F>) {
      memory_.write(layer, key, value, now_.to_row, sent(now_.to_row.data(), run.workspace), run);
      keep_tiles(layer, now_.positions, run);
    }
    wrote(layer, weights_version);
  }
  void wrote(Index layer, std::uint64_t weights_version) {
    written_[static_cast<std::size_t>(layer)] = true;
    versions_.write(layer, weights_version);
  }

  void require_written(const char* call) const {
    for (std::size_t layer = 0; layer < written_.size(); ++layer)
      detail::require(written_[layer], call, ": layer ", layer, " of the cache has not written its keys and values");
  }
  Index planned_keys() const { return sizes_.recordable ? book_.limit() : 0; }

  void commit() {
    require_written("commit");
    for (const detail::Growth& g : now_.growths) sequences_.set_length(g.slot, g.length + g.rows);
    versions_.commit(now_.growths);
    book_.commit(now_.growths);
    open_.there = false;
  }
  void drop() {
    book_.drop();
    open_.there = false;
  }

  detail::OpenStep open_;  // first: a move checks it before anything has moved
  KvShape shape_;
  Storage storage_;
  CacheSizes sizes_;
  detail::SequenceBook sequences_;
  detail::BookOf<Storage> book_;
  detail::CacheMemory<F, B> memory_;
  detail::VersionBook versions_;
  detail::StepMemory<B> sent_;

  std::uint64_t serial_ = detail::next_serial();  ///< of this cache alone
  mutable detail::StepPlan plan_;                 ///< of the call that is made
  // Of the open step.
  std::uint64_t steps_ = 0;
  detail::StepNumbers now_;
  detail::RowCopies copies_;
  std::vector<bool> written_;  ///< (layers)
};

/// What make_cache(layer, storage) returns: mha::CacheOf<decltype(layer), mha::Contiguous>.
template <class L, class Storage, class F = typename L::Scalar>
using CacheOf = KvCache<Storage, F, detail::CacheBackend<L, F>>;

/// A cache with the key/value heads and head sizes of a layer, stored in its scalar if F is not given, in the memory of
/// its backend; what the cache does itself runs in the workspace, such as mha::Cuda::Workspace(stream).
///
///   auto cache = mha::make_cache<mha::bfloat16>(layer, mha::Paged{.pages = 8192, .length = 16384},
///                                               {.layers = 32, .sequences = 256});
template <class F = void, class L, class Storage, class B = detail::CacheBackend<L, F>>
[[nodiscard]] auto make_cache(const L& layer, const Storage& storage, const CacheSizes& sizes = {},
                              typename B::Workspace workspace = typename B::Workspace()) {
  using Stored = std::conditional_t<std::is_void_v<F>, typename L::Scalar, F>;
  const KvShape shape{layer.config().num_kv_heads, layer.config().head_dim, layer.config().value_dim};
  if constexpr (!detail::check_storage_type<Storage>())
    return detail::Refused{};
  else if constexpr (std::derived_from<B, OnHost>)
    return KvCache<Storage, Stored, B>(shape, storage, sizes);
  else
    return KvCache<Storage, Stored, B>(shape, storage, sizes, layer.backend(), std::move(workspace));
}

}  // namespace mha::inline MHA_NAMESPACE
