// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <mha/backend/simd/isa.hpp>

namespace support {

/// f() at every level of this machine, from the baseline on; then the level is again what it was.
template <class F> void at_every_isa(F&& f) {
  struct Restored {
    mha::IsaLevel level = mha::current_isa();
    ~Restored() { mha::force_isa(level); }
  } const restored;
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    SCOPED_TRACE(mha::to_string(mha::current_isa()));
    f();
  }
}

}  // namespace support
