// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block/linear.hpp>
#include <mha/block/packed_matrices.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "plain_backend.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using mha::detail::PackedMatrices;

constexpr Index M = 5, K = 7, N = 9;

/// x, two matrices of W, the first of which has a bias, and their products by the formula.
template <class W> struct Products {
  Tensor<float, 2> x{M, K};
  std::array<Tensor<W, 2>, 2> w{Tensor<W, 2>(K, N), Tensor<W, 2>(K, N)};
  Tensor<W, 1> bias{N};

  explicit Products(const char* seed) {
    support::Random random(seed);
    random.fill(x);
    for (auto& matrix : w) random.fill(matrix);
    random.fill(bias);
  }
  std::array<mha::DenseWeights<W>, 2> matrices() const { return {{{w[0].view(), bias.view()}, {w[1].view(), {}}}}; }

  double expected(std::size_t matrix, Index i, Index j) const {
    double sum = matrix == 0 ? double(float(bias(j))) : 0;
    for (Index k = 0; k < K; ++k) sum += double(x(i, k)) * double(float(w[matrix](k, j)));
    return sum;
  }
  void expect(const Tensor<float, 2>& y, std::size_t matrix) const {
    for (Index i = 0; i < M; ++i)
      for (Index j = 0; j < N; ++j)
        ASSERT_NEAR(y(i, j), expected(matrix, i, j), 1e-5) << matrix << ' ' << i << ' ' << j;
  }
};

template <class B> class RepackedMatrices : public testing::Test {};
using Backends = testing::Types<mha::Cpu, mha::Systolic<mha::AmxArray, mha::HighestPrecision>>;
TYPED_TEST_SUITE(RepackedMatrices, Backends);

TYPED_TEST(RepackedMatrices, LieInTheMemoryOfThoseThatNobodyShares) {
  const Products<float> first("first"), second("second");
  const auto before = first.matrices(), after = second.matrices();
  using Packed = PackedMatrices<float, TypeParam>;
  const TypeParam backend;
  typename TypeParam::Workspace workspace;
  const auto expect = [&](const Packed& packed, const Products<float>& of) {
    Tensor<float, 2> y[2] = {Tensor<float, 2>(M, N), Tensor<float, 2>(M, N)};
    const TensorView<float, 2> to[] = {y[0].view(), y[1].view()};
    EXPECT_TRUE(packed.multiply(backend, TensorView<const float, 2>(of.x.view()), 0, to, workspace));
    for (std::size_t i = 0; i < 2; ++i) of.expect(y[i], i);
  };
  Packed packed(backend, before);
  const auto* const memory = packed.own();
  packed = Packed(backend, after, std::move(packed));
  EXPECT_EQ(packed.own(), memory);
  expect(packed, second);
  const Packed shared = packed;
  packed = Packed(backend, before, std::move(packed));
  EXPECT_NE(packed.own(), memory) << "the other's";
  expect(packed, first);
  expect(shared, second);
}

TYPED_TEST(RepackedMatrices, OfOtherShapesHaveMemoryOfTheirOwn) {
  using Packed = PackedMatrices<float, TypeParam>;
  const TypeParam backend;
  const Products<float> p("shapes");
  const auto [biased, plain] = p.matrices();
  const Tensor<float, 2> deeper(K + 1, N), wider(K, N + 1);
  const mha::DenseWeights<float> one[] = {plain};
  const mha::DenseWeights<float> others[] = {biased, {deeper.view(), {}}, {wider.view(), {}}};
  for (const auto& other : others) {
    Packed packed(backend, one);
    auto* const memory = const_cast<typename Packed::Own*>(packed.own());
    EXPECT_FALSE(backend.pack_into(*memory, std::span<const mha::DenseWeights<float>>(&other, 1)));
    EXPECT_EQ(Packed(backend, std::span(&other, 1), std::move(packed)).bytes(),
              Packed(backend, std::span(&other, 1)).bytes());
  }
  Packed packed(backend, one);
  const mha::DenseWeights<float> two[] = {plain, plain};
  EXPECT_FALSE(backend.pack_into(*const_cast<typename Packed::Own*>(packed.own()),
                                 std::span<const mha::DenseWeights<float>>(two)));
}

