// SPDX-License-Identifier: Apache-2.0
// expect: mha: a list in braces would be gone before the call reads it: name a container first
#include <vector>

#include <mha/policy/mask/padding.hpp>

std::vector<int> lengths{5, 2};

#ifdef MHA_FAIL
mha::Padding mask{{5, 2}};
#else
mha::Padding mask{lengths};
#endif
