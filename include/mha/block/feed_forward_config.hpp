// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The sizes of a FeedForward.
struct FeedForwardConfig {
  Index d_model = 0;   ///< the width of its rows and of its results
  Index d_hidden = 0;  ///< the width between its two products
  bool bias = true;    ///< whether both products add one
};

}  // namespace mha::inline MHA_NAMESPACE
