// SPDX-License-Identifier: Apache-2.0
// expect: mha: a backend on a device computes no gradients of the numbers of a layer's score
#include <span>

#include <mha/mha.hpp>

// A backend that computes in other memory than the host's.
struct Device : mha::Reference {
  static constexpr mha::Memory memory = mha::Memory::device;
  template <class T, int Rank> using Tensor = mha::Tensor<T, Rank>;
  template <class T> struct Upload {
    const T* data() const { return nullptr; }
  };
  template <class I> void for_each_item(const I& items, Workspace&) const { mha::detail::run_serially(items); }
  template <class Frame> const mha::Index* stage(const mha::Index* n, mha::Index, Frame&, Workspace&) const {
    return n;
  }
  template <class T> Upload<T> upload(std::span<const T>) const { return {}; }
  template <class P> P keep(const P& policy) const { return policy; }
  void require_reachable(const char*, const char*, const void*) const {}
};

void use(const mha::MultiHeadAttention<float, Device, mha::AlibiSlopes>& layer) {
#ifdef MHA_FAIL
  static_cast<void>(layer.tape());
#else
  static_cast<void>(layer.parameters());
#endif
}
