// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/dropout.hpp>

#include "levels.hpp"
#include "random.hpp"

namespace {

using mha::Index;
namespace simd = mha::detail::simd;

template <class A> class DropKernel : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(DropKernel, Scalars, );

TYPED_TEST(DropKernel, MultipliesByTheFactorsOfEveryPair) {
  using A = TypeParam;
  support::Random random("drop");
  unit::for_each_level([&](auto isa) {
    using Isa = decltype(isa);
    const Index width = simd::Vector<A, Isa>::width;
    for (int turn = 0; turn < 30; ++turn) {
      const auto seed = static_cast<std::uint64_t>(random.engine()());
      const auto offset = static_cast<std::uint32_t>(random.engine()());
      const mha::DropoutDraws draws =
          mha::detail::dropout_draws(random.uniform(0.05, 0.95), mha::DropoutSeed{seed, offset});
      const Index count = width * (1 + random.below(3)), stride = count + random.below(3), n = 1 + random.below(20),
                  first = random.below(1000);
      simd::DroppingLanes lanes;
      for (Index i = 0; i < count; ++i) {
        lanes.position[i] = static_cast<std::uint32_t>(random.engine()());
        lanes.row[i] = static_cast<std::uint32_t>(random.engine()());
      }
      std::vector<A> p(static_cast<std::size_t>(n * stride + 1));
      random.fill(p);
      const std::vector<A> before = p;
      simd::drop_kernel<A>(Isa::level)(p.data(), stride, n, count, first, lanes.of(draws));
      for (Index k = 0; k <= n; ++k)
        for (Index i = 0; i < (k < n ? stride : 1); ++i) {
          const auto at = static_cast<std::size_t>(k * stride + i);
          const bool inside = k < n && i < count;
          const double factor =
              inside ? draws.factor(lanes.row[i], static_cast<Index>(lanes.position[i]), first + k) : 1;
          ASSERT_EQ(p[at], before[at] * static_cast<A>(factor)) << "key " << first + k << ", lane " << i;
        }
    }
  });
}

TYPED_TEST(DropKernel, KeepsAWordThatIsTheThreshold) {
  using A = TypeParam;
  unit::for_each_level([](auto isa) {
    using Isa = decltype(isa);
    const Index width = simd::Vector<A, Isa>::width;
    simd::DroppingLanes lanes;
    for (Index i = 0; i < width; ++i) {
      lanes.position[i] = static_cast<std::uint32_t>(40 + i);
      lanes.row[i] = 3;
    }
    mha::DropoutDraws draws = mha::detail::dropout_draws(0.5, mha::DropoutSeed{7, 1});
    for (Index k = 0; k < 4; ++k)
      for (const std::uint32_t above : {0u, 1u}) {
        draws.threshold = draws.words(3, 40, 2).word[k] + above;
        std::vector<A> p(static_cast<std::size_t>(width), A(1));
        simd::drop_kernel<A>(Isa::level)(p.data(), width, 1, width, 8 + k, lanes.of(draws));
        EXPECT_EQ(p[0], above == 0 ? A(2) : A(0)) << k;
      }
  });
}

TEST(DroppingLanes, CountPositionsOnFromTheFirst) {
  struct {
    mha::CallShape shape;
  } call;
  call.shape.heads = 5;
  simd::DroppingLanes lanes;
  lanes.set(call, 2, 3, -1, 4, 3);
  EXPECT_EQ(lanes.position[3], 0u);
  EXPECT_EQ(lanes.position[4], ~0u);
  EXPECT_EQ(lanes.position[5], 0u);
  EXPECT_EQ(lanes.position[6], 1u);
  EXPECT_EQ(lanes.row[6], 13u);
  EXPECT_EQ(lanes.row[7], 0u);
}

}  // namespace
