// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/transpose.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class Transpose : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Transpose, Scalars);

TYPED_TEST(Transpose, PackMakesColumnsOfRows) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("pack");
  unit::for_each_level([&]<class Isa>(Isa) {
    constexpr Index width = simd::Vector<A, Isa>::width;
    for (const Index dim : {1, 7, 16, 37}) {
      const Index stride = dim + 3, lanes = width + 5;
      std::vector<T> from(static_cast<std::size_t>(width * stride));
      random.fill(from);
      std::vector<A> to(static_cast<std::size_t>(dim * lanes));
      support::poison_all(to);
      Isa::template run<simd::PackBody<A, T>>(static_cast<const T*>(from.data()), std::ptrdiff_t{stride}, dim,
                                              to.data(), std::ptrdiff_t{lanes});
      for (Index d = 0; d < dim; ++d)
        for (Index i = 0; i < lanes; ++i) {
          const A x = to[static_cast<std::size_t>(d * lanes + i)];
          if (i < width) {
            EXPECT_EQ(x, static_cast<A>(from[static_cast<std::size_t>(i * stride + d)]));
          } else {
            EXPECT_EQ(support::bits(x), support::bits(support::poison<A>()));
          }
        }
    }
  });
}

TYPED_TEST(Transpose, UnpackMakesScaledRowsOfColumns) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("unpack");
  unit::for_each_level([&]<class Isa>(Isa) {
    constexpr Index width = simd::Vector<A, Isa>::width;
    for (const Index dim : {1, 7, 16, 37}) {
      const Index lanes = 2 * width, stride = dim + 3;
      std::vector<A> from(static_cast<std::size_t>(dim * lanes)), factor(static_cast<std::size_t>(width));
      std::vector<T> to(static_cast<std::size_t>(width * stride));
      random.fill(from);
      random.fill(factor);
      from[0] = A(-0.0);
      factor[0] = A(2);
      support::poison_all(to);
      Isa::template run<simd::UnpackBody<A, T>>(static_cast<const A*>(from.data()), std::ptrdiff_t{lanes},
                                                static_cast<const A*>(factor.data()), dim, to.data(),
                                                std::ptrdiff_t{stride});
      for (Index i = 0; i < width; ++i)
        for (Index d = 0; d < stride; ++d) {
          const T x = to[static_cast<std::size_t>(i * stride + d)];
          if (d < dim) {
            const A exact = from[static_cast<std::size_t>(d * lanes + i)] * factor[static_cast<std::size_t>(i)] + A(0);
            EXPECT_EQ(support::bits(x), support::bits(static_cast<T>(exact))) << i << ", " << d;
          } else {
            EXPECT_EQ(support::bits(x), support::bits(support::poison<T>()));
          }
        }
    }
  });
}

struct TransposeSquare {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const std::uint32_t* from, std::ptrdiff_t from_stride, std::uint32_t* to,
                                    std::ptrdiff_t to_stride) {
    simd::transpose16<Isa>(from, from_stride, to, to_stride);
  }
};

TEST(Transpose16, PutsEveryWordWhereItBelongs) {
  std::vector<std::uint32_t> from(16 * 19);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<std::uint32_t> to(16 * 21, 7u);
    Isa::template run<TransposeSquare, const std::uint32_t*, std::ptrdiff_t, std::uint32_t*, std::ptrdiff_t>(
        from.data(), 19, to.data(), 21);
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t j = 0; j < 21; ++j) EXPECT_EQ(to[i * 21 + j], j < 16 ? from[j * 19 + i] : 7u);
  });
}

}  // namespace
