// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <compare.hpp>
#include <gtest/gtest.h>
#include <random.hpp>

#include <mha/backend/simd/vector.hpp>
#include <mha/backend/systolic/amx.hpp>
#include <mha/backend/systolic/emulation.hpp>

#include "operands.hpp"
#include "units.hpp"

namespace {

using mha::AmxArray;
using mha::bfloat16;
using mha::EmulatedArray;
using mha::Index;
using mha::MatrixUnit;
using mha::SumOrder;
using mha::Tensor;

/// c + Σ a·b of one element, terms in the order of k.
float dot(SumOrder order, const std::vector<float>& a, const std::vector<float>& b, float c = 0) {
  const auto depth = static_cast<Index>(a.size());
  Tensor<bfloat16, 2> x(1, depth), y(depth, 1);
  for (Index k = 0; k < depth; ++k) {
    x(0, k) = bfloat16(a[static_cast<std::size_t>(k)]);
    y(k, 0) = bfloat16(b[static_cast<std::size_t>(k)]);
  }
  Tensor<float, 2> z(1, 1);
  z(0, 0) = c;
  EmulatedArray<AmxArray>(order).multiply(x.view(), y.view(), z.view());
  return z(0, 0);
}

constexpr SumOrder orders[] = {SumOrder::chained, SumOrder::split_chains, SumOrder::pairs};

TEST(Emulation, EveryUnitHasItsOrder) {
  EXPECT_EQ(mha::order_of(MatrixUnit::portable), SumOrder::chained);
  EXPECT_EQ(mha::order_of(MatrixUnit::amx), SumOrder::split_chains);
  EXPECT_EQ(mha::order_of(MatrixUnit::dot_product), SumOrder::pairs);
}

TEST(Emulation, OrdersDifferWhereRoundingShowsThem) {
  const float big = 0x1p24f;  // where 1 is half of the last place
  // k ascending: 1 + big − big.
  EXPECT_EQ(dot(SumOrder::chained, {1, big, -big}, {1, 1, 1}), 0);
  // Even k apart from odd k: (1 − big) + big.
  EXPECT_EQ(dot(SumOrder::split_chains, {1, big, -big}, {1, 1, 1}), 1);
  // Of a pair the odd first: (big + 1) then −big; then as a pair −big comes before 1.
  EXPECT_EQ(dot(SumOrder::pairs, {1, big, -big}, {1, 1, 1}), 0);
  EXPECT_EQ(dot(SumOrder::pairs, {1, big, 0, -big}, {1, 1, 1, 1}), 0);
  EXPECT_EQ(dot(SumOrder::pairs, {1, -big}, {1, 1}, big), 1);
  EXPECT_EQ(dot(SumOrder::chained, {1, -big}, {1, 1}, big), 1);
  EXPECT_EQ(dot(SumOrder::chained, {-big, 1}, {1, 1}, big), 1);
}

TEST(Emulation, OnlyPairsStartTheirChainFromC) {
  // From c: big + 1 is big, twice. From 0: 1 + 1 is 2, and then big + 2.
  EXPECT_EQ(dot(SumOrder::pairs, {1, 1}, {1, 1}, 0x1p24f), 0x1p24f);
  EXPECT_EQ(dot(SumOrder::chained, {1, 1}, {1, 1}, 0x1p24f), 0x1p24f + 2);
  EXPECT_EQ(dot(SumOrder::split_chains, {1, 1}, {1, 1}, 0x1p24f), 0x1p24f + 2);
}

TEST(Emulation, HardwareOrdersFlushSubnormalNumbersAndPortableCodeDoesNot) {
  const float small = 0x1p-130f;
  EXPECT_EQ(dot(SumOrder::chained, {small}, {1}), small);
  for (const SumOrder order : {SumOrder::split_chains, SumOrder::pairs}) {
    EXPECT_EQ(support::bits(dot(order, {small}, {1})), 0u);                         // an operand
    EXPECT_EQ(dot(order, {0x1p-70f}, {0x1p-60f}), 0);                               // a result
    EXPECT_EQ(dot(order, {0}, {1}, 0x1p-130f), 0);                                  // a sum
    EXPECT_EQ(dot(order, {0x1p-126f}, {1}), 0x1p-126f);                             // the smallest normal number is one
    EXPECT_EQ(dot(order, {0x1p-126f, 0, -0x1p-75f}, {1, 0, 0x1p-76f}), 0x1p-126f);  // rounds up to it
    EXPECT_EQ(dot(order, {0x1p-126f, 0, -0x1.8p-75f}, {1, 0, 0x1p-76f}), 0);        // rounds to below it
  }
}

TEST(Emulation, SpecialNumbersFollowIeee) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const SumOrder order : orders) {
    EXPECT_EQ(dot(order, {infinity}, {2}), infinity);
    EXPECT_TRUE(std::isnan(dot(order, {infinity}, {0})));
    EXPECT_TRUE(std::isnan(dot(order, {1}, {1}, std::nanf(""))));
    EXPECT_EQ(dot(order, {0x1p127f, 0x1p127f}, {1, 1}), infinity);
    // A product beyond the range that the sum brings back: fused, it never overflows.
    EXPECT_EQ(dot(order, {-0x1p127f, 0, 0x1p64f}, {1, 0, 0x1p64f}), 0x1p127f);
  }
}

