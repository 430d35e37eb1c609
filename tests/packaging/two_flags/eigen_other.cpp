// SPDX-License-Identifier: Apache-2.0
#include "eigen.hpp"

bool eigen_calls_over_there() { return eigen_calls_are_right(); }
