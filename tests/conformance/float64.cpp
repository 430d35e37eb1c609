// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

template void conformance::run<double, conformance::Storage::float64>(const Case&, support::Random&);
