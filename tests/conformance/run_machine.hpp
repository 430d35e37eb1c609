// SPDX-License-Identifier: Apache-2.0
// One conformance case on the backend it names, in a scalar; included once per scalar, so that the compiler's work is
// spread.
#pragma once

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>

#include "plain_backend.hpp"
#include "run_case.hpp"

namespace conformance {

template <class T> void run(const Case& which, support::Random& random) {
  switch (which.at<Machine>(machine)) {
    case Machine::pool:
      return run_on<mha::Cpu, T>(which, random);
    case Machine::serial:
      return run_on<mha::CpuWith<mha::Serial>, T>(which, random);
    case Machine::eigen:
      return run_on<mha::EigenCpu, T>(which, random);
    case Machine::plain:
      return run_on<support::PlainBackend, T>(which, random);
  }
}

template <class T> void run_own_types(const Case& which, support::Random& random) {
  run_on<mha::Cpu, T, PolicyTypes::own>(which, random);
}

}  // namespace conformance
