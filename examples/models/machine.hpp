// SPDX-License-Identifier: Apache-2.0
// What a program's models compute on, where its user may choose.
#pragma once

namespace models {

/// The processor in float, or its matrix unit, which rounds the factors of products to bfloat16.
enum class Machine { cpu, systolic };

/// Errors    std::runtime_error if the machine is `systolic` and the processor has no such unit that is faster than its
///           vector code: Systolic would emulate one, slowly, which is for who names one by MHA_MATRIX_UNIT
void require_unit(Machine machine);

}  // namespace models
