// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

/// A storage scalar of the user's: 24 bits of a float.
struct Short {
  float value = 0;
  Short() = default;
  explicit Short(float x) : value(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffffff00u)) {}
  operator float() const { return value; }
};

}  // namespace

template <> struct mha::ScalarTraits<Short> { using Accumulator = float; };

namespace {

using mha::DenseWeights;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using Cpu = mha::CpuWith<mha::Serial>;
template <class T> using Packed = mha::detail::cpu::PackedWeights<T>;

/// Three matrices of one depth and one of another; every second has a bias, one is stored transposed.
template <class T> struct Weights {
  Tensor<T, 2> first, second, turned, other;
  Tensor<T, 1> bias, other_bias;

  Weights(Index depth, support::Random& random)
      : first(depth, 50), second(depth, 48), turned(33, depth), other(7, 5), bias(2 * 50), other_bias(5) {
    for (auto* w : {&first, &second, &turned, &other}) random.fill(*w);
    random.fill(bias);
    random.fill(other_bias);
  }
  std::vector<DenseWeights<T>> parts() const {
    return {{first.view(), {bias.data(), {50}, {2}}},
            {second.view(), {}},
            {mha::transposed(turned.view()), {}},
            {other.view(), other_bias.view()}};
  }
};
template <class T> Packed<T> pack(const std::vector<DenseWeights<T>>& parts) {
  return Cpu{}.pack(std::span<const DenseWeights<T>>(parts));
}

template <class F> void at_every_isa(F&& f) {
  const mha::IsaLevel before = mha::current_isa();
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    SCOPED_TRACE(mha::to_string(mha::current_isa()));
    f();
  }
  mha::force_isa(before);
}

template <class T> class PackedProduct : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(PackedProduct, Scalars, );

// Packed once, before the level is lowered.
TYPED_TEST(PackedProduct, IsTheSumOfProductsForEveryRangeOfPartsAtEveryLevel) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("packed");
  for (const Index depth : {0, 1, 40, 300}) {
    const Weights<T> weights(depth, random);
    const auto parts = weights.parts();
    const Packed<T> packed = pack(parts);
    at_every_isa([&] {
      for (const Index m : {0, 1, 3, 8, 19, 140})
        for (const auto& [first, count] : {std::pair<Index, Index>{0, 3}, {1, 2}, {2, 1}, {3, 1}}) {
          const Index k = parts[static_cast<std::size_t>(first)].matrix.extent[0];
          Tensor<T, 2> a(m, k);
          random.fill(a);
          std::vector<Tensor<T, 2>> wide;  // results with poison beside them
          std::vector<TensorView<T, 2>> c;
          for (Index i = 0; i < count; ++i) {
            const Index n = parts[static_cast<std::size_t>(first + i)].matrix.extent[1];
            wide.emplace_back(m, 2 * n + 3);
            support::poison_all(wide.back());
          }
          for (Index i = 0; i < count; ++i) {
            auto& to = wide[static_cast<std::size_t>(i)];
            const Index n = parts[static_cast<std::size_t>(first + i)].matrix.extent[1];
            // One result lies with gaps between its columns.
            if (i == 1)
              c.push_back({to.data(), {m, n}, {2 * n + 3, 2}});
            else
              c.push_back({to.data(), {m, n}, {2 * n + 3, 1}});
          }
          mha::Workspace workspace;
          Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, first, c}, workspace);
          for (Index i = 0; i < count; ++i) {
            const auto& part = parts[static_cast<std::size_t>(first + i)];
            const auto& got = c[static_cast<std::size_t>(i)];
            for (Index r = 0; r < m; ++r)
              for (Index j = 0; j < part.matrix.extent[1]; ++j) {
                double sum = part.bias.data == nullptr ? 0 : support::to_double(part.bias(j)),
                       magnitude = std::abs(sum);
                for (Index l = 0; l < k; ++l) {
                  const double term = support::to_double(a(r, l)) * support::to_double(part.matrix(l, j));
                  sum += term;
                  magnitude += std::abs(term);
                }
                ASSERT_NEAR(
                    support::to_double(got(r, j)), sum,
                    (k + 4) * 2 * support::unit_roundoff<A>() * magnitude + 1.1 * support::storage_error<T>(sum))
                    << "part " << first + i << ", " << r << ", " << j << ", depth " << k;
              }
            std::size_t untouched = 0;
            for (const T x : wide[static_cast<std::size_t>(i)])
              untouched += support::bits(x) == support::bits(support::poison<T>()) ? 1u : 0u;
            EXPECT_EQ(untouched, static_cast<std::size_t>(m) * static_cast<std::size_t>(part.matrix.extent[1] + 3));
          }
        }
    });
  }
}

