// SPDX-License-Identifier: Apache-2.0
// Three units that call layers, in a program whose kernels are compiled once: each is right against the formula.
#include <cmath>
#include <cstdio>

#include "layers.hpp"

namespace {

double largest_difference(const Numbers& a, const Numbers& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    largest = std::isnan(a[i]) ? INFINITY : std::fmax(largest, std::fabs(double(a[i]) - double(b[i])));
  return largest;
}

}  // namespace

int main() {
  unsigned state = 12345;
  const auto numbers = [&](int count) {  // multiples of 1/128 in [-1, 1]: exact in bfloat16
    Numbers x(static_cast<std::size_t>(count));
    for (float& value : x) value = static_cast<float>(int((state = state * 1664525u + 1013904223u) >> 24) - 128) / 128;
    return x;
  };
  const Numbers x = numbers(length * width), weights = numbers(4 * width * width);
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = width, .num_heads = heads});
  mha::MultiHeadAttention<float, mha::Reference, mha::Causal> formula({.d_model = width, .num_heads = heads});
  const Numbers right = run<float>(formula, x, weights);
  const double errors[] = {largest_difference(run<float>(layer, x, weights), right),
                           largest_difference(in_bfloat16(x, weights), right),
                           largest_difference(on_matrix_unit(x, weights), right)};
  double largest = 0;
  for (const float y : right) largest = std::fmax(largest, std::fabs(double(y)));
  std::printf("results up to %g, errors %g in float, %g in bfloat16, %g on the matrix unit\n", largest, errors[0],
              errors[1], errors[2]);
  return largest > 0.5 && errors[0] < 1e-4 * largest && errors[1] < 0.1 * largest && errors[2] < 0.1 * largest ? 0 : 1;
}
