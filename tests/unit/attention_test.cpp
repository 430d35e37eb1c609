// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <Eigen/Core>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/cache/kv_source.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using Tensor4 = mha::Tensor<double, 4>;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor4 random_tensor(const char* stream, int b, int l, int h, int d) {
  support::Random random(stream);
  Tensor4 t(b, l, h, d);
  random.fill(t);
  return t;
}
RowMatrix random_matrix(const char* stream, int rows, int columns) {
  support::Random random(stream);
  RowMatrix m(rows, columns);
  for (double& x : m.reshaped()) x = random.normal();
  return m;
}

/// softmax(scale · q kᵀ) v of one head, no maximum subtracted: fine for the small logits of these tests.
template <class Visible>
RowMatrix by_formula(const RowMatrix& q, const RowMatrix& k, const RowMatrix& v, double scale, Visible&& visible) {
  RowMatrix p = (q * k.transpose() * scale).array().exp();
  for (int i = 0; i < p.rows(); ++i) {
    for (int j = 0; j < p.cols(); ++j)
      if (!visible(i, j)) p(i, j) = 0;
    if (p.row(i).sum() > 0) p.row(i) /= p.row(i).sum();
  }
  return p * v;
}
constexpr auto all_visible = [](int, int) { return true; };

template <class Backend> class Attention : public testing::Test {};
using Backends = testing::Types<mha::Reference, mha::Cpu>;
TYPED_TEST_SUITE(Attention, Backends, );

TYPED_TEST(Attention, OneHeadOfEigenMatrices) {
  const RowMatrix q = random_matrix("q", 5, 4), k = random_matrix("k", 7, 4), v = random_matrix("v", 7, 3);
  const auto out = mha::attention<TypeParam>(q, k, v);
  static_assert(std::is_same_v<std::remove_const_t<decltype(out)>, RowMatrix>);
  EXPECT_LT((out - by_formula(q, k, v, 0.5, all_visible)).cwiseAbs().maxCoeff(), 1e-13);

  const Eigen::MatrixXd columns_q = q, columns_k = k, columns_v = v;
  const RowMatrix same = mha::attention<TypeParam>(columns_q, columns_k, columns_v);
  EXPECT_LT((out - same).cwiseAbs().maxCoeff(), 1e-13);
  const Eigen::Matrix<double, 5, 4> fixed = q;
  EXPECT_LT((out - RowMatrix(mha::attention<TypeParam>(fixed, k, v))).cwiseAbs().maxCoeff(), 1e-13);
  const mha::Tensor<double, 2> of_views = mha::attention<TypeParam>(mha::view(q), mha::view(k), mha::view(v));
  EXPECT_EQ(of_views(4, 2), out(4, 2));
}

TYPED_TEST(Attention, HeadsOfAGroupReadOneKeyHead) {
  const Tensor4 q = random_tensor("q", 2, 5, 6, 4), k = random_tensor("k", 2, 7, 2, 4),
                v = random_tensor("v", 2, 7, 2, 3);
  const Tensor4 out = mha::attention<TypeParam>(q, k, v);
  EXPECT_EQ(out.extent(2), 6);
  EXPECT_EQ(out.extent(3), 3);
  const auto head = [](const Tensor4& t, int b, int h) {
    RowMatrix m(t.extent(1), t.extent(3));
    for (int l = 0; l < t.extent(1); ++l)
      for (int d = 0; d < t.extent(3); ++d) m(l, d) = t(b, l, h, d);
    return m;
  };
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 6; ++h) {
      const RowMatrix expected = by_formula(head(q, b, h), head(k, b, h / 3), head(v, b, h / 3), 0.5, all_visible);
      EXPECT_LT((head(out, b, h) - expected).cwiseAbs().maxCoeff(), 1e-13) << b << ", " << h;
    }
}

TYPED_TEST(Attention, OriginMovesTheMaskAndNothingElse) {
  const RowMatrix q = random_matrix("q", 3, 4), k = random_matrix("k", 7, 4), v = random_matrix("v", 7, 2);
  for (const int origin : {-2, 0, 2, 4, 9}) {
    const RowMatrix out = mha::attention<TypeParam>(q, k, v, mha::Causal{}, mha::Origin{origin});
    const RowMatrix expected = by_formula(q, k, v, 0.5, [&](int i, int j) { return j <= i + origin; });
    EXPECT_LT((out - expected).cwiseAbs().maxCoeff(), 1e-13) << origin;
  }
  EXPECT_EQ(RowMatrix(mha::attention<TypeParam>(q, k, v, mha::Causal{})),
            RowMatrix(mha::attention<TypeParam>(q, k, v, mha::Causal{}, mha::Origin{4})));
}

