// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <cstdlib>
#include <stdexcept>

#include <mha/systolic.hpp>

void models::require_unit(Machine machine) {
  const char* const asked = std::getenv("MHA_MATRIX_UNIT");
  const bool named = asked != nullptr && *asked != '\0';
  if (machine == Machine::systolic && !named && mha::best_unit() == mha::MatrixUnit::portable)
    throw std::runtime_error("--backend systolic needs a matrix unit, but " + mha::missing(mha::MatrixUnit::amx) +
                             ": take --backend cpu, or set MHA_MATRIX_UNIT=portable to emulate one");
}
