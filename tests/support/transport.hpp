// SPDX-License-Identifier: Apache-2.0
// How a test's numbers, made on the host, get to where a backend computes, and back.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include <mha/backend/backend.hpp>

namespace support {

/// The memory that the host does not reach of a backend that computes there; a test specialises it and includes
///   template <class T> class Copy       Copy(const T* here, size_t n); T* data(), there; void fetch(T* here, size_t n)
///   static auto fetched(const Tensor&)  a Tensor of the host's from one there
///   static void set_bytes(void* there, int value, size_t n)
template <class B> struct MemoryOf;

/// The host's: nothing needs to move.
template <class B> struct Transport {
  /// there(view) is what a view of the container's memory is to the backend; fetch() brings back what it has written.
  template <class Container> struct Memory {
    explicit Memory(Container&) {}
    template <class T, int Rank> mha::TensorView<T, Rank> there(const mha::TensorView<T, Rank>& v) { return v; }
    void fetch() {}
  };
  template <class P> static const P& policy(const P& p) { return p; }
  template <class Tensor> static const Tensor& fetched(const Tensor& tensor) { return tensor; }
  static void set_bytes(void* to, int value, std::size_t n) { std::memset(to, value, n); }
};
template <class B>
requires(!mha::detail::computes_on_host<B>) struct Transport<B> : MemoryOf<B> {
  template <class Container> class Memory {
    using T = std::remove_cvref_t<decltype(*std::declval<Container&>().data())>;

   public:
    explicit Memory(Container& here) : here_(here), there_(here.data(), here.size()) {}
    template <class E, int Rank> mha::TensorView<E, Rank> there(mha::TensorView<E, Rank> v) {
      v.data = there_.data() + (v.data - here_.data());
      return v;
    }
    void fetch() { there_.fetch(here_.data(), here_.size()); }

   private:
    Container& here_;
    typename MemoryOf<B>::template Copy<T> there_;
  };
  template <class P> static auto policy(const P& p) { return B{}.keep(p); }
};

template <class B, class Container> auto transported(Container& here) {
  return typename Transport<B>::template Memory<Container>(here);
}

/// Leaves NaN in all memory that a backend's workspace holds, so that a read of what was never written shows.
template <class B> void poison(typename B::Workspace& workspace) {
  const std::size_t bytes = workspace.bytes();
  if (bytes == 0) return;
  auto frame = workspace.frame();
  Transport<B>::set_bytes(frame.template take<unsigned char>(bytes), 0xff, bytes);
}

}  // namespace support
