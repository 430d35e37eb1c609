// SPDX-License-Identifier: Apache-2.0
// expect: safetensors files hold no such element type: use double, float, half, bfloat16, bool or an integer
#include <mha/backend/reference/reference.hpp>
#include <mha/block/norm.hpp>
#include <mha/io/saved_weights.hpp>

#ifdef MHA_FAIL
using Scalar = long double;
#else
using Scalar = double;
#endif

void load(const mha::Safetensors& file, mha::LayerNorm<Scalar, mha::Reference>& norm) {
  mha::load_weights(file, "norm", norm);
}