TYPED_TEST(Attention, ScaleMayBeAnyFiniteNumber) {
  const RowMatrix q = random_matrix("q", 4, 3), k = random_matrix("k", 5, 3), v = random_matrix("v", 5, 2);
  for (const double scale : {0.1, 1., 1.7, -0.4, 0.}) {
    const RowMatrix out = mha::attention<TypeParam>(q, k, v, mha::Scale{scale});
    EXPECT_LT((out - by_formula(q, k, v, scale, all_visible)).cwiseAbs().maxCoeff(), 1e-12) << scale;
  }
}

TYPED_TEST(Attention, ExtrasInAnyOrderGiveTheSameBits) {
  const Tensor4 q = random_tensor("q", 2, 6, 2, 4), k = random_tensor("k", 2, 6, 2, 4),
                v = random_tensor("v", 2, 6, 2, 4);
  const std::vector<int> lengths{3, 6};
  mha::Workspace workspace;
  mha::Tensor<double, 3> lse(2, 2, 6), other(2, 2, 6);
  const Tensor4 a = mha::attention<TypeParam>(q, k, v, mha::Padding{lengths}, mha::Causal{}, mha::SoftCap{2.f},
                                              mha::Scale{0.3}, mha::LogSumExp{lse}, workspace, mha::Origin{0});
  const Tensor4 b = mha::attention<TypeParam>(q, k, v, workspace, mha::Origin{0}, mha::LogSumExp{other},
                                              mha::SoftCap{2.f}, mha::Scale{0.3}, mha::Causal{}, mha::Padding{lengths});
  EXPECT_EQ(support::differing(a, b), 0U);
  EXPECT_EQ(support::differing(lse, other), 0U);
}

TYPED_TEST(Attention, LogSumExpIsNaturalAndMinusInfinityOfNothing) {
  const RowMatrix q = random_matrix("q", 4, 4), k = random_matrix("k", 3, 4), v = random_matrix("v", 3, 2);
  mha::Tensor<double, 1> lse(4);
  const RowMatrix out = mha::attention<TypeParam>(q, k, v, mha::Causal{}, mha::LogSumExp{lse});  // origin −1
  EXPECT_EQ(lse(0), -infinity);
  EXPECT_TRUE(out.row(0).isZero(0));
  for (int i = 1; i < 4; ++i) {
    double sum = 0;
    for (int j = 0; j < i; ++j) sum += std::exp(q.row(i).dot(k.row(j)) / 2);
    EXPECT_NEAR(lse(i), std::log(sum), 1e-13);
  }
}

TYPED_TEST(Attention, WeightsAreTheSoftmax) {
  const Tensor4 q = random_tensor("q", 1, 4, 4, 3), k = random_tensor("k", 1, 6, 2, 3),
                v = random_tensor("v", 1, 6, 2, 3);
  const mha::Tensor<double, 4> w = mha::attention_weights<TypeParam>(q, k, mha::Causal{}, mha::Scale{0.7});
  const Tensor4 out = mha::attention<TypeParam>(q, k, v, mha::Causal{}, mha::Scale{0.7});
  for (int h = 0; h < 4; ++h)
    for (int i = 0; i < 4; ++i) {
      double sum = 0;
      for (int j = 0; j < 6; ++j) sum += w(0, h, i, j);
      EXPECT_NEAR(sum, 1, 1e-14);
      for (int j = i + 3; j < 6; ++j) EXPECT_EQ(w(0, h, i, j), 0);
      for (int d = 0; d < 3; ++d) {
        double mixed = 0;
        for (int j = 0; j < 6; ++j) mixed += w(0, h, i, j) * v(0, j, h / 2, d);
        EXPECT_NEAR(out(0, i, h, d), mixed, 1e-13);
      }
    }
}

