// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "../block/rows.hpp"
#include "../core/borrowed.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"

/// What the parts of a layer's backward pass hand to each other.
namespace mha::inline MHA_NAMESPACE::detail {

template <class A> struct ScoreSums;  // in score_gradients.hpp

/// Where the gradient of the call's AdditiveBias goes: to one of these two, `wide` if they are of one scalar.
template <class T> struct BiasTo {
  TensorView<T, 4> own{};
  TensorView<Accumulator<T>, 4> wide{};
  bool to_own = false, to_wide = false;  ///< whether it is given: a table without elements has no data either
  bool adds = false;                     ///< to what is there

  bool wanted() const { return to_own || to_wide; }
};

/// Where the gradient of the call's memory goes.
template <class T> struct MemoryTo : RowGradient<T> { bool wanted = false; };

/// Where the gradients of the numbers of the call's score go, a score of the type whose TypeKey this is; null: nowhere.
struct ScoreTo {
  void* to = nullptr;
  const void* type = nullptr;
  Footprint at{};
};

/// What backward() is given beside dy, the tape, and where the gradients of parameters and of x go.
///
/// Shapes    d_log_sum_exp (B, Hq, Lq)
template <class T> struct BesideGradients {
  MemoryTo<T> memory;
  BiasTo<T> bias;
  ScoreTo score;
  std::optional<TensorView<const Accumulator<T>, 3>> d_log_sum_exp{};
};

/// The tensors of a recorded call.
///
/// Shapes    x (B, Lq, E)  memory (B, Lk, E_kv), x itself if not cross-attention  q, key, value, heads (B, L, H, D), of
///           heads before the gates; null data for what there is none of
template <class T> struct RecordedTensors {
  Index sinks = 0;
  std::uint64_t policies = 0;  ///< the version of the layer's
  bool cross = false;
  TensorView<const T, 3> x{}, memory{};
  TensorView<const T, 4> q{}, key{}, value{}, heads{}, q_before_norm{}, key_before_norm{};
  Borrowed<Index> positions{};  ///< of the rows of x, the call's own; null data if rows follow each other
};

/// A value for each type.
template <class S> struct TypeKey { static inline char at = 0; };

/// What surrounds attention in the backward pass of a layer.
template <class A> class BackwardSteps {
 public:
  virtual void before() = 0;
  /// The gradients of the numbers of the layer's score.
  virtual void score(const ScoreSums<A>& sums) = 0;
  virtual void after(const RowPositions& queries, const RowPositions& keys) = 0;

 protected:
  ~BackwardSteps() = default;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
