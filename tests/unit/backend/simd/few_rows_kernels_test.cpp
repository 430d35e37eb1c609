// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/few_rows_kernels.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class FewRowsKernels : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(FewRowsKernels, Scalars);

/// Scores of Rows rows over keys in runs of one register each, beside the dot products in double.
template <class T, int Rows, class Isa> void expect_dot_products() {
  using A = mha::Accumulator<T>;
  constexpr int width = simd::Vector<A, Isa>::width, runs = 7;  // odd, and 3 of fours
  constexpr Index dim = 2 * simd::FewScoresBody<A, T, Rows>::template columns_of<Isa>(), stride = dim + 3;
  support::Random random("dot products of few rows");
  std::vector<T> keys(std::size_t{runs} * width * stride);
  std::vector<A> q(std::size_t{Rows} * dim), s(std::size_t{Rows} * runs * width, std::numeric_limits<A>::quiet_NaN());
  random.fill(keys);
  random.fill(q);
  std::array<simd::StoredRows<T>, std::size_t{runs}> run{};
  for (std::size_t i = 0; i < runs; ++i)  // the last first
    run[i] = {keys.data() + (runs - 1 - i) * width * stride, stride, width};
  Isa::template run<simd::FewScoresBody<A, T, Rows>>(simd::RowRuns<T>{run.data(), runs}, q.data(), dim, s.data(),
                                                     std::ptrdiff_t{runs} * width, simd::LineRanges{});
  for (int r = 0; r < Rows; ++r)
    for (int k = 0; k < runs * width; ++k) {
      const T* const key = run[static_cast<std::size_t>(k / width)].data + std::ptrdiff_t{k % width} * stride;
      double expected = 0, size = 0;
      for (Index d = 0; d < dim; ++d) {
        const double term = double(static_cast<A>(key[d])) * double(q[static_cast<std::size_t>(r * dim + d)]);
        expected += term;
        size += std::abs(term);
      }
      const double off = std::abs(double(s[static_cast<std::size_t>(r * runs * width + k)]) - expected);
      ASSERT_LE(off, dim * size * double(std::numeric_limits<A>::epsilon())) << "row " << r << ", key " << k;
    }
}
TYPED_TEST(FewRowsKernels, ScoresAreDotProducts) {
  unit::for_each_level([](auto isa) {
    using Isa = decltype(isa);
    if constexpr (simd::Vector<mha::Accumulator<TypeParam>, Isa>::width >= 4 && !Isa::minimal) {
      SCOPED_TRACE(mha::to_string(isa.level));
      expect_dot_products<TypeParam, 1, Isa>();
      expect_dot_products<TypeParam, 2, Isa>();
      expect_dot_products<TypeParam, 4, Isa>();
      expect_dot_products<TypeParam, 8, Isa>();
    }
  });
}

/// Rows of 8 bits in runs, and the same numbers in float.
struct EightBitRuns {
  support::EightBitRows rows;
  std::vector<simd::StoredRows<mha::scaled_int8>> runs;
  std::vector<simd::StoredRows<float>> wide;

  EightBitRuns(support::Random& random, const std::vector<Index>& counts, Index dim, Index gap)
      : rows(random, std::accumulate(counts.begin(), counts.end(), Index{0}), dim, gap) {
    Index last = rows.count;
    for (const Index n : counts) {  // the last first
      last -= n;
      runs.push_back({rows.row(last), rows.stride, n});
      wide.push_back({rows.numbers.data() + std::ptrdiff_t{last} * dim, dim, n});
    }
  }
  Index count() const { return static_cast<Index>(runs.size()); }
};

