// SPDX-License-Identifier: Apache-2.0
// expect: two differences
#ifdef MHA_FAIL
int other = 1;
static_assert(false, "two differences");
#else
static_assert(true, "two differences");
#endif