// Products of bfloat16 are exact in a float's range. A sum of n floats in any order is off by at most n·2⁻²⁴·Σ|xy| to
// first order, n counting the products and, per tile, the joining of its chains and their addition to c.
TEST(Emulation, OrdersAgreeWithinTheRoundingOfTheirSums) {
  support::Random random("orders");
  const Index depth = 200;
  const auto a = unit::operands(unit::Operands::normal, 9, depth, random);
  const auto b = unit::operands(unit::Operands::normal, depth, 11, random);
  const double n = depth + 2 * 7;
  std::size_t differing = 0;
  for (const SumOrder order : orders) {
    Tensor<float, 2> c(9, 11), other(9, 11);
    EmulatedArray<AmxArray>(order).multiply(a.view(), b.view(), c.view());
    EmulatedArray<AmxArray>(order == SumOrder::pairs ? SumOrder::chained : SumOrder::pairs)
        .multiply(a.view(), b.view(), other.view());
    for (Index i = 0; i < 9; ++i)
      for (Index j = 0; j < 11; ++j) {
        double sum = 0, size = 0;
        for (Index k = 0; k < depth; ++k) {
          sum += double{float(a(i, k))} * float(b(k, j));
          size += std::abs(double{float(a(i, k))} * float(b(k, j)));
        }
        EXPECT_LE(std::abs(c(i, j) - sum), n * 0x1p-24 * size);
        EXPECT_LE(std::abs(double{c(i, j)} - other(i, j)), 2 * n * 0x1p-24 * size);
      }
    differing += support::differing(c, other);
  }
  EXPECT_GT(differing, 0u) << "the order of additions should show in the bits";
}

TEST(Emulation, ShapesOfTheArrayShowInTheChainsOnly) {
  support::Random random("shapes");
  const auto a = unit::operands(unit::Operands::wide, 20, 300, random),
             b = unit::operands(unit::Operands::wide, 300, 20, random);
  const auto run = [&](auto array) {
    Tensor<float, 2> c(20, 20);
    array.multiply(a.view(), b.view(), c.view());
    return c;
  };
  const auto small = run(EmulatedArray<mha::SystolicArray<4, 4, 32>>(SumOrder::chained));
  EXPECT_EQ(support::differing(small, run(EmulatedArray<mha::SystolicArray<128, 8, 32>>(SumOrder::chained))), 0u);
  EXPECT_NE(support::differing(small, run(EmulatedArray<mha::TpuArray<128>>(SumOrder::chained))), 0u);
  EXPECT_EQ(support::differing(run(EmulatedArray<AmxArray>(SumOrder::pairs)),
                               run(EmulatedArray<mha::TpuArray<128>>(SumOrder::pairs))),
            0u);
}

TEST(Emulation, CountsPasses) {
  EmulatedArray<AmxArray> array(SumOrder::chained);
  const Tensor<bfloat16, 2> a(17, 33), b(33, 5);
  Tensor<float, 2> c(17, 5);
  array.multiply(a.view(), b.view(), c.view());
  EXPECT_EQ(array.use(), mha::array_use<AmxArray>(17, 5, 33));
}

