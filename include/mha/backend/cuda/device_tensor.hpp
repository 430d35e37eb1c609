// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "../../core/check.hpp"
#include "../../core/tensor.hpp"
#include "../../core/view.hpp"
#include "device_memory.hpp"

namespace mha::inline MHA_NAMESPACE {

/// An owning, row-major array with Rank axes in the memory of the current device, uninitialised.
///
/// It moves and does not copy: to_device() and to_host() do. Its elements are the device's: its view goes to calls.
/// Errors    ShapeError on an extent that is negative or beyond an Index; CudaError if the device has no more memory
template <class T, int Rank> class DeviceTensor {
 public:
  static constexpr int rank = Rank;
  using Scalar = T;

  DeviceTensor() = default;

  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == Rank) explicit DeviceTensor(I... extents)
      : shape_(detail::owned_shape<T>("DeviceTensor", extents...)), data_(cuda::device_array<T>(size())) {}

  DeviceTensor(DeviceTensor&& other) noexcept
      : shape_(std::exchange(other.shape_, {})), data_(std::move(other.data_)) {}
  DeviceTensor& operator=(DeviceTensor&& other) noexcept {
    shape_ = std::exchange(other.shape_, {});
    data_ = std::move(other.data_);
    return *this;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return static_cast<std::size_t>(shape_.size()); }
  Index extent(int axis) const { return shape_.extent[axis]; }

  TensorView<T, Rank> view() & {
    TensorView<T, Rank> v = shape_;
    v.data = data();
    return v;
  }
  TensorView<const T, Rank> view() const& {
    TensorView<const T, Rank> v = shape_;
    v.data = data();
    return v;
  }
  void view() && = delete;
  void view() const&& = delete;

 private:
  TensorView<T, Rank> shape_;
  cuda::DevicePointer<T> data_;
};

template <class T, int Rank> struct ViewTraits<DeviceTensor<T, Rank>> {
  using Scalar = T;
  static constexpr int rank = Rank;
  static constexpr Memory memory = Memory::device;
  static TensorView<T, Rank> view(DeviceTensor<T, Rank>& t) { return t.view(); }
  static TensorView<const T, Rank> view(const DeviceTensor<T, Rank>& t) { return t.view(); }
};

namespace detail {

/// Row-major elements of v, whatever its strides.
template <class T, int Rank> void pack_row_major(const TensorView<const T, Rank>& v, T* to) {
  for (std::ptrdiff_t i = 0, n = v.size(); i < n; ++i) {
    std::ptrdiff_t rest = i, offset = 0;
    for (int a = Rank - 1; a >= 0; --a) {
      offset += rest % v.extent[a] * v.stride[a];
      rest /= v.extent[a];
    }
    to[i] = v.data[offset];
  }
}

}  // namespace detail

/// A copy of the host's numbers (a Tensor, a view, an Eigen matrix) on the device, row-major, in the stream's order.
///
/// The host does not wait for the stream. Memory that was pinned must stay as it is until the stream has copied it;
/// other memory is free when the call returns.
template <Viewable Owner> [[nodiscard]] auto to_device(const Owner& from, cudaStream_t stream = nullptr) {
  static_assert(detail::may_lie_in<Owner, Memory::host>(),
                "mha: to_device copies from the host (see mha/backend/cuda/device_tensor.hpp)");
  using T = ScalarOf<Owner>;
  constexpr int Rank = ViewTraits<Owner>::rank;
  const TensorView<const T, Rank> v = ViewTraits<Owner>::view(from);
  detail::require_data("to_device", "the tensor", v);
  auto to = detail::owner_like<DeviceTensor<T, Rank>>(v);
  Tensor<T, Rank> packed;
  const T* source = v.data;
  if (!is_contiguous(v) && v.size() > 0) {
    packed = detail::owner_like<Tensor<T, Rank>>(v);
    detail::pack_row_major(v, packed.data());
    source = packed.data();
  }
  if (to.size() > 0)
    cuda::check(cudaMemcpyAsync(to.data(), source, to.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
                "cudaMemcpyAsync");
  return to;
}

/// The same on the device that a backend names: to_device(x, mha::Cuda{.device = 1}).
template <Viewable Owner, cuda::NamesDevice B>
[[nodiscard]] auto to_device(const Owner& from, const B& backend, cudaStream_t stream = nullptr) {
  const auto held = backend.enter();
  return to_device(from, stream);
}

/// A copy on the host of what the tensor holds when the stream has done what it was given; waits for the stream.
///
/// Errors    ShapeError if a view is not row-major and contiguous
template <Viewable Owner> [[nodiscard]] auto to_host(const Owner& from, cudaStream_t stream = nullptr) {
  static_assert(detail::may_lie_in<Owner, Memory::device>(),
                "mha: to_host copies from the device (see mha/backend/cuda/device_tensor.hpp)");
  using T = ScalarOf<Owner>;
  constexpr int Rank = ViewTraits<Owner>::rank;
  const TensorView<const T, Rank> v = ViewTraits<Owner>::view(from);
  detail::require_data("to_host", "the tensor", v);
  detail::require(is_contiguous(v), "to_host: the view of ", v.size(), " elements must be row-major and contiguous");
  auto to = detail::owner_like<Tensor<T, Rank>>(v);
  // The default stream is that of the device which the calls before it ran on.
  const cuda::DeviceGuard held(stream == nullptr && to.size() > 0 ? cuda::device_of(v.data) : cuda::any_device);
  cuda::download(v.data, std::span<T>(to), stream);
  return to;
}

}  // namespace mha::inline MHA_NAMESPACE
