// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door: attention on the processor, and everything it is made of.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "attention.hpp"
#include "attention_backward.hpp"
#include "backend/cpu/cpu.hpp"
#include "backend/reference/reference.hpp"
#include "cache/paged_kv.hpp"
#include "cache/ring_kv.hpp"
#include "call.hpp"
#include "config.hpp"
#include "core/borrowed.hpp"
#include "core/check.hpp"
#include "core/dual.hpp"
#include "core/online_softmax.hpp"
#include "core/scalar.hpp"
#include "core/tensor.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"
#include "interop/eigen.hpp"
#include "layer/cost.hpp"
#include "layer/kv_cache.hpp"
#include "layer/multi_head_attention.hpp"
#include "policy/all.hpp"
#include "tape.hpp"
#include "version.hpp"
#if MHA_KERNELS_ELSEWHERE
#include "compiled/cpu.hpp"
#endif

// clang-format off
#include "macros_end.hpp"
// clang-format on
