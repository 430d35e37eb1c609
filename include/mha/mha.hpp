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
#include "policy/any_scaling.hpp"
#include "policy/concat.hpp"
#include "policy/dropout.hpp"
#include "policy/heads.hpp"
#include "policy/mask.hpp"
#include "policy/mask/block_sparse.hpp"
#include "policy/mask/dense.hpp"
#include "policy/mask/document.hpp"
#include "policy/mask/first_keys.hpp"
#include "policy/mask/padding.hpp"
#include "policy/mask/positional.hpp"
#include "policy/mask/prefix.hpp"
#include "policy/output.hpp"
#include "policy/position.hpp"
#include "policy/projection.hpp"
#include "policy/qk_norm.hpp"
#include "policy/score.hpp"
#include "policy/score/additive_bias.hpp"
#include "policy/score/alibi.hpp"
#include "policy/score/alibi_slopes.hpp"
#include "policy/score/relative_bias.hpp"
#include "policy/score/softcap.hpp"
#include "policy/sink.hpp"
#include "tape.hpp"
#include "version.hpp"
#if MHA_KERNELS_ELSEWHERE
#include "compiled/cpu.hpp"
#endif

// clang-format off
#include "macros_end.hpp"
// clang-format on
