// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "../../core/check.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A call of CUDA or cuBLASLt that failed: "cudaMalloc: cudaErrorMemoryAllocation, out of memory".
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace cuda {

/// Throws unless the call of this name succeeded. CUDA's own memory of the last error is cleared.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  mha::detail::throw_error(
      CudaError(std::string(call) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status)));
}
inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    mha::detail::throw_error(
        CudaError(std::string(call) + ": " + cublasLtGetStatusName(status) + ", " + cublasLtGetStatusString(status)));
}

}  // namespace cuda

}  // namespace mha::inline MHA_NAMESPACE
