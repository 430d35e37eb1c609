// SPDX-License-Identifier: Apache-2.0
// expect: mha: lengths, ids and offsets are mha::Index (int)
#include <vector>

#include <mha/policy/mask/padding.hpp>

std::vector<long> wide{5, 2};
std::vector<mha::Index> lengths(wide.begin(), wide.end());

#ifdef MHA_FAIL
mha::Padding mask{wide};
#else
mha::Padding mask{lengths};
#endif
