// SPDX-License-Identifier: Apache-2.0
// expect: mha: a tensor lies in the memory of another machine than the one this backend computes on
#include <mha/attention.hpp>

struct OnADevice {
  mha::Tensor<float, 2> numbers;
};
template <> struct mha::ViewTraits<OnADevice> {
  using Scalar = float;
  static constexpr int rank = 2;
#ifdef MHA_FAIL
  static constexpr mha::Memory memory = mha::Memory::device;
#else
  static constexpr mha::Memory memory = mha::Memory::host;
#endif
  static mha::TensorView<const float, 2> view(const OnADevice& x) { return x.numbers.view(); }
};

auto result(const OnADevice& x) { return mha::attention(x, x, x); }
