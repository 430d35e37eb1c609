// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels ran on: this machine's instruction sets and matrix units, and what it lacks.
#include <cstdio>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

int main() {
  std::printf("instruction sets:");
  for (const mha::IsaLevel level : {mha::IsaLevel::baseline, mha::IsaLevel::avx2, mha::IsaLevel::avx512})
    std::printf(level <= mha::best_isa() ? " %s" : " (not %s)", to_string(level));
  std::printf("; matrix units:");
  for (const mha::MatrixUnit unit : {mha::MatrixUnit::portable, mha::MatrixUnit::dot_product, mha::MatrixUnit::amx})
    std::printf(mha::missing(unit).empty() ? " %s" : " (not %s)", to_string(unit));
  std::printf("\n");
}
