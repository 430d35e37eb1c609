// SPDX-License-Identifier: Apache-2.0
// What the conformance of Linears, feed-forwards and norms varies, and its covering arrays.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <mha/core/tensor.hpp>

#include "covering.hpp"

namespace blocks {

using mha::Index;

enum class Machine { reference, cpu, systolic, eigen, far };
enum class Storage { float32, float64, half, bfloat16 };
enum class Form { plain, function, gated };
enum class Block { linear, feed_forward };
enum class Function { relu, gelu, gelu_tanh, silu, bent };
enum class WeightsKind { updated, dense, transposed, strided, half, bfloat16, dropped };
enum class ResidualKind { none, apart, result };
enum class ResultKind { returned, dense, padded, interleaved, columns_apart, by_columns, x };
enum class NormKind { layer, rms };
enum class NormWeights { initial, updated, strided, half, bfloat16 };
enum class Added { none, residual, sum };
enum class SumKind { apart, x, residual };
enum class NormPass { forward, into, add_to };

/// The factors of the arrays of Linears and feed-forwards, in their order.
enum Factor {
  machine,
  storage,
  form,
  block,
  function,
  bias,
  weights,
  residual,
  result,
  rows,
  pass,
  isa,
  batch,
  length,
  inputs,
  outputs
};
/// Of norms; the first two are those of a Linear.
enum NormFactor {
  kind = 2,
  norm_bias,
  zero_centered,
  eps,
  norm_weights,
  added,
  norm_residual,
  sum,
  norm_result,
  norm_rows,
  norm_pass,
  norm_isa,
  level,
  norm_batch,
  norm_length,
  width
};

/// What a test compiles of Linears and feed-forwards: few, in which every two of their levels meet, and what is used
/// most.
struct Program {
  Machine machine;
  Storage storage;
  Form form;
  Block block;
  bool residual, returned, backward;
};
inline constexpr Program programs[] = {
    {Machine::reference, Storage::float32, Form::gated, Block::feed_forward, true, false, false},
    {Machine::reference, Storage::float32, Form::function, Block::linear, true, true, false},
    {Machine::reference, Storage::float64, Form::gated, Block::linear, true, true, true},
    {Machine::reference, Storage::half, Form::plain, Block::linear, false, true, true},
    {Machine::reference, Storage::bfloat16, Form::function, Block::linear, false, true, true},
    {Machine::cpu, Storage::float32, Form::gated, Block::feed_forward, true, false, true},
    {Machine::cpu, Storage::float32, Form::function, Block::linear, true, true, true},
    {Machine::cpu, Storage::float32, Form::plain, Block::linear, true, false, false},
    {Machine::cpu, Storage::float64, Form::function, Block::feed_forward, true, true, false},
    {Machine::cpu, Storage::float64, Form::gated, Block::linear, false, false, true},
    {Machine::cpu, Storage::half, Form::function, Block::feed_forward, false, false, false},
    {Machine::cpu, Storage::bfloat16, Form::plain, Block::feed_forward, false, false, false},
    {Machine::systolic, Storage::float32, Form::function, Block::linear, false, true, false},
    {Machine::systolic, Storage::half, Form::gated, Block::feed_forward, true, false, false},
    {Machine::systolic, Storage::bfloat16, Form::plain, Block::feed_forward, true, true, true},
    {Machine::systolic, Storage::bfloat16, Form::gated, Block::linear, false, false, true},
    {Machine::eigen, Storage::float32, Form::plain, Block::feed_forward, false, true, true},
    {Machine::eigen, Storage::float64, Form::function, Block::linear, false, true, false},
    {Machine::eigen, Storage::half, Form::gated, Block::feed_forward, true, true, false},
    {Machine::eigen, Storage::bfloat16, Form::function, Block::linear, true, false, false},
    {Machine::far, Storage::float32, Form::plain, Block::feed_forward, true, false, false},
    {Machine::far, Storage::float32, Form::gated, Block::linear, true, true, false},
    {Machine::far, Storage::float64, Form::plain, Block::feed_forward, true, false, false},
    {Machine::far, Storage::half, Form::function, Block::linear, false, false, false},
    {Machine::far, Storage::half, Form::function, Block::feed_forward, true, true, false},
    {Machine::far, Storage::bfloat16, Form::gated, Block::feed_forward, false, true, false},
};
/// The same of norms.
struct NormProgram {
  Machine machine;
  Storage storage;
  NormKind kind;
  Added added;
  bool returned;
  NormPass pass;
};
inline constexpr NormProgram norm_programs[] = {
    {Machine::reference, Storage::float32, NormKind::layer, Added::sum, false, NormPass::forward},
    {Machine::reference, Storage::float64, NormKind::rms, Added::sum, true, NormPass::add_to},
    {Machine::reference, Storage::half, NormKind::rms, Added::none, false, NormPass::into},
    {Machine::reference, Storage::bfloat16, NormKind::layer, Added::residual, false, NormPass::into},
    {Machine::cpu, Storage::float32, NormKind::layer, Added::none, true, NormPass::add_to},
    {Machine::cpu, Storage::float64, NormKind::layer, Added::residual, true, NormPass::into},
    {Machine::cpu, Storage::half, NormKind::layer, Added::sum, false, NormPass::add_to},
    {Machine::cpu, Storage::bfloat16, NormKind::rms, Added::residual, false, NormPass::forward},
    {Machine::systolic, Storage::float32, NormKind::layer, Added::sum, false, NormPass::into},
    {Machine::systolic, Storage::half, NormKind::rms, Added::none, true, NormPass::forward},
    {Machine::systolic, Storage::bfloat16, NormKind::layer, Added::residual, true, NormPass::add_to},
    {Machine::eigen, Storage::float32, NormKind::rms, Added::residual, false, NormPass::into},
    {Machine::eigen, Storage::float64, NormKind::layer, Added::sum, false, NormPass::add_to},
    {Machine::eigen, Storage::half, NormKind::rms, Added::residual, true, NormPass::forward},
    {Machine::eigen, Storage::bfloat16, NormKind::layer, Added::none, true, NormPass::forward},
    {Machine::far, Storage::float32, NormKind::rms, Added::residual, false, NormPass::forward},
    {Machine::far, Storage::float64, NormKind::layer, Added::none, true, NormPass::forward},
    {Machine::far, Storage::half, NormKind::layer, Added::none, true, NormPass::forward},
    {Machine::far, Storage::bfloat16, NormKind::layer, Added::sum, false, NormPass::forward},
};

struct FactorLevels {
  std::string name;
  std::vector<std::string> levels;
};

struct Case {
  const std::vector<FactorLevels>* factors;
  support::CoveringRow row;

  template <class Level> Level at(int f) const { return static_cast<Level>(row[static_cast<std::size_t>(f)]); }
  /// The number that a level names.
  Index number(int f) const;
  std::string text() const;
};
/// Whether a row, whose unfinished levels are −1, is or can become one of a program.
bool fits(const Program& p, const support::CoveringRow& row);
bool fits(const NormProgram& p, const support::CoveringRow& row);

/// The cases of this process for the machines in the list, and the pairs of levels that could meet in a block of those
/// machines, compiled or not, and do not.
struct Cases {
  std::vector<Case> all;
  std::string missing;  ///< one a line
};
Cases linear_cases(const std::vector<Machine>& machines);
Cases norm_cases(const std::vector<Machine>& machines);

}  // namespace blocks
