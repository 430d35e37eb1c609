// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <mha/backend/cuda/device_tensor.hpp>

namespace support {

/// How tests bring numbers to a device of CUDA and back: what Transport asks for.
struct CudaMemory {
  template <class T> class Copy {
   public:
    Copy(const T* here, std::size_t n) : there_(mha::to_device(mha::view(here, static_cast<mha::Index>(n)))) {}
    T* data() { return there_.data(); }
    void fetch(T* here, std::size_t n) {
      mha::cuda::check(cudaMemcpy(here, there_.data(), n * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    }

   private:
    mha::DeviceTensor<T, 1> there_;
  };
  template <class Tensor> static auto fetched(const Tensor& there) { return mha::to_host(there); }
  static void set_bytes(void* there, int value, std::size_t n) {
    mha::cuda::check(cudaMemset(there, value, n), "cudaMemset");
  }
};

}  // namespace support
