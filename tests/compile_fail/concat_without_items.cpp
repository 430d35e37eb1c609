// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this concatenation has gates but no static member items(heads, gate)
#include <mha/mha.hpp>

struct Bare {
  static constexpr mha::Role role = mha::Role::concat;
  static constexpr const char* name = "Bare";
  static constexpr bool has_gates = true;
};

#ifdef MHA_FAIL
using Concat = Bare;
#else
using Concat = mha::GatedHeads;
#endif

using Layer = mha::MultiHeadAttention<float, mha::Cpu, Concat>;
auto result(const Layer& layer, const mha::TensorView<const float, 2>& x) { return layer(x); }
