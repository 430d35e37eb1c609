// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kept_arrays.hpp"
#include "linear_backward.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a call of a FeedForward leaves for its backward pass. Calls reuse its memory; one tape serves any of this
/// scalar and backend on one device, the last call counts.
///
/// Keeps     the hidden rows, and in accumulators what the activation was applied to
/// Borrows   x, which must stay as it was until backward() has run
template <class T, class B> class FeedForwardTape {
 public:
  static constexpr bool is_call_tape = true;

  /// Whether a call has been recorded.
  bool recorded() const { return up_.recorded() && down_.recorded(); }

 private:
  template <class, class, class, class...> friend class FeedForward;

  LinearTape<T, B> up_, down_;
  detail::KeptArrays<T, B> hidden_;
};

}  // namespace mha::inline MHA_NAMESPACE
