// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <compare.hpp>
#include <gtest/gtest.h>
#include <random.hpp>

#include <mha/backend/systolic/emulation.hpp>
#include <mha/backend/systolic/gemm.hpp>
#include <mha/backend/systolic/systolic.hpp>

#include "operands.hpp"
#include "units.hpp"

namespace {

using mha::AmxArray;
using mha::bfloat16;
using mha::DefaultPrecision;
using mha::half;
using mha::HighestPrecision;
using mha::HighPrecision;
using mha::Index;
using mha::MatrixUnit;
using mha::Serial;
using mha::Tensor;
using mha::TensorView;
using mha::TpuArray;
using mha::Workspace;

template <class T> TensorView<const T, 2> read(const Tensor<T, 2>& t) { return t.view(); }

/// c = a · b + bias through weights packed for the call.
template <class Array, class Precision = DefaultPrecision, class Threads = Serial, class T>
Tensor<T, 2> product(const TensorView<const T, 2>& a, const TensorView<const T, 2>& b,
                     const TensorView<const T, 1>& bias = {}) {
  Workspace workspace;
  Tensor<T, 2> c(a.extent[0], b.extent[1]);
  support::poison_all(c);
  mha::detail::systolic::gemm<Array, Precision>(mha::GemmCall<T>{a, b, bias, c.view()}, workspace, Threads{});
  return c;
}

/// The same by the emulated array, float sums.
template <class Array>
Tensor<float, 2> emulated(mha::SumOrder order, const Tensor<bfloat16, 2>& a, const Tensor<bfloat16, 2>& b) {
  Tensor<float, 2> c(a.extent(0), b.extent(1));
  mha::EmulatedArray<Array>(order).multiply(a.view(), b.view(), c.view());
  return c;
}

Tensor<float, 2> as_floats(const Tensor<bfloat16, 2>& t) {
  Tensor<float, 2> f(t.extent(0), t.extent(1));
  for (std::size_t i = 0; i < t.size(); ++i) f.data()[i] = float(t.data()[i]);
  return f;
}

struct Shape {
  Index m, n, k;
};
constexpr Shape shapes[] = {{1, 1, 1},    {16, 16, 32},  {17, 33, 31},  {31, 5, 70}, {33, 32, 64},
                            {48, 49, 97}, {1, 129, 150}, {35, 40, 257}, {5, 200, 2}, {262, 7, 33}};

class GemmOnUnit : public testing::TestWithParam<MatrixUnit> {
 protected:
  void SetUp() override { UNIT_OR_SKIP(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Systolic, GemmOnUnit, testing::ValuesIn(mha::detail::systolic::all_units), unit::unit_name);

TEST_P(GemmOnUnit, HasTheBitsOfTheEmulationOfItsOrder) {
  const unit::ForceUnit forced(GetParam());
  for (const unit::Operands kind : unit::all_operands)
    for (const Shape& s : shapes) {
      // Portable code may or may not be compiled to fused multiply-adds: it shows where products leave the range.
      const bool in_range =
          kind == unit::Operands::normal || kind == unit::Operands::wide || kind == unit::Operands::zeros;
      if (GetParam() == MatrixUnit::portable && !in_range) continue;
      support::Random random(std::string("emulation") + unit::to_string(kind) + std::to_string(s.k));
      const auto a = unit::operands(kind, s.m, s.k, random);
      const auto b =
          unit::operands(kind == unit::Operands::subnormal ? unit::Operands::normal : kind, s.k, s.n, random);
      const auto fa = as_floats(a), fb = as_floats(b);
      EXPECT_EQ(unit::differing_floats(product<AmxArray>(read(fa), read(fb)),
                                       emulated<AmxArray>(mha::order_of(GetParam()), a, b)),
                0u)
          << unit::to_string(kind) << " m " << s.m << " n " << s.n << " k " << s.k;
    }
}

/// The split operand of a precision: its parts in the order in which their products are added.
template <class Precision, bool Weights> Tensor<bfloat16, 2> expanded(const Tensor<float, 2>& x) {
  constexpr Index products = static_cast<Index>(std::size(Precision::products));
  const Index depth = x.extent(Weights ? 0 : 1), padded = (depth + 31) / 32 * 32;
  Tensor<bfloat16, 2> to(Weights ? products * padded : x.extent(0), Weights ? x.extent(1) : products * padded);
  for (Index i = 0; i < x.extent(0); ++i)
    for (Index j = 0; j < x.extent(1); ++j) {
      bfloat16 part[3];
      float rest = x(i, j);
      for (bfloat16& p : part) {
        p = bfloat16(rest);
        rest -= float(p);
      }
      for (Index p = 0; p < products; ++p) {
        if (Weights)
          to(p * padded + i, j) = part[Precision::products[p].b];
        else
          to(i, p * padded + j) = part[Precision::products[p].a];
      }
    }
  return to;
}

template <class Precision> void expect_expanded_depth(MatrixUnit unit) {
  support::Random random(std::string("expanded") + Precision::name);
  for (const Shape& s : {Shape{7, 20, 45}, Shape{40, 33, 64}}) {
    Tensor<float, 2> a(s.m, s.k), b(s.k, s.n);
    random.fill(a);
    random.fill(b);
    EXPECT_EQ(unit::differing_floats(
                  product<AmxArray, Precision>(read(a), read(b)),
                  emulated<AmxArray>(mha::order_of(unit), expanded<Precision, false>(a), expanded<Precision, true>(b))),
              0u)
        << Precision::name;
  }
}

TEST_P(GemmOnUnit, HigherPrecisionIsADeeperProduct) {
  const unit::ForceUnit forced(GetParam());
  expect_expanded_depth<HighPrecision>(GetParam());
  expect_expanded_depth<HighestPrecision>(GetParam());
}

/// Errors against double sums, as multiples of `unit · Σ|aᵢ bᵢ|`.
template <class Precision> void expect_error_below(double unit, MatrixUnit on) {
  support::Random random(std::string("error") + Precision::name);
  const Index m = 37, n = 45, k = 300;
  Tensor<float, 2> a(m, k), b(k, n);
  random.fill(a);
  random.fill(b);
  const auto c = product<AmxArray, Precision>(read(a), read(b));
  support::Worst worst;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (Index d = 0; d < k; ++d) {
        sum += double{a(i, d)} * b(d, j);
        size += std::abs(double{a(i, d)} * b(d, j));
      }
      worst.see(c(i, j), sum, unit * size, std::to_string(i) + ", " + std::to_string(j));
    }
  EXPECT_LE(worst.error(), 1) << to_string(on) << " " << Precision::name << " " << worst.text();
}

// A product of operands split into p parts misses, of |x y|: with one part 2·2⁻⁹ + 2⁻¹⁸; with two, the remainders
// 2·2⁻¹⁸ and x₁y₁ ≤ 2⁻¹⁸ · 1.01; with three, remainders 2·2⁻²⁷ and four left out products of at most 2⁻²⁷ · 1.01 each.
// A sum of n floats adds at most n · 2⁻²⁴ of Σ|xy|, n counting every product and every tile's two additions; a chain of
// 300 products stays below its tenth on random signs, which the bound below does not use.
TEST_P(GemmOnUnit, ErrorIsThatOfItsPrecision) {
  const unit::ForceUnit forced(GetParam());
  const double sum = (300 + 2 * 10) * 0x1p-24;
  expect_error_below<DefaultPrecision>(2 * 0x1p-9 + 0x1p-18 + sum, GetParam());
  expect_error_below<HighPrecision>(3.1 * 0x1p-18 + 3 * sum, GetParam());
  expect_error_below<HighestPrecision>(6.1 * 0x1p-27 + 6 * sum, GetParam());
}

TEST_P(GemmOnUnit, BiasIsAddedToTheSumAndRoundedOnce) {
  const unit::ForceUnit forced(GetParam());
  support::Random random("bias");
  for (const Shape& s : shapes) {
    const auto a = unit::operands(unit::Operands::normal, s.m, s.k, random);
    const auto b = unit::operands(unit::Operands::normal, s.k, s.n, random);
    Tensor<bfloat16, 1> bias(s.n);
    random.fill(bias);
    const auto c = product<AmxArray>(read(a), read(b), std::as_const(bias).view());
    const auto sums = emulated<AmxArray>(mha::order_of(GetParam()), a, b);
    Tensor<bfloat16, 2> expected(s.m, s.n);
    for (Index i = 0; i < s.m; ++i)
      for (Index j = 0; j < s.n; ++j) expected(i, j) = bfloat16(sums(i, j) + float(bias(j)));
    EXPECT_EQ(support::differing(c, expected), 0u) << "m " << s.m << " n " << s.n << " k " << s.k;
  }
}

TEST_P(GemmOnUnit, OneRowHasTheBitsOfThatRowAmongManyOnAnyNumberOfThreads) {
  const unit::ForceUnit forced(GetParam());
  support::Random random("rows");
  const Index m = 300, n = 260, k = 161;
  Tensor<float, 2> a(m, k), b(k, n);
  random.fill(a);
  random.fill(b);
  const auto all = product<AmxArray, HighPrecision, mha::ThreadPool>(read(a), read(b));
  EXPECT_EQ(support::differing(all, product<AmxArray, HighPrecision>(read(a), read(b))), 0u);
  for (const Index i : {0, 16, 31, 255, 256, 299}) {
    const auto row = product<AmxArray, HighPrecision>(TensorView<const float, 2>{&a(i, 0), {1, k}, {k, 1}}, read(b));
    for (Index j = 0; j < n; ++j) EXPECT_EQ(support::bits(row(0, j)), support::bits(all(i, j))) << i << ", " << j;
  }
}

template <class T> void expect_any_layout() {
  support::Random random("layout");
  const Index m = 50, n = 70, k = 90;
  Tensor<T, 2> a(m, k), b(k, n), bt(n, k), wide(2 * m, 3 * n), at(k, m);
  random.fill(a);
  random.fill(b);
  for (Index i = 0; i < k; ++i)
    for (Index j = 0; j < n; ++j) bt(j, i) = b(i, j);
  for (Index i = 0; i < m; ++i)
    for (Index d = 0; d < k; ++d) at(d, i) = a(i, d);
  const auto expected = product<AmxArray>(read(a), read(b));
  EXPECT_EQ(support::differing(product<AmxArray>(read(a), mha::transposed(read(bt))), expected), 0u);
  EXPECT_EQ(support::differing(product<AmxArray>(mha::transposed(read(at)), read(b)), expected), 0u);
  Workspace workspace;
  support::poison_all(wide);
  const TensorView<T, 2> c{wide.data() + 1, {m, n}, {6 * n, 3}};
  mha::detail::systolic::gemm<AmxArray, DefaultPrecision>(mha::GemmCall<T>{a.view(), b.view(), {}, c}, workspace,
                                                          Serial{});
  std::size_t written = 0;
  for (std::size_t i = 0; i < wide.size(); ++i)
    written += support::bits(wide.data()[i]) != support::bits(support::poison<T>());
  EXPECT_EQ(written, expected.size());
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) EXPECT_EQ(support::bits(c(i, j)), support::bits(expected(i, j)));
}

TEST_P(GemmOnUnit, ReadsAndWritesAnyStride) {
  const unit::ForceUnit forced(GetParam());
  expect_any_layout<float>();
  expect_any_layout<bfloat16>();
  expect_any_layout<half>();
}

TEST_P(GemmOnUnit, PackedPartsShareTheirRows) {
  const unit::ForceUnit forced(GetParam());
  support::Random random("parts");
  const Index m = 40, k = 75, widths[] = {33, 200, 7};
  Tensor<float, 2> a(m, k), b[] = {Tensor<float, 2>(k, 33), Tensor<float, 2>(k, 200), Tensor<float, 2>(k, 7)};
  Tensor<float, 1> bias(200);
  random.fill(a);
  random.fill(bias);
  std::vector<mha::DenseWeights<float>> weights;
  std::vector<Tensor<float, 2>> c;
  std::vector<TensorView<float, 2>> to;
  for (int i = 0; i < 3; ++i) {
    random.fill(b[i]);
    weights.push_back({read(b[i]), i == 1 ? std::as_const(bias).view() : TensorView<const float, 1>{}});
    c.emplace_back(m, widths[i]);
    support::poison_all(c.back());
    to.push_back(c.back().view());
  }
  const mha::detail::systolic::PackedWeights<float, HighPrecision> packed(weights, Serial{});
  // Two parts, depth 75 padded to 96, columns to whole blocks, and one bias.
  EXPECT_EQ(packed.bytes(), std::size_t{2 * 2 * 96 * (64 + 224 + 32) + 4 * 224});
  Workspace workspace;
  const auto run = [&](Index first, Index count) {
    mha::detail::systolic::gemm<AmxArray, HighPrecision>(
        mha::PackedGemmCall<float, mha::detail::systolic::PackedWeights<float, HighPrecision>>{
            a.view(), packed, first,
            std::span<const TensorView<float, 2>>(to).subspan(static_cast<std::size_t>(first),
                                                              static_cast<std::size_t>(count))},
        workspace, Serial{});
  };
  run(1, 2);
  run(0, 1);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(support::differing(c[i], product<AmxArray, HighPrecision>(read(a), read(b[i]), weights[i].bias)), 0u);
}

/// An activation without a rounding of its own: what is left to round is what the product adds.
struct TwiceAbove {
  template <class S> S operator()(const S& x) const { return x > S(0) ? x + x : S(0); }
};

template <class T, class From> Tensor<T, 2> converted(const Tensor<From, 2>& from) {
  Tensor<T, 2> to(from.extent(0), from.extent(1));
  for (std::size_t i = 0; i < from.size(); ++i) to.data()[i] = T(float(from.data()[i]));
  return to;
}

/// A product of T by two matrices of W with a gated epilogue, one with a plain one and one with a residual alone,
/// against the same of sums in float, and against finish() of those sums.
template <class Precision, class T, class W> void expect_epilogues(Index m, Index n, Index k) {
  using On = mha::Systolic<AmxArray, Precision, mha::ThreadPool>;
  using Packed = mha::detail::systolic::PackedWeights<W, Precision>;
  support::Random random("epilogue");
  Tensor<T, 2> a(m, k), c(m, n), padded(m, 2 * n + 3), finished(m, n);
  Tensor<W, 2> b[] = {Tensor<W, 2>(k, n), Tensor<W, 2>(k, n)};
  Tensor<W, 1> bias(n);
  random.fill(a), random.fill(b[0]), random.fill(b[1]), random.fill(bias), random.fill(padded);
  const TensorView<const T, 2> residual{padded.data(), {m, n}, {2 * n + 3, 2}};
  const auto biases = std::as_const(bias).view();
  const mha::DenseWeights<W> weights[] = {{read(b[0]), n % 2 != 0 ? biases : TensorView<const W, 1>{}},
                                          {read(b[1]), biases}};
  const On on(mha::ThreadPool(3));
  const Packed packed = on.pack(std::span<const mha::DenseWeights<W>>(weights));
  // Sums of nothing, and what is below the normal range added to them.
  for (Index e = 0; e < k; ++e) a(0, e) = T(0.f);
  for (Index j = 0; j < n; ++j)
    if constexpr (std::is_same_v<T, bfloat16>) padded(0, 2 * j) = bfloat16::from_bits(static_cast<std::uint16_t>(j));
  const bool flushes =
      std::is_same_v<T, bfloat16> && mha::detail::systolic::flushes_bfloat16(mha::current_unit(), mha::current_isa());
  const auto stored = [&](float x) {
    return T(flushes && std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x);
  };
  const Tensor<float, 2> rows = converted<float>(a);
  Tensor<float, 2> gate(m, n), sum(m, n);
  Workspace workspace;
  const TensorView<float, 2> sums[] = {gate.view(), sum.view()};
  on.gemm(mha::PackedGemmCall<float, Packed>{read(rows), packed, 0, sums}, workspace);

  const auto expect = [&](const auto& epilogue, Index first, bool gated, auto&& formula) {
    support::poison_all(c), support::poison_all(finished);
    const TensorView<T, 2> to = c.view();
    on.gemm(mha::PackedGemmCall<T, Packed>{read(a), packed, first, {&to, 1}}, epilogue, workspace);
    on.finish(epilogue, gated ? read(gate) : TensorView<const float, 2>{},
              first == 0 && !gated ? read(gate) : read(sum), finished.view(), workspace);
    std::size_t wrong = 0;
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) wrong += support::bits(c(i, j)) != support::bits(stored(formula(i, j))) ? 1u : 0u;
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(support::differing(c, finished), 0u);
  };
  const TwiceAbove f;
  const auto kept = [&](Index i, Index j) { return float(residual(i, j)); };
  expect(mha::Epilogue<T, mha::Gated<TwiceAbove>>{{}, residual}, 0, true,
         [&](Index i, Index j) { return f(gate(i, j)) * sum(i, j) + kept(i, j); });
  expect(mha::Epilogue<T, mha::Gated<TwiceAbove>>{{}, {}}, 0, true,
         [&](Index i, Index j) { return f(gate(i, j)) * sum(i, j); });
  expect(mha::Epilogue<T, TwiceAbove>{{}, residual}, 1, false,
         [&](Index i, Index j) { return f(sum(i, j)) + kept(i, j); });
  expect(mha::Epilogue<T, TwiceAbove>{{}, {}}, 0, false, [&](Index i, Index j) { return f(gate(i, j)); });
  expect(mha::Epilogue<T, mha::Identity>{{}, residual}, 1, false,
         [&](Index i, Index j) { return sum(i, j) + kept(i, j); });

