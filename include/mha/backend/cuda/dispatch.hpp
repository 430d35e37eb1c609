// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "../../cache/held_mask.hpp"
#include "../../core/check.hpp"
#include "../../core/scalar.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/role.hpp"
#include "fma_plan.hpp"
#include "forward_body.hpp"
#include "plan.hpp"
#include "warpgroup_body.hpp"

/// From a call to the launch of a body, by the device's launcher or by the host model's.
namespace mha::inline MHA_NAMESPACE::cuda {

/// A body as a launcher takes it; one that says `warpgroups` runs on a WarpgroupMachine.
template <class Shape> struct ForwardKernel {
  static constexpr const char* name = "attention (tensor cores)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ForwardParams<Call>& p) {
    forward_body<Machine, Shape>(m, p);
  }
};
template <class Shape>
requires(Shape::warpgroups > 0) struct ForwardKernel<Shape> {
  static constexpr const char* name = "attention (tensor cores, warpgroups)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  static constexpr bool warpgroups = true;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ForwardParams<Call>& p) {
    warpgroup_body<Machine, Shape>(m, p);
  }
};
template <class Shape> struct FmaKernel {
  static constexpr const char* name = "attention (multiply-adds)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const FmaParams<Call>& p) {
    fma_body<Machine, Shape>(m, p);
  }
};
template <class Shape> struct FewQueriesKernel {
  static constexpr const char* name = "attention (few queries)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const FewParams<Call>& p) {
    few_queries_body<Machine, Shape>(m, p);
  }
};

/// What attend() would launch for such a call whose rows begin and end on 16 bytes where their sizes allow it.
template <class T> std::string explain(const AttendPlan& plan, const DeviceFacts& device) {
  const auto n = [](auto x) { return std::to_string(x); };
  const auto launch = [&](const auto& p) {
    return n(p.grid) + " blocks of " + n(p.threads) + " threads, " + n(p.shared_bytes) + " bytes of shared memory each";
  };
  constexpr Index pack = 16 / int{sizeof(T)};
  const bool whole = plan.head_dim % pack == 0 && plan.value_dim % pack == 0;
  const CallFacts known{plan.shape, plan.kv_heads, plan.head_dim, plan.value_dim,
                        whole ? RowLayout::aligned : RowLayout::any};
  const std::string scalar = mha::detail::scalar_name<T>();
  const auto in_words = [&](const FewPlan& few) {
    return "few queries in " + scalar + ", the heads of a group share a block, keys in " + n(few.splits) +
           " chunks that the last block joins, " + launch(few);
  };
  if (const FewPlan few = plan.drops ? FewPlan{} : few_plan<T>(known, device)) return in_words(few);
  const FewPlan few = plan.drops ? FewPlan{} : few_plan_beside<T>(known, device);
  const std::string beside = few ? "; sequences of up to " + n(few.most) + " queries: " + in_words(few) : "";
  if constexpr (on_tensor_cores<T>)
    if (const ForwardPlan forward = plan.drops ? ForwardPlan{} : forward_plan(known, device)) {
      std::string tiles;
      with_forward_shape(forward, [&](auto shape) {
        tiles = n(shape.rows) + " queries x " + n(shape.keys) + " keys, head sizes up to " + n(shape.head_dim) +
                " and " + n(shape.value_dim);
      });
      return std::string(forward.warpgroups ? "warpgroups on " : "") + "tensor cores in " + scalar +
             ", sums in float, tiles of " + tiles + ", " + launch(forward) + beside;
    }
  const FmaPlan fma = fma_plan<T>(known, device);
  return std::string("multiply-adds in ") + mha::detail::scalar_name<Accumulator<T>>() + ", " + launch(fma) + beside;
}

/// Computes the call in one launch, or, where some sequences of a ragged call have few queries and others many, in two.
///
/// A launcher has
///   template <class Kernel, class Params> void launch(BlockIndex grid, Shared bytes, const Params&)
///   template <class A> A* parts(std::ptrdiff_t n)     scratch of this launch, aligned to 16 bytes
///   unsigned* counters(std::ptrdiff_t n)              0 before and after every launch
/// Errors    ShapeError if the call has more blocks than a grid
template <class Call, class Launcher>
void launch_attend(const Call& call, const DeviceFacts& device, Launcher&& launcher) {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  const CallFacts known = facts(call);
  const bool drops = call.dropout.exist();  // the body on multiply-adds alone does
  const auto launch_few = [&](const FewPlan& few) {
    with_shape(FewShapes<T>{}, few.shape, [&](auto shape) {
      A* const parts = few.splits > 1 ? launcher.template parts<A>(few.parts) : nullptr;
      unsigned* const counters = few.splits > 1 ? launcher.counters(few.counters) : nullptr;
      launcher.template launch<FewQueriesKernel<decltype(shape)>>({few.grid, 1, 1}, few.shared_bytes,
                                                                  few.params(call, parts, counters));
    });
  };
  if (const FewPlan few = drops ? FewPlan{} : few_plan<T>(known, device)) return launch_few(few);
  const FewPlan beside = drops ? FewPlan{} : few_plan_beside<T>(known, device);
  if (beside) launch_few(beside);
  const Index fewest = beside ? beside.most + 1 : 0;
  if constexpr (on_tensor_cores<T>)
    if (ForwardPlan plan = drops ? ForwardPlan{} : forward_plan(known, device)) {
      plan.blocks.fewest = fewest;
      return with_forward_shape(plan, [&](auto shape) {
        launcher.template launch<ForwardKernel<decltype(shape)>>({plan.grid, 1, 1}, plan.shared_bytes,
                                                                 ForwardParams<Call>{call, plan.blocks});
      });
    }
  FmaPlan fma = fma_plan<T>(known, device);
  fma.blocks.fewest = fewest;
  mha::detail::require(bool(fma), "attention: a block of this device may ask for ", device.shared_bytes,
                       " bytes of shared memory, which no kernel gets by with");
  with_shape(FmaShapes<T>{}, fma.shape, [&](auto shape) {
    launcher.template launch<FmaKernel<decltype(shape)>>({fma.grid, 1, 1}, fma.shared_bytes, fma.params(call));
  });
}

/// The call as kernels get it, which read the rows of positions that its source has dropped.
template <class T, class Source, class M, class S> auto of_held(const AttendCall<T, Source, M, S>& call) {
  return call.with(call.kv, mha::detail::mask_of_held(call.mask, call.kv), call.score);
}

/// The same, over a source that may have dropped positions.
template <class T, class Source, class M, class S, class Launcher>
void attend(const AttendCall<T, Source, M, S>& call, const DeviceFacts& device, Launcher&& launcher) {
  launch_attend(of_held(call), device, launcher);
}

/// The same, and leaves the row states of a call beside its outputs.
template <class T, class Source, class M, class S, class Launcher>
void attend_recorded(const AttendCall<T, Source, M, S>& call, const DeviceFacts& device, Launcher&& launcher) {
  const auto held = of_held(call);
  launch_attend(Recorded<std::remove_const_t<decltype(held)>>{held}, device, launcher);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
