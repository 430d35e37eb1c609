// SPDX-License-Identifier: Apache-2.0
#ifdef MHA_FAIL
static_assert(false, "a sentence nobody expects");
#else
static_assert(true, "a sentence nobody expects");
#endif
