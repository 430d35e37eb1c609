// SPDX-License-Identifier: Apache-2.0
#include "simulated.hpp"

TEST(SimulatedCuda, AgreesWithTheDoubleReferenceInHalf) { simulated::expect_agreement<mha::half>(); }
