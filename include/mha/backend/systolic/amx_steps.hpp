// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "amx.hpp"
#include "product_unit.hpp"
#include "tiles.hpp"

#if defined(__x86_64__)
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Some products one after another as AmxProduct computes them, in steps that vector code takes between its own: two
/// tiles of c by 32 of the depth each. The unit and the vector code run side by side so. Sums are stored when their
/// tiles are needed again: a store that waits for the unit holds up the vector code's.
class AmxSteps {
 public:
  AmxSteps(const TileProduct* products, Index n) : product_(products) {
    for (Index i = 0; i < n; ++i) left_ += products[i].tiles * products[i].steps;
    if (left_ > 0) begin_rows(0);
  }

  Index left() const { return left_; }

  MHA_ALWAYS_INLINE void run() {
    const TileProduct& p = *product_;
    const std::ptrdiff_t stride = p.row_stride * std::ptrdiff_t{sizeof(bfloat16)};
    --left_;
    if (!lower_) {
      if (step_ == 0) begin_sums<0>();
      amx::load_once<4>(a_, stride);
      amx::load_once<6>(b_, amx::row_bytes);
      amx::multiply_add<0, 4, 6>();
      amx::load_once<7>(b_ + tile_words, amx::row_bytes);
      amx::multiply_add<1, 4, 7>();
      lower_ = tile_ + 1 < p.tiles;
      if (lower_) return;
    } else {
      if (step_ == 0) begin_sums<2>();
      amx::load_once<5>(a_ + p.tile_stride, stride);
      amx::multiply_add<2, 5, 6>();
      amx::multiply_add<3, 5, 7>();
      lower_ = false;
    }
    a_ += p.step_stride;
    b_ += 2 * tile_words;
    if (++step_ < p.steps || left_ == 0) return;
    if (tile_ + 2 < p.tiles) return begin_rows(tile_ + 2);
    ++product_;
    begin_rows(0);
  }

  /// All that are left.
  MHA_ALWAYS_INLINE void finish() {
    while (left_ > 0) run();
    store<0>();
    store<2>();
  }

 private:
  static constexpr Index lanes = 32;
  static constexpr std::ptrdiff_t c_stride = lanes * sizeof(float);

  MHA_ALWAYS_INLINE void begin_rows(Index tile) {
    tile_ = tile;
    step_ = 0;
    a_ = product_->a + tile * product_->tile_stride;
    b_ = product_->b;
  }
  /// Tiles First and First + 1 of c.
  template <int First> MHA_ALWAYS_INLINE void begin_sums() {
    store<First>();
    float* const c = product_->c + std::ptrdiff_t{tile_ + First / 2} * tile_side * lanes;
    if (product_->add) {
      amx::load<First>(c, c_stride);
      amx::load<First + 1>(c + tile_side, c_stride);
    } else {
      amx::zero<First>();
      amx::zero<First + 1>();
    }
    c_[First / 2] = c;
  }
  template <int First> MHA_ALWAYS_INLINE void store() {
    float*& c = c_[First / 2];
    if (c == nullptr) return;
    amx::store<First>(c, c_stride);
    amx::store<First + 1>(c + tile_side, c_stride);
    c = nullptr;
  }

  const TileProduct* product_;
  Index left_ = 0, tile_ = 0, step_ = 0;
  bool lower_ = false;  ///< whether the next step is of the second row of tiles
  const bfloat16* a_ = nullptr;
  const std::uint32_t* b_ = nullptr;
  float* c_[2] = {nullptr, nullptr};  ///< where the sums in tiles 0 and 2 are to be stored
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
#endif
