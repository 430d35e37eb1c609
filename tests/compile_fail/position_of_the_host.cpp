// SPDX-License-Identifier: Apache-2.0
// expect: mha: this position has no member for_each_items(x, at, f), so it runs on the host only
#include <mha/attention.hpp>
#include <mha/layer/multi_head_attention.hpp>

#include "../support/far_backend.hpp"

struct Shift {
  static constexpr mha::Role role = mha::Role::position;
  static constexpr const char* name = "Shift";
  template <class T> void apply(const mha::TensorView<T, 4>& x, const mha::Origins& first) const {
    x(0, 0, 0, 0) += T(first[0]);
  }
};

#ifdef MHA_FAIL
using Layer = mha::MultiHeadAttention<float, support::Far, Shift>;
#else
using Layer = mha::MultiHeadAttention<float, mha::Cpu, Shift>;
#endif

auto result(const Layer& layer, const mha::TensorView<const float, 2>& x) { return layer(x); }
