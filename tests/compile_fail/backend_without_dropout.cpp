// SPDX-License-Identifier: Apache-2.0
// expect: mha: this backend drops no weights
#include <mha/mha.hpp>

struct Keeps : mha::Reference {
  static constexpr bool drops = false;
};

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention<Keeps>(x, x, x, mha::Dropout{.p = 0.1f}, mha::DropoutSeed{1});
#else
  return mha::attention<Keeps>(x, x, x, mha::Dropout{.p = 0.1f});
#endif
}
