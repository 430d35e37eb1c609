// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/gradient_rows.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::GradientTo;
using mha::Index;
using mha::Tensor;
using mha::TensorView;

/// Rows of sums · factor into columns [d, d + n) of a head's rows: by put_rows() beside element by element.
template <class T, class E> void expect_rows(const char* name, bool adds, std::ptrdiff_t column) {
  using A = mha::Accumulator<T>;
  SCOPED_TRACE(std::string(name) + (adds ? ", added" : "") + ", columns " + std::to_string(column) + " apart");
  support::Random random(name);
  constexpr Index rows = 5, heads = 2, dim = 70;
  const mha::IsaLevel before = mha::current_isa();
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    for (const auto& [d, n] : {std::pair<Index, Index>{0, 70}, {0, 64}, {32, 32}, {64, 6}, {3, 1}, {0, 0}})
      for (const A factor : {A(1), A(0.3)}) {
        std::vector<E> memory(static_cast<std::size_t>(rows * heads * dim * column));
        for (E& x : memory) x = E(A(random.normal()));
        std::vector<E> expected = memory;
        const auto lay = [&](std::vector<E>& m) {
          return TensorView<E, 3>{m.data(), {rows, heads, dim}, {heads * dim * column, dim * column, column}};
        };
        std::vector<A> sums(static_cast<std::size_t>(rows * 80));
        for (A& x : sums) x = A(random.normal());
        sums[2] = A(-0.);
        const auto wanted = lay(expected);
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < n; ++j) {
            E& to = wanted(i, 1, d + j);
            const A scaled = sums[static_cast<std::size_t>(i * 80 + j)] * factor;
            to = E(adds ? A(to) + scaled : scaled + A(0));
          }
        const GradientTo<T> to = adds ? GradientTo<T>(mha::add_to(lay(memory))) : GradientTo<T>(lay(memory));
        mha::detail::simd::put_rows(mha::current_isa(), to, sums.data(), 80, rows, to.row(0, 0, 1), d, n, factor);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < memory.size(); ++i)
          wrong += support::bits(memory[i]) != support::bits(expected[i]) ? 1u : 0u;
        EXPECT_EQ(wrong, 0u) << "columns " << d << " to " << d + n << " times " << factor;
      }
  }
  mha::force_isa(before);
}

template <class T, class E> void expect_every_destination(const char* name) {
  for (const bool adds : {false, true})
    for (const std::ptrdiff_t column : {1, 2}) expect_rows<T, E>(name, adds, column);
}

TEST(GradientRows, OfSixteenBits) {
  expect_every_destination<mha::bfloat16, mha::bfloat16>("bfloat16");
  expect_every_destination<mha::half, mha::half>("half");
}
TEST(GradientRows, OfSixteenBitsIntoAccumulators) { expect_every_destination<mha::half, float>("half to float"); }
TEST(GradientRows, OfFloatAndDouble) {
  expect_every_destination<float, float>("float");
  expect_every_destination<double, double>("double");
}

}  // namespace
