// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/cuda/cuda.cuh>
#include <mha/core/stored_row.hpp>

#include "gpu.hpp"

namespace {

using mha::Cuda;

TEST(CudaBackend, SaysWhyItCannotRun) {
  const mha::Support support = Cuda{}.supported();
  EXPECT_EQ(support.ok, support.reason.empty());
  if (support::no_gpu() == nullptr) return;
  EXPECT_FALSE(support.ok);
  const mha::DenseWeights<float> none[1] = {};
  try {
    Cuda{}.pack(std::span<const mha::DenseWeights<float>>(none));
    ADD_FAILURE() << "weights without a device";
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(std::string(e.what()), "layer: Cuda cannot run here: " + support.reason);
  }
}

TEST(CudaBackend, NamesADeviceThatIsMissing) {
  constexpr Cuda missing{.device = 4096};
  EXPECT_FALSE(missing.supported().ok);
  EXPECT_THROW(static_cast<void>(missing.enter()), std::runtime_error);
  if (support::no_gpu() == nullptr)
    EXPECT_NE(missing.supported().reason.find("there is no device 4096"), std::string::npos);
  EXPECT_NE(missing.explain<float>({{2, 8, 512, 512, 0}, 2, 64, 64}).find("no device is here"), std::string::npos);
}

TEST(CudaBackend, ExplainsItsPlanWithAndWithoutADevice) {
  const std::string text = Cuda{}.explain<mha::bfloat16>({{2, 8, 512, 512, 0}, 2, 64, 64});
  EXPECT_NE(text.find("tensor cores in bfloat16"), std::string::npos) << text;
  EXPECT_EQ(text.find("no device is here") == std::string::npos, Cuda{}.supported().ok) << text;
}

// In its host code; the compiler once failed on a conversion of bits inside of a template.
TEST(CudaBackend, ItsCompilerKnowsRowsInEightBits) {
  const float numbers[] = {1.0f, -0.5f, 0.25f};
  mha::scaled_int8 row[4 + 3];
  mha::quantize_row(numbers, 3, row + 4);
  float read[3];
  mha::read_row(row + 4, 3, read);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(read[i], numbers[i], 1.0f / 254);
}

}  // namespace
