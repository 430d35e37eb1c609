// SPDX-License-Identifier: Apache-2.0
#include "run_machine.hpp"

template void conformance::run<float>(const Case&, support::Random&);
template void conformance::run_own_types<float>(const Case&, support::Random&);
