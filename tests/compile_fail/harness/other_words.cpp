// SPDX-License-Identifier: Apache-2.0
// expect: our own sentence
#ifdef MHA_FAIL
static_assert(false, "somebody else's words");  // our own sentence
#else
static_assert(true, "somebody else's words");  // our own sentence
#endif
