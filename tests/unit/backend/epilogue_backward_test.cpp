// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <mha/backend/epilogue_backward.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

template <class F> void expect_items(const F& activation) {
  constexpr bool gated = mha::detail::is_gated<F>;
  constexpr Index rows = 5, columns = 7;
  support::Random random("epilogue backward");
  mha::Tensor<double, 2> gate(rows, columns), sum(rows, columns), dy(rows, columns), d_gate(rows, columns),
      d_sum(rows, columns);
  random.fill(gate);
  random.fill(sum);
  random.fill(dy);
  sum(1, 2) = gate(1, 2) = std::numeric_limits<double>::quiet_NaN();
  dy(1, 2) = 0;
  support::poison_all(d_gate);
  support::poison_all(d_sum);
  const auto read = [](const mha::Tensor<double, 2>& t) { return t.view(); };
  mha::EpilogueBackwardCall<double, F> call{activation, {}, read(sum), read(dy), {}, d_sum.view()};
  if (gated) call.gate = read(gate);
  if (gated) call.d_gate = d_gate.view();
  mha::Workspace workspace;
  mha::detail::run_epilogue_backward(mha::Reference{}, call, workspace);
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      if (i == 1 && j == 2) {
        EXPECT_EQ(d_sum(i, j), 0);
        if (gated) {
          EXPECT_EQ(d_gate(i, j), 0);
        }
        continue;
      }
      if constexpr (gated) {
        const auto& f = activation.activation;
        EXPECT_DOUBLE_EQ(d_sum(i, j), dy(i, j) * f(gate(i, j)));
        EXPECT_NEAR(d_gate(i, j), dy(i, j) * sum(i, j) * f.derivative(gate(i, j)), 1e-14);
      } else {
        EXPECT_DOUBLE_EQ(d_sum(i, j), dy(i, j) * activation.derivative(sum(i, j)));
      }
    }
}

TEST(EpilogueBackward, ItemsAreTheFormula) {
  expect_items(mha::Gelu{});
  expect_items(mha::SwiGlu{});
}

}  // namespace
