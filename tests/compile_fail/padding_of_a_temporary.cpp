// SPDX-License-Identifier: Apache-2.0
// expect: mha: a temporary container would be gone before the call reads it: name it first
#include <vector>

#include <mha/policy/mask/padding.hpp>

std::vector<int> lengths{3, 5};

#ifdef MHA_FAIL
mha::Padding mask{std::vector<int>{3, 5}};
#else
mha::Padding mask{lengths};
#endif