TYPED_TEST(Attention, IntoAnyStrides) {
  const Tensor4 q = random_tensor("q", 2, 5, 3, 4), k = random_tensor("k", 2, 5, 3, 4),
                v = random_tensor("v", 2, 5, 3, 4);
  const Tensor4 expected = mha::attention<TypeParam>(q, k, v);
  mha::Tensor<double, 4> heads_first(2, 3, 5, 4), dim_first(4, 2, 5, 3);
  mha::attention_into<TypeParam>(mha::view_bhld(heads_first.data(), 2, 3, 5, 4), q, k, v);
  mha::attention_into<TypeParam>(mha::TensorView<double, 4>{dim_first.data(), {2, 5, 3, 4}, {15, 3, 1, 30}}, q, k, v);
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 5; ++l)
      for (int h = 0; h < 3; ++h)
        for (int d = 0; d < 4; ++d) {
          EXPECT_EQ(heads_first(b, h, l, d), expected(b, l, h, d));
          EXPECT_EQ(dim_first(d, b, l, h), expected(b, l, h, d));
        }
}

// Every error names the call, the axis and both values, and leaves the outputs alone.
class AttentionErrors : public testing::Test {
 protected:
  AttentionErrors() {
    support::poison_all(out);
    support::poison_all(lse);
  }
  template <class... Extras>
  std::string error(const Tensor4& q_, const Tensor4& k_, const Tensor4& v_, Extras&&... extras) {
    const Tensor4 before = out;
    const mha::Tensor<double, 3> lse_before = lse;
    const auto message = mha_test::message_of<mha::ShapeError>(
        [&] { mha::attention_into(out, q_, k_, v_, mha::LogSumExp{lse}, extras...); });
    EXPECT_EQ(support::differing(out, before), 0U);
    EXPECT_EQ(support::differing(lse, lse_before), 0U);
    return message;
  }

  const Tensor4 q{2, 3, 4, 8}, k{2, 5, 2, 8}, v{2, 5, 2, 6};
  Tensor4 out{2, 3, 4, 6};
  mha::Tensor<double, 3> lse{2, 4, 3};
};

TEST_F(AttentionErrors, OfInputs) {
  EXPECT_EQ(error(q, Tensor4(3, 5, 2, 8), v), "attention: k has batch 3 but v has batch 2");
  EXPECT_EQ(error(q, Tensor4(3, 5, 2, 8), Tensor4(3, 5, 2, 6)), "attention: q has batch 2 but k has batch 3");
  EXPECT_EQ(error(q, Tensor4(2, 5, 2, 7), v), "attention: q has head size 8 but k has head size 7");
  EXPECT_EQ(error(q, Tensor4(2, 5, 3, 8), Tensor4(2, 5, 3, 6)),
            "attention: k has 3 heads, which does not divide q's 4");
  EXPECT_EQ(error(q, Tensor4(2, 5, 0, 8), Tensor4(2, 5, 0, 6)),
            "attention: k has 0 heads, which does not divide q's 4");
  EXPECT_EQ(error(q, k, Tensor4(2, 6, 2, 6)), "attention: k has length 5 but v has length 6");
  EXPECT_EQ(error(q, k, Tensor4(2, 5, 1, 6)), "attention: k has 2 heads but v has 1");
  EXPECT_EQ(error(Tensor4(2, 3, 4, 0), Tensor4(2, 5, 2, 0), v), "attention: q has head size 0, it must be at least 1");
}

TEST_F(AttentionErrors, OfNegativeExtentsNameTheTensor) {
  double numbers[8] = {};
  const mha::TensorView<double, 2> good{numbers, {2, 2}, {2, 1}}, short_q{numbers, {-2, 2}, {2, 1}},
      narrow_v{numbers, {2, -2}, {2, 1}};
  const auto refusal = [](const auto& a, const auto& b, const auto& c) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention(a, b, c)); });
  };
  EXPECT_EQ(refusal(short_q, good, good), "attention: q has extent -2 on axis 1");
  EXPECT_EQ(refusal(good, good, narrow_v), "attention: v has extent -2 on axis 3");
}

