// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/simd/norm.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using mha::NormCall;
using mha::Tensor;

template <class T> class NormKernel : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(NormKernel, Scalars);

/// Rows with gaps between them, of which nothing is read or written.
template <class T> struct Rows {
  static constexpr Index count = 3, gap = 5;
  using A = mha::Accumulator<T>;

  Index width, stride;
  bool with_residual;
  std::vector<T> x, residual, y, sum;
  std::vector<A> weight, bias, scratch;

  Rows(support::Random& random, Index w, double offset, bool added)
      : width(w),
        stride(w + gap),
        with_residual(added),
        x(size()),
        residual(size()),
        y(size()),
        sum(size()),
        weight(std::size_t(w)),
        bias(std::size_t(w)),
        scratch(std::size_t(w)) {
    for (auto* v : {&x, &residual, &y, &sum}) support::poison_all(*v);
    support::poison_all(scratch);
    for (Index i = 0; i < count; ++i)
      for (Index j = 0; j < width; ++j) {
        x[at(i, j)] = support::Random::rounded<T>(offset + random.normal());
        residual[at(i, j)] = support::Random::rounded<T>(random.normal());
      }
    random.fill(weight);
    random.fill(bias);
  }
  std::size_t size() const { return std::size_t(count) * std::size_t(stride); }
  std::size_t at(Index i, Index j) const { return std::size_t(i) * std::size_t(stride) + std::size_t(j); }

  simd::NormArgs<A, T> args(bool centred) {
    return {x.data(),      with_residual ? residual.data() : nullptr,
            y.data(),      with_residual ? sum.data() : nullptr,
            stride,        stride,
            stride,        stride,
            count,         width,
            weight.data(), bias.data(),
            A(1e-5),       centred,
            scratch.data()};
  }
  /// x + residual as the kernel sees it.
  A z(Index i, Index j) const { return with_residual ? A(x[at(i, j)]) + A(residual[at(i, j)]) : A(x[at(i, j)]); }

  void expect_right(bool centred, const std::string& place) const {
    support::Worst worst;
    const double u = support::unit_roundoff<A>();
    for (Index i = 0; i < count; ++i) {
      long double mean = 0, square = 0;
      if (centred)
        for (Index j = 0; j < width; ++j) mean += static_cast<long double>(z(i, j)) / width;
      for (Index j = 0; j < width; ++j) square += (z(i, j) - mean) * (z(i, j) - mean) / width;
      const long double root = std::sqrt(square + static_cast<long double>(A(1e-5)));
      for (Index j = 0; j < width; ++j) {
        const auto k = static_cast<std::size_t>(j);
        const double n = double((z(i, j) - mean) / root), w = double(weight[k]), expected = n * w + double(bias[k]);
        const double bound = u * (8 + width / 16.0) * (std::abs(n * w) + std::abs(w)) + 4 * u * std::abs(expected) +
                             2 * support::storage_error<T>(expected) + 1e-300;
        worst.see(support::to_double(y[at(i, j)]), expected, bound, place + " (" + std::to_string(j) + ")");
        if (with_residual) {
          EXPECT_EQ(support::bits(sum[at(i, j)]), support::bits(T(z(i, j)))) << place;
        }
      }
      for (Index j = width; j < stride; ++j) {
        EXPECT_EQ(support::bits(y[at(i, j)]), support::bits(support::poison<T>())) << place;
        EXPECT_EQ(support::bits(sum[at(i, j)]), support::bits(support::poison<T>())) << place;
      }
    }
    EXPECT_LE(worst.error(), 1) << worst.text();
  }
};

TYPED_TEST(NormKernel, IsTheFormulaAtEveryLevelAndWidth) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("norm kernel");
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const Index width : {1, 2, 3, 7, 16, 17, 31, 64, 96, 127, 768, 1000})
      for (const double offset : {0.0, 100.0})
        for (const bool residual : {false, true})
          for (const bool centred : {false, true}) {
            Rows<T> rows(random, width, offset, residual);
            Isa::template run<simd::NormBody<A, T>>(rows.args(centred));
            rows.expect_right(centred, std::to_string(width) + " wide" + (residual ? ", residual" : "") +
                                           (centred ? ", centred" : "") + ", offset " + std::to_string(offset));
          }
  });
}

