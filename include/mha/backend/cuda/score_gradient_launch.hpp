// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "../../core/check.hpp"
#include "../../policy/call_shape.hpp"
#include "../../policy/score.hpp"
#include "../backward.hpp"
#include "part_sum_body.hpp"
#include "plan.hpp"
#include "score_gradient_body.hpp"

/// The launches of the gradients of a score's own numbers, see score_gradient_body.hpp.
namespace mha::inline MHA_NAMESPACE::cuda {

struct BiasGradientKernel {
  static constexpr const char* name = "attention_backward (bias)";
  static constexpr int threads = PairShape<float>::threads, blocks_per_multiprocessor = 2;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    BiasGradientBlock<Machine, Call>::run(m, p);
  }
};
template <class Wanted, int First, int Count> struct SlotGradientKernel {
  static constexpr const char* name = "attention_backward (numbers of a score)";
  static constexpr int threads = PairShape<float>::threads, blocks_per_multiprocessor = 2;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    SlotGradientBlock<Machine, Wanted, First, Count, Call>::run(m, p);
  }
};
template <class Wanted, int Table> struct DistanceGradientKernel {
  static constexpr const char* name = "attention_backward (a table by distance)";
  static constexpr int threads = PairShape<float>::threads, blocks_per_multiprocessor = 2;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    DistanceGradientBlock<Machine, Wanted, Table, Call>::run(m, p);
  }
};
struct PartSumKernel {
  static constexpr const char* name = "attention_backward (parts)";
  static constexpr int threads = PartSumShape::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class A> MHA_KERNEL static void run(Machine& m, const PartSumParams<A>& p) {
    part_sum_body(m, p);
  }
};

/// Blocks that share a sum, by the sizes of the call alone, so that every device has the same bits.
struct ScoreGradientParts {
  static constexpr std::int64_t most_of_head = 16;     ///< tiles of queries, for numbers of a score
  static constexpr std::int64_t blocks_of_bias = 512;  ///< in all, where a table has fewer tiles and sums more
};