TYPED_TEST(PackedProduct, GivesTheBitsOfTheUnpackedProduct) {
  using T = TypeParam;
  support::Random random("packed bits");
  const Weights<T> weights(530, random);
  const auto parts = weights.parts();
  const Packed<T> packed = pack(parts);
  at_every_isa([&] {
    for (const Index m : {1, 5, 131})
      for (const Index part : {0, 1, 2}) {
        const auto& w = parts[static_cast<std::size_t>(part)];
        Tensor<T, 2> a(m, 530), once(m, w.matrix.extent[1]), each(m, w.matrix.extent[1]);
        random.fill(a);
        mha::Workspace workspace;
        const TensorView<T, 2> to[] = {once.view()};
        Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, part, to}, workspace);
        Cpu{}.gemm(mha::GemmCall<T>{std::as_const(a).view(), w.matrix, w.bias, each.view()}, workspace);
        EXPECT_EQ(support::differing(once, each), 0u) << m << " rows, part " << part;
      }
  });
}

TYPED_TEST(PackedProduct, TakesTheMemoryOfItsPanels) {
  using T = TypeParam;
  support::Random random("packed bytes");
  const Weights<T> weights(40, random);
  const std::size_t columns = mha::detail::cpu::panel_columns<T>, panels = (50 + columns - 1) / columns;
  const std::vector<DenseWeights<T>> one = {weights.parts()[0]}, plain = {{weights.first.view(), {}}};
  EXPECT_EQ(pack(plain).bytes(), panels * columns * 40 * sizeof(T));
  EXPECT_EQ(pack(one).bytes(), panels * columns * (40 * sizeof(T) + sizeof(mha::Accumulator<T>)));
  EXPECT_EQ(pack(std::vector<DenseWeights<T>>{}).bytes(), 0u);
}

TYPED_TEST(PackedProduct, OutlivesTheMatricesAndMoves) {
  using T = TypeParam;
  support::Random random("packed moves");
  Tensor<T, 2> a(2, 20), c(2, 48), expected(2, 48);
  random.fill(a);
  mha::Workspace workspace;
  Packed<T> packed = [&] {
    Tensor<T, 2> gone(20, 48);
    random.fill(gone);
    Cpu{}.gemm(mha::GemmCall<T>{std::as_const(a).view(), std::as_const(gone).view(), {}, expected.view()}, workspace);
    const std::vector<DenseWeights<T>> parts = {{gone.view(), {}}};
    Packed<T> made = pack(parts);
    support::poison_all(gone);
    return made;
  }();
  const Packed<T> moved = std::move(packed);
  const TensorView<T, 2> to[] = {c.view()};
  Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), moved, 0, to}, workspace);
  EXPECT_EQ(support::differing(c, expected), 0u);
}

TEST(PackedProductOf, AStorageScalarOfTheUsers) {
  support::Random random("packed user scalar");
  Tensor<Short, 2> a(9, 40), b(40, 50), c(9, 50);
  Tensor<float, 2> af(9, 40), bf(40, 50), cf(9, 50);
  for (std::size_t i = 0; i < a.size(); ++i) af.data()[i] = a.data()[i] = Short(static_cast<float>(random.normal()));
  for (std::size_t i = 0; i < b.size(); ++i) bf.data()[i] = b.data()[i] = Short(static_cast<float>(random.normal()));
  const Packed<Short> packed = pack(std::vector<DenseWeights<Short>>{{b.view(), {}}});
  const Packed<float> packed_float = pack(std::vector<DenseWeights<float>>{{bf.view(), {}}});
  at_every_isa([&] {
    mha::Workspace workspace;
    const TensorView<Short, 2> to[] = {c.view()};
    const TensorView<float, 2> to_float[] = {cf.view()};
    Cpu{}.gemm(mha::PackedGemmCall<Short, Packed<Short>>{std::as_const(a).view(), packed, 0, to}, workspace);
    Cpu{}.gemm(mha::PackedGemmCall<float, Packed<float>>{std::as_const(af).view(), packed_float, 0, to_float},
               workspace);
    for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(float(c.data()[i]), float(Short(cf.data()[i])));
  });
}

/// Counts how often it is asked.
struct Counted : mha::Serial {
  static inline int runs = 0;
  template <class F> void run(Index tasks, F&& f) const {
    ++runs;
    mha::Serial::run(tasks, f);
  }
};

// A program whose layers are small starts no threads.
TEST(PackedWeightsOf, ASmallLayerAreMadeInTheCallingThread) {
  const Tensor<float, 2> small(64, 64), large(512, 1024);
  const DenseWeights<float> parts[] = {{small.view(), {}}, {large.view(), {}}};
  Counted::runs = 0;
  mha::CpuWith<Counted>{}.pack(std::span<const DenseWeights<float>>(parts, 1));
  EXPECT_EQ(Counted::runs, 0);
  mha::CpuWith<Counted>{}.pack(std::span<const DenseWeights<float>>(parts));
  EXPECT_EQ(Counted::runs, 1);
}

}  // namespace
