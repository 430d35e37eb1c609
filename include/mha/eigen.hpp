// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door: attention, layers, caches and dense blocks on EigenCpu, forward and backward, without the kernels of
/// other backends, for any processor and without extensions of g++ and clang++. It leaves out mha::Cpu, so a call names
/// its backend: mha::attention<mha::EigenCpu>(q, k, v).
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "attention.hpp"
#include "attention_backward.hpp"
#include "backend/eigen/eigen_cpu.hpp"
#include "backend/reference/reference.hpp"
#include "block/arguments.hpp"
#include "block/cost.hpp"
#include "block/feed_forward.hpp"
#include "block/initialize.hpp"
#include "block/linear.hpp"
#include "block/norm.hpp"
#include "cache/paged_kv.hpp"
#include "cache/ring_kv.hpp"
#include "call.hpp"
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

// clang-format off
#include "macros_end.hpp"
// clang-format on
