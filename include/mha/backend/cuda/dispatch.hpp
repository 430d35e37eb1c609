// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "../../core/check.hpp"
#include "fma_body.hpp"
#include "forward_body.hpp"
#include "plan.hpp"

/// From a call to the launch of a body, whoever makes it: the device's launcher and the host model's.
namespace mha::inline v0::cuda {

/// A body as a launcher takes it.
template <class Shape> struct ForwardKernel {
  static constexpr const char* name = "attention (tensor cores)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ForwardParams<Call>& p) {
    forward_body<Machine, Shape>(m, p);
  }
};
template <class Shape> struct FmaKernel {
  static constexpr const char* name = "attention (multiply-adds)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const FmaParams<Call>& p) {
    fma_body<Machine, Shape>(m, p);
  }
};

template <class T> constexpr bool on_tensor_cores = std::is_same_v<T, bfloat16> || std::is_same_v<T, half>;

/// What attend() would launch for such a call whose rows are aligned.
template <class T> std::string explain(const AttendPlan& plan, const DeviceFacts& device) {
  const auto n = [](auto x) { return std::to_string(x); };
  const CallFacts known{plan.shape, plan.kv_heads, plan.head_dim, plan.value_dim, RowLayout::aligned};
  std::string text;
  if constexpr (on_tensor_cores<T>)
    if (const ForwardPlan forward = forward_plan(known, device))
      with_shape(ForwardShapes{}, forward.shape, [&](auto shape) {
        text = std::string("tensor cores in ") + mha::detail::scalar_name<T>() + ", sums in float, tiles of " +
               n(shape.rows) + " queries x " + n(shape.keys) + " keys for head sizes up to " + n(shape.head_dim) +
               " and " + n(shape.value_dim) + ", " + n(forward.grid) + " blocks of " + n(shape.threads) + " threads, " +
               n(forward.shared_bytes) + " bytes of shared memory each";
      });
  if (text.empty())
    text = std::string("multiply-adds in ") + mha::detail::scalar_name<Accumulator<T>>() + ", tiles of 64 queries, " +
           n(plan.shape.batch) + " x " + n(plan.shape.heads) + " x " + n((plan.shape.queries + 63) / 64) + " blocks";
  return text;
}

/// Computes the call in one launch.
///
/// A launcher has
///   template <class Kernel, class Params> void launch(BlockIndex grid, Shared bytes, const Params&)
///   template <class A> A* parts(std::ptrdiff_t n)     scratch of this launch, aligned to 16 bytes
///   unsigned* counters(std::ptrdiff_t n)              0 before and after every launch
/// Errors    ShapeError if the call has more blocks than a grid
template <class Call, class Launcher> void attend(const Call& call, const DeviceFacts& device, Launcher&& launcher) {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  const CallFacts known = facts(call);
  if constexpr (on_tensor_cores<T>)
    if (const ForwardPlan plan = forward_plan(known, device))
      return with_shape(ForwardShapes{}, plan.shape, [&](auto shape) {
        launcher.template launch<ForwardKernel<decltype(shape)>>({plan.grid, 1, 1}, plan.shared_bytes,
                                                                 ForwardParams<Call>{call, plan.blocks});
      });
  const auto with_values = [&](auto shape) {
    using Shape = decltype(shape);
    const Index tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows;
    const Index parts = (call.value_dim + Shape::values - 1) / Shape::values;
    constexpr Index most = 65535;  // blocks along the second and third axis of a grid
    mha::detail::require(call.shape.heads <= most && call.shape.batch <= most, "attention: ", call.shape.batch,
                         " sequences and ", call.shape.heads, " heads are more than a grid's ", most);
    const bool q_stays = Shape::bytes(call.head_dim, true) <= device.shared_bytes;
    const bool aligned = known.layout == RowLayout::aligned;
    launcher.template launch<FmaKernel<Shape>>({tiles * parts, call.shape.heads, call.shape.batch},
                                               Shape::bytes(call.head_dim, q_stays),
                                               FmaParams<Call>{call, parts, q_stays, aligned, aligned});
  };
  if (call.value_dim <= 64)
    with_values(FmaShape<A, 64>{});
  else
    with_values(FmaShape<A, 128>{});
}

}  // namespace mha::inline v0::cuda
