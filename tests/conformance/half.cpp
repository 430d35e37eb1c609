// SPDX-License-Identifier: Apache-2.0
#include "run_machine.hpp"

template void conformance::run<mha::half>(const Case&, support::Random&);
