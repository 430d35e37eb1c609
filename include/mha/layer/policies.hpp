// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../policy/concat.hpp"
#include "../policy/dropout.hpp"
#include "../policy/heads.hpp"
#include "../policy/mask.hpp"
#include "../policy/mask/positional.hpp"
#include "../policy/output.hpp"
#include "../policy/position.hpp"
#include "../policy/projection.hpp"
#include "../policy/qk_norm.hpp"
#include "../policy/score.hpp"
#include "../policy/sink.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The policies of a layer, one of each role: their types, and the values of those that may hold data.
template <mha::Heads HeadsPolicy = MultiHead, mha::Mask MaskPolicy = Full, mha::Score ScorePolicy = NoScore,
          mha::SinkPolicy SinkValue = NoSink, mha::Norm NormPolicy = NoNorm, mha::Position PositionPolicy = NoPosition,
          mha::Projection ProjectionPolicy = FusedProjection, mha::Concat ConcatPolicy = ConcatHeads,
          mha::Output OutputPolicy = LinearOutput, mha::DropoutPolicy DropoutValue = NoDropout>
struct LayerPolicies {
  using Heads = HeadsPolicy;
  using Mask = MaskPolicy;
  using Score = ScorePolicy;
  using Sink = SinkValue;
  using Norm = NormPolicy;
  using Position = PositionPolicy;
  using Projection = ProjectionPolicy;
  using Concat = ConcatPolicy;
  using Output = OutputPolicy;
  using Dropout = DropoutValue;

  Mask mask;
  Score score;
  Sink sink;
  Norm norm;
  Position position;
  Dropout dropout;
};

namespace detail {

/// Whether two values of a policy are known to do the same: of one type, and equal or without a value.
template <class A, class B> constexpr bool same_policy(const A&, const B&) { return false; }
template <class P> constexpr bool same_policy(const P& a, const P& b) {
  if constexpr (std::is_empty_v<P>)
    return true;
  else if constexpr (std::equality_comparable<P>)
    return a == b;
  else
    return false;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