template <class W> void expect_products(const char* scalar, bool own) {
  const Products<W> p(scalar);
  const auto matrices = p.matrices();
  const mha::Cpu cpu;
  const PackedMatrices<float, mha::Cpu> packed(cpu, std::span<const mha::DenseWeights<W>>(matrices));
  EXPECT_TRUE(packed.present());
  EXPECT_EQ(packed.own() != nullptr, own);
  EXPECT_STREQ(packed.scalar(), scalar);
  EXPECT_EQ(packed.weight_bytes(), sizeof(W));
  EXPECT_TRUE(packed.template are<W>());
  EXPECT_FALSE(packed.template are<mha::scaled_int4>() || packed.template are<mha::half>());
  EXPECT_GE(packed.bytes(), 2 * K * N * sizeof(W));

  mha::Workspace workspace;
  Tensor<float, 2> y[] = {Tensor<float, 2>(M, N), Tensor<float, 2>(M, N)};
  for (auto& each : y) std::fill(each.begin(), each.end(), NAN);
  const TensorView<float, 2> both[] = {y[0].view(), y[1].view()};
  ASSERT_TRUE(packed.multiply(cpu, p.x.view(), 0, both, workspace));
  p.expect(y[0], 0);
  p.expect(y[1], 1);
  ASSERT_TRUE(packed.multiply(cpu, p.x.view(), 1, {both, 1}, workspace));
  p.expect(y[0], 1);

  // Copies share what was packed.
  const auto copy = packed;
  EXPECT_EQ(copy.own(), packed.own());
  ASSERT_TRUE(copy.multiply(cpu, p.x.view(), 0, {both, 1}, workspace));
  p.expect(y[0], 0);
}

template <class Q> void expect_rounded(const char* scalar, double bytes_each) {
  const Products<float> p(scalar);
  const auto matrices = p.matrices();
  const auto packed = PackedMatrices<float, mha::Cpu>::template rounded_to<Q>(
      mha::Cpu{}, std::span<const mha::DenseWeights<float>>(matrices));
  EXPECT_TRUE(packed.present() && packed.unpacks());
  EXPECT_EQ(packed.own(), nullptr);
  EXPECT_STREQ(packed.scalar(), scalar);
  EXPECT_EQ(packed.weight_bytes(), bytes_each);
  EXPECT_EQ(packed.template are<mha::scaled_int8>(), (std::is_same_v<Q, mha::scaled_int8>));
  EXPECT_EQ(packed.template are<mha::scaled_int4>(), (std::is_same_v<Q, mha::scaled_int4>));
  EXPECT_FALSE(packed.template are<float>());
}
TEST(PackedMatrices, RoundedSayWhatTheyAre) {
  expect_rounded<mha::scaled_int8>("scaled_int8", 1.015625);
  expect_rounded<mha::scaled_int4>("scaled_int4", 0.5625);
  const PackedMatrices<float, mha::Cpu> none;
  EXPECT_EQ(none.weight_bytes(), 4);
  EXPECT_TRUE(none.are<float>());
}

TEST(PackedMatrices, OfTheSameScalar) { expect_products<float>("float", true); }
TEST(PackedMatrices, OfANarrowerScalar) { expect_products<bfloat16>("bfloat16", false); }

template <class W> void expect_epilogue(const char* seed) {
  const Products<W> p(seed);
  const auto matrices = p.matrices();
  const mha::Cpu cpu;
  const PackedMatrices<float, mha::Cpu, mha::Relu> packed(cpu, std::span<const mha::DenseWeights<W>>(matrices));
  Tensor<float, 2> y(M, N);
  mha::Workspace workspace;
  for (Index which = 0; which < 2; ++which) {
    ASSERT_TRUE(packed.multiply(cpu, p.x.view(), which, y.view(), mha::Epilogue<float, mha::Relu>{}, workspace));
    for (Index i = 0; i < M; ++i)
      for (Index j = 0; j < N; ++j)
        ASSERT_NEAR(y(i, j), std::max(0., p.expected(static_cast<std::size_t>(which), i, j)), 1e-5) << which;
  }
}