#if defined(__x86_64__)
struct DotProducts {
  /// c (16, 16) += a (16, 16 pairs) · b (16 pairs, 16).
  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(const std::uint32_t* a, const std::uint32_t* b, float* c) {
    using mha::detail::simd::load;
    for (int i = 0; i < 16; ++i) {
      mha::detail::simd::vector_t<float, Isa> sum;
      load(sum, c + 16 * i);
      for (int pair = 0; pair < 16; ++pair) {
        typename mha::detail::simd::Vector<float, Isa>::int_type x, y;
        x = a[16 * i + pair] - decltype(x){};
        load(y, b + 16 * pair);
        mha::detail::systolic::add_dot_products(sum, x, y);
      }
      mha::detail::simd::store(c + 16 * i, sum);
    }
  }
};

void hardware(MatrixUnit unit, const std::uint32_t* a, const std::uint32_t* b, float* c) {
  namespace amx = mha::detail::systolic::amx;
  if (unit == MatrixUnit::dot_product) return mha::detail::systolic::Avx512Bf16::run<DotProducts>(a, b, c);
  const amx::TileScope tiles;
  amx::load<0>(c, 64);
  amx::load<1>(a, 64);
  amx::load<2>(b, 64);
  amx::multiply_add<0, 1, 2>();
  amx::store<0>(c, 64);
}

class EmulationOf : public testing::TestWithParam<MatrixUnit> {};
INSTANTIATE_TEST_SUITE_P(Systolic, EmulationOf, testing::Values(MatrixUnit::dot_product, MatrixUnit::amx),
                         unit::unit_name);

/// c as a unit finds it: any number, subnormal ones and zeros of both signs among them.
float any_sum(support::Random& random) {
  const auto bits = static_cast<std::uint32_t>(random.engine()());
  const int kind = random.below(4);
  return kind == 0   ? 0.f
         : kind == 1 ? static_cast<float>(random.normal())
         : kind == 2 ? std::bit_cast<float>(bits)
                     : std::bit_cast<float>(bits & 0x80ffffffu);
}

TEST_P(EmulationOf, OnePassHasTheHardwaresBits) {
  UNIT_OR_SKIP(GetParam());
  for (const unit::Operands kind : unit::all_operands) {
    support::Random random(std::string("pass") + unit::to_string(kind));
    std::size_t differing = 0;
    for (int repetition = 0; repetition < 40; ++repetition) {
      const auto a = unit::operands(kind, 16, 32, random);
      const auto b = unit::operands(kind == unit::Operands::subnormal ? unit::Operands::normal : kind, 32, 16, random);
      Tensor<float, 2> c(16, 16);
      for (float& x : c) x = any_sum(random);
      Tensor<float, 2> by_hardware = c;
      std::uint32_t rows[256], pairs[256];
      std::memcpy(rows, a.data(), sizeof rows);
      for (Index k = 0; k < 32; k += 2)
        for (Index j = 0; j < 16; ++j)
          pairs[k / 2 * 16 + j] = b(k, j).bits | static_cast<std::uint32_t>(b(k + 1, j).bits) << 16;
      hardware(GetParam(), rows, pairs, by_hardware.data());
      EmulatedArray<AmxArray>(mha::order_of(GetParam())).multiply(a.view(), b.view(), c.view());
      differing += unit::differing_floats(c, by_hardware);
    }
    EXPECT_EQ(differing, 0u) << unit::to_string(kind);
  }
}

TEST_P(EmulationOf, RoundsAroundTheSmallestNormalNumberAsTheHardware) {
  UNIT_OR_SKIP(GetParam());
  for (const float subtrahend : {0x1p-74f, 0x1.8p-75f, 0x1.4p-75f, 0x1p-75f, 0x1p-76f}) {
    alignas(64) std::uint32_t rows[256] = {}, pairs[256] = {};
    alignas(64) float c[256] = {};
    rows[0] = bfloat16(1.f).bits;
    pairs[0] = bfloat16(0x1p-126f).bits;
    rows[1] = bfloat16(-subtrahend).bits;
    pairs[16] = bfloat16(0x1p-76f).bits;
    hardware(GetParam(), rows, pairs, c);
    EXPECT_EQ(c[0], dot(mha::order_of(GetParam()), {1, 0, -subtrahend}, {0x1p-126f, 0, 0x1p-76f})) << subtrahend;
  }
}
#endif

}  // namespace
