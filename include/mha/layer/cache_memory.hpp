// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../cache/any_kv.hpp"
#include "../cache/block_kv.hpp"
#include "../cache/books.hpp"
#include "../cache/kv_shape.hpp"
#include "../cache/paged_kv.hpp"
#include "../cache/storage.hpp"
#include "../cache/tiled_books.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/stored_row.hpp"
#include "../core/tensor.hpp"
#include "cache_rows.hpp"
#include "step_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Stands for all backends that compute on the host: a cache in its memory serves every one.
struct OnHost {
  struct Workspace {};
};
/// The host's memory too, with what a matrix unit reads in another order also in that one: what make_cache() gives a
/// layer on Systolic. Any backend on the host reads it.
template <class Tiles> struct OnHostInTiles : OnHost { using CachedTiles = Tiles; };

namespace detail {

/// The sentences for what a cache stores.
template <class F, class B> constexpr bool check_cache_scalar() {
  constexpr bool of_rows = !std::same_as<F, scaled_int4>;
  static_assert(of_rows,
                "mha: scaled_int4 is of weights; a cache stores keys and values in scaled_int8, half, bfloat16 or "
                "the layer's scalar (see mha/layer/kv_cache.hpp)");
  constexpr bool reachable = !std::same_as<F, scaled_int8> || memory_of<B> == Memory::host;
  static_assert(reachable,
                "mha: a cache of scaled_int8 is in the host's memory, and this backend has its own: store the layer's "
                "scalar (see mha/layer/kv_cache.hpp)");
  return true;
}

/// Whose memory the cache of a backend is in. Tiles would be several times as large as rows of scaled_int8.
template <class B, class F> struct CacheBackendOf { using type = std::conditional_t<computes_on_host<B>, OnHost, B>; };
template <class B, class F>
requires(!std::same_as<F, scaled_int8>) && requires { typename B::template CachedTiles<F>; }
struct CacheBackendOf<B, F> {
  using type = OnHostInTiles<typename B::template CachedTiles<F>>;
};
/// That of a layer, stored as F, which is the layer's scalar if void.
template <class L, class F>
using CacheBackend = typename CacheBackendOf<std::remove_cvref_t<decltype(std::declval<const L&>().backend())>,
                                             std::conditional_t<std::is_void_v<F>, typename L::Scalar, F>>::type;

/// For a cache that keeps rows alone.
struct NoTiles {
  static constexpr TileExtents extents{};
  NoTiles(const KvShape&, Index, const BlockExtents&) {}
  static constexpr std::size_t bytes() { return 0; }
  template <class... Args> static void write(const Args&...) {}
  static void copy(Index, Index, Index) {}
};
template <class B> struct CachedTilesOf { using type = NoTiles; };
template <class Tiles> struct CachedTilesOf<OnHostInTiles<Tiles>> { using type = Tiles; };

/// Pages of rows whose tiles are in pages of their own.
///
/// Shapes    tile_table (B, pages of tiles of a sequence), each page of tile_page positions
template <class F> struct TilePagesKv : PagedKv<F> {
  Borrowed<Index> tile_table;
  Index tile_page;

  constexpr InBlock in_block(Index b, Index k) const {
    const Index width = tile_table.size / this->lengths.size;
    return {tile_table.data[std::ptrdiff_t{b} * width + k / tile_page], k % tile_page};
  }
  template <class Move> constexpr TilePagesKv with_data(Move&& f) const {
    return {PagedKv<F>::with_data(f), f(tile_table), tile_page};
  }
};

/// A source of one layer with the tiles that the cache keeps of it.
template <class Source, class Tiles> struct TiledKv : Source {
  const Tiles* tiles;
  Index layer;

  ValueTiles value_tiles(Index b, Index g, Index k) const {
    const InBlock at = this->in_block(b, k);
    return tiles->at(layer, at, g, at.position + std::min(this->keys(b) - k, Index{64}));
  }
  const bfloat16* key_tiles(Index b, Index g, Index k) const requires(Tiles::keeps_keys) {
    const InBlock at = this->in_block(b, k);
    return tiles->keys(layer, at, g, at.position + std::min(this->keys(b) - k, Index{64}));
  }
  template <class Move> constexpr TiledKv with_data(Move&& f) const { return {Source::with_data(f), tiles, layer}; }
};

template <class Storage>
const CacheSizes& checked_sizes(const KvShape& shape, const Storage& storage, const CacheSizes& sizes) {
  require(shape.heads > 0, "KvCache: heads is ", shape.heads, ", it must be at least 1");
  require(shape.dim > 0, "KvCache: dim is ", shape.dim, ", it must be at least 1");
  require(shape.value_dim > 0, "KvCache: value_dim is ", shape.value_dim, ", it must be at least 1");
  require(!shape.values_in_keys || shape.value_dim <= shape.dim, "KvCache: value_dim is ", shape.value_dim,
          ", with values_in_keys it must be at most dim, ", shape.dim);
  require(sizes.layers > 0, "KvCache: layers is ", sizes.layers, ", it must be at least 1");
  require(sizes.sequences > 0, "KvCache: sequences is ", sizes.sequences, ", it must be at least 1");
  check_storage(storage, sizes.sequences);
  return sizes;
}

template <class F> std::size_t position_bytes(const KvShape& shape, const CacheSizes& sizes) {
  return stored_position<F>(shape) * sizeof(F) * static_cast<std::size_t>(sizes.layers);
}
template <class F>
std::string sizes_in_words(const KvShape& shape, const CacheSizes& sizes, std::size_t all, std::size_t of_tiles) {
  return std::string("; ") + scalar_name<F>() + ", " + std::to_string(stored_position<F>(shape) * sizeof(F)) +
         " bytes a position and layer; sequences " + std::to_string(sizes.sequences) + ", layers " +
         std::to_string(sizes.layers) + ", " + std::to_string(all) + " bytes in all" +
         (of_tiles > 0 ? ", of which " + std::to_string(of_tiles) + " are tiles of the matrix unit" : "");
}

/// The keys and values of all layers of a cache, in rows as its book numbers them, in the memory of the backend.
template <class F, class B> class CacheMemory {
 public:
  using Workspace = typename B::Workspace;

  static constexpr TileExtents tile_extents = CachedTilesOf<B>::type::extents;

  CacheMemory(const KvShape& shape, Index layers, const BlockExtents& rows, const BlockExtents& tiles,
              const B& backend = {}, Workspace workspace = Workspace())
      : shape_(shape),
        backend_(backend),
        workspace_(std::move(workspace)),
        key_(made(layers, shape.heads, rows,
                  row_elements<F>(detail::blocks_of(shape.dim, tile_extents.depth) * tile_extents.depth))),
        value_(made(layers, shape.heads, rows, row_elements<F>(shape.own_value_dim()))),
        tiles_(shape, layers, tiles) {}

  std::size_t bytes() const {
    return static_cast<std::size_t>(key_.view().size() + value_.view().size()) * sizeof(F) + tiles_.bytes();
  }
  /// Of these, what a matrix unit keeps beside the rows.
  std::size_t tile_bytes() const { return tiles_.bytes(); }
  /// What runs the cache's own work, in the order of its calls.
  ItemsOn<B> items() const { return {backend_, workspace_}; }

  Index layers() const { return key_.view().extent[0]; }

  template <class V> void require_reachable(const char* call, const char* name, const V& view) const {
    if constexpr (!computes_on_host<B>)
      if (view.size() > 0) backend_.require_reachable(call, name, view.data);
  }

  /// One layer's numbers, (blocks, rows, Hkv, ·).
  TensorView<const F, 4> key_blocks(Index layer) const { return blocks_of<const F>(key_.view(), layer, shape_.dim); }
  TensorView<const F, 4> value_blocks(Index layer) const {
    return blocks_of<const F>(shape_.values_in_keys ? key_.view() : value_.view(), layer, shape_.value_dim);
  }
  /// One layer's, (blocks · rows, Hkv, ·), with what leads a row: of values those that are stored beside the keys.
  TensorView<F, 3> key_rows(Index layer) { return rows_of<F>(key_.view(), layer, row_elements<F>(shape_.dim)); }
  TensorView<const F, 3> key_rows(Index layer) const {
    return rows_of<const F>(key_.view(), layer, row_elements<F>(shape_.dim));
  }
  TensorView<F, 3> value_rows(Index layer) {
    return rows_of<F>(value_.view(), layer, row_elements<F>(shape_.own_value_dim()));
  }
  TensorView<const F, 3> value_rows(Index layer) const {
    return rows_of<const F>(value_.view(), layer, row_elements<F>(shape_.own_value_dim()));
  }

  /// A layer's rows of a step's sequences, kept in this storage by the book, with the tiles that are kept of them.
  template <class Storage, class Book> auto source(Index layer, const StepNumbers& now, const Book& book) const {
    const auto rows = rows_source<Storage>(layer, now, book);
    if constexpr (std::same_as<Tiles, NoTiles>)
      return rows;
    else
      return TiledKv<std::remove_const_t<decltype(rows)>, Tiles>{rows, &tiles_, layer};
  }
  /// Keeps tiles of the rows that have been written, from position from[b] of sequence b on.
  template <class Storage, class Book, class Run>
  void keep_tiles(Index layer, const StepNumbers& now, const Book& book, std::span<const Index> from, const Run& run) {
    tiles_.write(layer, rows_source<Storage>(layer, now, book), from, run);
  }

  /// Writes the rows of keys (B, n, Hkv, D) and values (B, n, Hkv, Dv), one after another, to a layer's rows `to`.
  /// `sent`: where `to` is in the backend's memory, null if it is not there yet.
  template <class T, class Run>
  void write(Index layer, const TensorView<const T, 4>& key, const TensorView<const T, 4>& value,
             std::span<const Index> to, const Index* sent, const Run& run) {
    const auto move = [&](const Index* to_row) {
      run(move_rows<T, F>(size(to), key, value, key_rows(layer), value_rows(layer), nullptr, to_row));
    };
    if (sent == nullptr)
      with_numbers(run, to, move);
    else if (!to.empty())
      move(sent);
  }

  /// Copies rows in every layer, and tiles as rows of their blocks, in the order of the lists, which may be one and are
  /// empty then, after an exception too.
  void copy(RowCopies& copies, RowCopies& of_tiles) {
    struct Done {
      RowCopies &rows, &tiles;
      ~Done() {
        rows.clear();
        tiles.clear();
      }
    } const done{copies, of_tiles};
    const auto key = key_.view(), value = value_.view();
    for (const RowCopy& c : copies) items()(copy_rows<F>(c.count, key, value, c.from, c.to));
    for (const RowCopy& c : of_tiles) tiles_.copy(c.from, c.to, c.count);
  }

  /// to(…) of every layer's rows, one layer after another, on the host: (n, Hkv·D + Hkv·Dv), each row's keys before its
  /// values, with what leads them. Whatever the layers, memory is allocated once.
  template <class To> void read(std::span<const Index> rows, const To& to) const {
    if (rows.empty()) return;
    const Index n = static_cast<Index>(rows.size()), width = static_cast<Index>(stored_position<F>(shape_));
    Tensor<F, 2> here(n, width);
    if constexpr (computes_on_host<B>) {
      for (Index layer = 0; layer < layers(); ++layer) {
        read_into(layer, rows, here.data());
        to(std::span<const F>(here));
      }
    } else {
      [[maybe_unused]] const auto held = entered(backend_, workspace_);
      TensorOf<B, F, 2> there(n, width);
      for (Index layer = 0; layer < layers(); ++layer) {
        read_into(layer, rows, there.view().data);
        backend_.download(std::as_const(there).view().data, std::span<F>(here), workspace_);
        to(std::span<const F>(here));
      }
    }
  }
  /// Writes what read() gave to rows of a layer.
  void fill(Index layer, std::span<const Index> rows, std::span<const F> from) {
    if constexpr (computes_on_host<B>) {
      fill_from(layer, rows, from.data());
    } else {
      [[maybe_unused]] const auto held = entered(backend_, workspace_);
      const auto there = backend_.upload(from);
      fill_from(layer, rows, there.data());
    }
  }

 private:
  using Tiles = typename CachedTilesOf<B>::type;

  template <class Storage, class Book> auto rows_source(Index layer, const StepNumbers& now, const Book& book) const {
    const auto key = key_blocks(layer), value = value_blocks(layer);
    if constexpr (!std::same_as<Storage, Paged>) {
      return BlockKv<F, std::same_as<Storage, Ring>>{key,        value,        now.slots,        now.lengths,
                                                     now.oldest, book.first(), book.fixed_rows()};
    } else {
      const PagedKv<F> pages{key, value, now.table, now.lengths};
      if constexpr (std::same_as<Tiles, NoTiles>)
        return pages;
      else
        return TilePagesKv<F>{pages, book.has_tile_pages() ? now.tile_table : now.table,
                              book.tile_pages().extents().rows};
    }
  }

  TensorOf<B, F, 5> made(Index layers, Index heads, const BlockExtents& rows, Index dim) const {
    [[maybe_unused]] const auto held = entered(backend_, workspace_);
    return TensorOf<B, F, 5>(layers, heads, rows.blocks, rows.rows, dim);
  }
  static std::ptrdiff_t size(std::span<const Index> rows) { return static_cast<std::ptrdiff_t>(rows.size()); }

  /// f(numbers), which are where the items that `run` runs can read them.
  template <class Run, class Then>
  static void with_numbers(const Run& run, std::span<const Index> numbers, const Then& f) {
    if constexpr (computes_on_host<B>) {
      f(numbers.data());
    } else if (!numbers.empty()) {
      auto frame = run.workspace.frame();
      f(run.backend.stage(numbers.data(), static_cast<Index>(numbers.size()), frame, run.workspace));
    }
  }

  void read_into(Index layer, std::span<const Index> rows, F* to) const {
    with_numbers(items(), rows, [&](const Index* from_row) {
      const auto key = key_rows(layer), value = value_rows(layer);
      items()(move_rows<F, F>(size(rows), four_axes(key), four_axes(value), keys_of_saved(to, size(rows)),
                              values_of_saved(to, size(rows)), from_row, nullptr));
    });
  }
  void fill_from(Index layer, std::span<const Index> rows, const F* from) {
    with_numbers(items(), rows, [&](const Index* to_row) {
      const auto key = keys_of_saved(from, size(rows)), value = values_of_saved(from, size(rows));
      items()(move_rows<F, F>(size(rows), four_axes(key), four_axes(value), key_rows(layer), value_rows(layer), nullptr,
                              to_row));
    });
  }

  template <class T> TensorView<T, 3> keys_of_saved(T* data, std::ptrdiff_t rows) const {
    return saved(data, rows, row_elements<F>(shape_.dim));
  }
  template <class T> TensorView<T, 3> values_of_saved(T* data, std::ptrdiff_t rows) const {
    return saved(data + stored_keys<F>(shape_), rows, row_elements<F>(shape_.own_value_dim()));
  }
  template <class T> TensorView<T, 3> saved(T* data, std::ptrdiff_t rows, Index dim) const {
    return {data,
            {static_cast<Index>(rows), shape_.heads, dim},
            {static_cast<std::ptrdiff_t>(stored_position<F>(shape_)), dim, 1}};
  }

  template <class T> static TensorView<T, 4> blocks_of(const TensorView<T, 5>& all, Index layer, Index dim) {
    return {all.pointer(layer, 0, 0, 0, 0) + row_lead<F>,
            {all.extent[2], all.extent[3], all.extent[1], dim},
            {all.stride[2], all.stride[3], all.stride[1], all.stride[4]}};
  }
  template <class T> static TensorView<T, 3> rows_of(const TensorView<T, 5>& all, Index layer, Index dim) {
    return {all.pointer(layer, 0, 0, 0, 0),
            {all.extent[2] * all.extent[3], all.extent[1], dim},
            {all.stride[3], all.stride[1], 1}};
  }

  KvShape shape_;
  [[no_unique_address]] B backend_;
  mutable Workspace workspace_;
  /// (layers, Hkv, blocks, rows, ·): a kernel reads one head, row after row, and meets no page of memory twice. What
  /// fills the keys up to the tiles' depth is 0.
  TensorOf<B, F, 5> key_, value_;
  [[no_unique_address]] Tiles tiles_;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