  // The residual may be what is written.
  const Tensor<T, 2> before = c;
  Tensor<T, 2> in_place = c;
  const TensorView<T, 2> to = c.view();
  const TensorView<T, 2> over = in_place.view();
  on.gemm(mha::PackedGemmCall<T, Packed>{read(a), packed, 1, {&over, 1}},
          mha::Epilogue<T, TwiceAbove>{{}, std::as_const(in_place).view()}, workspace);
  on.gemm(mha::PackedGemmCall<T, Packed>{read(a), packed, 1, {&to, 1}}, mha::Epilogue<T, TwiceAbove>{{}, read(before)},
          workspace);
  EXPECT_EQ(support::differing(in_place, c), 0u);
}

TEST_P(GemmOnUnit, AnEpilogueIsAppliedToSumsInFloat) {
  const unit::ForceUnit forced(GetParam());
  for (const Shape& s :
       {Shape{1, 70, 40}, Shape{35, 33, 70}, Shape{300, 150, 33}, Shape{3, 5, 0}, Shape{40, 70, 1100}}) {
    SCOPED_TRACE(std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k));
    expect_epilogues<DefaultPrecision, float, float>(s.m, s.n, s.k);
    expect_epilogues<DefaultPrecision, bfloat16, bfloat16>(s.m, s.n, s.k);
    expect_epilogues<HighPrecision, half, half>(s.m, s.n, s.k);
    expect_epilogues<HighestPrecision, float, bfloat16>(s.m, s.n, s.k);
    expect_epilogues<DefaultPrecision, bfloat16, float>(s.m, s.n, s.k);
  }
  expect_epilogues<DefaultPrecision, float, float>(33, 1610, 2050);  // wide tasks
}