TEST_F(AttentionErrors, OfOutputs) {
  EXPECT_EQ(error(Tensor4(1, 3, 4, 8), Tensor4(1, 5, 2, 8), Tensor4(1, 5, 2, 6)),
            "attention: q has batch 1 but out has batch 2");
  EXPECT_EQ(error(Tensor4(2, 4, 4, 8), k, v), "attention: q has length 4 but out has length 3");
  EXPECT_EQ(error(Tensor4(2, 3, 2, 8), k, v), "attention: q has 2 heads but out has 4");
  EXPECT_EQ(error(q, k, Tensor4(2, 5, 2, 8)), "attention: v has head size 8 but out has head size 6");
  lse = mha::Tensor<double, 3>(1, 4, 3);
  EXPECT_EQ(error(q, k, v), "attention: q has batch 2 but log-sum-exp has batch 1");
  lse = mha::Tensor<double, 3>(2, 2, 3);
  EXPECT_EQ(error(q, k, v), "attention: q has 4 heads but log-sum-exp has 2");
  lse = mha::Tensor<double, 3>(2, 4, 5);
  EXPECT_EQ(error(q, k, v), "attention: q has length 3 but log-sum-exp has length 5");
}

TEST_F(AttentionErrors, OfOutputsThatOverlapWhatIsReadOrOneAnother) {
  // q, k and v have the same memory in turn; out and the log-sum-exp end with its first element, or before it.
  std::vector<double> memory(600, 0.5);
  const std::vector<double> before = memory;
  double* const input = memory.data() + 200;
  const auto to = [&](int shared) { return mha::view(input - 144 + shared, 2, 3, 4, 6); };
  const auto logits = [&](int shared) { return mha::view(input - 24 + shared, 2, 4, 3); };
  const auto here = [&](const Tensor4& like) {
    return mha::view(input, like.extent(0), like.extent(1), like.extent(2), like.extent(3));
  };
  const auto overlaps = [](const char* written, const char* read) {
    return std::string("attention: ") + written + " overlaps " + read + ", expected separate memory";
  };
  const auto expect = [&](const char* name, const auto& call) {
    EXPECT_EQ(support::message_of([&] { call(to(1), mha::LogSumExp{lse}); }), overlaps("out", name));
    EXPECT_EQ(support::message_of([&] { call(out, mha::LogSumExp(logits(1))); }), overlaps("log-sum-exp", name));
    EXPECT_EQ(memory, before);
    EXPECT_NO_THROW(call(to(0), mha::LogSumExp{lse}));
    EXPECT_NO_THROW(call(out, mha::LogSumExp(logits(0))));
    memory = before;
  };
  expect("q", [&](auto&& o, const auto& l) { mha::attention_into(o, here(q), k, v, l); });
  expect("k", [&](auto&& o, const auto& l) { mha::attention_into(o, q, here(k), v, l); });
  expect("v", [&](auto&& o, const auto& l) { mha::attention_into(o, q, k, here(v), l); });
  const mha::ContiguousKv<double> source{k.view(), v.view()};
  expect("q", [&](auto&& o, const auto& l) { mha::attention_into(o, here(q), source, l); });
  EXPECT_EQ(support::message_of([&] { mha::attention_into(to(0), q, k, v, mha::LogSumExp(logits(0))); }),
            overlaps("out", "log-sum-exp"));
  EXPECT_EQ(support::message_of([&] { mha::attention_into(to(0), q, source, mha::LogSumExp(logits(0))); }),
            overlaps("out", "log-sum-exp"));
  EXPECT_EQ(memory, before);
}

TEST_F(AttentionErrors, OfOutputsThatOverlapThemselves) {
  const Tensor4 before = out;
  const mha::Tensor<double, 3> lse_before = lse;
  const char* const axes[] = {"batch", "length", "heads", "head size"};
  for (int a = 0; a < 4; ++a)
    EXPECT_EQ(support::message_of([&] { mha::attention_into(support::repeated(out.view(), a), q, k, v); }),
              support::overlaps_itself("attention: out", axes[a], out.extent(a)));
  for (int a = 0; a < 3; ++a)
    EXPECT_EQ(support::message_of(
                  [&] { mha::attention_into(out, q, k, v, mha::LogSumExp(support::repeated(lse.view(), a))); }),
              support::overlaps_itself("attention: log-sum-exp", axes[a == 0 ? 0 : 3 - a], lse.extent(a)));
  EXPECT_EQ(support::differing(out, before), 0U);
  EXPECT_EQ(support::differing(lse, lse_before), 0U);
}

