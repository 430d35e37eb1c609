// SPDX-License-Identifier: Apache-2.0
// expect: mha: ScoreGradient writes its score, and this one is const
#include <mha/mha.hpp>

auto result() {
#ifdef MHA_FAIL
  static const mha::SoftCap to{1};
#else
  static mha::SoftCap to{1};
#endif
  return mha::ScoreGradient(to);
}
