// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "../simd/backward_kernels.hpp"
#include "../simd/isa.hpp"
#include "array.hpp"
#include "pair_operands.hpp"
#include "product_unit.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// What computes the products of the backward pass.
struct BackwardUnits {
  ProductUnit product;     ///< queries in lanes: S and dP, as forward's products
  ProductUnit query_sums;  ///< the same: dQ
  ProductUnit sums;        ///< 32 columns of dK or dV
};

/// What the backward pass computes with.
struct BackwardKernels : BackwardUnits {
  IsaLevel level;
  ArrayUse (*use)(Index m, Index n, Index k);
  simd::PairKernels<float> pairs;
  void (*round)(RoundPairs);
  void (*prepare_lanes)(simd::BackwardRows<float>, Index, float, float*);
  void (*weigh)(const WeighPairs&, const TileProduct*, Index);
  bool interleaves;  ///< whether weigh computes products too; else it takes none
  void (*pack_depth)(const bfloat16*, std::ptrdiff_t, Index, Index, Index, std::uint32_t*, std::ptrdiff_t);
  void (*pack_columns)(const bfloat16*, std::ptrdiff_t, Index, Index, std::uint32_t*);
  void (*pack_transposed)(const bfloat16*, std::ptrdiff_t, Index, bfloat16*, std::ptrdiff_t, bool*);
  void (*finite)(const bfloat16*, std::ptrdiff_t, bool*);
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
