// SPDX-License-Identifier: Apache-2.0
// One conformance case on SimulatedCuda in a scalar; compiled once per scalar, so that the compiler's work is spread.
#pragma once

#include "../conformance/cases.hpp"

namespace simulated {

/// Which masks and scores meet in a scalar: every two of them in one of the four.
constexpr bool compiled(int storage, int mask, int score) { return (storage + mask + score) % 4 == 0; }

/// start: where the tensors lie, in elements from a multiple of 16 bytes.
template <class T> void run(const conformance::Case& which, support::Random& random, conformance::Index start);
extern template void run<float>(const conformance::Case&, support::Random&, conformance::Index);
extern template void run<double>(const conformance::Case&, support::Random&, conformance::Index);
extern template void run<mha::half>(const conformance::Case&, support::Random&, conformance::Index);
extern template void run<mha::bfloat16>(const conformance::Case&, support::Random&, conformance::Index);

}  // namespace simulated
