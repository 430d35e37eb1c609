// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's runtime as the backend's host code asks for: device memory is far memory, a stream does at once
// what it is told.
#include <cstdlib>
#include <cstring>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "far_backend.hpp"

extern "C" {

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  *p = support::FarMemory::allocate((bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool far_to = support::FarMemory::holds(to), far_from = support::FarMemory::holds(from);
  if (far_to != (kind == cudaMemcpyHostToDevice) || far_from != (kind == cudaMemcpyDeviceToHost))
    return cudaErrorInvalidValue;
  const support::Kernel open;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (!support::FarMemory::holds(to)) return cudaErrorInvalidValue;
  const support::Kernel open;
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  *p = std::malloc(bytes);
  return *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the runtime for tests"; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  attributes->devicePointer = support::FarMemory::holds(p) ? const_cast<void*>(p) : nullptr;
  return cudaSuccess;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

}  // extern "C"
