// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace support {

/// Why no kernel can run here; empty where one can.
inline const char* no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return nullptr;
  static_cast<void>(cudaGetLastError());
  return status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status);
}

/// Whether kernels may follow pointers to any memory of the host, so that none need be refused.
inline bool reads_host_memory() {
  int device = 0, reads = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, device) == cudaSuccess && reads != 0;
}

}  // namespace support

/// First in a test that runs kernels.
#define MHA_NEEDS_GPU() \
  if (const char* const reason = support::no_gpu()) GTEST_SKIP() << "this test runs on a GPU only: " << reason
