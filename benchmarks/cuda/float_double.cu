// SPDX-License-Identifier: Apache-2.0
#include "ours.cuh"

MHA_BENCH_SCALAR(float);
MHA_BENCH_SCALAR(double);
