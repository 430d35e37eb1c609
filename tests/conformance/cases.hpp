// SPDX-License-Identifier: Apache-2.0
// What the conformance suite varies, one case of it, and what the double reference says of that case.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <mha/backend/simd/isa.hpp>
#include <mha/call.hpp>
#include <mha/core/tensor.hpp>

#include "covering.hpp"
#include "random.hpp"

namespace conformance {

using mha::Index;

enum class Machine { pool, serial, eigen, plain };
enum class Storage { float32, float64, half, bfloat16 };
enum class Groups { multi_head, grouped, multi_query };
enum class MaskKind {
  full,
  causal,
  top_left,
  window,
  padding,
  left_padding,
  prefix,
  first_keys,
  document,
  block_sparse,
  dense,
  functor,
  both,
  either,
  negated,
  composed,
  two
};
enum class ScoreKind { none, soft_cap, alibi, bias, relative, chain, two, functor, lambda };
enum class ScaleKind { standard, explicit_one, negative, large, zero };
enum class Layout { blhd, bhld, v_in_k, strided, column_major, reversed };
enum class SourceKind { tensors, pages, ring };
enum class OriginKind { standard, zero, shifted, each };
enum class SinkKind { none, some };
enum class DropoutKind { none, some };

/// The factors of the covering array, in its order.
enum Factor {
  machine,
  storage,
  groups,
  mask,
  score,
  scale,
  layout,
  source,
  isa,
  origin,
  sink,
  dropout,
  queries,
  keys,
  head_dim,
  value_dim
};

/// A factor's name and its levels'.
struct FactorLevels {
  std::string name;
  std::vector<std::string> levels;
};
const std::vector<FactorLevels>& factors();

struct Case {
  support::CoveringRow row;

  template <class Level> Level at(Factor f) const { return static_cast<Level>(row[f]); }
  std::string text() const;
};

/// The cases of this process: every two levels of different factors meet in one of them. Masks and scores reach the
/// call behind one type each.
const std::vector<Case>& cases();

/// Every mask without a score and every score without a mask, as the types that they are, in both scalars that Cpu
/// computes in and on every instruction set; over tensors, pages and a ring in turn.
const std::vector<Case>& cases_of_own_types();

/// The numbers of a case, in double what the backend gets in its scalar.
struct Problem {
  Case which;
  Index batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  double scale = 0;
  Index left = 0, right = 0;             ///< reach of the window
  float cap = 0, slope = 0;              ///< of the soft cap and of the user's score
  std::vector<Index> origins;            // (B), positions of the first queries
  std::vector<Index> lengths;            // (B)
  std::vector<Index> ids;                // (Lk), or (B·Lk)
  Index page = 0, ring = 0, pinned = 0;  ///< of pages; of a ring, and those of its positions that are never dropped
  Index block = 0;                       ///< positions of one bit of the block-sparse map
  std::vector<std::uint8_t> map;         // (1 or H, Nq, Nk)
  std::vector<float> relative;           // (8 buckets, H)
  std::vector<float> sink;               // (H), −∞ for none
  float drops = 0;                       ///< the p of dropout
  std::uint64_t seed = 0;
  mha::Tensor<bool, 3> table;      // (1 or H, Lq, Lk)
  mha::Tensor<double, 3> bias;     // (1 or H, Lq, Lk), some of it −∞
  mha::Tensor<double, 4> q, k, v;  // (B, L, H, D), filled by the runner from its rounded values

  Index origin(Index b) const { return origins[static_cast<std::size_t>(b)]; }
  /// Whether the source still has key k.
  bool holds(Index key) const {
    return which.at<SourceKind>(source) != SourceKind::ring || key < pinned || key >= keys - (ring - pinned);
  }
  Index query_blocks() const {
    Index last = 1;
    for (const Index first : origins) last = std::max(last, (first + queries + block - 1) / block);
    return last;
  }
  Index key_blocks() const { return (keys + block - 1) / block; }

  /// The call's Origin: one position if the sequences have the same.
  mha::Origin origin_argument() const {
    return which.at<OriginKind>(conformance::origin) == OriginKind::each ? mha::Origin(origins)
                                                                         : mha::Origin(origins.front());
  }

  /// What dropout multiplies a weight by; query row i stands at q.
  double factor(Index b, Index h, Index query, Index key) const;

  /// Sizes and policy data; q, k and v are left to the runner.
  Problem(Case which, support::Random& random);
};

/// What the reference backend computes in double, and what an answer may differ by.
struct Expected {
  mha::Tensor<double, 4> out;          // (B, Lq, Hq, Dv)
  mha::Tensor<double, 3> log_sum_exp;  // (B, Hq, Lq)
  mha::Tensor<double, 4> weights;      // (B, Hq, Lq, Lk)
  mha::Tensor<double, 3> magnitude;    // (B, Hq, Lq): the largest sum of absolute terms behind one visible logit
  double largest_value = 0;            // max |v|
};
Expected expected(const Problem& problem);

/// Runs a case on its backend and reports what is off as test failures.
template <class T> void run(const Case& which, support::Random& random);
extern template void run<float>(const Case&, support::Random&);
extern template void run<double>(const Case&, support::Random&);
extern template void run<mha::half>(const Case&, support::Random&);
extern template void run<mha::bfloat16>(const Case&, support::Random&);

/// Runs one of cases_of_own_types().
template <class T> void run_own_types(const Case& which, support::Random& random);
extern template void run_own_types<float>(const Case&, support::Random&);
extern template void run_own_types<double>(const Case&, support::Random&);

}  // namespace conformance
