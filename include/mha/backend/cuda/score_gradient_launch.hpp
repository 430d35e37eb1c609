// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
template <class Wanted, int Own> struct OwnGradientKernel {
  static constexpr const char* name = "attention_backward (a score that accumulates)";
  static constexpr int threads = PairShape<float>::threads, blocks_per_multiprocessor = 1;
  template <class Machine, class Call> MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    OwnGradientBlock<Machine, Wanted, Own, Call>::run(m, p);
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
  static constexpr std::int64_t blocks_of_own = 512;   ///< likewise of a score that accumulates, of its heads
  static constexpr std::int64_t most_owners = 32;      ///< of a block, see OwnGradientBlock
};

/// The launches of one backward pass, its scratch taken at construction; none where nothing is wanted.
template <class Wanted, class Call, class Launcher> class ScoreGradientLaunches {
  using A = Accumulator<typename Call::Scalar>;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;
  using Head = decltype(at_head(std::declval<const Call&>().score, Index{}, Index{}));
  using Numbers = mha::detail::OnlyParameters<Wanted>;
  static constexpr int slots = mha::detail::slot_count<Numbers, Head>, tables = mha::detail::table_count<Numbers, Head>,
                       owns = mha::detail::accumulating_count<Numbers, Head>, most_slots = 8;

 public:
  ScoreGradientLaunches(const GradientParams<Call>& params, const ScoreGradientsTo<A>& to, const DeviceFacts& device,
                        Launcher& launcher, std::int64_t most_bytes)
      : to_(to), launcher_(launcher), most_bytes_(most_bytes), p_{params} {
    if constexpr (Wanted::bias || slots + tables + owns > 0) place(device);
  }

  /// Checks the grids, and launches if it is told to.
  void run(bool launching) {
    launching_ = launching;
    if constexpr (Wanted::bias)
      if (to_.bias.elements != nullptr) bias();
    if constexpr (slots > 0) slots_from<0>();
    if constexpr (tables > 0) tables_from<0>();
    if constexpr (owns > 0) owns_from<0>(slots);
  }

 private:
  static Index tiles(Index rows, Index of_tile) { return rows / of_tile + (rows % of_tile > 0 ? 1 : 0); }

  void place(const DeviceFacts& device) {
    constexpr Shared bytes = owns > 0 ? Shape::bytes_of_own : Shape::bytes;
    mha::detail::require(bytes <= device.shared_bytes, "attention_backward: a block of this device may ask for ",
                         device.shared_bytes, " bytes of shared memory, the kernel needs ", bytes);
    const CallShape& shape = p_.call.shape;
    const Index q_tiles = tiles(shape.queries, Shape::rows), k_tiles = tiles(shape.keys, Shape::keys);
    heads_ = std::int64_t{shape.batch} * shape.heads;
    p_.tiles = q_tiles;
    if constexpr (slots + tables > 0) {
      head_parts_ = static_cast<Index>(std::clamp<std::int64_t>(q_tiles, 1, ScoreGradientParts::most_of_head));
      std::ptrdiff_t most = slots;
      for (int t = 0; t < tables; ++t) most = std::max(most, to_.tables[t].count);
      sums_ = take(head_parts_, most * heads_);
    }
    if constexpr (owns > 0) place_owns();
    if constexpr (Wanted::bias)
      if (to_.bias.elements != nullptr) place_bias({shape.batch, shape.heads, q_tiles, k_tiles}, shape);
  }

  Sum* take(Index parts, std::ptrdiff_t size) { return parts > 1 ? take_all(parts * size) : nullptr; }
  Sum* take_all(std::ptrdiff_t size) {
    constexpr std::ptrdiff_t numbers = sizeof(Sum) / sizeof(A);
    return reinterpret_cast<Sum*>(launcher_.template parts<A>(size * numbers));
  }

  /// Sums of the score with the most numbers; all such scores use the same memory, one after another.
  void place_owns() {
    using Parts = ScoreGradientParts;
    std::ptrdiff_t most = 0;
    for_each_own([&](const auto& part) { most = std::max(most, numbers_of(part)); });
    const std::int64_t heads = std::max<std::int64_t>(heads_, 1),
                       bytes = std::max<std::int64_t>(most, 1) * heads * std::int64_t{sizeof(Sum)};
    const std::int64_t copies = std::max<std::int64_t>(most_bytes_ / bytes, 1);
    const std::int64_t tiles = std::clamp<std::int64_t>(p_.tiles, 1, Parts::most_of_head);
    p_.owners = static_cast<Index>(std::min(copies, Parts::most_owners));
    own_parts_ = static_cast<Index>(
        std::clamp<std::int64_t>(std::min(copies / p_.owners, Parts::blocks_of_own / heads), 1, tiles));
    if (most * heads_ > 0) own_sums_ = take_all(std::ptrdiff_t{own_parts_} * p_.owners * most * heads_);
  }
  template <class F> void for_each_own(const F& f) const {
    mha::detail::for_each_accumulating<Numbers>(p_.call.score, f);
  }
  template <class Part> static std::ptrdiff_t numbers_of(const Part& part) {
    return static_cast<std::ptrdiff_t>(std::size(part.numbers()));
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
  void add(const PartSumParams<A>& sums) {
    launch<PartSumKernel>((sums.size + PartSumKernel::threads - 1) / PartSumKernel::threads, 0, sums);
  }
  void add_parts(const PartSumParams<A>& sums) {
    if (sums.parts > 1) add(sums);
  }
  /// Some of each head's slots.
  PartSumParams<A> of_slots(const Sum* from, Index parts, Sum* to, std::ptrdiff_t count) const {
    PartSumParams<A> sums{from, parts, heads_ * count, to};
    sums.columns = count;
    sums.pitch = to_.count;
    return sums;
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
    numbers<SlotGradientKernel<Wanted, First, count>>(to_.slots, head_parts_ > 1 ? slots : to_.count, 0);
    if constexpr (First + count < slots)
      slots_from<First + count>();
    else
      add_parts(of_slots(sums_, head_parts_, to_.slots, slots));
  }
  template <int Table> void tables_from() {
    const auto& table = to_.tables[Table];
    Sum* const to = table.sums + table.least;
    numbers<DistanceGradientKernel<Wanted, Table>>(to, table.count, table.least);
    add_parts({sums_, head_parts_, heads_ * table.count, to});
    if constexpr (Table + 1 < tables) tables_from<Table + 1>();
  }
  /// The sums of the scores that accumulate, from this one on, whose first number has this place in a row of the slots.
  template <int Own> void owns_from(std::ptrdiff_t first) {
    const auto& part = mha::detail::accumulating_part<Numbers, Own>(p_.call.score);
    const std::ptrdiff_t count = numbers_of(part);
    if (count > 0) {
      p_.parts = own_parts_;
      p_.sums = own_sums_;
      p_.count = count;
      launch<OwnGradientKernel<Wanted, Own>>(heads_ * own_parts_, Shape::bytes_of_own, p_);
      add(of_slots(own_sums_, own_parts_ * p_.owners, to_.slots + first, count));
    }
    if constexpr (Own + 1 < owns) owns_from<Own + 1>(first + count);
  }

  const ScoreGradientsTo<A>& to_;
  Launcher& launcher_;
  const std::int64_t most_bytes_;  // of the sums of a score that accumulates
  ScoreGradientParams<Call> p_;
  std::int64_t heads_ = 0, bias_tiles_ = 0;
  std::ptrdiff_t bias_size_ = 0;
  Index head_parts_ = 1, bias_parts_ = 1, own_parts_ = 1;
  Sum *sums_ = nullptr, *bias_sums_ = nullptr, *own_sums_ = nullptr;
  bool launching_ = false;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
