// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

template void conformance::run<mha::bfloat16, conformance::Storage::bfloat16>(const Case&, support::Random&);