TEST_P(GemmOnUnit, WeightsOfOnePartGiveTheBitsOfWideOnes) {
  const unit::ForceUnit forced(GetParam());
  support::Random random("narrow");
  Tensor<float, 2> a(37, 150);
  Tensor<bfloat16, 2> b(150, 75);
  random.fill(a), random.fill(b);
  const auto check = [&]<class Precision>(Precision) {
    using Packed = mha::detail::systolic::PackedWeights<bfloat16, Precision>;
    const mha::DenseWeights<bfloat16> weights{read(b), {}};
    const Packed packed(std::span(&weights, 1), Serial{});
    Tensor<float, 2> c(37, 75);
    support::poison_all(c);
    const TensorView<float, 2> to = c.view();
    Workspace workspace;
    const mha::ArrayMeter meter;
    mha::detail::systolic::gemm<AmxArray, Precision>(mha::PackedGemmCall<float, Packed>{read(a), packed, 0, {&to, 1}},
                                                     workspace, Serial{});
    EXPECT_EQ(meter.use(), std::int64_t{Precision::parts} * mha::array_use<AmxArray>(37, 75, 150));
    EXPECT_EQ(support::differing(c, product<AmxArray, Precision>(read(a), read(as_floats(b)))), 0u) << Precision::name;
  };
  check(DefaultPrecision{});
  check(HighPrecision{});
  check(HighestPrecision{});
}

