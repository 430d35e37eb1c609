// SPDX-License-Identifier: Apache-2.0
// A program of the component mha::cuda: kernels of one unit beside a unit of the host's compiler. Without a GPU it
// tells why nothing is computed.
#include <cmath>
#include <cstdio>

#include <mha/cuda.cuh>

std::size_t bytes_of(const mha::DeviceTensor<float, 4>& tensor);  // in host.cpp

int main() {
  std::printf("%s\n", mha::Cuda{}.explain<mha::bfloat16>({{1, 8, 512, 512, 0}, 8, 64, 64}).c_str());
  if (bytes_of({}) != 0) return 1;
  if (const mha::Support here = mha::Cuda{}.supported(); !here.ok) {
    std::printf("not computed: %s\n", here.reason.c_str());
    return 0;
  }
  mha::Tensor<float, 4> x(1, 5, 2, 8);
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(float(i));
  const auto there = mha::to_device(x);
  if (bytes_of(there) != x.size() * sizeof(float)) return 1;
  const auto weights = mha::to_host(mha::attention_weights<mha::Cuda>(there, there, mha::Causal{}));
  for (int h = 0; h < 2; ++h)
    for (int q = 0; q < 5; ++q) {
      float sum = 0;
      for (int k = 0; k < 5; ++k) sum += weights(0, h, q, k);
      if (!(std::fabs(sum - 1) < 1e-5f) || (q < 4 && weights(0, h, q, q + 1) != 0)) return 1;
    }
  return 0;
}
