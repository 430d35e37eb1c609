// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../backward.hpp"
#include "fma_gradient_body.hpp"
#include "mma_gradient_body.hpp"
#include "plan.hpp"
#include "row_facts_body.hpp"
#include "score_gradient_launch.hpp"

/// From a backward pass to the launches of its bodies, on a device or on the model of one.
namespace mha::inline MHA_NAMESPACE::cuda {

struct RowFactsKernel {
  static constexpr const char* name = "attention_backward (rows)";
  static constexpr int threads = RowFactsShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const GradientParams<Call>& p) {
    row_facts_body(m, p);
  }
};
struct SinkSumKernel {
  static constexpr const char* name = "attention_backward (sink)";
  static constexpr int threads = SinkSumShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const GradientParams<Call>& p) {
    sink_sum_body(m, p);
  }
};
template <class Shape, GradientOf Of> struct FmaGradientKernel {
  static constexpr const char* name = "attention_backward (multiply-adds)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const GradientParams<Call>& p) {
    FmaGradientBlock<Machine, Shape, Of, Call>::run(m, p);
  }
};
template <class Shape, bool ByQuery> struct MmaGradientKernel {
  static constexpr const char* name = "attention_backward (tensor cores)";
  static constexpr int threads = Shape::threads, blocks_per_multiprocessor = Shape::blocks_per_multiprocessor;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const GradientParams<Call>& p) {
    MmaGradientBlock<Machine, Shape, ByQuery, Call>(m, p).run();
  }
};

/// Shapes of the bodies, narrow ones first. Columns beyond the widest on multiply-adds are other blocks'.
template <class T>
using FmaGradientShapes = std::conditional_t<
    std::is_same_v<T, double>, ShapeList<FmaShape<double, 64>>,
    std::conditional_t<std::is_same_v<T, float>, ShapeList<FmaShape<float, 64>, FmaShape<float, 128>>,
                       ShapeList<FmaShape<float, 64>>>>;
using MmaGradientShapes = ShapeList<MmaGradientShape<64, 64>, MmaGradientShape<128, 32>>;

/// The number of the shape on tensor cores that serves a call of 16-bit scalars whose rows are aligned; −1: none.
inline int mma_gradient_shape(const CallFacts& call, const DeviceFacts& device) {
  int number = -1;
  for (int i = 0; i < MmaGradientShapes::size && number < 0; ++i)
    with_shape(MmaGradientShapes{}, i, [&](auto shape) {
      if (call.layout == RowLayout::aligned && call.head_dim <= shape.dim && call.value_dim <= shape.dim &&
          shape.shared_bytes <= device.shared_bytes)
        number = i;
    });
  return number;
}

namespace detail {

/// Launches that share their parameters but for how a grid is cut.
template <class Params, class Launcher> class GradientLaunches {
  using Call = typename Params::Call;
  using T = typename Call::Scalar;

 public:
  GradientLaunches(const Params& params, const DeviceFacts& device, Launcher& launcher)
      : p_(params), device_(device), launcher_(launcher) {}

  /// Checks the limits of what `all` launches, and then launches it.
  template <class All> void checked(const All& all) {
    for (const bool launching : {false, true}) {
      launching_ = launching;
      all();
    }
  }

  template <class Kernel> void run(std::int64_t heads, Index rows, Index rows_of_block, Index parts, Shared bytes) {
    p_.tiles = (rows + rows_of_block - 1) / rows_of_block;
    p_.parts = parts;
    const Index grid = checked_grid(std::int64_t{p_.call.shape.batch} * heads * p_.tiles * parts, Kernel::threads,
                                    "attention_backward");
    if (grid > 0 && launching_) launcher_.template launch<Kernel>({grid, 1, 1}, bytes, p_);
  }
  bool launching() const { return launching_; }
  void row_facts() { run<RowFactsKernel>(p_.call.shape.heads, p_.call.shape.queries, RowFactsShape::rows, 1, 0); }
  void sink() {
    if (launching_)
      launcher_.template launch<SinkSumKernel>({p_.call.shape.heads, 1, 1}, SinkSumShape::bytes<Accumulator<T>>, p_);
  }
  template <GradientOf Of> void fma(const GradientRows<T>& to) {
    if (to.data == nullptr) return;
    const Index dim = Of == GradientOf::value ? p_.call.value_dim : p_.call.head_dim;
    int number = 0;
    with_shape(FmaGradientShapes<T>{}, 0,
               [&](auto shape) { number = dim > shape.values && FmaGradientShapes<T>::size > 1 ? 1 : 0; });
    with_shape(FmaGradientShapes<T>{}, number, [&](auto shape) {
      using Shape = decltype(shape);
      const Shared bytes = Shape::bytes(0, false);
      mha::detail::require(bytes <= device_.shared_bytes, "attention_backward: a block of this device may ask for ",
                           device_.shared_bytes, " bytes of shared memory, the kernel needs ", bytes);
      constexpr bool by_query = Of == GradientOf::query;
      run<FmaGradientKernel<Shape, Of>>(by_query ? p_.call.shape.heads : p_.call.kv_heads,
                                        by_query ? p_.call.shape.queries : p_.call.shape.keys, Shape::rows,
                                        dim > 0 ? (dim + Shape::values - 1) / Shape::values : 0, bytes);
    });
  }
  template <class Shape> void mma() {
    if (p_.query.data != nullptr)
      run<MmaGradientKernel<Shape, true>>(p_.call.shape.heads, p_.call.shape.queries, Shape::rows, 1,
                                          Shape::shared_bytes);
    if (p_.key.data != nullptr || p_.value.data != nullptr)
      run<MmaGradientKernel<Shape, false>>(p_.call.kv_heads, p_.call.shape.keys, Shape::rows, 1, Shape::shared_bytes);
  }

 private:
  Params p_;
  const DeviceFacts& device_;
  Launcher& launcher_;
  bool launching_ = false;
};

}  // namespace detail

