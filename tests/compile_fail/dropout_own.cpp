// SPDX-License-Identifier: Apache-2.0
// expect: mha: a dropout is mha::Dropout{.p = 0.1f}; a functor of yours cannot be one (see mha/policy/dropout.hpp)
#include <mha/mha.hpp>

struct Mine {
  static constexpr mha::Role role = mha::Role::dropout;
};

int main() {
  mha::Tensor<float, 4> x(1, 2, 1, 4);
#ifdef MHA_FAIL
  mha::attention(x, x, x, Mine{}, mha::DropoutSeed{1});
#else
  mha::attention(x, x, x, mha::Dropout{.p = 0.1f}, mha::DropoutSeed{1});
#endif
}