TEST(PackedMatrices, MultiplyWithAnEpilogue) {
  expect_epilogue<float>("epilogue");
  expect_epilogue<bfloat16>("epilogue in bfloat16");
}

/// A backend that may leave an epilogue to its caller, and does.
struct Declines : mha::Cpu {
  template <class T> void gemm(const mha::GemmCall<T>& call, mha::Workspace& workspace) const {
    mha::Cpu::gemm(call, workspace);
  }
  template <class T, class W>
  void gemm(const mha::PackedGemmCall<T, mha::detail::cpu::PackedWeights<W>>& call, mha::Workspace& workspace) const {
    mha::Cpu::gemm(call, workspace);
  }
  template <class T, class W, class F>
  bool gemm(const mha::PackedGemmCall<T, mha::detail::cpu::PackedWeights<W>>&, const mha::Epilogue<T, F>&,
            mha::Workspace&) const {
    return false;
  }
};

template <class W> void expect_declined(const char* scalar) {
  const Products<W> p(scalar);
  const auto matrices = p.matrices();
  const PackedMatrices<float, Declines, mha::Relu> packed(Declines{}, std::span<const mha::DenseWeights<W>>(matrices));
  Tensor<float, 2> y(M, N);
  std::fill(y.begin(), y.end(), 3.f);
  mha::Workspace workspace;
  EXPECT_FALSE(packed.multiply(Declines{}, p.x.view(), 0, y.view(), mha::Epilogue<float, mha::Relu>{}, workspace));
  for (const float value : y) EXPECT_EQ(value, 3.f);
  // A Linear applies it to results that are stored.
  mha::Linear<float, Declines, mha::Relu> linear({.inputs = K, .outputs = N});
  linear.borrow(mha::BorrowedLinear<W>{.weight = p.w[0], .bias = p.bias});
  linear(p.x, mha::into(y));
  for (Index i = 0; i < M; ++i)
    for (Index j = 0; j < N; ++j) ASSERT_NEAR(y(i, j), std::max(0., p.expected(0, i, j)), 1e-5);
  EXPECT_NE(linear.explain(1).find("fused where it can be"), std::string::npos) << linear.explain(1);
}

TEST(PackedMatrices, ABackendMayLeaveAnEpilogueToItsCaller) {
  expect_declined<float>("float declined");
  expect_declined<bfloat16>("bfloat16 declined");
}

/// Without them nothing is computed, so that the caller multiplies by the weights where they are.
TEST(PackedMatrices, NoneAreNotMultiplied) {
  const Products<float> p("none");
  const auto matrices = p.matrices();
  const support::PlainBackend plain;
  const PackedMatrices<float, support::PlainBackend> packed(plain, std::span<const mha::DenseWeights<float>>(matrices));
  const PackedMatrices<float, mha::Cpu> empty;
  EXPECT_FALSE(packed.present());
  EXPECT_FALSE(empty.present());
  EXPECT_STREQ(empty.scalar(), "float");
  EXPECT_EQ(packed.bytes() + empty.bytes(), 0u);
  Tensor<float, 2> y(M, N);
  std::fill(y.begin(), y.end(), 3.f);
  const TensorView<float, 2> to = y.view();
  mha::Workspace workspace;
  EXPECT_FALSE(packed.multiply(plain, p.x.view(), 0, {&to, 1}, workspace));
  EXPECT_FALSE(packed.multiply(plain, p.x.view(), 0, to, mha::Epilogue<float>{}, workspace));
  EXPECT_FALSE(empty.multiply({}, p.x.view(), 0, {&to, 1}, workspace));
  for (const float value : y) EXPECT_EQ(value, 3.f);
}

}  // namespace
