// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "../../core/check.hpp"
#include "../../core/host_memory.hpp"
#include "device_memory.hpp"
#include "products.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// What calls on a stream of the user's need from one to the next: scratch on the device and the host, the handle of
/// cuBLASLt, pinned memory for a call's small numbers.
///
/// Calls given one are enqueued in its stream and return at once. After the first call of a shape no other allocates or
/// waits, so that it can be recorded in a CUDA graph. A ragged call cannot: its numbers travel through pinned memory, a
/// block of which each of the first 64 transfers allocates. A step of a cache can: see RecordedStep. A graph holds
/// addresses of the workspace: it must outlive the graph, and a call of a larger shape, which makes it grow, ends the
/// graph's use. One workspace serves one thread and one stream on the device of its first call; what it holds is freed
/// by its destructor, which waits.
class Workspace {
 public:
  static constexpr bool is_workspace = true;

  explicit Workspace(cudaStream_t stream = nullptr) : stream_(stream) {}

  cudaStream_t stream() const { return stream_; }

  /// One allocation of at least this many bytes on the device, which is the current one. Only between calls.
  void reserve(std::size_t bytes) {
    bind();
    device_.reserve(bytes);
  }
  /// The device whose memory it holds from its first call on: the current one.
  ///
  /// Errors    ShapeError if the first call was on another
  void bind() {
    int here = any_device;
    if (cudaGetDevice(&here) != cudaSuccess) {  // the call will say that there is none
      static_cast<void>(cudaGetLastError());
      return;
    }
    if (number_ == any_device) number_ = here;
    mha::detail::require(number_ == here, "Cuda: the workspace is of device ", number_,
                         ", where its first call was, but this call is on device ", here,
                         ": each device needs a workspace of its own");
  }
  /// Bytes held on the device, counters aside.
  std::size_t bytes() const { return device_.bytes(); }
  /// How often memory of the device was allocated since construction, counters aside.
  int allocations() const { return device_.allocations(); }

  /// What is taken while a Frame lives is given back when it ends: to calls that follow in the same stream.
  class Frame {
   public:
    explicit Frame(Workspace& w) : device_(w.device_), host_(w.host_) {}
    template <class T> T* take(std::size_t n) { return device_.template take<T>(n); }
    template <class T> T* take_host(std::size_t n) { return host_.template take<T>(n); }

   private:
    typename Arena<DeviceMemory>::Frame device_;
    typename Arena<HostMemory>::Frame host_;
  };
  Frame frame() { return Frame(*this); }

  /// Numbers of the host's in memory of the frame, by the time the stream gets there.
  ///
  /// Errors    ShapeError, before anything is allocated, if the stream is being recorded
  const Index* stage(const Index* from, std::size_t n, Frame& frame) {
    if (n > 0) require_sendable();
    Index* const to = frame.template take<Index>(n);
    send(from, n, to);
    return to;
  }
  /// The same in memory of the device's that stays.
  void send(const Index* from, std::size_t n, Index* to) {
    if (n == 0) return;
    require_sendable();
    if (ring_ == nullptr) ring_ = std::make_unique<StagingRing>();
    ring_->send(to, from, n * sizeof(Index), stream_);
  }
  /// Throws what stage() and send() would.
  void require_sendable() const { require_not_recorded(stream_); }

  /// n numbers that are 0 whenever no kernel of the stream is at work on them: who counts up counts back to 0.
  unsigned* counters(std::size_t n) {
    if (counters_.size() < n) {
      DeviceArray<unsigned> more(n);
      check(cudaMemsetAsync(more.data(), 0, n * sizeof(unsigned), stream_), "cudaMemsetAsync");
      counters_ = std::move(more);
    }
    return counters_.data();
  }

  Products& products() { return products_; }

 private:
  cudaStream_t stream_;
  int number_ = any_device;
  Arena<DeviceMemory> device_;
  Arena<HostMemory> host_;
  std::unique_ptr<StagingRing> ring_;
  DeviceArray<unsigned> counters_;
  Products products_;
};

/// What a call in the workspace holds.
[[nodiscard]] inline DeviceGuard entered(int device, Workspace& workspace) {
  return DeviceGuard(device, [&] { workspace.bind(); });
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
