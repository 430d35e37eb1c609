// SPDX-License-Identifier: Apache-2.0
// Compiled with -fno-exceptions: calls work, and an error prints its sentence and ends the program.
#include <cmath>
#include <cstdio>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

int main() {
  mha::Tensor<float, 2> x(3, 4), v(5, 4);
  for (float& e : v) e = 2;
  const mha::Tensor<float, 2> keys(5, 4), out = mha::attention<mha::Reference>(x, keys, v);
  for (const float e : out)
    if (std::abs(e - 2) > 1e-6f) return std::puts("wrong"), 1;

  mha::MultiHeadAttention<float, mha::Reference> layer({.d_model = 4, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  if (layer(x).size() != 12) return std::puts("wrong"), 1;

  static_cast<void>(mha::attention<mha::Reference>(x, mha::Tensor<float, 2>(6, 4), v));
  return std::puts("went on"), 0;
}
