// SPDX-License-Identifier: Apache-2.0
// Linears, feed-forwards and norms on every machine against loops in double; every two levels of different factors meet
// in a case.
#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "far_transport.hpp"
#include "run_linear.hpp"
#include "run_norm.hpp"

namespace {

using blocks::Machine;

template <Machine> struct BackendOf { using type = mha::Reference; };
template <> struct BackendOf<Machine::cpu> { using type = mha::Cpu; };
template <> struct BackendOf<Machine::systolic> { using type = mha::Systolic<>; };
template <> struct BackendOf<Machine::eigen> { using type = mha::EigenCpu; };
template <> struct BackendOf<Machine::far> { using type = support::Far; };

TEST(LinearConformance, EveryPairOfLevelsAgreesWithLoops) {
  blocks::run_linears<BackendOf>({Machine::reference, Machine::cpu, Machine::systolic, Machine::eigen, Machine::far});
}

TEST(NormConformance, EveryPairOfLevelsAgreesWithLoops) {
  blocks::run_norms<BackendOf>({Machine::reference, Machine::cpu, Machine::systolic, Machine::eigen, Machine::far});
}

}  // namespace
