// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cpu/tile_layout.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;
using mha::Index;
using mha::Tensor;

/// A tile of heads 1 and 2, queries from 3 on, of the second of two sequences.
template <class T> struct Case {
  using A = mha::Accumulator<T>;
  using Call = mha::AttendCall<T, mha::ContiguousKv<T>, mha::Full, mha::NoScore>;

  Tensor<T, 4> q, out;
  Call call{};
  cpu::TileLayout<Call> layout;

  /// Elements of a row lie `step` apart.
  Case(mha::IsaLevel level, Index count, Index dim, Index step)
      : q(2, count + 4, 4, dim * step),
        out(2, count + 4, 4, dim * step),
        layout{call, level, {.b = 1, .head = 1, .heads = 2, .first = 3, .rows = count, .position = 3}, 0, 0} {
    support::Random("layout").fill(q);
    support::poison_all(out);
    call.q = q.view();
    call.out = out.view();
    call.q.stride[3] = call.out.stride[3] = step;
    call.q.extent[3] = call.out.extent[3] = dim;
    call.head_dim = call.value_dim = dim;
    const auto kernels = simd::tile_kernels<A>(level, layout.rows.count());
    layout.lanes = kernels.lanes;
    layout.width = kernels.width;
  }
  Case(const Case&) = delete;  // the layout refers to the call

  bool is_own(Index b, Index i, Index h) const {
    return b == 1 && i >= 3 && i < 3 + layout.rows.rows && h >= 1 && h < 3;
  }
  Index lane(Index i, Index h) const { return (h - 1) * layout.rows.rows + i - 3; }

  /// Outputs are state[lane, d] · factor rounded to T, those of the empty lane 0, and nothing else is written.
  template <class State> void check(const State& state, const std::vector<A>& factor, Index empty) const {
    const Index step = static_cast<Index>(call.out.stride[3]);
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < out.extent(1); ++i)
        for (Index h = 0; h < 4; ++h)
          for (Index d = 0; d < out.extent(3); ++d) {
            T expected = support::poison<T>();
            if (is_own(b, i, h) && d % step == 0) {
              const A product = state(lane(i, h), d / step) * factor[static_cast<std::size_t>(lane(i, h))];
              expected = lane(i, h) == empty ? T(A(0)) : static_cast<T>(product + A(0));
            }
            EXPECT_EQ(support::bits(out(b, i, h, d)), support::bits(expected))
                << b << ", " << i << ", " << h << ", " << d << " of " << layout.rows.rows << " queries";
          }
  }
};

/// f(case) for tiles that fill registers or not, rows with steps or without, on every level.
template <class T, class F> void for_each_case(Index dim, F&& f) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level)
    for (const Index count : {1, 2, 5, 9, 16, 21})
      for (const Index step : {1, 2}) {
        if (2 * count > simd::widest_tile<mha::Accumulator<T>>(static_cast<mha::IsaLevel>(level))) continue;
        const Case<T> c(static_cast<mha::IsaLevel>(level), count, dim, step);
        f(c);
      }
}

template <class A> std::vector<A> poisoned(Index n) {
  std::vector<A> v(static_cast<std::size_t>(n));
  support::poison_all(v);
  return v;
}

template <class T> class TileLayout : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(TileLayout, Scalars);

TYPED_TEST(TileLayout, PacksQueriesInLanesAndInRows) {
  using A = mha::Accumulator<TypeParam>;
  for_each_case<TypeParam>(19, [&](const Case<TypeParam>& c) {
    const Index dim = 19, lanes = c.layout.lanes, count = c.layout.rows.rows;
    std::vector<A> in_lanes = poisoned<A>(dim * lanes), in_rows = poisoned<A>((2 * count + 3) * dim);
    c.layout.pack_lanes(in_lanes.data());
    c.layout.pack_rows(2 * count + 3, in_rows.data());
    for (Index lane = 0; lane < std::max(lanes, 2 * count + 3); ++lane)
      for (Index d = 0; d < dim; ++d) {
        const A expected = lane < 2 * count ? static_cast<A>(c.call.q(1, 3 + lane % count, 1 + lane / count, d)) : A(0);
        if (lane < lanes) {
          EXPECT_EQ(in_lanes[static_cast<std::size_t>(d * lanes + lane)], expected) << lane << ", " << d;
        }
        if (lane < 2 * count + 3) {
          EXPECT_EQ(in_rows[static_cast<std::size_t>(lane * dim + d)], expected) << lane << ", " << d;
        }
      }
  });
}

/// Outputs of a state, its sums and factors, with a lane that saw nothing.
template <class A> struct Outputs {
  std::vector<A> out, sum, factor;
  Index empty;

  Outputs(support::Random& random, Index lanes, Index dim, Index used)
      : out(static_cast<std::size_t>(lanes * dim)),
        sum(static_cast<std::size_t>(lanes), A(1)),
        factor(static_cast<std::size_t>(lanes)),
        empty(random.below(used)) {
    random.fill(out);
    random.fill(factor);
    sum[static_cast<std::size_t>(empty)] = 0;
  }
  /// What narrowing treats in ways of its own, as elements 0 to 5 of a row whose elements lie `stride` apart.
  void set_special(A* row, Index stride) const {
    const A special[] = {-A(0), support::poison<A>(), std::numeric_limits<A>::infinity(), A(1e6), A(3e-7), A(-1e-9)};
    for (std::size_t d = 0; d < std::size(special); ++d) row[d * static_cast<std::size_t>(stride)] = special[d];
  }
  mha::detail::simd::TileState<A> state() { return {nullptr, sum.data(), out.data()}; }
};

TYPED_TEST(TileLayout, StoresOutputsFromLanes) {
  using A = mha::Accumulator<TypeParam>;
  support::Random random("from lanes");
  for_each_case<TypeParam>(37, [&](const Case<TypeParam>& c) {
    const Index dim = 37, lanes = c.layout.lanes;
    Outputs<A> o(random, lanes, dim, 2 * c.layout.rows.rows);
    for (Index lane = 0; lane < lanes; ++lane) o.set_special(o.out.data() + lane, lanes);
    c.layout.store_lanes(o.state(), o.factor.data());
    c.check([&](Index lane, Index d) { return o.out[static_cast<std::size_t>(d * lanes + lane)]; }, o.factor, o.empty);
  });
}

TYPED_TEST(TileLayout, StoresOutputsFromRows) {
  using A = mha::Accumulator<TypeParam>;
  support::Random random("from rows");
  for_each_case<TypeParam>(48, [&](const Case<TypeParam>& c) {
    const Index dim = 48, count = 2 * c.layout.rows.rows;
    Outputs<A> o(random, count, dim, count);
    for (Index lane = 0; lane < count; ++lane) o.set_special(o.out.data() + lane * dim, 1);
    c.layout.store_rows(o.state(), o.factor.data());
    c.check([&](Index lane, Index d) { return o.out[static_cast<std::size_t>(lane * dim + d)]; }, o.factor, o.empty);
  });
}

}  // namespace
