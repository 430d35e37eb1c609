// SPDX-License-Identifier: Apache-2.0
// Two translation units that both include everything link, and agree to the bit.
#include <mha/mha.hpp>

#include "other.hpp"

int main() {
  const Matrix q = Matrix::Random(7, 16), k = Matrix::Random(9, 16), v = Matrix::Random(9, 16);  // (L, D)
  const Matrix here = mha::attention(q, k, v, mha::Causal{}, mha::SoftCap{30.f});
  return here == attention_over_there(q, k, v) && here.norm() > 0 ? 0 : 1;
}
