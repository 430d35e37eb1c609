// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../core/check.hpp"
#include "../../core/workspace.hpp"
#include "device.hpp"

/// Memory of the device that is current when it is taken.
namespace mha::inline MHA_NAMESPACE::cuda {

/// What an Arena takes. Giving memory back waits for the device, so that nothing that still runs loses it.
struct DeviceMemory {
  static constexpr std::size_t alignment = 256;  ///< what cuBLASLt wants of its scratch
  /// Null for no bytes: what CUDA makes of them is not documented.
  ///
  /// Errors    CudaError
  static std::byte* allocate(std::size_t bytes) {
    void* p = nullptr;
    const cudaError_t status = bytes > 0 ? cudaMalloc(&p, bytes) : cudaSuccess;
    constexpr const char* recorded =
        "cudaMalloc of memory in a recording, where none can be had: give a call its result by into(y), and make one "
        "of its shape in its workspace before the recording";
    check(status, status == cudaErrorStreamCaptureUnsupported ? recorded : "cudaMalloc");
    return static_cast<std::byte*>(p);
  }
  // A failure cannot be reported here; the next call reports it too. Its own device is waited for.
  static void free(void* p) noexcept {
    cudaPointerAttributes of_p{};
    const bool known = p != nullptr && cudaPointerGetAttributes(&of_p, p) == cudaSuccess;
    release_on(known && of_p.type == cudaMemoryTypeDevice ? of_p.device : any_device, [&] {
      // Amid a recording cudaFree would end it, though nothing that is recorded has this memory.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
      static_cast<void>(cudaFree(p));
      static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    });
  }
};

struct DeviceFree {
  void operator()(void* p) const noexcept { DeviceMemory::free(p); }
};
template <class T> using DevicePointer = std::unique_ptr<T[], DeviceFree>;

/// n uninitialised elements; null for none.
template <class T> DevicePointer<T> device_array(std::size_t n) {
  static_assert(std::is_trivially_copyable_v<T>,
                "mha: device memory holds trivial types only (see mha/backend/cuda/device_memory.hpp)");
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(n, sizeof(T), &bytes)) mha::detail::throw_error(std::bad_array_new_length());
  return DevicePointer<T>(reinterpret_cast<T*>(DeviceMemory::allocate(bytes)));
}

/// Elements of the host's, copied to the device when it is made; they are there, for any stream, when that returns.
template <class T> class DeviceArray {
 public:
  DeviceArray() = default;
  /// Uninitialised.
  explicit DeviceArray(std::size_t n) : data_(device_array<T>(n)), size_(n) {}
  explicit DeviceArray(std::span<const T> from) : data_(device_array<T>(from.size())), size_(from.size()) {
    if (from.empty()) return;
    check(cudaMemcpy(data_.get(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  DeviceArray(DeviceArray&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    data_ = std::move(other.data_);
    return *this;
  }

  const T* data() const { return data_.get(); }
  T* data() { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  DevicePointer<T> data_;
  std::size_t size_ = 0;
};

/// Checks that numbers may go between the host and the stream.
///
/// Errors    ShapeError if it is being recorded: every replay would copy what the pinned memory has by then, and the
///           host cannot wait for it; or if it is the default stream and another that it waits for is being recorded
inline void require_not_recorded(cudaStream_t stream) {
  cudaStreamCaptureStatus recorded{};
  const cudaError_t status = cudaStreamIsCapturing(stream, &recorded);
  // What the default stream says while another is recorded that it would wait for.
  const bool beside = status == cudaErrorStreamCaptureImplicit;
  if (beside)
    static_cast<void>(cudaGetLastError());
  else
    check(status, "cudaStreamIsCapturing");
  mha::detail::require(!beside && recorded == cudaStreamCaptureStatusNone,
                       "Cuda: numbers go between the host and a stream that is being recorded: record no ragged call, "
                       "no Origin{positions}, no Positions, no ScoreGradient, no gradients.score of "
                       "attention_backward() and no to_host(), and make a cache's step before the recording, forks and "
                       "reorders too: call layer(x, step[i], mha::into(y)) in it");
}

/// Elements of the device's to the host's, once the stream has done what it was given; waits for that.
///
/// Errors    as require_not_recorded()
template <class T> void download(const T* from, std::span<T> to, cudaStream_t stream) {
  require_not_recorded(stream);
  if (!to.empty())
    check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

/// Pinned memory of the host through which a call's small numbers travel: one block after another, each used again when
/// the stream has read it. It waits only when all of them are still under way.
class StagingRing {
 public:
  StagingRing() = default;
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing() {
    for (Block& b : blocks_) {
      if (b.used != nullptr) {
        static_cast<void>(cudaEventSynchronize(b.used));
        static_cast<void>(cudaEventDestroy(b.used));
      }
      if (b.memory != nullptr) static_cast<void>(cudaFreeHost(b.memory));
    }
  }

  /// The bytes are on their way to `to` in the stream, which is not being recorded; `from` may change at once.
  void send(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    if (blocks_.empty()) blocks_.resize(count);
    Block& b = blocks_[next_];
    next_ = (next_ + 1) % count;
    if (b.used == nullptr)
      check(cudaEventCreateWithFlags(&b.used, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    else
      check(cudaEventSynchronize(b.used), "cudaEventSynchronize");
    if (b.size < bytes) {
      if (b.memory != nullptr) check(cudaFreeHost(std::exchange(b.memory, nullptr)), "cudaFreeHost");
      b.size = 0;
      const std::size_t size = bytes < least ? least : 2 * bytes;
      check(cudaMallocHost(&b.memory, size), "cudaMallocHost");
      b.size = size;
    }
    std::memcpy(b.memory, from, bytes);
    check(cudaMemcpyAsync(to, b.memory, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    check(cudaEventRecord(b.used, stream), "cudaEventRecord");
  }

 private:
  static constexpr std::size_t count = 64, least = 4096;
  struct Block {
    void* memory = nullptr;
    std::size_t size = 0;
    cudaEvent_t used = nullptr;
  };
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
