// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

template void conformance::run<float, conformance::Storage::float32>(const Case&, support::Random&);
