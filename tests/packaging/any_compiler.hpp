// SPDX-License-Identifier: Apache-2.0
// Before a source: the system's headers and Eigen's as this compiler needs them, ours as one that they do not know.
#pragma once

#define EIGEN_RUNTIME_NO_MALLOC
#include <Eigen/Core>

#include <bits/stdc++.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#undef __GNUC__
#undef __clang__
#undef EIGEN_RUNTIME_NO_MALLOC
