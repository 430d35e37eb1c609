// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backward_unit.hpp"
#include "pair_operands.hpp"
#include "product_unit.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Products that wait until weights of pairs are computed, to be computed between these, in order; where a unit cannot
/// do that, none waits.
class WaitingProducts {
 public:
  explicit WaitingProducts(bool wait) : wait_(wait) {}

  void add(const ProductUnit& unit, const TileProduct& product) {
    if (!wait_) return unit.multiply(product);
    if (count_ == most) run();
    unit_ = &unit;
    products_[count_++] = product;
  }
  /// All of them now.
  void run() {
    for (Index i = 0; i < count_; ++i) unit_->multiply(products_[i]);
    count_ = 0;
  }
  /// The weights of some pairs, and all of them.
  void run_among(const BackwardKernels& kernels, const WeighPairs& pairs) {
    kernels.weigh(pairs, products_, count_);
    count_ = 0;
  }

 private:
  static constexpr Index most = 16;
  const bool wait_;
  const ProductUnit* unit_ = nullptr;
  Index count_ = 0;
  TileProduct products_[std::size_t{most}];
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