TEST_F(AttentionErrors, OfExtras) {
  EXPECT_EQ(error(q, k, v, mha::Scale{infinity}), "attention: the scale is inf, not finite");
  EXPECT_NE(error(q, k, v, mha::Scale{std::nan("")}), "");
  EXPECT_EQ(error(q, k, v, mha::Origin{std::numeric_limits<int>::max() / 2}),
            "attention: the origin 1073741823 puts 3 queries beyond position 1073741823");
  EXPECT_NE(error(q, k, v, mha::Origin{std::numeric_limits<int>::min()}), "");
  const std::vector<int> three{5, 5, 5}, negative{5, -1}, large{5, 6};
  EXPECT_EQ(error(q, k, v, mha::Padding{three}), "Padding: 3 lengths for a batch of 2");
  EXPECT_EQ(error(q, k, v, mha::Padding{negative}),
            "Padding: length -1 of sequence 1 is outside [0, 5], the number of keys");
  EXPECT_EQ(error(q, k, v, mha::Padding{large}),
            "Padding: length 6 of sequence 1 is outside [0, 5], the number of keys");
  EXPECT_EQ(error(q, k, v, mha::Causal{}, mha::SlidingWindow{.left = -1}),
            "SlidingWindow: left is -1, it must be at least 0");
  EXPECT_NE(error(q, k, v, mha::SoftCap{-1.f}), "");
  const mha::Tensor<bool, 2> table(3, 4);
  EXPECT_EQ(error(q, k, v, mha::Dense{table}), "Dense: the table has 4 keys but the call has 5");
  const mha::Tensor<double, 3> bias(3, 3, 5);
  EXPECT_EQ(error(q, k, v, mha::AdditiveBias{bias}), "AdditiveBias: the table has 3 heads but the call has 4");
  const std::vector<mha::Index> offsets{0, 2, 5}, longer{3, 3}, own{2, 3};
  const Tensor4 packed(1, 5, 2, 4);
  const auto ragged = [&](const auto&... extra) {
    return support::message_of(
        [&] { static_cast<void>(mha::attention(packed, packed, packed, mha::Ragged{offsets}, extra...)); });
  };
  EXPECT_EQ(ragged(mha::Padding{own}), "");
  EXPECT_EQ(ragged(mha::Padding{longer}), "Padding: length 3 of sequence 0 is outside [0, 2], the number of keys");
  EXPECT_EQ(ragged(mha::Prefix{longer}), "Prefix: length 3 of sequence 0 is outside [0, 2], the number of keys");
  EXPECT_EQ(ragged(mha::Padding{longer}, mha::Origin{0}),
            "Padding: length 3 of sequence 0 is outside [0, 2], the number of keys");
  EXPECT_EQ(ragged(mha::Padding{longer}, mha::Origin{-1}), "") << "how many keys a sequence has is not known then";
  const mha::Padding on_device{{three.data(), 2, mha::Memory::device}};
  EXPECT_EQ(error(q, k, v, on_device),
            "attention: a policy borrows device memory, but the backend computes on the host");
}

TEST_F(AttentionErrors, OfDropout) {
  EXPECT_EQ(error(q, k, v, mha::Dropout{.p = 1.f}, mha::DropoutSeed{1}),
            "attention: Dropout has p 1, it must be at least 0 and below 1");
  EXPECT_EQ(error(q, k, v, mha::Dropout{.p = -0.5f}),
            "attention: Dropout has p -0.5, it must be at least 0 and below 1");
  EXPECT_NE(error(q, k, v, mha::Dropout{.p = std::nanf("")}, mha::DropoutSeed{1}), "");
  EXPECT_NE(mha_test::message_of<mha::ShapeError>(
                [&] { static_cast<void>(mha::attention_weights(q, k, mha::Dropout{.p = 2.f})); }),
            "");
}

