// SPDX-License-Identifier: Apache-2.0
// expect: mha: a backend on a device computes no gradients of a bias or of a score's own numbers
#include <mha/mha.hpp>

// A backend that computes in other memory than the host's.
struct Device : mha::Reference {
  static constexpr mha::Memory memory = mha::Memory::device;
  template <class T, int Rank> using Tensor = mha::Tensor<T, Rank>;
  template <class I> void for_each_item(const I& items, Workspace&) const { mha::detail::run_serially(items); }
  template <class Frame> const mha::Index* stage(const mha::Index* n, mha::Index, Frame&, Workspace&) const {
    return n;
  }
  void require_reachable(const char*, const char*, const void*) const {}
};

void result(mha::TensorView<float, 4> x, const mha::AttentionTape<float, Device>& tape, mha::SoftCap cap) {
#ifdef MHA_FAIL
  mha::attention_backward_into({x, x, x}, x, x, x, x, x, tape, cap, mha::ScoreGradient(cap));
#else
  mha::attention_backward_into({x, x, x}, x, x, x, x, x, tape, cap);
#endif
}
