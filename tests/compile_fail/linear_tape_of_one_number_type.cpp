// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this activation cannot be differentiated
#include <mha/block.hpp>

struct Sine {
  float operator()(float x) const { return x - x * x * x / 6; }
};

void use(const mha::Linear<float, mha::Cpu, Sine>& linear) {
#ifdef MHA_FAIL
  static_cast<void>(linear.tape());
#else
  static_cast<void>(linear.parameters());
#endif
}
