// SPDX-License-Identifier: Apache-2.0
// The cases of conformance for Linears, feed-forwards and norms on the CUDA backend on the host.
#include "../conformance/run_linear.hpp"
#include "../conformance/run_norm.hpp"
#include "far_cuda.hpp"

namespace {

using blocks::Machine;

template <Machine> struct BackendOf { using type = void; };
template <> struct BackendOf<Machine::far> { using type = support::FarCuda; };

TEST(FarBlocks, LinearsAgreeWithLoops) { blocks::run_linears<BackendOf>({Machine::far}, false); }
TEST(FarBlocks, NormsAgreeWithLoops) { blocks::run_norms<BackendOf>({Machine::far}, false); }

}  // namespace