TEST_P(GemmOnUnit, ShowsNowhereHowItWasCutIntoTasks) {
  const unit::ForceUnit forced(GetParam());
  support::Random random("tasks");
  // Tasks that pack their own rows, of two lengths; two tasks down, of rows packed before; wide tasks of deep rows; too
  // few such tasks for two threads.
  for (const Shape& s : {Shape{1300, 270, 40}, Shape{400, 300, 200}, Shape{40, 1050, 2100}, Shape{40, 300, 2100}}) {
    Tensor<float, 2> a(s.m, s.k), b(s.k, s.n);
    random.fill(a), random.fill(b);
    const auto whole = product<AmxArray>(read(a), read(b));
    EXPECT_EQ(support::differing(whole, product<AmxArray, DefaultPrecision, mha::ThreadPool>(read(a), read(b))), 0u);
    std::size_t wrong = 0;
    for (const Index i : {Index{0}, s.m / 2, s.m - 1})
      for (const Index j : {Index{0}, s.n / 2, s.n - 9}) {
        const auto some = product<AmxArray>(TensorView<const float, 2>{&a(i, 0), {1, s.k}, {s.k, 1}},
                                            TensorView<const float, 2>{&b(0, j), {s.k, 9}, {s.n, 1}});
        for (Index n = 0; n < 9; ++n) wrong += support::bits(some(0, n)) != support::bits(whole(i, j + n)) ? 1u : 0u;
      }
    EXPECT_EQ(wrong, 0u) << s.m << " x " << s.n << " x " << s.k;
  }
}

