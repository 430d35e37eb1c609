// SPDX-License-Identifier: Apache-2.0
// Both optional components in one program: OpenMP gives the values of the serial executor, io refuses a missing file.
#include <cstdio>
#include <Eigen/Core>
#include <exception>

#include <mha/io.hpp>
#include <mha/mha.hpp>
#include <mha/openmp.hpp>

int main() {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix q = Matrix::Random(40, 16), k = Matrix::Random(40, 16), v = Matrix::Random(40, 16);  // (L, D)
  const Matrix parallel = mha::attention<mha::CpuWith<mha::OpenMp>>(q, k, v, mha::Causal{});
  const Matrix serial = mha::attention<mha::CpuWith<mha::Serial>>(q, k, v, mha::Causal{});
  if (parallel != serial) return 1;

  try {
    mha::Safetensors file("no such file.safetensors");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 2;
}
