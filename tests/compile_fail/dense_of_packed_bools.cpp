// SPDX-License-Identifier: Apache-2.0
// expect: a std::vector<bool> has no bools in memory
#include <vector>

#include <mha/mha.hpp>

std::vector<bool> packed(16);
bool visible[16];

#ifdef MHA_FAIL
mha::Dense mask{packed};
#else
mha::Dense mask{mha::view(visible, 4, 4)};
#endif
