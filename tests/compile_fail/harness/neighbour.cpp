// SPDX-License-Identifier: Apache-2.0
// expect: our own sentence
#ifdef MHA_FAIL
static_assert(false, "our own sentence");
#else
static_assert(true, "our own sentence");
#endif
