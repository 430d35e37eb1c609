// SPDX-License-Identifier: Apache-2.0
// What the cases of Linears, feed-forwards and norms share: rows where a machine reads and writes them, comparison with
// the loops of block_oracle.cpp, and the loop over all cases.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/isa.hpp>
#include <mha/block.hpp>

#include "block_cases.hpp"
#include "block_oracle.hpp"
#include "linear_oracle.hpp"
#include "transport.hpp"

namespace blocks {

using support::Random;
using support::Rows;

/// The scalar of a level.
template <Storage> struct ScalarOf { using type = float; };
template <> struct ScalarOf<Storage::float64> { using type = double; };
template <> struct ScalarOf<Storage::half> { using type = mha::half; };
template <> struct ScalarOf<Storage::bfloat16> { using type = mha::bfloat16; };

template <class B, class T> Precision precision() {
  const bool stores = !std::is_same_v<T, mha::Accumulator<T>>;
  return {support::unit_roundoff<mha::Accumulator<T>>(), stores ? support::unit_roundoff<T>() : 0,
          std::is_same_v<T, mha::half> ? 0x1p-25 : 0, support::operand_error<B, T>(),
          std::string_view(B::name) == "Systolic" ? support::unit_roundoff<mha::bfloat16>() : 0};
}

/// Rows (B, L, E) as a matrix.
template <class View> Numbers exact(const View& v) {
  Numbers n(v.extent[0] * v.extent[1], v.extent[2]);
  for (Index b = 0; b < v.extent[0]; ++b)
    for (Index l = 0; l < v.extent[1]; ++l)
      for (Index e = 0; e < v.extent[2]; ++e) n(b * v.extent[1] + l, e) = support::to_double(v(b, l, e));
  return n;
}
/// What a call wrote to rows, or returned.
template <class At> void compare(const char* what, const Numbers& expected, const At& at) {
  support::Worst worst;
  for (Index i = 0; i < expected.rows; ++i)
    for (Index j = 0; j < expected.columns; ++j)
      worst.see(at(i, j), expected(i, j), expected.error[expected.at(i, j)], {i, j});
  EXPECT_LE(worst.error(), 1) << what << " at " << worst.text();
}
template <class T> void compare_rows(const char* what, const Numbers& expected, Rows<T>& rows) {
  const Numbers given = exact(rows.view);
  compare(what, expected, [&](Index i, Index j) { return given(i, j); });
  EXPECT_EQ(rows.spoilt(), 0u) << what;
}
template <class Tensor> void compare_tensor(const char* what, const Numbers& expected, const Tensor& given) {
  compare(what, expected, [&](Index i, Index j) {
    return support::to_double(given.data()[static_cast<std::size_t>(expected.at(i, j))]);
  });
  EXPECT_EQ(given.size(), expected.value.size()) << what;
}

/// Gradients that begin at 0.25 each: what a call adds.
template <class View> void compare_added(const char* what, const Precision& p, Numbers expected, const View& given) {
  if (expected.columns == 0) {
    EXPECT_EQ(given.data, nullptr) << what;
    return;
  }
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    expected.error[i] += 2 * p.sums * (0.25 + std::abs(expected.value[i]) + expected.error[i]);
    expected.value[i] += 0.25;
  }
  compare(what, expected, [&](Index i, Index j) {
    if constexpr (View::rank == 2)
      return static_cast<double>(given(i, j));
    else
      return static_cast<double>(given(j));
  });
}
template <class B> void poison_workspace(typename B::Workspace& workspace) {
  if constexpr (requires { workspace.bytes(); }) support::poison<B>(workspace);
}

/// How rows lie in a result of this kind.
inline support::Lie lie_of(ResultKind kind) {
  const int first = static_cast<int>(ResultKind::dense), n = static_cast<int>(kind) - first;
  return support::lies[n < 0 || n >= 5 ? 0 : n];
}

/// Rows of a test and where a machine reads and writes them.
template <class B, class T> struct Carried : Rows<T> {
  Carried(support::Lie lie, Index b, Index l, Index e)
      : Rows<T>(lie, b, l, e), memory_there(std::in_place, this->memory) {}
  mha::TensorView<T, 3> there() { return memory_there->there(this->view); }
  mha::TensorView<const T, 3> there_to_read() { return there(); }
  /// After the host wrote.
  void send() { memory_there.emplace(this->memory); }
  void fetch() { memory_there->fetch(); }

  std::optional<typename support::Transport<B>::template Memory<std::vector<T>>> memory_there;
};

/// Every case until ten have failed; run(case, its random numbers).
/// The instruction set is the one that the case names. `complete` if every pair that could meet has to.
template <class Run>
void run_all(const char* name, const Cases& cases, Factor isa_factor, bool complete, const Run& run) {
  const mha::IsaLevel before = mha::current_isa();
  int failed = 0;
  for (std::size_t i = 0; i < cases.all.size() && failed < 10; ++i) {
    const Case& c = cases.all[i];
    const std::string text = std::string(name) + " " + std::to_string(i);
    SCOPED_TRACE(text + ": " + c.text());
    Random stream(text);  // its own, so that one can be repeated without those before it
    mha::force_isa(c.at<mha::IsaLevel>(isa_factor));
    run(c, stream);
    failed += testing::Test::HasFailure() ? 1 : 0;
  }
  mha::force_isa(before);
  if (complete) {
    EXPECT_EQ(cases.missing, "");
  }
}

}  // namespace blocks