TYPED_TEST(NormKernel, ARowHasTheBitsThatItHasAlone) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("norm kernel bits");
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const Index width : {5, 96, 333}) {
      Rows<T> rows(random, width, 1, false);
      auto args = rows.args(true);
      Isa::template run<simd::NormBody<A, T>>(args);
      const auto together = rows.y;
      for (Index i = 0; i < rows.count; ++i) {
        std::vector<T> alone(rows.x.begin() + std::ptrdiff_t(rows.at(i, 0)),
                             rows.x.begin() + std::ptrdiff_t(rows.at(i, width)));
        const std::vector<T> zeros(alone.size());
        auto one = args;
        one.x = one.y = alone.data();  // in place
        one.rows = 1;
        Isa::template run<simd::NormBody<A, T>>(one);
        for (Index j = 0; j < width; ++j)
          ASSERT_EQ(support::bits(alone[std::size_t(j)]), support::bits(together[rows.at(i, j)])) << width << ' ' << j;
        // and where it goes through the scratch because something is added
        std::copy_n(rows.x.begin() + std::ptrdiff_t(rows.at(i, 0)), width, alone.begin());
        one.residual = zeros.data();
        Isa::template run<simd::NormBody<A, T>>(one);
        for (Index j = 0; j < width; ++j)
          ASSERT_EQ(support::bits(alone[std::size_t(j)]), support::bits(together[rows.at(i, j)])) << width << ' ' << j;
      }
    }
  });
}

TYPED_TEST(NormKernel, RowsOfEqualNumbersGiveTheBias) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("equal numbers");
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const Index width : {1, 3, 100, 768})
      for (const bool centred : {false, true}) {
        Rows<T> rows(random, width, 0, false);
        for (Index i = 0; i < rows.count; ++i)
          std::fill_n(rows.x.begin() + std::ptrdiff_t(rows.at(i, 0)), width, centred ? T(A(0.1) * A(i + 1)) : T(A(0)));
        auto args = rows.args(centred);
        for (const A eps : {A(1e-5), A(0)}) {
          args.eps = eps;
          Isa::template run<simd::NormBody<A, T>>(args);
          for (Index i = 0; i < rows.count; ++i)
            for (Index j = 0; j < width; ++j)
              ASSERT_EQ(support::to_double(rows.y[rows.at(i, j)]), support::to_double(T(rows.bias[std::size_t(j)])))
                  << width << (centred ? " centred" : "");
        }
      }
  });
}

TEST(Normalize, RowsInAnyOrderOfMemoryAndOnThreadsHaveTheSameBits) {
  support::Random random("normalize");
  const Index batch = 3, length = 100, width = 900;  // enough for threads
  Tensor<float, 3> x(batch, length, width), residual(batch, length, width), y(batch, length, width),
      sum(batch, length, width);
  random.fill(x);
  random.fill(residual);
  std::vector<float> weight(900), bias(900);
  random.fill(weight);
  random.fill(bias);
  mha::Workspace workspace;
  const auto run = [&](const auto& executor, NormCall<float> call) { simd::normalize(call, workspace, executor); };
  const NormCall<float> call{std::as_const(x).view(),
                             std::as_const(residual).view(),
                             y.view(),
                             sum.view(),
                             weight.data(),
                             bias.data(),
                             1e-5f,
                             true};
  run(mha::Serial{}, call);
  const auto expected = y, expected_sum = sum;
  support::poison_all(y);
  support::poison_all(sum);
  run(mha::ThreadPool(3), call);
  EXPECT_EQ(support::differing(y, expected), 0u);
  EXPECT_EQ(support::differing(sum, expected_sum), 0u);

  // The same numbers at other strides: x with its columns as rows, y with its sequences exchanged, sum reversed.
  Tensor<float, 3> turned(batch, width, length), swapped(length, batch, width), back(batch, length, width);
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l)
      for (Index j = 0; j < width; ++j) turned(b, j, l) = x(b, l, j);
  support::poison_all(swapped);
  support::poison_all(back);
  auto strided = call;
  strided.x = {turned.data(), {batch, length, width}, {std::ptrdiff_t{length} * width, 1, length}};
  strided.y = {swapped.data(), {batch, length, width}, {width, std::ptrdiff_t{batch} * width, 1}};
  strided.sum = {
      &back(batch - 1, length - 1, width - 1), {batch, length, width}, {-std::ptrdiff_t{length} * width, -width, -1}};
  run(mha::ThreadPool(2), strided);
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l)
      for (Index j = 0; j < width; ++j) {
        ASSERT_EQ(swapped(l, b, j), expected(b, l, j));
        ASSERT_EQ(back(batch - 1 - b, length - 1 - l, width - 1 - j), expected_sum(b, l, j));
      }
}

TEST(Normalize, KeepsItsScratch) {
  Tensor<mha::bfloat16, 3> x(2, 40, 96);
  const std::vector<float> ones(96, 1), zeros(96);
  mha::Workspace workspace;
  const NormCall<mha::bfloat16> call{std::as_const(x).view(), {}, x.view(), {}, ones.data(), zeros.data(), 1e-5f, true};
  simd::normalize(call, workspace, mha::Serial{});
  const int before = workspace.allocations();
  simd::normalize(call, workspace, mha::Serial{});
  EXPECT_EQ(workspace.allocations(), before);
}

}  // namespace
