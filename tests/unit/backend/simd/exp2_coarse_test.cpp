// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/exp2_coarse.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;

struct Exp2Coarse {
  template <class Isa> MHA_ALWAYS_INLINE static void run(float* x, std::size_t n) {
    constexpr std::size_t width = simd::Vector<float, Isa>::width;
    for (std::size_t i = 0; i + width <= n; i += width) {
      simd::vector_t<float, Isa> v;
      simd::load(v, x + i);
      simd::exp2_coarse_in_place<Isa>(v);
      simd::store(x + i, v);
    }
  }
};

template <class Isa> std::vector<float> exp2_of(std::vector<float> x) {
  const std::size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  Isa::template run<Exp2Coarse>(x.data(), x.size());
  x.resize(n);
  return x;
}

TEST(Exp2Coarse, IsWithinItsStatedError) {
  support::Random random("coarse");
  std::vector<float> x;
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<float>(random.uniform(-126, 127)));
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<float>(random.uniform(-2, 2)));
  for (int i = -1000; i <= 1000; ++i)
    for (const float to : {-2000.f, 2000.f}) x.push_back(std::nextafter(static_cast<float>(i) / 8.f, to));
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>(x);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      worst = support::maximum(worst, std::abs(double(y[i]) / std::exp2(double(x[i])) - 1));
    }
    EXPECT_LT(worst, 1e-4);
  });
}

TEST(Exp2Coarse, IsExactWhereTheSoftmaxNeedsIt) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>({0.f, -0.f, -inf, -1000.f, -3e38f, 128.f, 1000.f, inf, NAN, -1.f, 5.f});
    EXPECT_EQ(y[0], 1.f);
    EXPECT_EQ(y[1], 1.f);
    for (const int i : {2, 3, 4}) EXPECT_EQ(y[std::size_t(i)], 0.f);
    for (const int i : {5, 6, 7}) EXPECT_EQ(y[std::size_t(i)], inf);
    EXPECT_TRUE(std::isnan(y[8]));
    EXPECT_EQ(y[9], 0.5f);
    EXPECT_EQ(y[10], 32.f);
  });
}

}  // namespace
