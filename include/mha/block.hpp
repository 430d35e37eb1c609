// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door: attention's neighbours in a transformer.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "block/arguments.hpp"
#include "block/cost.hpp"
#include "block/feed_forward.hpp"
#include "block/initialize.hpp"
#include "block/linear.hpp"
#include "block/norm.hpp"
#include "mha.hpp"

// clang-format off
#include "macros_end.hpp"
// clang-format on
