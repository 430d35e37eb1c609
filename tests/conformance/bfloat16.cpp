// SPDX-License-Identifier: Apache-2.0
#include "run_machine.hpp"

template void conformance::run<mha::bfloat16>(const Case&, support::Random&);
