// SPDX-License-Identifier: Apache-2.0
#include "run_machine.hpp"

template void conformance::run<double>(const Case&, support::Random&);
template void conformance::run_own_types<double>(const Case&, support::Random&);
