// SPDX-License-Identifier: Apache-2.0
// The one file of a program without CMake that compiles the kernels.
#include <mha/compiled.hpp>
