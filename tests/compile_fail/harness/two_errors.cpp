// SPDX-License-Identifier: Apache-2.0
// expect only: our_own_name
#ifdef MHA_FAIL
int value = our_own_name + another_name;
#else
int value = 0;
#endif
