// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "check.hpp"
#include "host_memory.hpp"
#include "view.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

struct AlignedDelete {
  std::size_t count = 0;
  template <class T> void operator()(T* p) const {
    std::destroy_n(p, count);
    HostMemory::free(p);
  }
};

/// An aligned array of n value-initialised elements.
template <class T> std::unique_ptr<T[], AlignedDelete> aligned_array(std::size_t n) {
  if (n == 0) return {};
  if (n > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw_error(std::bad_array_new_length());
  T* const p = reinterpret_cast<T*>(HostMemory::allocate(n * sizeof(T)));
  MHA_TRY { std::uninitialized_value_construct_n(p, n); }
  MHA_CATCH(...) {
    HostMemory::free(p);
    MHA_RETHROW;
  }
  return std::unique_ptr<T[], AlignedDelete>(p, AlignedDelete{n});
}

/// The row-major view of an owner of this name, without data yet.
template <class T, class... I> TensorView<T, int{sizeof...(I)}> owned_shape(const char* name, I... extents) {
  const Index all[] = {as_extent(extents, name)...};
  int axis = 0;
  for (const Index extent : all) require(extent >= 0, name, ": extent ", extent, " on axis ", axis++);
  return row_major<int{sizeof...(I)}>(static_cast<T*>(nullptr), all, name);
}

}  // namespace detail

/// An owning, row-major, 64-byte aligned array with Rank axes, zero at first.
///
/// Errors    ShapeError on an extent that is negative or beyond an Index, or if all together are beyond any memory;
///           std::bad_alloc if this machine's memory does not hold them
template <class T, int Rank> class Tensor {
 public:
  static constexpr int rank = Rank;
  using Scalar = T;

  Tensor() = default;

  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == Rank) explicit Tensor(I... extents)
      : shape_(detail::owned_shape<T>("Tensor", extents...)), data_(detail::aligned_array<T>(size())) {}

  Tensor(const Tensor& other) : shape_(other.shape_), data_(detail::aligned_array<T>(other.size())) {
    std::copy_n(other.data(), size(), data());
  }
  Tensor(Tensor&& other) noexcept : shape_(std::exchange(other.shape_, {})), data_(std::move(other.data_)) {}
  Tensor& operator=(const Tensor& other) { return *this = Tensor(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    shape_ = std::exchange(other.shape_, {});
    data_ = std::move(other.data_);
    return *this;
  }
  ~Tensor() = default;

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(shape_.size()); }
  [[nodiscard]] Index extent(int axis) const { return shape_.extent[axis]; }

  [[nodiscard]] T* begin() { return data(); }
  [[nodiscard]] T* end() { return data() + size(); }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size(); }

  template <class... I>
  requires(sizeof...(I) == Rank) [[nodiscard]] T& operator()(I... i) { return view()(i...); }
  template <class... I>
  requires(sizeof...(I) == Rank) [[nodiscard]] const T& operator()(I... i) const { return view()(i...); }

  [[nodiscard]] TensorView<T, Rank> view() & {
    TensorView<T, Rank> v = shape_;
    v.data = data();
    return v;
  }
  [[nodiscard]] TensorView<const T, Rank> view() const& {
    TensorView<const T, Rank> v = shape_;
    v.data = data();
    return v;
  }
  void view() && = delete;
  void view() const&& = delete;

 private:
  TensorView<T, Rank> shape_;  // its data pointer stays null, so that copies and moves cannot dangle
  std::unique_ptr<T[], detail::AlignedDelete> data_;
};

template <class T, int Rank> struct ViewTraits<Tensor<T, Rank>> {
  using Scalar = T;
  static constexpr int rank = Rank;
  static constexpr Memory memory = Memory::host;
  static TensorView<T, Rank> view(Tensor<T, Rank>& t) { return t.view(); }
  static TensorView<const T, Rank> view(const Tensor<T, Rank>& t) { return t.view(); }
};

namespace detail {

/// An owner with the extents of v.
template <class Owner, class View> Owner owner_like(const View& v) {
  return [&]<std::size_t... Axis>(std::index_sequence<Axis...>) { return Owner(v.extent[Axis]...); }
  (std::make_index_sequence<std::size_t{View::rank}>());
}

/// What attention and the layer return for an input of this type: the backend's tensor, unless the input's ViewTraits
/// know better (Eigen).
template <class Owner, template <class, int> class TensorOf = Tensor> struct ResultOf {
  using Traits = ViewTraits<Owner>;
  template <class... I> static auto make(I... extents) {
    if constexpr (requires { Traits::make(extents...); })
      return Traits::make(extents...);
    else
      return TensorOf<typename Traits::Scalar, static_cast<int>(sizeof...(I))>(extents...);
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
