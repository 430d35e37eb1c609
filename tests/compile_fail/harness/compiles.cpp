// SPDX-License-Identifier: Apache-2.0
// expect: this one is never printed
#ifdef MHA_FAIL
int value = 1;
#else
int value = 2;
#endif