/// Computes the gradients, those of no heads too, in launches one after another; a launcher is as launch_attend() has
/// it.
///
/// Cost      with S = q kᵀ once more for each gradient: 2·Hq·pairs·(4D + 3Dv) FLOP on tensor cores, (5D + 3Dv) on
///           multiply-adds; of a bias, of eight numbers of a score and of a RelativeBias' table 2·Hq·pairs·(D + Dv) on
///           multiply-adds each
/// Errors    ShapeError if the call has more blocks than a grid, before anything is launched
template <class T, class Source, class M, class S, class Wanted, class Launcher>
void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, const DeviceFacts& device,
                     Launcher&& launcher) {
  using A = Accumulator<T>;
  using Call = AttendCall<T, Source, M, S>;
  const Call& f = call.forward;
  const bool aligned = detail::rows_aligned(f.q) && detail::rows_aligned(f.kv) && detail::rows_aligned(call.d_out);
  const CallFacts known{f.shape, f.kv_heads, f.head_dim, f.value_dim, aligned ? RowLayout::aligned : RowLayout::any};
  const Index* const q_offsets = f.q_offsets;
  GradientParams<Call> params{f,
                              call.out,
                              call.d_out,
                              call.d_log_sum_exp,
                              call.level,
                              call.sum,
                              nullptr,
                              GradientRows<T>(call.query, q_offsets),
                              GradientRows<T>(call.key, call.key_offsets),
                              GradientRows<T>(call.value, call.key_offsets),
                              call.sink,
                              aligned};
  const std::ptrdiff_t rows = std::ptrdiff_t{f.q.batch()} * f.q.heads() * f.q.length();
  constexpr std::ptrdiff_t numbers = sizeof(RowFacts<A>) / sizeof(A);
  params.rows = reinterpret_cast<RowFacts<A>*>(launcher.template parts<A>(rows * numbers));

  detail::GradientLaunches<GradientParams<Call>, std::remove_reference_t<Launcher>> launches(params, device, launcher);
  ScoreGradientLaunches<Wanted, Call, std::remove_reference_t<Launcher>> of_score(params, call.score, device, launcher);
  launches.checked([&] {
    launches.row_facts();
    if (call.sink != nullptr && f.shape.heads > 0) launches.sink();
    of_score.run(launches.launching());
    if constexpr (on_tensor_cores<T>)
      if (const int number = f.dropout.exist() ? -1 : mma_gradient_shape(known, device); number >= 0)
        return with_shape(MmaGradientShapes{}, number, [&](auto shape) { launches.template mma<decltype(shape)>(); });
    launches.template fma<GradientOf::query>(params.query);
    launches.template fma<GradientOf::key>(params.key);
    launches.template fma<GradientOf::value>(params.value);
  });
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
