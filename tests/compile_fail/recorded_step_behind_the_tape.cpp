// SPDX-License-Identifier: Apache-2.0
// expect: mha: the step of a cache comes next to x, in the place of a memory: layer(x, step[i], tape)
#include <mha/mha.hpp>

auto f() {
  const mha::MultiHeadAttention<float> layer({.d_model = 8, .num_heads = 2});
  const mha::Tensor<float, 2> x(3, 8);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 8});
  auto step = cache.step(cache.add(), 3);
  auto tape = layer.tape();
  return layer(x, tape, step[0]);
}
