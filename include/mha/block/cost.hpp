// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What one stage of a model costs. A multiplication with its addition counts as 2 FLOP; only products are counted.
struct StageCost {
  std::int64_t parameters = 0;  ///< numbers, biases included
  double flop = 0;
  double bytes = 0;  ///< its weights, what it reads and what it leaves, each once

  friend StageCost operator+(const StageCost& a, const StageCost& b) {
    return {a.parameters + b.parameters, a.flop + b.flop, a.bytes + b.bytes};
  }
};

/// What the backward pass of a stage costs.
struct BackwardStageCost : StageCost {
  double tape_bytes = 0;     ///< what the call leaves on its tape, beside what that borrows
  double scratch_bytes = 0;  ///< gradients, and matrices that are only packed, in the Workspace; what products take for
                             ///< their own use is apart
};

namespace detail {

/// A count with all of its digits: one in double, whose fraction is left out, may be beyond every integer.
template <class Number> std::string count_in_words(Number n) {
  if constexpr (std::integral<Number>) {
    return std::to_string(n);
  } else {
    char text[64];
    std::snprintf(text, sizeof text, "%.0f", std::trunc(n));
    return text;
  }
}

/// Four digits of a number of FLOP, in the unit that suits it.
inline std::string flop_in_words(double flop) {
  static constexpr const char* units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  const char* const* unit = units;
  for (; flop >= 999.95 && unit != std::end(units) - 1; ++unit) flop /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", flop, *unit);
  return text;
}
/// "2.5 GFLOP, 1024 bytes"
inline std::string stage_in_words(const char* name, double flop, double bytes) {
  return name + flop_in_words(flop) + ", " + count_in_words(bytes) + " bytes";
}

inline std::string backward_in_words(const char* name, const StageCost& c) {
  return stage_in_words(name, c.flop, c.bytes) + "\n";
}
inline std::string backward_memory_in_words(double tape_bytes, double scratch_bytes) {
  return "tape:        " + count_in_words(tape_bytes) + " bytes\nworkspace:   " + count_in_words(scratch_bytes) +
         " bytes\n";
}

inline std::string backward_in_words(const BackwardStageCost& c) {
  return backward_in_words("backward:    ", c) + backward_memory_in_words(c.tape_bytes, c.scratch_bytes);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
