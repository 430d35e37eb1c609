// SPDX-License-Identifier: Apache-2.0
#include "simulated.hpp"

TEST(SimulatedCuda, AgreesWithTheDoubleReferenceInBfloat16) { simulated::expect_agreement<mha::bfloat16>(); }
