// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door of the component mha::cuda: the backend Cuda, with everything of attention and the layer but Eigen.

// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "attention.hpp"
#include "attention_backward.hpp"
#include "backend/cpu/cpu.hpp"
#include "backend/cuda/cuda.cuh"
#include "cache/paged_kv.hpp"
#include "cache/ring_kv.hpp"
#include "layer/kv_cache.hpp"
#include "layer/multi_head_attention.hpp"
#include "policy/all.hpp"

// clang-format off
#include "macros_end.hpp"
// clang-format on
