// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this norm has weights but no member items(x, weight)
#include <mha/mha.hpp>

struct Bare {
  static constexpr mha::Role role = mha::Role::norm;
  static constexpr const char* name = "Bare";
  static constexpr bool has_weights = true;
  void check() const {}
};

#ifdef MHA_FAIL
using Norm = Bare;
#else
using Norm = mha::QkNorm;
#endif

using Layer = mha::MultiHeadAttention<float, mha::Cpu, Norm>;
auto result(const Layer& layer, const mha::TensorView<const float, 2>& x) { return layer(x); }