TEST_F(AttentionErrors, OfNullData) {
  const double* const none = nullptr;
  const auto null = [&](const auto& q_, const auto& k_, const auto& v_) {
    return mha_test::message_of<mha::ShapeError>([&] { mha::attention_into(out, q_, k_, v_); });
  };
  EXPECT_EQ(null(mha::view(none, 2, 3, 4, 8), k, v), "attention: q has 192 elements but its data is null");
  EXPECT_EQ(null(q, mha::view(none, 2, 5, 2, 8), v), "attention: k has 160 elements but its data is null");
  EXPECT_EQ(null(q, k, mha::view(none, 2, 5, 2, 6)), "attention: v has 120 elements but its data is null");
  EXPECT_EQ(null(q, mha::view(none, 2, -5, 2, 8), mha::view(none, 2, -5, 2, 6)),
            "attention: v has extent -5 on axis 1");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { mha::attention_into(mha::view(static_cast<double*>(nullptr), 2, 3, 4, 6), q, k, v); }),
            "attention: out has 144 elements but its data is null");
}

TEST_F(AttentionErrors, OfWeights) {
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention_weights(q, Tensor4(2, 5, 2, 7))); }),
      "attention_weights: q has head size 8 but k has head size 7");
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention_weights(q, Tensor4(2, 5, 3, 8))); }),
      "attention_weights: k has 3 heads, which does not divide q's 4");
}

TYPED_TEST(Attention, EmptyExtentsAreNotErrors) {
  EXPECT_EQ(mha::attention<TypeParam>(Tensor4(0, 3, 2, 4), Tensor4(0, 5, 2, 4), Tensor4(0, 5, 2, 4)).size(), 0U);
  EXPECT_EQ(mha::attention<TypeParam>(Tensor4(2, 0, 2, 4), Tensor4(2, 5, 2, 4), Tensor4(2, 5, 2, 4)).size(), 0U);
  EXPECT_EQ(mha::attention<TypeParam>(Tensor4(2, 3, 0, 4), Tensor4(2, 5, 0, 4), Tensor4(2, 5, 0, 4)).size(), 0U);
  EXPECT_EQ(mha::attention<TypeParam>(Tensor4(2, 3, 2, 4), Tensor4(2, 5, 2, 4), Tensor4(2, 5, 2, 0)).size(), 0U);
  const Tensor4 q = random_tensor("q", 2, 3, 2, 4);
  mha::Tensor<double, 3> lse(2, 2, 3);
  const Tensor4 none = mha::attention<TypeParam>(q, Tensor4(2, 0, 1, 4), Tensor4(2, 0, 1, 5), mha::LogSumExp{lse});
  EXPECT_EQ(none.size(), 2U * 3 * 2 * 5);
  for (const double x : none) EXPECT_EQ(x, 0);
  for (const double x : lse) EXPECT_EQ(x, -infinity);
  EXPECT_EQ(mha::attention_weights<TypeParam>(q, Tensor4(2, 0, 1, 4)).size(), 0U);
  // A width of 0 has nothing to write, but the log-sum-exp of its rows exists all the same.
  const Tensor4 k = random_tensor("k", 2, 5, 2, 4);
  mha::Tensor<double, 3> expected(2, 2, 3), found(2, 2, 3);
  static_cast<void>(mha::attention<TypeParam>(q, k, k, mha::LogSumExp{expected}));
  static_cast<void>(mha::attention<TypeParam>(q, k, Tensor4(2, 5, 2, 0), mha::LogSumExp{found}));
  EXPECT_EQ(support::differing(expected, found), 0U);
}

TEST(AttentionWorkspace, TheSecondCallAllocatesNothing) {
  const Tensor4 q = random_tensor("q", 2, 60, 2, 16), k = random_tensor("k", 2, 90, 2, 16);
  Tensor4 out(2, 60, 2, 16);
  const mha::TensorView<const double, 4> strided{k.data(), {2, 90, 2, 8}, {90 * 32, 32, 16, 2}};  // packed by the call
  const mha::TensorView<const double, 4> narrow{q.data(), {2, 60, 2, 8}, {60 * 32, 32, 16, 1}};
  mha::Workspace workspace;
  mha::attention_into(out, q, k, k, mha::Causal{}, workspace);
  mha::attention_into(out, narrow, strided, k, workspace);
  const int allocations = workspace.allocations();
  for (int i = 0; i < 3; ++i) {
    mha::attention_into(out, q, k, k, mha::Causal{}, workspace);
    mha::attention_into(out, narrow, strided, k, workspace);
  }
  EXPECT_EQ(workspace.allocations(), allocations);
}

}  // namespace