/// Matrices as their products read them: three parts are a float, of one its first 8 digits are left.
TEST(Gemm, UnpacksTheSumOfTheParts) {
  support::Random random("unpacked");
  Tensor<float, 2> b(75, 50), turned(33, 75), to(75, 50), other(75, 33);
  random.fill(b), random.fill(turned);
  const mha::DenseWeights<float> weights[] = {{read(b), {}}, {mha::transposed(read(turned)), {}}};
  const auto check = [&]<class Precision>(Precision, double error) {
    const mha::Systolic<AmxArray, Precision> systolic;
    const auto packed = systolic.pack(std::span<const mha::DenseWeights<float>>(weights));
    support::poison_all(to), support::poison_all(other);
    systolic.unpack(packed, 0, to.view());
    systolic.unpack(packed, 1, other.view());
    for (Index k = 0; k < 75; ++k) {
      for (Index j = 0; j < 50; ++j) ASSERT_LE(std::abs(to(k, j) - b(k, j)), error * std::abs(b(k, j)));
      for (Index j = 0; j < 33; ++j) ASSERT_LE(std::abs(other(k, j) - turned(j, k)), error * std::abs(turned(j, k)));
      if (Precision::parts == 1) {
        ASSERT_EQ(to(k, 0), float(bfloat16(b(k, 0))));
      }
    }
  };
  check(DefaultPrecision{}, 0x1p-8);
  check(HighPrecision{}, 0x1p-17);
  check(HighestPrecision{}, 0);
}

