// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/check.hpp"
#include "../backward.hpp"
#include "fma_gradient_body.hpp"
#include "gradient_split.hpp"
#include "mma_gradient_body.hpp"
#include "plan.hpp"
#include "row_blocks.hpp"
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

struct SharedGradientKernel {
  static constexpr const char* name = "attention_backward (shares)";
  static constexpr int threads = SharedGradientShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const SharedGradientParams<Call>& p) {
    shared_gradient_body(m, p);
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

/// How far sums are split: of dK and dV, and of a score's numbers.
struct GradientLimits {
  Index least_queries = HeadShares{}.least_queries;  ///< see HeadShares
  std::int64_t most_bytes = std::int64_t{1} << 28;   ///< of the parts of a launch
  std::int64_t own_bytes = std::int64_t{1} << 28;    ///< of the sums of a score that accumulates, or one for each head
};

namespace detail {

/// Launches that share their parameters but for how a grid is cut. The parts of dK and dV are taken at construction.
template <class Params, class Launcher> class GradientLaunches {
  using Call = typename Params::Call;
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  static constexpr Index rows_of_block = 64;  // of dQ, dK and dV

 public:
  GradientLaunches(const Params& params, const DeviceFacts& device, Launcher& launcher, const GradientLimits& limits)
      : p_(params), key_(params.key), value_(params.value), device_(device), launcher_(launcher) {
    const Call& c = p_.call;
    const Index group = c.kv_heads > 0 ? c.shape.heads / c.kv_heads : 0;
    p_.shares = {group, limits.least_queries, 1};
    p_.shares.most = p_.shares.of(c.shape.queries);
    const std::int64_t columns =
        (key_.data != nullptr ? c.head_dim : 0) + std::int64_t{value_.data != nullptr ? c.value_dim : 0};
    slices_ = {c.shape.batch, c.shape.keys, rows_of_block, shared_heads() * columns,
               shared() ? limits.most_bytes / std::int64_t{sizeof(A)} : std::numeric_limits<std::int64_t>::max()};
    if (shared()) parts_ = launcher_.template parts<A>(slices_.first().rows_of_all() * shared_heads() * columns);
  }

  /// Checks the limits of what `all` launches, and then launches it.
  template <class All> void checked(const All& all) {
    for (const bool launching : {false, true}) {
      launching_ = launching;
      all();
    }
  }
  bool launching() const { return launching_; }

  void row_facts() {
    run<RowFactsKernel>(p_.call.shape.batch, p_.call.shape.heads, p_.call.shape.queries, RowFactsShape::rows, 1, 0,
                        [](Index tiles, Index sequences, Index heads) {
                          return RowBlocks{tiles, heads, sequences * heads};
                        });
  }
  void sink() {
    if (launching_) launcher_.template launch<SinkSumKernel>({p_.call.shape.heads, 1, 1}, SinkSumShape::bytes<A>, p_);
  }
  template <class Shape> void mma() {
    if (p_.query.data != nullptr) of_queries<MmaGradientKernel<Shape, true>, Shape>(1, Shape::shared_bytes);
    for_each_slice([&](const GradientSlice& slice) {
      of_keys<MmaGradientKernel<Shape, false>, Shape>(slice, 1, Shape::shared_bytes);
    });
  }
  void fma() {
    if (p_.query.data != nullptr) fma<GradientOf::query>({});
    for_each_slice([&](const GradientSlice& slice) {
      if (p_.key.data != nullptr) fma<GradientOf::key>(slice);
      if (p_.value.data != nullptr) fma<GradientOf::value>(slice);
    });
  }

 private:
  bool shared() const { return p_.shares.most > 1 && (key_.data != nullptr || value_.data != nullptr); }
  std::int64_t shared_heads() const { return std::int64_t{p_.call.kv_heads} * p_.shares.most; }
  /// Bytes of the rows of a sequence in one head that dot products are made of.
  std::int64_t row_bytes(Index rows) const {
    return std::int64_t{sizeof(T)} * rows * (p_.call.head_dim + p_.call.value_dim);
  }

  template <class Kernel, class BlocksOf>
  void run(Index sequences, Index heads, Index rows, Index rows_of_tile, Index parts, Shared bytes,
           const BlocksOf& blocks) {
    const std::int64_t tiles = (std::int64_t{rows} + rows_of_tile - 1) / rows_of_tile;
    const Index grid =
        checked_grid(std::int64_t{sequences} * heads * tiles * parts, Kernel::threads, "attention_backward");
    if (grid == 0 || !launching_) return;
    p_.parts = parts;
    p_.blocks = blocks(static_cast<Index>(tiles), sequences, heads);
    launcher_.template launch<Kernel>({grid, 1, 1}, bytes, p_);
  }
  template <class Kernel, class Shape> void of_queries(Index parts, Shared bytes) {
    static_assert(Shape::rows == rows_of_block);
    const Call& c = p_.call;
    run<Kernel>(c.shape.batch, c.shape.heads, c.shape.queries, rows_of_block, parts, bytes,
                [&](Index tiles, Index sequences, Index heads) {
                  return RowBlocks::of(tiles, sequences, heads, p_.shares.group, row_bytes(c.shape.keys));
                });
  }
  template <class Kernel, class Shape> void of_keys(const GradientSlice& slice, Index parts, Shared bytes) {
    static_assert(Shape::rows == rows_of_block);
    run<Kernel>(slice.sequences, static_cast<Index>(shared_heads()), slice.rows, rows_of_block, parts, bytes,
                [&](Index tiles, Index sequences, Index heads) {
                  const std::int64_t met = row_bytes(p_.call.shape.queries) * p_.shares.group / p_.shares.most;
                  return RowBlocks::of(tiles, sequences, heads, 1, met);
                });
  }
  template <GradientOf Of> void fma(const GradientSlice& slice) {
    const Index dim = Of == GradientOf::value ? p_.call.value_dim : p_.call.head_dim;
    int number = 0;
    with_shape(FmaGradientShapes<T>{}, 0,
               [&](auto shape) { number = dim > shape.values && FmaGradientShapes<T>::size > 1 ? 1 : 0; });
    with_shape(FmaGradientShapes<T>{}, number, [&](auto shape) {
      using Shape = decltype(shape);
      using Kernel = FmaGradientKernel<Shape, Of>;
      const Shared bytes = Shape::bytes(0, false);
      mha::detail::require(bytes <= device_.shared_bytes, "attention_backward: a block of this device may ask for ",
                           device_.shared_bytes, " bytes of shared memory, the kernel needs ", bytes);
      const Index parts = dim > 0 ? (dim + Shape::values - 1) / Shape::values : 0;
      if constexpr (Of == GradientOf::query)
        of_queries<Kernel, Shape>(parts, bytes);
      else
        of_keys<Kernel, Shape>(slice, parts, bytes);
    });
  }

  /// Launches dK and dV of each slice: where heads are shared out, into parts that are added then.
  template <class Launch> void for_each_slice(const Launch& launch) {
    if (key_.data == nullptr && value_.data == nullptr) return;
    slices_.for_each([&](const GradientSlice& slice) {
      if (!shared()) return launch(slice);
      const Call& c = p_.call;
      p_.first_sequence = slice.first_sequence;
      p_.first_row = slice.first_row;
      A* next = parts_;
      for (GradientRows<T>* to : {&p_.key, &p_.value}) {
        if (to->data == nullptr) continue;
        const Index columns = to == &p_.key ? c.head_dim : c.value_dim;
        *to = parts_of(slice, next, columns);
        next += slice.rows_of_all() * shared_heads() * columns;
      }
      launch(slice);
      if (key_.data != nullptr) add(slice, p_.key, key_, c.head_dim);
      if (value_.data != nullptr) add(slice, p_.value, value_, c.value_dim);
      p_.first_sequence = p_.first_row = 0;
    });
  }
  GradientRows<T> parts_of(const GradientSlice& slice, A* data, Index columns) const {
    GradientRows<T> parts;
    parts.data = data;
    parts.wide = true;
    parts.stride[3] = 1;
    parts.stride[2] = columns;
    parts.stride[1] = shared_heads() * columns;
    parts.stride[0] = slice.rows * parts.stride[1];
    return parts;
  }
  void add(const GradientSlice& slice, const GradientRows<T>& parts, const GradientRows<T>& to, Index columns) {
    const Call& c = p_.call;
    const std::int64_t elements = slice.rows_of_all() * c.kv_heads * columns;
    const Index grid = checked_grid((elements + SharedGradientShape::threads - 1) / SharedGradientShape::threads,
                                    SharedGradientShape::threads, "attention_backward");
    if (grid == 0 || !launching_) return;
    const SharedGradientParams<Call> params{c, p_.shares, slice, static_cast<const A*>(parts.data), to, columns};
    launcher_.template launch<SharedGradientKernel>({grid, 1, 1}, 0, params);
  }

  Params p_;
  const GradientRows<T> key_, value_;
  const DeviceFacts& device_;
  Launcher& launcher_;
  GradientSlices slices_;
  A* parts_ = nullptr;
  bool launching_ = false;
};

}  // namespace detail

/// Computes the gradients, those of no heads too, in launches one after another; a launcher is as launch_attend() has
/// it.
///
/// Cost      with S = q kᵀ once more for each gradient: 2·Hq·pairs·(4D + 3Dv) FLOP on tensor cores, (5D + 3Dv) on
///           multiply-adds; of a bias, of eight numbers of a score, of a RelativeBias' table and of a score that
///           accumulates 2·Hq·pairs·(D + Dv) on multiply-adds each; scratch: RowFacts of every row; where the heads of
///           a group are shared out parts of dK and dV, `limits.most_bytes` or those of 64 rows of a sequence; for a
///           score that accumulates 32 sums of each number in each of at most max(512, B·Hq) blocks, fewer where they
///           would be more than `limits.own_bytes`, at least one for each number and head
/// Errors    ShapeError if the call has more blocks than a grid, before anything is launched
template <class T, class Source, class M, class S, class Wanted, class Launcher>
void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, const DeviceFacts& device,
                     Launcher&& launcher, const GradientLimits& limits = {}) {
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

  detail::GradientLaunches<GradientParams<Call>, std::remove_reference_t<Launcher>> launches(params, device, launcher,
                                                                                             limits);
  ScoreGradientLaunches<Wanted, Call, std::remove_reference_t<Launcher>> of_score(params, call.score, device, launcher,
                                                                                  limits.own_bytes);
  launches.checked([&] {
    launches.row_facts();
    if (call.sink != nullptr && f.shape.heads > 0) launches.sink();
    of_score.run(launches.launching());
    if constexpr (on_tensor_cores<T>)
      if (const int number = f.dropout.exist() ? -1 : mma_gradient_shape(known, device); number >= 0)
        return with_shape(MmaGradientShapes{}, number, [&](auto shape) { launches.template mma<decltype(shape)>(); });
    launches.fma();
  });
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
