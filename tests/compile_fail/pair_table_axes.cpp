// SPDX-License-Identifier: Apache-2.0
// expect: mha: a table over (query, key) pairs has 2 to 4 axes
#include <mha/policy/score/additive_bias.hpp>

float memory[1];

#ifdef MHA_FAIL
mha::AdditiveBias bias(mha::view(memory, 1, 1, 1, 1, 1));
#else
mha::AdditiveBias bias(mha::view(memory, 1, 1, 1, 1));
#endif