TEST(Gemm, EveryArrayAddsPerItsDepth) {
  support::Random random("arrays");
  const auto a = unit::operands(unit::Operands::wide, 20, 600, random),
             b = unit::operands(unit::Operands::wide, 600, 50, random);
  const auto fa = as_floats(a), fb = as_floats(b);
  const auto small = product<TpuArray<128>>(read(fa), read(fb)), large = product<TpuArray<256>>(read(fa), read(fb));
  EXPECT_EQ(unit::differing_floats(small, emulated<TpuArray<128>>(mha::SumOrder::chained, a, b)), 0u);
  EXPECT_EQ(unit::differing_floats(large, emulated<TpuArray<256>>(mha::SumOrder::chained, a, b)), 0u);
  EXPECT_GT(unit::differing_floats(small, large), 0u) << "the depth of the array should show in the bits";
}

TEST(Gemm, AStepThroughTheDepthIsWholePasses) {
  // Passes of 3 and of 6 tiles, which do not divide the 32 tiles of a step; one row goes through the depth without any.
  support::Random random("steps");
  const auto a = unit::operands(unit::Operands::wide, 33, 2000, random),
             b = unit::operands(unit::Operands::wide, 2000, 8, random);
  const auto fa = as_floats(a), fb = as_floats(b);
  const auto check = [&]<class Array>(Array) {
    const auto many = product<Array>(read(fa), read(fb));
    EXPECT_EQ(unit::differing_floats(many, emulated<Array>(mha::SumOrder::chained, a, b)), 0u) << Array::depth;
    for (const Index i : {0, 17, 32}) {
      const auto one = product<Array>(TensorView<const float, 2>{&fa(i, 0), {1, 2000}, {2000, 1}}, read(fb));
      for (Index j = 0; j < 8; ++j) EXPECT_EQ(support::bits(one(0, j)), support::bits(many(i, j))) << Array::depth;
    }
  };
  check(mha::SystolicArray<16, 16, 96>{});
  check(mha::SystolicArray<16, 16, 192>{});
  check(TpuArray<128>{});
}

