// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/cuda/error.hpp>

namespace {

template <class Status> std::string message(Status status, const char* call) {
  try {
    mha::cuda::check(status, call);
  } catch (const mha::CudaError& e) {
    return e.what();
  }
  return "";
}

TEST(CudaError, NamesTheCallAndWhatCudaSays) {
  EXPECT_EQ(message(cudaErrorMemoryAllocation, "cudaMalloc"), "cudaMalloc: cudaErrorMemoryAllocation, out of memory");
  EXPECT_EQ(message(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul").substr(0, 44),
            "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED,");
  EXPECT_EQ(message(cudaSuccess, "cudaMalloc"), "");
  EXPECT_EQ(message(CUBLAS_STATUS_SUCCESS, "cublasLtMatmul"), "");
}

}  // namespace
