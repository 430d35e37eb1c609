// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "../../config.hpp"
#include "../simd/isa.hpp"
#include "array.hpp"
#include "product_unit.hpp"
#include "softmax.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// What a call computes with: the matrix unit, and the vector code beside it.
struct Kernels {
  ProductUnit product;
  IsaLevel level;
  SoftmaxKernels softmax;
  ArrayUse (*use)(Index m, Index n, Index k);
};

template <class Array = AmxArray> Kernels kernels_of(const ProductUnit& product, IsaLevel level) {
  return {product, level, softmax_kernels(level), &array_use<Array>};
}

/// What the array does for the queries of a tile. Whole blocks are multiplied out at the end: 64-bit sums beside the
/// tile stores of each product would wait for them.
class TileUse {
 public:
  TileUse(const Kernels& kernels, Index queries, Index head_dim, Index value_dim)
      : kernels_(kernels), queries_(queries), head_dim_(head_dim), value_dim_(value_dim) {}

  /// So many keys were multiplied.
  void keys(Index n) {
    if (n == key_block)
      ++whole_key_blocks_;
    else if (metered_)
      use_ = use_ + of_keys(n);
  }
  /// So were the values of so many.
  void values(Index n) {
    if (n == value_block)
      ++whole_value_blocks_;
    else if (metered_)
      use_ = use_ + of_values(n);
  }

  void count() const {
    count_use(use_ + whole_key_blocks_ * of_keys(key_block) + whole_value_blocks_ * of_values(value_block));
  }

 private:
  ArrayUse of_keys(Index n) const { return kernels_.use(n, queries_, head_dim_); }
  ArrayUse of_values(Index n) const { return kernels_.use(value_dim_, queries_, n); }

  const Kernels& kernels_;
  const Index queries_, head_dim_, value_dim_;
  const bool metered_ = UseCounters::instance().meters.load(std::memory_order_relaxed) != 0;
  Index whole_key_blocks_ = 0, whole_value_blocks_ = 0;
  ArrayUse use_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