/// The launches of one backward pass, its scratch taken at construction; none where nothing is wanted.
template <class Wanted, class Call, class Launcher> class ScoreGradientLaunches {
  using A = Accumulator<typename Call::Scalar>;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;
  using Head = decltype(at_head(std::declval<const Call&>().score, Index{}, Index{}));
  using Numbers = mha::detail::OnlyParameters<Wanted>;
  static constexpr int slots = mha::detail::slot_count<Numbers, Head>, tables = mha::detail::table_count<Numbers, Head>,
                       most_slots = 8;

 public:
  ScoreGradientLaunches(const GradientParams<Call>& params, const ScoreGradientsTo<A>& to, const DeviceFacts& device,
                        Launcher& launcher)
      : to_(to), launcher_(launcher), p_{params} {
    if constexpr (Wanted::bias || slots + tables > 0) place(device);
  }

  /// Checks the grids, and launches if it is told to.
  void run(bool launching) {
    launching_ = launching;
    if constexpr (Wanted::bias)
      if (to_.bias.elements != nullptr) bias();
    if constexpr (slots > 0) slots_from<0>();
    if constexpr (tables > 0) tables_from<0>();
  }

 private:
  static Index tiles(Index rows, Index of_tile) { return rows / of_tile + (rows % of_tile > 0 ? 1 : 0); }

  void place(const DeviceFacts& device) {
    mha::detail::require(Shape::bytes <= device.shared_bytes, "attention_backward: a block of this device may ask for ",
                         device.shared_bytes, " bytes of shared memory, the kernel needs ", Shape::bytes);
    const CallShape& shape = p_.call.shape;
    const Index q_tiles = tiles(shape.queries, Shape::rows), k_tiles = tiles(shape.keys, Shape::keys);
    heads_ = std::int64_t{shape.batch} * shape.heads;
    p_.tiles = q_tiles;
    if constexpr (slots + tables > 0) {
      head_parts_ = static_cast<Index>(std::clamp<std::int64_t>(q_tiles, 1, ScoreGradientParts::most_of_head));
      std::ptrdiff_t most = to_.count;
      for (int t = 0; t < tables; ++t) most = std::max(most, to_.tables[t].count);
      sums_ = take(head_parts_, most * heads_);
    }
    if constexpr (Wanted::bias)
      if (to_.bias.elements != nullptr) place_bias({shape.batch, shape.heads, q_tiles, k_tiles}, shape);
  }

  Sum* take(Index parts, std::ptrdiff_t size) {
    constexpr std::ptrdiff_t numbers = sizeof(Sum) / sizeof(A);
    return parts > 1 ? reinterpret_cast<Sum*>(launcher_.template parts<A>(parts * size * numbers)) : nullptr;
  }

  void place_bias(const Index (&of_call)[4], const CallShape& shape) {
    const Index extents[4] = {shape.batch, shape.heads, shape.queries, shape.keys};
    std::int64_t table_tiles = 1, summed = 1;
    bias_size_ = 1;
    p_.bias = to_.bias.elements;
    for (int a = 0; a < 4; ++a) {
      const bool repeated = to_.bias.stride[a] == 0;
      p_.stride[a] = to_.bias.stride[a];
      p_.extent[a] = repeated ? 1 : extents[a];
      p_.own[a] = repeated ? 1 : of_call[a];
      p_.repeats[a] = repeated ? of_call[a] : 1;
      table_tiles *= p_.own[a];
      summed *= p_.repeats[a];
      bias_size_ *= p_.extent[a];
    }
    const std::int64_t enough = std::max<std::int64_t>(1, ScoreGradientParts::blocks_of_bias / table_tiles);
    bias_tiles_ = table_tiles;
    bias_parts_ = static_cast<Index>(std::clamp<std::int64_t>(summed, 1, enough));
    bias_sums_ = take(bias_parts_, bias_size_);
  }

  template <class Kernel, class Params> void launch(std::int64_t blocks, Shared bytes, const Params& params) {
    const Index grid = detail::checked_grid(blocks, Kernel::threads, "attention_backward");
    if (grid > 0 && launching_) launcher_.template launch<Kernel>({grid, 1, 1}, bytes, params);
  }
  void add_parts(const PartSumParams<A>& sums) {
    if (sums.parts > 1)
      launch<PartSumKernel>((sums.size + PartSumKernel::threads - 1) / PartSumKernel::threads, 0, sums);
  }

  void bias() {
    p_.parts = bias_parts_;
    p_.sums = bias_sums_;
    launch<BiasGradientKernel>(bias_tiles_ * bias_parts_, Shape::bytes, p_);
    PartSumParams<A> sums{bias_sums_, bias_parts_, bias_size_, nullptr, p_.bias};
    std::copy_n(p_.stride, 4, sums.stride);
    std::copy_n(p_.extent, 4, sums.extent);
    add_parts(sums);
  }

  /// A head's numbers, `count` of them: one part goes where they are wanted.
  template <class Kernel> void numbers(Sum* to, std::ptrdiff_t count, Index least) {
    p_.parts = head_parts_;
    p_.sums = head_parts_ > 1 ? sums_ : to;
    p_.count = count;
    p_.least = least;
    launch<Kernel>(heads_ * head_parts_, Shape::bytes, p_);
  }
  template <int First> void slots_from() {
    constexpr int count = slots - First < most_slots ? slots - First : most_slots;
    numbers<SlotGradientKernel<Wanted, First, count>>(to_.slots, to_.count, 0);
    if constexpr (First + count < slots)
      slots_from<First + count>();
    else
      add_parts({sums_, head_parts_, heads_ * to_.count, to_.slots});
  }
  template <int Table> void tables_from() {
    const auto& table = to_.tables[Table];
    Sum* const to = table.sums + table.least;
    numbers<DistanceGradientKernel<Wanted, Table>>(to, table.count, table.least);
    add_parts({sums_, head_parts_, heads_ * table.count, to});
    if constexpr (Table + 1 < tables) tables_from<Table + 1>();
  }

  const ScoreGradientsTo<A>& to_;
  Launcher& launcher_;
  ScoreGradientParams<Call> p_;
  std::int64_t heads_ = 0, bias_tiles_ = 0;
  std::ptrdiff_t bias_size_ = 0;
  Index head_parts_ = 1, bias_parts_ = 1;
  Sum *sums_ = nullptr, *bias_sums_ = nullptr;
  bool launching_ = false;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
