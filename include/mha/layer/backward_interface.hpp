// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "../block/rows.hpp"
#include "../core/borrowed.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "memory_rows.hpp"

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

/// Where the gradient of the call's memory goes: of its keys, if that of its values is asked for apart.
template <class T> struct MemoryTo : RowGradient<T> {
  bool wanted = false, apart = false;
  RowGradient<T> values{};
};

/// Where the gradients of the numbers of the call's score go, a score of the type whose TypeKey this is; null: nowhere.
struct ScoreTo {
  void* to = nullptr;
  const void* type = nullptr;
  Footprint at{};
};

/// What the keys and values of a recorded call were made from.
enum class KeysFrom : unsigned char {
  x,          ///< its own rows
  memory,     ///< the rows of a memory
  cache,      ///< its own rows, and others before them, which were made earlier
  projection  ///< of project_memory() or a source, made earlier
};

/// Where the gradients of a call's keys and values go that it did not make.
template <class A> struct KeyValuesTo {
  TensorView<A, 4> key{}, value{};
  bool given = false;  ///< even without elements
  bool stops = false;  ///< nowhere: they are constants
};

/// What backward() is given beside dy, the tape, and where the gradients of parameters and of x go.
///
/// Shapes    d_log_sum_exp (B, Hq, Lq)
template <class T> struct BesideGradients {
  MemoryTo<T> memory;
  BiasTo<T> bias;
  ScoreTo score;
  std::optional<TensorView<const Accumulator<T>, 3>> d_log_sum_exp{};
  KeyValuesTo<Accumulator<T>> key_values{};
};

/// The tensors of a recorded call.
///
/// Shapes    x (B, Lq, E)  memory (B, Lk, E_kv), x itself if keys are made from it, else without data  q, key, value,
///           heads (B, L, H, D), of heads before the gates; null data for what there is none of. With key_offsets key
///           and value are (1, ΣLk, Hkv, ·). key_before_norm has the rows that were made in the call
template <class T> struct RecordedTensors {
  Index sinks = 0;
  std::uint64_t policies = 0;  ///< the version of the layer's
  KeysFrom keys = KeysFrom::x;
  TensorView<const T, 3> x{};
  MemoryRows<T> memory{};
  TensorView<const T, 4> q{}, key{}, value{}, heads{}, q_before_norm{}, key_before_norm{};
  Borrowed<Index> key_offsets{};
  bool shared = false;          ///< whether other calls attend to the keys too
  Borrowed<Index> positions{};  ///< of the rows of x, the call's own; null data if rows follow each other

  bool made_keys() const { return keys != KeysFrom::projection; }
};

/// Lists of a recorded step, which is gone when the backward pass runs.
struct RecordedLists {
  std::vector<Index> query_offsets, positions, key_offsets;
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
