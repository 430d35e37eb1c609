// SPDX-License-Identifier: Apache-2.0
#include "simulated.hpp"

TEST(SimulatedCuda, AgreesWithTheDoubleReferenceInFloat) { simulated::expect_agreement<float>(); }
