// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <mha/backend/simd/isa.hpp>

namespace unit {

/// f(tag) for every instruction-set level of this machine.
template <class F> void for_each_level(F&& f) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    SCOPED_TRACE(mha::to_string(static_cast<mha::IsaLevel>(level)));
    mha::detail::simd::with_isa(static_cast<mha::IsaLevel>(level), [&](auto isa) {
      f(isa);
      return 0;
    });
  }
}

}  // namespace unit
