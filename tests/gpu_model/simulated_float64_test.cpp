// SPDX-License-Identifier: Apache-2.0
#include "simulated.hpp"

TEST(SimulatedCuda, AgreesWithTheDoubleReferenceInDouble) { simulated::expect_agreement<double>(); }
