// SPDX-License-Identifier: Apache-2.0
// expect: mha: a number of rows, positions or pages is an integer
#include <mha/mha.hpp>

#ifdef MHA_FAIL
auto mask() { return mha::SlidingWindow{.left = 2.5}; }
#else
auto mask() { return mha::SlidingWindow{.left = 2}; }
#endif
