// SPDX-License-Identifier: Apache-2.0
// expect: mha: GroupedQuery<n> needs at least one key/value head
#include <mha/policy/heads.hpp>

#ifdef MHA_FAIL
mha::GroupedQuery<0> heads;
#else
mha::GroupedQuery<1> heads;
#endif
