// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's runtime as the backend's host code asks for. Two devices, whose memory is far memory; what is done
// with one's while the other is current is an error, or a crash. A stream does at once what it is told, but for copies
// from pinned memory (far_stream.hpp). While it is being recorded, what CUDA forbids then is an error.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "far_backend.hpp"
#include "far_stream.hpp"

namespace {

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  int device;
};
/// While one lives, the device is the current one.
class On {
 public:
  explicit On(int device) : before_(std::exchange(support::FarMemory::current, device)) {}
  On(const On&) = delete;
  On& operator=(const On&) = delete;
  ~On() { support::FarMemory::current = before_; }

 private:
  int before_;
};
using Graph = std::vector<std::function<void()>>;
struct State {
  std::deque<Copy> enqueued;
  std::size_t made = 0;  ///< copies, since the beginning
  std::map<const std::byte*, std::size_t> pinned;
  bool recording = false, broken = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;  // of the thread
  cudaStream_t recorded_stream = nullptr;
  Graph recorded;
  int allocations = 0, pinned_copies = 0, switches = 0, waits = 0;

  bool is_pinned(const void* p, std::size_t bytes) const {
    const auto* const first = static_cast<const std::byte*>(p);
    auto block = pinned.upper_bound(first);
    if (block == pinned.begin()) return false;
    --block;
    return first + bytes <= block->first + block->second;
  }
  void make_until(std::size_t count) {
    for (; made < count && !enqueued.empty(); ++made, enqueued.pop_front()) {
      const On on(enqueued.front().device);
      const support::Kernel open;
      std::memcpy(enqueued.front().to, enqueued.front().from, enqueued.front().bytes);
    }
  }
  void make_all() { make_until(made + enqueued.size()); }
};
// Never destroyed: a Workspace that lives as long as the program frees its memory after other statics are gone.
State& state() {
  static State& only = *new State;
  return only;
}

struct Event {
  std::size_t after = 0;
};
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

/// What a call that waits returns.
cudaError_t waited() {
  if (state().recording) return cudaErrorStreamCaptureUnsupported;
  ++state().waits;
  state().make_all();
  return cudaSuccess;
}

bool is_here(const void* p) { return support::FarMemory::device_of(p) == support::FarMemory::current; }
bool fits(const void* to, const void* from, cudaMemcpyKind kind) {
  return kind == cudaMemcpyHostToDevice   ? is_here(to) && !support::FarMemory::holds(from)
         : kind == cudaMemcpyDeviceToHost ? is_here(from) && !support::FarMemory::holds(to)
                                          : false;
}

}  // namespace

void support::FarStream::enqueue(std::function<void()> kernel) {
  if (state().recording)
    return state().recorded.push_back([kernel = std::move(kernel), device = FarMemory::current] {
      const On on(device);
      const Kernel open;
      kernel();
    });
  state().make_all();
  const support::Kernel open;
  kernel();
}
void support::FarStream::catch_up() { state().make_all(); }
int support::FarStream::allocations() { return state().allocations; }
std::size_t support::FarStream::recorded() { return state().recorded.size(); }
int support::FarStream::switches() { return state().switches; }
int support::FarStream::pinned_copies() { return state().pinned_copies; }
int support::FarStream::waits() { return state().waits; }

extern "C" {

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  if (bytes == 0) return cudaErrorInvalidValue;
  if (state().recording) return cudaErrorStreamCaptureUnsupported;
  ++state().allocations;
  *p = support::FarMemory::allocate((bytes + 255) / 256 * 256);
  return cudaSuccess;
}
// Where a thread has not said otherwise, it ends a recording.
cudaError_t cudaFree(void* p) {
  if (p != nullptr && !is_here(p)) std::abort();
  if (p == nullptr) return cudaSuccess;
  if (!state().recording) return waited();
  if (state().mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  state().broken = true;
  return cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, state().mode);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = support::FarMemory::devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= support::FarMemory::devices) return cudaErrorInvalidDevice;
  support::FarMemory::current = device;
  ++state().switches;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return waited(); }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  state().recording = true;
  state().recorded_stream = stream;
  state().recorded.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  state().recording = false;
  if (std::exchange(state().broken, false)) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Graph(std::exchange(state().recorded, {})));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  // The default stream waits for others, so that it may not be asked about while one is recorded.
  if (state().recording && stream != state().recorded_stream && stream == nullptr)
    return cudaErrorStreamCaptureImplicit;
  *status = state().recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (state().recording) return cudaErrorStreamCaptureUnsupported;
  for (const auto& kernel : *reinterpret_cast<Graph*>(graph)) support::FarStream::enqueue(kernel);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (!fits(to, from, kind)) return cudaErrorInvalidValue;
  if (const cudaError_t status = waited(); status != cudaSuccess) return status;
  const support::Kernel open;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (!fits(to, from, kind)) return cudaErrorInvalidValue;
  if (state().recording) {  // reads what is there when the graph is launched
    support::FarStream::enqueue([=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
  }
  state().enqueued.push_back({to, from, bytes, support::FarMemory::current});
  if (kind != cudaMemcpyHostToDevice || !state().is_pinned(from, bytes))
    state().make_all();
  else
    ++state().pinned_copies;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (!is_here(to)) return cudaErrorInvalidValue;
  support::FarStream::enqueue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return state().recording ? cudaErrorStreamCaptureImplicit : cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  if (state().recording) return cudaErrorStreamCaptureUnsupported;
  *p = std::malloc(bytes);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  state().pinned[static_cast<const std::byte*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t status = waited(); status != cudaSuccess) return status;
  state().pinned.erase(static_cast<const std::byte*>(p));
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event_of(event)->after = state().made + state().enqueued.size();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (state().recording) return cudaErrorCapturedEvent;
  state().make_until(event_of(event)->after);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the runtime for tests"; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const int device = support::FarMemory::device_of(p);
  attributes->type = device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = device;
  attributes->devicePointer = device >= 0 ? const_cast<void*>(p) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = support::FarMemory::current;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

}  // extern "C"
