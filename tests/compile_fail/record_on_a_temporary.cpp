// SPDX-License-Identifier: Apache-2.0
// expect: mha: record(tape) of a temporary tape
#include <mha/mha.hpp>

using Tape = mha::AttentionTape<float, mha::Reference>;

auto result([[maybe_unused]] Tape& tape) {
#ifdef MHA_FAIL
  return mha::record(Tape());
#else
  return mha::record(tape);
#endif
}
