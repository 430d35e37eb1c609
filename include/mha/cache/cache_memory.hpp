// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>

#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "books.hpp"
#include "kv_shape.hpp"
#include "storage.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

template <class F> std::size_t position_bytes(const KvShape& shape, const CacheSizes& sizes) {
  return shape.row_elements() * sizeof(F) * static_cast<std::size_t>(sizes.layers);
}
template <class F> std::string sizes_in_words(const KvShape& shape, const CacheSizes& sizes, std::size_t all) {
  return std::string("; ") + scalar_name<F>() + ", " + std::to_string(shape.row_elements() * sizeof(F)) +
         " bytes a position and layer; sequences " + std::to_string(sizes.sequences) + ", layers " +
         std::to_string(sizes.layers) + ", " + std::to_string(all) + " bytes in all";
}

/// The keys and values of all layers of a cache, in rows as its book numbers them.
template <class F> class CacheMemory {
 public:
  CacheMemory(const KvShape& shape, Index layers, const BlockExtents& rows)
      : key_(layers, shape.heads, rows.blocks, rows.rows, shape.dim),
        value_(layers, shape.heads, rows.blocks, rows.rows, shape.value_dim) {}

  std::size_t bytes() const { return (key_.size() + value_.size()) * sizeof(F); }

  /// One layer's, (blocks, rows, Hkv, ·).
  auto key_blocks(Index layer) const { return blocks_of_layer(key_, layer); }
  auto value_blocks(Index layer) const { return blocks_of_layer(value_, layer); }
  /// One layer's, (blocks · rows, Hkv, ·).
  auto key_rows(Index layer) { return rows_of_layer(key_, layer); }
  auto key_rows(Index layer) const { return rows_of_layer(key_, layer); }
  auto value_rows(Index layer) { return rows_of_layer(value_, layer); }
  auto value_rows(Index layer) const { return rows_of_layer(value_, layer); }
  /// One row, (Hkv, ·).
  template <class T> static TensorView<T, 2> row_of(const TensorView<T, 3>& rows, Index row) {
    return {rows.pointer(row, 0, 0), {rows.extent[1], rows.extent[2]}, {rows.stride[1], rows.stride[2]}};
  }

  /// Copies rows in every layer, in the order of the list.
  void run(const RowCopies& copies) {
    for (const RowCopy& c : copies)
      for (Index layer = 0; layer < key_.extent(0); ++layer) {
        copy(key_rows(layer), c);
        copy(value_rows(layer), c);
      }
  }

 private:
  template <class Tensor> static auto blocks_of_layer(Tensor& t, Index layer) {
    const auto all = t.view();
    using T = std::remove_pointer_t<decltype(all.data)>;
    return TensorView<T, 4>{all.pointer(layer, 0, 0, 0, 0),
                            {all.extent[2], all.extent[3], all.extent[1], all.extent[4]},
                            {all.stride[2], all.stride[3], all.stride[1], all.stride[4]}};
  }
  template <class Tensor> static auto rows_of_layer(Tensor& t, Index layer) {
    const auto v = blocks_of_layer(t, layer);
    using T = std::remove_pointer_t<decltype(v.data)>;
    return TensorView<T, 3>{
        v.data, {v.extent[0] * v.extent[1], v.extent[2], v.extent[3]}, {v.stride[1], v.stride[2], 1}};
  }
  static void copy(const TensorView<F, 3>& rows, const RowCopy& c) {
    for (Index g = 0; g < rows.extent[1]; ++g)
      std::copy_n(rows.pointer(c.from, g, 0), c.count * rows.stride[0], rows.pointer(c.to, g, 0));
  }

  /// (layers, Hkv, blocks, rows, ·): a kernel reads one head, row after row, and meets no page of memory twice.
  Tensor<F, 5> key_, value_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
