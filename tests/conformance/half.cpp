// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

template void conformance::run<mha::half, conformance::Storage::half>(const Case&, support::Random&);
