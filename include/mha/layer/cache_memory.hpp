// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../cache/books.hpp"
#include "../cache/kv_shape.hpp"
#include "../cache/storage.hpp"
#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "cache_rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Stands for all backends that compute on the host: a cache in its memory serves every one.
struct OnHost {
  struct Workspace {};
};

namespace detail {

/// Whose memory the cache of a layer is in.
template <class L>
using CacheBackend =
    std::conditional_t<computes_on_host<std::remove_cvref_t<decltype(std::declval<const L&>().backend())>>, OnHost,
                       std::remove_cvref_t<decltype(std::declval<const L&>().backend())>>;

template <class F> std::size_t position_bytes(const KvShape& shape, const CacheSizes& sizes) {
  return shape.row_elements() * sizeof(F) * static_cast<std::size_t>(sizes.layers);
}
template <class F> std::string sizes_in_words(const KvShape& shape, const CacheSizes& sizes, std::size_t all) {
  return std::string("; ") + scalar_name<F>() + ", " + std::to_string(shape.row_elements() * sizeof(F)) +
         " bytes a position and layer; sequences " + std::to_string(sizes.sequences) + ", layers " +
         std::to_string(sizes.layers) + ", " + std::to_string(all) + " bytes in all";
}

/// The keys and values of all layers of a cache, in rows as its book numbers them, in the memory of the backend.
template <class F, class B> class CacheMemory {
 public:
  using Workspace = typename B::Workspace;

  CacheMemory(const KvShape& shape, Index layers, const BlockExtents& rows, const B& backend, Workspace workspace)
      : shape_(shape),
        backend_(backend),
        workspace_(std::move(workspace)),
        key_(layers, shape.heads, rows.blocks, rows.rows, shape.dim),
        value_(layers, shape.heads, rows.blocks, rows.rows, shape.value_dim) {}

  std::size_t bytes() const { return static_cast<std::size_t>(key_.view().size() + value_.view().size()) * sizeof(F); }
  /// What runs the cache's own work, in the order of its calls.
  ItemsOn<B> items() const { return {backend_, workspace_}; }

  template <class V> void require_reachable(const char* call, const char* name, const V& view) const {
    if constexpr (!computes_on_host<B>)
      if (view.size() > 0) backend_.require_reachable(call, name, view.data);
  }

  /// One layer's, (blocks, rows, Hkv, ·).
  TensorView<const F, 4> key_blocks(Index layer) const { return blocks_of<const F>(key_.view(), layer); }
  TensorView<const F, 4> value_blocks(Index layer) const { return blocks_of<const F>(value_.view(), layer); }
  /// One layer's, (blocks · rows, Hkv, ·).
  TensorView<F, 3> key_rows(Index layer) { return rows_of<F>(key_.view(), layer); }
  TensorView<const F, 3> key_rows(Index layer) const { return rows_of<const F>(key_.view(), layer); }
  TensorView<F, 3> value_rows(Index layer) { return rows_of<F>(value_.view(), layer); }
  TensorView<const F, 3> value_rows(Index layer) const { return rows_of<const F>(value_.view(), layer); }

  /// Writes the rows of keys (B, n, Hkv, D) and values (B, n, Hkv, Dv), one after another, to a layer's rows `to`.
  template <class T, class Run>
  void write(Index layer, const TensorView<const T, 4>& key, const TensorView<const T, 4>& value,
             std::span<const Index> to, const Run& run) {
    with_numbers(run, to, [&](const Index* to_row) {
      run(MoveRows<T, F>{size(to), shape_.heads, cost(), key, value, key_rows(layer), value_rows(layer), nullptr,
                         to_row});
    });
  }

  /// Copies rows in every layer, in the order of the list, which is empty then, after an exception too.
  void copy(RowCopies& copies) {
    struct Done {
      RowCopies& list;
      ~Done() { list.clear(); }
    } const done{copies};
    const auto key = key_.view(), value = value_.view();
    for (const RowCopy& c : copies)
      items()(CopyRows<F>{c.count, key.extent[0] * shape_.heads, cost(), key, value, c.from, c.to});
  }

  /// A layer's rows on the host: (n, Hkv·D + Hkv·Dv), each row's keys before its values.
  void read(Index layer, std::span<const Index> rows, std::span<F> to) const {
    if constexpr (computes_on_host<B>) {
      read_into(layer, rows, to.data());
    } else {
      TensorOf<B, F, 2> there(static_cast<Index>(rows.size()), static_cast<Index>(shape_.row_elements()));
      read_into(layer, rows, there.view().data);
      backend_.download(std::as_const(there).view().data, to, workspace_);
    }
  }
  /// Writes what read() gave to rows of a layer.
  void fill(Index layer, std::span<const Index> rows, std::span<const F> from) {
    if constexpr (computes_on_host<B>) {
      fill_from(layer, rows, from.data());
    } else {
      const auto there = backend_.upload(from);
      fill_from(layer, rows, there.data());
    }
  }

 private:
  static std::ptrdiff_t size(std::span<const Index> rows) { return static_cast<std::ptrdiff_t>(rows.size()); }
  Index cost() const { return shape_.dim + shape_.value_dim; }

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
      items()(MoveRows<F, F>{size(rows), shape_.heads, cost(), one_sequence(key), one_sequence(value),
                             keys_of_saved(to, size(rows)), values_of_saved(to, size(rows)), from_row, nullptr});
    });
  }
  void fill_from(Index layer, std::span<const Index> rows, const F* from) {
    with_numbers(items(), rows, [&](const Index* to_row) {
      const auto key = keys_of_saved(from, size(rows)), value = values_of_saved(from, size(rows));
      items()(MoveRows<F, F>{size(rows), shape_.heads, cost(), one_sequence(key), one_sequence(value), key_rows(layer),
                             value_rows(layer), nullptr, to_row});
    });
  }

  template <class T> TensorView<T, 3> keys_of_saved(T* data, std::ptrdiff_t rows) const {
    return saved(data, rows, shape_.dim);
  }
  template <class T> TensorView<T, 3> values_of_saved(T* data, std::ptrdiff_t rows) const {
    return saved(data + shape_.key_elements(), rows, shape_.value_dim);
  }
  template <class T> TensorView<T, 3> saved(T* data, std::ptrdiff_t rows, Index dim) const {
    return {data,
            {static_cast<Index>(rows), shape_.heads, dim},
            {static_cast<std::ptrdiff_t>(shape_.row_elements()), dim, 1}};
  }
  static TensorView<const F, 4> one_sequence(const TensorView<const F, 3>& v) {
    return {v.data, {1, v.extent[0], v.extent[1], v.extent[2]}, {0, v.stride[0], v.stride[1], v.stride[2]}};
  }

  template <class T> static TensorView<T, 4> blocks_of(const TensorView<T, 5>& all, Index layer) {
    return {all.pointer(layer, 0, 0, 0, 0),
            {all.extent[2], all.extent[3], all.extent[1], all.extent[4]},
            {all.stride[2], all.stride[3], all.stride[1], all.stride[4]}};
  }
  template <class T> static TensorView<T, 3> rows_of(const TensorView<T, 5>& all, Index layer) {
    return {all.pointer(layer, 0, 0, 0, 0),
            {all.extent[2] * all.extent[3], all.extent[1], all.extent[4]},
            {all.stride[3], all.stride[1], 1}};
  }

  KvShape shape_;
  [[no_unique_address]] B backend_;
  mutable Workspace workspace_;
  /// (layers, Hkv, blocks, rows, ·): a kernel reads one head, row after row, and meets no page of memory twice.
  TensorOf<B, F, 5> key_, value_;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