template <int Rows, class Isa> void expect_bits_of_numbers(support::Random& random, Index gap) {
  using Stored = mha::scaled_int8;
  constexpr Index width = simd::Vector<float, Isa>::width;
  constexpr Index columns = simd::FewScoresBody<float, Stored, Rows>::template columns_of<Isa>();
  for (const Index dim : {columns, 3 * columns}) {
    const EightBitRuns keys(random, {width, 2 * width, 3 * width, width}, dim, gap);
    const Index n = keys.rows.count;
    std::vector<float> q(static_cast<std::size_t>(Rows * dim)), s(static_cast<std::size_t>(Rows * n)), expected = s;
    random.fill(q);
    support::poison_all(s);
    const simd::RowRuns<Stored> runs{keys.runs.data(), keys.count()};
    Isa::template run<simd::FewScoresBody<float, Stored, Rows>>(runs, q.data(), dim, s.data(), std::ptrdiff_t{n},
                                                                simd::LineRanges{});
    Isa::template run<simd::FewScoresBody<float, float, Rows>>(simd::RowRuns<float>{keys.wide.data(), keys.count()},
                                                               q.data(), dim, expected.data(), std::ptrdiff_t{n},
                                                               simd::LineRanges{});
    ASSERT_EQ(support::differing(s, expected), 0u) << "scores of " << Rows << " rows of " << dim;
  }
  for (const Index dim : {width, 2 * width, 3 * width, 7 * width, 16 * width}) {
    const EightBitRuns values(random, {1, 5, 16, 3}, dim, gap);
    const Index n = values.rows.count;
    std::vector<float> p(static_cast<std::size_t>(Rows * n)), rescale(Rows), out(static_cast<std::size_t>(Rows * dim)),
        sum(Rows);
    for (auto* x : {&p, &rescale, &out, &sum}) random.fill(*x);
    auto expected = out;
    auto expected_sum = sum;
    Isa::template run<simd::FewValuesBody<float, Stored, Rows>>(
        simd::RowRuns<Stored>{values.runs.data(), values.count()}, p.data(), std::ptrdiff_t{n}, rescale.data(), dim,
        out.data(), sum.data(), simd::LineRanges{});
    Isa::template run<simd::FewValuesBody<float, float, Rows>>(
        simd::RowRuns<float>{values.wide.data(), values.count()}, p.data(), std::ptrdiff_t{n}, rescale.data(), dim,
        expected.data(), expected_sum.data(), simd::LineRanges{});
    ASSERT_EQ(support::differing(out, expected), 0u) << "values of " << Rows << " rows of " << dim;
    ASSERT_EQ(support::differing(sum, expected_sum), 0u) << "sums of " << Rows << " rows of " << dim;
  }
}
// A row's scale multiplies its integers before anything is added, so that the bits are those of the numbers.
TEST(FewRowsOfEightBits, HaveTheBitsOfTheirNumbers) {
  support::Random random("few rows of 8 bits");
  unit::for_each_level([&](auto isa) {
    using Isa = decltype(isa);
    if constexpr (simd::Vector<float, Isa>::width >= 4 && !Isa::minimal)
      for (const Index gap : {0, 1, 7, 128}) {
        SCOPED_TRACE(std::string(mha::to_string(isa.level)) + ", rows " + std::to_string(gap) + " apart");
        expect_bits_of_numbers<1, Isa>(random, gap);
        expect_bits_of_numbers<2, Isa>(random, gap);
        expect_bits_of_numbers<4, Isa>(random, gap);
        expect_bits_of_numbers<8, Isa>(random, gap);
      }
  });
}

// While a row sees nothing its maximum is −∞, and −∞ − (−∞) must not appear; a NaN stays in its own weight.
TYPED_TEST(FewRowsKernels, SoftmaxOfNothingIsNothing) {
  using A = mha::Accumulator<TypeParam>;
  constexpr A hidden = -std::numeric_limits<A>::infinity();
  unit::for_each_level([&](auto isa) {
    using Isa = decltype(isa);
    if constexpr (simd::Vector<A, Isa>::width >= 4) {
      constexpr Index width = simd::Vector<A, Isa>::width;
      std::vector<A> s(static_cast<std::size_t>(2 * width), hidden), max(static_cast<std::size_t>(width), hidden),
          rescale(max.size(), A(7));
      s[static_cast<std::size_t>(width)] = std::numeric_limits<A>::quiet_NaN();
      s[static_cast<std::size_t>(width + 1)] = A(3);
      Isa::template run<simd::FewSoftmaxBody<A>>(s.data(), std::ptrdiff_t{width}, Index{2}, Index{2}, A(1), max.data(),
                                                 rescale.data());
      EXPECT_EQ(max[0], hidden);
      EXPECT_EQ(s[0], A(0));
      EXPECT_EQ(s[1], A(0));
      EXPECT_EQ(max[1], A(3));
      EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(width)]));
      EXPECT_EQ(s[static_cast<std::size_t>(width + 1)], A(1));
      EXPECT_EQ(rescale[1], A(0));
    }
  });
}

}  // namespace
