// SPDX-License-Identifier: Apache-2.0
#include "run_simulated.hpp"

template void simulated::run<mha::half>(const conformance::Case&, support::Random&, conformance::Index);
