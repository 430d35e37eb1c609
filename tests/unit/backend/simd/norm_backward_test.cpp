// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/norm_backward.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class A> class SimdNormBackward : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(SimdNormBackward, Scalars);

/// One block against NormBackwardItems in double; what lies beside the rows is left alone.
template <class A> void expect_level(mha::IsaLevel level, Index width, bool centred) {
  constexpr Index rows = 7, gap = 3;
  const Index stride = width + gap;
  support::Random random("norm kernels");
  const auto make = [&](Index n) {
    std::vector<A> v(static_cast<std::size_t>(n));
    random.fill(v);
    return v;
  };
  const auto wide = [](const std::vector<A>& v) { return std::vector<double>(v.begin(), v.end()); };
  auto z = make(rows * stride), dy = make(rows * stride);
  const auto weight = make(width);
  for (Index j = 0; j < width; ++j) dy[static_cast<std::size_t>(2 * stride + j)] = 0;
  std::vector<A> dz(z.size()), sums(static_cast<std::size_t>(2 * width));
  support::poison_all(dz);
  support::poison_all(sums);
  const double eps = 0.125;
  simd::norm_backward_kernel<A>(level)({z.data(), dy.data(), dz.data(), stride, stride, stride, rows, width,
                                        weight.data(), sums.data(), sums.data() + width, static_cast<A>(eps), centred});
  const auto exact_z = wide(z), exact_dy = wide(dy), exact_weight = wide(weight);
  std::vector<double> exact_dz(z.size()), exact_sums(sums.size());
  const auto view = [&](auto* data) {
    return mha::TensorView<std::remove_pointer_t<decltype(data)>, 2>{data, {rows, width}, {stride, 1}};
  };
  const mha::detail::NormBackwardItems<double> items(
      {view(exact_z.data()), view(exact_dy.data()), view(exact_dz.data()), exact_weight.data(), nullptr, nullptr, eps,
       centred},
      exact_sums.data());
  items(0, 0);
  const double bound = 200 * static_cast<double>(std::numeric_limits<A>::epsilon());
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < stride; ++j) {
      const auto at = static_cast<std::size_t>(i * stride + j);
      if (j < width)
        EXPECT_NEAR(dz[at], exact_dz[at], bound) << width << ": " << i << ", " << j;
      else
        EXPECT_EQ(support::bits(dz[at]), support::bits(support::poison<A>()));
    }
  for (std::size_t j = 0; j < sums.size(); ++j) EXPECT_NEAR(sums[j], exact_sums[j], bound) << width << ": " << j;
}

TYPED_TEST(SimdNormBackward, IsTheFormulaAtEveryLevel) {
  unit::for_each_level([&](auto isa) {
    for (const bool centred : {false, true})
      for (const Index width : {1, 2, 7, 16, 33, 64, 100})
        expect_level<TypeParam>(decltype(isa)::level, width, centred);
  });
}

}  // namespace