TEST(Gemm, EmptyExtentsLeaveTheBias) {
  Tensor<float, 2> none(3, 0), weights(0, 40);
  Tensor<float, 1> bias(40);
  support::Random random("empty");
  random.fill(bias);
  const auto c = product<AmxArray>(read(none), read(weights), std::as_const(bias).view());
  for (Index i = 0; i < 3; ++i)
    for (Index j = 0; j < 40; ++j) EXPECT_EQ(c(i, j), bias(j));
  EXPECT_EQ(product<AmxArray>(read(Tensor<float, 2>(0, 5)), read(Tensor<float, 2>(5, 4))).size(), 0u);
  EXPECT_EQ(product<AmxArray>(read(Tensor<float, 2>(4, 5)), read(Tensor<float, 2>(5, 0))).size(), 0u);
}

TEST(Gemm, AllocatesNothingTheSecondTime) {
  Tensor<float, 2> a(65, 130), b(130, 140), c(65, 140);
  Workspace workspace;
  const mha::GemmCall<float> call{a.view(), b.view(), {}, c.view()};
  mha::detail::systolic::gemm<AmxArray, HighPrecision>(call, workspace, Serial{});
  const int before = workspace.allocations();
  mha::detail::systolic::gemm<AmxArray, HighPrecision>(call, workspace, Serial{});
  EXPECT_EQ(workspace.allocations(), before);
}

TEST(Gemm, CountsItsPasses) {
  Tensor<float, 2> a(300, 80), b(80, 150);
  const mha::ArrayMeter meter;
  product<AmxArray, HighPrecision>(read(a), read(b));
  const mha::ArrayUse once = mha::array_use<AmxArray>(300, 150, 80);
  EXPECT_EQ(meter.use(), once + once + once);
  EXPECT_EQ(meter.use().useful, 3 * 300 * 150 * 80);
}

}  // namespace
