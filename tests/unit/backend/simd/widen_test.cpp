// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/widen.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class Widen : public testing::Test {};
using Scalars = testing::Types<mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Widen, Scalars);

/// The bits, of a NaN as if it were quiet: an instruction makes it so, arithmetic does later.
std::uint32_t quiet(float x) { return support::bits(x) | (x != x ? 0x00400000u : 0u); }

TYPED_TEST(Widen, EveryBitPatternIsWhatItsConversionGives) {
  using T = TypeParam;
  const Index dim = 1 << 16;
  std::vector<T> from(std::size_t{1} << 16);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = T::from_bits(static_cast<std::uint16_t>(i));
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<float> to(from.size());
    support::poison_all(to);
    Isa::template run<simd::WidenBody<float, T>>(static_cast<const T*>(from.data()), std::ptrdiff_t{0}, Index{1}, dim,
                                                 to.data());
    for (std::size_t i = 0; i < from.size(); ++i)
      ASSERT_EQ(quiet(to[i]), quiet(static_cast<float>(from[i]))) << std::hex << i;
  });
}

// Every upper half of a float with lower bits around the ties, the subnormals of half and the largest numbers.
TYPED_TEST(Widen, NarrowingRoundsAsTheConversionDoes) {
  using T = TypeParam;
  std::vector<float> from;
  for (std::uint32_t upper = 0; upper < 1u << 16; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      from.push_back(__builtin_bit_cast(float, upper << 16 | lower));
  from.resize(from.size() - 5);  // a last register that is not whole
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<T> to(from.size() + 1, T(7.f));
    Isa::template run<simd::NarrowBody<float, T>>(static_cast<const float*>(from.data()), std::ptrdiff_t{0}, Index{1},
                                                  static_cast<Index>(from.size()), to.data(), std::ptrdiff_t{0});
    for (std::size_t i = 0; i < from.size(); ++i)
      ASSERT_EQ(to[i].bits, T(from[i]).bits) << std::hex << support::bits(from[i]);
    EXPECT_EQ(to.back().bits, T(7.f).bits);
  });
}

#if defined(__x86_64__)
TEST(WidenHalf, IsAnInstructionWhereverALevelHasOne) {
  EXPECT_FALSE(simd::has_half<simd::Baseline>);
  EXPECT_TRUE(simd::has_half<simd::Avx2> && simd::has_half<simd::Avx512>);
}
#endif

TYPED_TEST(Widen, NarrowedRowsLieAtTheirStride) {
  using T = TypeParam;
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const Index dim : {1, 16, 21}) {
      const Index n = 3, stride = dim + 4, to_stride = dim + 2;
      std::vector<float> from(static_cast<std::size_t>(n * stride));
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
      std::vector<T> to(static_cast<std::size_t>(n * to_stride), T(-1.f));
      Isa::template run<simd::NarrowBody<float, T>>(static_cast<const float*>(from.data()), std::ptrdiff_t{stride}, n,
                                                    dim, to.data(), std::ptrdiff_t{to_stride});
      for (Index i = 0; i < n; ++i)
        for (Index d = 0; d < to_stride; ++d)
          EXPECT_EQ(static_cast<float>(to[static_cast<std::size_t>(i * to_stride + d)]),
                    d < dim ? static_cast<float>(i * stride + d) : -1.f);
    }
  });
}

TYPED_TEST(Widen, RowsLieOneAfterAnother) {
  using T = TypeParam;
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const Index dim : {1, 16, 21}) {
      const Index n = 3, stride = dim + 4;
      std::vector<T> from(static_cast<std::size_t>(n * stride));
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = T(static_cast<float>(i));
      std::vector<float> to(static_cast<std::size_t>(n * dim + 2));
      support::poison_all(to);
      Isa::template run<simd::WidenBody<float, T>>(static_cast<const T*>(from.data()), std::ptrdiff_t{stride}, n, dim,
                                                   to.data());
      for (Index i = 0; i < n; ++i)
        for (Index d = 0; d < dim; ++d)
          EXPECT_EQ(to[static_cast<std::size_t>(i * dim + d)], static_cast<float>(i * stride + d));
      for (std::size_t i = static_cast<std::size_t>(n * dim); i < to.size(); ++i)
        EXPECT_EQ(support::bits(to[i]), support::bits(support::poison<float>()));
    }
  });
}

/// A storage scalar of a user's own.
struct Eighths {
  std::int8_t n = 0;
  explicit operator float() const { return static_cast<float>(n) / 8; }
};

TEST(WidenOthers, ConvertsOneByOne) {
  std::vector<Eighths> from(19);
  for (std::size_t i = 0; i < from.size(); ++i) from[i].n = static_cast<std::int8_t>(i);
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<float> to(from.size());
    Isa::template run<simd::WidenBody<float, Eighths>>(static_cast<const Eighths*>(from.data()), std::ptrdiff_t{0},
                                                       Index{1}, Index{19}, to.data());
    for (std::size_t i = 0; i < to.size(); ++i) EXPECT_EQ(to[i], static_cast<float>(i) / 8);
  });
}

// Every integer under many scales, in rows at odd addresses; nothing beyond a row is read or written.
TEST(WidenEightBits, RowsAreTheirNumbers) {
  support::Random random("widened rows of 8 bits");
  for (const Index dim : {1, 3, 4, 15, 16, 21, 64, 255})
    for (const Index gap : {0, 1, 5}) {
      const support::EightBitRows rows(random, 3, dim, gap);
      unit::for_each_level([&]<class Isa>(Isa) {
        std::vector<float> to(rows.numbers.size() + 2);
        support::poison_all(to);
        Isa::template run<simd::WidenBody<float, mha::scaled_int8>>(rows.row(0), rows.stride, Index{3}, dim, to.data());
        for (std::size_t i = 0; i < rows.numbers.size(); ++i)
          ASSERT_EQ(support::bits(to[i]), support::bits(rows.numbers[i])) << i << " of rows of " << dim;
        for (std::size_t i = rows.numbers.size(); i < to.size(); ++i)
          ASSERT_EQ(support::bits(to[i]), support::bits(support::poison<float>()));
      });
    }
}
TEST(WidenEightBits, HasEveryInteger) {
  for (const float scale : {1.0f, 0.1f, 0.0f, 1e36f}) {
    std::vector<mha::scaled_int8> row(4);
    std::memcpy(row.data(), &scale, 4);
    for (int i = -127; i <= 127; ++i) row.push_back(support::eight_bits(i));
    unit::for_each_level([&]<class Isa>(Isa) {
      std::vector<float> to(255);
      Isa::template run<simd::WidenBody<float, mha::scaled_int8>>(static_cast<const mha::scaled_int8*>(row.data() + 4),
                                                                  std::ptrdiff_t{0}, Index{1}, Index{255}, to.data());
      for (int i = -127; i <= 127; ++i) EXPECT_EQ(to[std::size_t(i + 127)], static_cast<float>(i) * scale);
    });
  }
}
TEST(WidenEightBits, IsNaNUnderAScaleThatIs) {
  const std::vector<float> from{1, INFINITY, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  std::vector<mha::scaled_int8> row(4 + from.size());
  mha::quantize_row(from.data(), 17, row.data() + 4);
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<float> to(17);
    Isa::template run<simd::WidenBody<float, mha::scaled_int8>>(static_cast<const mha::scaled_int8*>(row.data() + 4),
                                                                std::ptrdiff_t{0}, Index{1}, Index{17}, to.data());
    for (const float x : to) EXPECT_TRUE(std::isnan(x));
  });
}

}  // namespace
