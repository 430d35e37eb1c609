// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../backend/backend.hpp"
#include "../backend/backward.hpp"
#include "../backend/gemm_sum.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The sentence for a layer or block on a backend without a backward pass.
template <class T, class B> constexpr bool check_trains() {
  constexpr bool yes = DifferentiatesAttention<B, T> && (computes_on_host<B> || SumsProducts<B, T>);
  static_assert(yes,
                "mha: this backend has no backward pass: train on Cpu, EigenCpu, Systolic or Reference, which have "
                "a member attend_backward(call, workspace), or on Cuda (see mha/block/trainable.hpp)");
  return yes;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
