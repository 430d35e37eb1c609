// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>

#include "../../core/check.hpp"
#include "../backend.hpp"
#include "error.hpp"

/// Which of a machine's devices a call computes on.
namespace mha::inline MHA_NAMESPACE::cuda {

/// In place of a number: the device that is the calling thread's current one when the call is made.
inline constexpr int any_device = -1;

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
inline int device_attribute(cudaDeviceAttr attribute, int device = any_device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device == any_device ? current_device() : device),
        "cudaDeviceGetAttribute");
  return value;
}

/// Whether the machine has the device.
inline Support device_exists(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return {false, status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status)};
  }
  if (device != any_device && (device < 0 || device >= count))
    return {false,
            "there is no device " + std::to_string(device) + ", the number of devices is " + std::to_string(count)};
  return {};
}

/// While one lives, its device is the calling thread's current one; the one before is current again after it. Nothing
/// is asked of CUDA for any_device.
///
/// Errors    std::runtime_error if there is no such device
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (device == any_device) return;
    int before = any_device;
    if (cudaGetDevice(&before) == cudaSuccess && before == device) return;
    if (const cudaError_t status = cudaSetDevice(device); status != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      if (const Support there = device_exists(device); !there.ok)
        mha::detail::throw_error(std::runtime_error("Cuda: " + there.reason));
      check(status, "cudaSetDevice");
    }
    before_ = before;
  }
  /// Then calls f(), after whose exception the device is as before too.
  template <class F> DeviceGuard(int device, const F& f) : DeviceGuard(device) { f(); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (before_ != any_device) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = any_device;
};

/// f() with the device current, for what is given back: if CUDA refuses that, as when the program ends, f() alone.
template <class F> void release_on(int device, const F& f) noexcept {
  int before = any_device;
  const bool elsewhere = device != any_device && cudaGetDevice(&before) == cudaSuccess && before != device &&
                         cudaSetDevice(device) == cudaSuccess;
  f();
  if (elsewhere) static_cast<void>(cudaSetDevice(before));
}

/// A backend whose value says which device is meant.
template <class B>
concept NamesDevice = requires(const B& backend) {
  { backend.device } -> std::convertible_to<int>;
  backend.enter();
};

/// The device that the memory is on; any_device if it is the host's, or managed.
inline int device_of(const void* p) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : any_device;
}

/// Whether a pointer is one that kernels of the current device may follow.
///
/// Errors    ShapeError that names the call and the tensor if it is plain memory of the host, or another device's
inline void require_device_pointer(const char* call, const char* tensor, const void* p) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice) {
    const int here = current_device();
    mha::detail::require(attributes.device == here, call, ": ", tensor, " is on device ", attributes.device,
                         ", but the call computes on device ", here);
  } else {
    mha::detail::require(
        attributes.devicePointer != nullptr, call, ": ", tensor,
        " is in host memory, but the backend computes on a device: copy it first with mha::to_device()");
  }
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
