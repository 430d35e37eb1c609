// SPDX-License-Identifier: Apache-2.0
#include <mha/compiled/systolic.hpp>

#if !defined(MHA_COMPILED)
#error \
    "mha: CMake could not compile a file with the flags of the directory that added or found mha: its log in CMakeFiles says why"
#else
static_assert(
    MHA_KERNELS_ELSEWHERE,
    "mha: mha::compiled has another -march= or -fno-exceptions than CMake was told: give it in CMAKE_CXX_FLAGS, or by "
    "add_compile_options() before mha is added or found, not to the target alone");
#endif

MHA_SYSTOLIC_KERNELS()
