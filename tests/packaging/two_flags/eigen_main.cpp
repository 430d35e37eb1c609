// SPDX-License-Identifier: Apache-2.0
#include "eigen.hpp"

int main() { return eigen_calls_are_right() && eigen_calls_over_there() && eigen_calls_are_right() ? 0 : 1; }
