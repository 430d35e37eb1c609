// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/parameters.hpp>
#include <mha/layer/policies.hpp>

#include "scratch.hpp"

namespace {

using mha::Config;
using mha::PerHeadProjection;
using mha::detail::PoliciesByRole;

using Fused = mha::Parameters<float, PoliciesByRole<>>;
using Headless = mha::Parameters<float, PoliciesByRole<mha::NoOutput>>;
using PerHead = mha::Parameters<float, PoliciesByRole<PerHeadProjection>>;
using Everything = mha::Parameters<float, PoliciesByRole<mha::QkNorm, mha::GatedHeads>>;

// E = 5, E_kv = 7, Hq = 4, Hkv = 2, D = 3, Dv = 2: no two sizes agree by accident.
Config sizes(bool bias) {
  return mha::detail::completed<mha::GroupedQuery<2>>(
      {.d_model = 5, .num_heads = 4, .head_dim = 3, .value_dim = 2, .kv_model = 7, .bias = bias});
}
constexpr int query_size = 5 * 12, key_size = 7 * 6, value_size = 7 * 4, output_size = 8 * 5;

/// Counts through the flat array, so that every weight is the number of its place.
template <class Parameters> void number(Parameters& p) {
  const auto flat = p.writable().flat();
  std::iota(flat.begin(), flat.end(), 0.f);
}

TEST(Parameters, AreCountedBeforeTheyAreThere) {
  Fused plain(sizes(false));
  EXPECT_FALSE(plain.present());
  EXPECT_EQ(plain.size(), query_size + key_size + value_size + output_size);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(plain.views().flat()); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
  EXPECT_EQ(plain.views().query.heads.data, nullptr);
  EXPECT_EQ(plain.views().output.matrix().data, nullptr);
  EXPECT_EQ(Fused(sizes(true)).size(), plain.size() + 12 + 6 + 4 + 5);
  EXPECT_EQ(Headless(sizes(true)).size(), query_size + 12 + key_size + 6 + value_size + 4);
  EXPECT_EQ(Everything(sizes(true)).size(), plain.size() + 12 + 6 + 4 + 5 + 2 * 3 + 4);
}

TEST(Parameters, StartAtZero) {
  Fused p(sizes(false));
  EXPECT_EQ(p.writable().flat().size(), std::size_t{query_size + key_size + value_size + output_size});
  EXPECT_TRUE(p.present());
  for (const float x : p.views().flat()) EXPECT_EQ(x, 0.f);
  EXPECT_EQ(p.views().query.matrix().data, p.views().flat().data());
}

TEST(Parameters, NormsAndGatesStandAtTheEnd) {
  Everything own(sizes(true));
  number(own);
  const auto p = own.views();
  const int first = int(own.size()) - 10;
  EXPECT_EQ(p.query_norm.extent[0], 3);
  EXPECT_EQ(p.query_norm(0), first);
  EXPECT_EQ(p.key_norm(2), first + 5);
  EXPECT_EQ(p.gate.extent[0], 4);
  EXPECT_EQ(p.gate(3), first + 9);
}

TEST(Parameters, FusedLayoutHasHeadsSideBySide) {
  Fused own(sizes(true));
  number(own);
  const auto p = own.views();
  const auto q = p.query.matrix();  // (E, Hq·D)
  EXPECT_EQ(q.extent[0], 5);
  EXPECT_EQ(q.extent[1], 12);
  EXPECT_EQ(q(2, 7), 2 * 12 + 7);
  EXPECT_EQ(p.query.heads(2, 2, 1), q(2, 2 * 3 + 1));
  EXPECT_EQ(p.query.head(2)(2, 1), q(2, 2 * 3 + 1));
  EXPECT_EQ(p.query.bias(2, 1), query_size + 2 * 3 + 1);
  EXPECT_EQ(p.query.bias_row()(7), query_size + 7);
  EXPECT_EQ(p.query.head_bias(2)(1), query_size + 7);

  int at = query_size + 12;
  EXPECT_EQ(p.key.matrix().extent[0], 7);
  EXPECT_EQ(p.key.matrix().extent[1], 6);
  EXPECT_EQ(p.key.matrix()(6, 5), at + key_size - 1);
  at += key_size + 6;
  EXPECT_EQ(p.value.matrix().extent[0], 7);
  EXPECT_EQ(p.value.matrix().extent[1], 4);
  EXPECT_EQ(p.value.heads(1, 0, 0), at + 2);
  at += value_size + 4;
  EXPECT_EQ(p.output.matrix().extent[0], 8);
  EXPECT_EQ(p.output.matrix().extent[1], 5);
  EXPECT_EQ(p.output.matrix()(7, 4), at + output_size - 1);
  EXPECT_EQ(p.output.bias(4), at + output_size + 4);
  EXPECT_EQ(p.flat().back(), p.output.bias(4));
}

TEST(Parameters, PerHeadLayoutHasHeadsOneAfterTheOther) {
  PerHead own(sizes(false));
  number(own);
  const auto p = own.views();
  EXPECT_EQ(p.query.head(2)(4, 1), 2 * 15 + 4 * 3 + 1);
  EXPECT_EQ(p.query.heads(3, 0, 2), 3 * 15 + 2);
  EXPECT_EQ(p.value.head(1)(6, 1), query_size + key_size + value_size - 1);
  EXPECT_EQ(p.query.bias.data, nullptr);
  EXPECT_EQ(p.query.bias_row().data, nullptr);
  EXPECT_EQ(p.output.bias.data, nullptr);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(p.query.matrix()); }),
            "HeadWeights: the 4 heads lie 15 elements apart, side by side would be 3: ask for head(h) instead");
}

template <class P> class WrittenParameters : public ::testing::Test {};
using Layouts = ::testing::Types<Fused, PerHead>;
TYPED_TEST_SUITE(WrittenParameters, Layouts);

TYPED_TEST(WrittenParameters, TakeAMatrixOfAnyScalar) {
  TypeParam own(sizes(true));
  number(own);
  const auto p = own.writable();
  std::vector<double> numbers(query_size);
  std::iota(numbers.begin(), numbers.end(), 1000.5);
  p.query = mha::view(numbers.data(), 5, 12);
  p.value = mha::transposed(mha::view(numbers.data(), 4, 7));
  p.output = mha::transposed(mha::view(numbers.data(), 5, 8));
  for (int e = 0; e < 5; ++e)
    for (int column = 0; column < 12; ++column)
      EXPECT_EQ(p.query.heads(column / 3, e, column % 3), 1000.5f + float(12 * e + column));
  for (int e = 0; e < 7; ++e)
    for (int column = 0; column < 4; ++column)
      EXPECT_EQ(p.value.heads(column / 2, e, column % 2), 1000.5f + float(7 * column + e));
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 5; ++j) EXPECT_EQ(p.output.matrix()(i, j), 1000.5f + float(8 * j + i));
  int untouched = 0;
  for (const float x : p.all) untouched += x < 1000 ? 1 : 0;
  EXPECT_EQ(untouched, 12 + key_size + 6 + 4 + 5) << "the keys' matrix and the biases";

  const auto error = [&](auto&& f) { return mha_test::message_of<mha::ShapeError>(f); };
  const std::vector<float> before(p.all.begin(), p.all.end());
  EXPECT_EQ(error([&] { p.key = mha::view(numbers.data(), 6, 7); }),
            "update: the matrix is (6, 7), expected (7, 6): assign its transpose, mha::transposed(view)");
  EXPECT_EQ(error([&] { p.output = mha::view(numbers.data(), 5, 12); }),
            "update: the matrix is (5, 12), expected (8, 5)");
  EXPECT_EQ(error([&] {
              p.key = mha::TensorView<const float, 2>{nullptr, {7, 6}, {6, 1}};
            }),
            "update: the matrix has 42 elements but its data is null");
  EXPECT_EQ(
      error([&] {
        p.output = mha::TensorView<float, 2>{p.output.weight.pointer(7, 4), {8, 5}, {-5, -1}};
      }),
      "update: the matrix (8, 5) lies in the weights that it is assigned to, which would change it: copy it first");
  EXPECT_EQ(std::vector<float>(p.all.begin(), p.all.end()), before);
}

TEST(Parameters, WithoutOutputThereIsNoOutputMatrix) {
  Headless p(sizes(true));
  EXPECT_EQ(p.writable().output.matrix().data, nullptr);
}

/// A set of matrices for sizes(…), and a way to spoil one.
struct Checkpoint {
  std::vector<float> q, k, v, o, qb, kb, vb, ob;
  mha::BorrowedWeights<float> weights;

  explicit Checkpoint(bool bias)
      : q(query_size), k(key_size), v(value_size), o(output_size), qb(12), kb(6), vb(4), ob(5) {
    float next = 0;
    for (auto* values : {&q, &k, &v, &o, &qb, &kb, &vb, &ob})
      for (float& x : *values) x = ++next;
    weights.query = mha::view(std::as_const(q).data(), 5, 12);
    weights.key = mha::view(std::as_const(k).data(), 7, 6);
    weights.value = mha::view(std::as_const(v).data(), 7, 4);
    weights.output = mha::view(std::as_const(o).data(), 8, 5);
    if (!bias) return;
    weights.query_bias = mha::view(std::as_const(qb).data(), 12);
    weights.key_bias = mha::view(std::as_const(kb).data(), 6);
    weights.value_bias = mha::view(std::as_const(vb).data(), 4);
    weights.output_bias = mha::view(std::as_const(ob).data(), 5);
  }
  Checkpoint(const Checkpoint&) = delete;
};

TEST(Parameters, BorrowedViewsPointAtTheCheckpoint) {
  const Checkpoint file(true);
  Fused p(sizes(true));
  EXPECT_FALSE(p.borrowed());
  p.borrow(file.weights, nullptr);
  EXPECT_TRUE(p.borrowed());
  EXPECT_TRUE(p.present());
  const auto views = p.views();
  EXPECT_EQ(views.query.matrix().data, file.q.data());
  EXPECT_EQ(views.query.head(3)(4, 2), file.q[4 * 12 + 11]);
  EXPECT_EQ(views.key.bias(1, 2), file.kb[5]);
  EXPECT_EQ(views.value.matrix()(6, 3), file.v.back());
  EXPECT_EQ(views.output.matrix()(7, 4), file.o.back());
  EXPECT_EQ(views.output.bias(4), file.ob.back());
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(views.flat()); }),
            "parameters: flat() has nothing to show, because the weights are borrowed and need not be in one row: read "
            "them by name");
  EXPECT_EQ(p.size(), query_size + key_size + value_size + output_size + 12 + 6 + 4 + 5);
}

TEST(Parameters, TransposedMatricesAreReadInPlace) {
  std::vector<float> out_in(query_size);
  std::iota(out_in.begin(), out_in.end(), 0.f);
  Checkpoint file(false);
  file.weights.query = mha::transposed(mha::view(std::as_const(out_in).data(), 12, 5));
  Fused p(sizes(false));
  p.borrow(file.weights, nullptr);
  EXPECT_EQ(p.views().query.matrix()(2, 7), 7 * 5 + 2);
  EXPECT_EQ(p.views().query.head(2)(2, 1), 7 * 5 + 2);
  EXPECT_EQ(p.views().query.head(2).data, out_in.data() + 6 * 5);
}

TEST(Parameters, BorrowedWeightsAreNotWritable) {
  const Checkpoint file(false);
  Fused p(sizes(false));
  p.borrow(file.weights, nullptr);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { p.writable(); }),
            "update: the layer's 170 parameters are borrowed, so they cannot be written: copy them in the update() of "
            "a new layer");
}

TEST(Parameters, WeightsOfTheirOwnAreNotBorrowed) {
  const Checkpoint file(true);
  Fused own(sizes(true));
  number(own);
  auto w = own.views();
  const auto error = [&](const auto& weights) {
    return mha_test::message_of<mha::ShapeError>([&] { own.borrow(weights, nullptr); });
  };
  const std::string wanted =
      "borrow: weights that are among the " + std::to_string(own.size()) + " of the layer's own, expected another's";
  EXPECT_EQ(error(w), wanted);
  auto mixed = file.weights;
  mixed.output_bias = w.output.bias;
  EXPECT_EQ(error(mixed), wanted);
  const Fused copy = own;
  w = copy.views();
  w.key.heads = own.views().key.heads;
  EXPECT_EQ(error(w), wanted);
  EXPECT_FALSE(own.borrowed());
}

TEST(Parameters, KeepAliveLivesAsLongAsACopy) {
  const Checkpoint file(false);
  auto mapping = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = mapping;
  auto first = std::make_unique<Fused>(sizes(false));
  first->borrow(file.weights, std::move(mapping));
  auto second = std::make_unique<Fused>(*first);
  first.reset();
  EXPECT_FALSE(watch.expired());
  second.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(Parameters, CopiesAreIndependentAndMovesKeepTheMemory) {
  Fused a(sizes(true));
  number(a);
  Fused b = a;
  EXPECT_NE(a.views().flat().data(), b.views().flat().data());
  b.writable().query.matrix()(0, 1) = -5;
  EXPECT_EQ(a.views().query.matrix()(0, 1), 1);
  EXPECT_EQ(b.views().query.matrix()(0, 1), -5);
  EXPECT_EQ(b.views().output.bias(4), a.views().output.bias(4));

  const float* const memory = b.views().flat().data();
  const Fused c = std::move(b);
  EXPECT_EQ(c.views().flat().data(), memory);
  EXPECT_EQ(c.views().query.matrix()(0, 1), -5);

  a = c;
  EXPECT_EQ(a.views().query.matrix()(0, 1), -5);
  EXPECT_NE(a.views().flat().data(), memory);
}

/// What borrow() says to a spoilt checkpoint; it must leave the parameters as they were.
template <class Spoil> std::string error_of(bool bias, Spoil&& spoil) {
  Checkpoint file(bias);
  spoil(file.weights);
  Fused p(sizes(bias));
  number(p);
  const std::string message = mha_test::message_of<mha::ShapeError>([&] { p.borrow(file.weights, nullptr); });
  EXPECT_FALSE(p.borrowed());
  EXPECT_EQ(p.views().query.matrix()(0, 3), 3);
  return message;
}

using Weights = mha::BorrowedWeights<float>;

TEST(Parameters, BorrowSaysWhichMatrixHasWhichShape) {
  EXPECT_EQ(error_of(false, [](Weights& w) { w.query = {}; }), "borrow: the query matrix is (0, 0), expected (5, 12)");
  EXPECT_EQ(error_of(false, [](Weights& w) { w.output = {}; }), "borrow: the output matrix is (0, 0), expected (8, 5)");
  EXPECT_EQ(error_of(false, [](Weights& w) { w.query.extent[1] = 11; }),
            "borrow: the query matrix is (5, 11), expected (5, 12)");
  EXPECT_EQ(error_of(false, [](Weights& w) { w.key.extent[0] = 5; }),
            "borrow: the key matrix is (5, 6), expected (7, 6)");
  EXPECT_EQ(error_of(false, [](Weights& w) { w.value.extent[1] = 6; }),
            "borrow: the value matrix is (7, 6), expected (7, 4)");
  EXPECT_EQ(error_of(false, [](Weights& w) { w.output.extent[0] = 12; }),
            "borrow: the output matrix is (12, 5), expected (8, 5)");
}

// Every choice of biases, owned and borrowed: each stands behind its own matrix, and the others are null.
TEST(Parameters, BiasesOfEveryChoiceOfProjections) {
  const int widths[] = {12, 6, 4, 5}, sizes_of[] = {query_size, key_size, value_size, output_size};
  const char* const names[] = {"query", "key", "value", "output"};
  for (int choice = 0; choice < 16; ++choice) {
    SCOPED_TRACE(choice);
    Config c = sizes(choice % 2 == 1);
    const auto chosen = [&](int n) { return (choice >> n) % 2 == 1; };
    c.key_bias = chosen(1);
    c.value_bias = chosen(2);
    c.output_bias = chosen(3);
    Fused own(c);
    number(own);
    Checkpoint file(true);
    mha::WeightView<float, 1>* const biases[] = {&file.weights.query_bias, &file.weights.key_bias,
                                                 &file.weights.value_bias, &file.weights.output_bias};
    for (int n = 0; n < 4; ++n)
      if (!chosen(n)) biases[n]->extent[0] = 0;  // of no elements, though not null
    Fused borrowed(c);
    borrowed.borrow(file.weights, nullptr);
    EXPECT_EQ(borrowed.size(), own.size());
    const auto o = own.views(), b = borrowed.views();
    const mha::TensorView<const float, 1> owned[] = {o.query.bias_row(), o.key.bias_row(), o.value.bias_row(),
                                                     o.output.bias},
                                          lent[] = {b.query.bias_row(), b.key.bias_row(), b.value.bias_row(),
                                                    b.output.bias};
    int at = 0;
    for (int n = 0; n < 4; ++n) {
      SCOPED_TRACE(names[n]);
      at += sizes_of[n];
      ASSERT_EQ(owned[n].data == nullptr, !chosen(n));
      ASSERT_EQ(lent[n].data == nullptr, !chosen(n));
      EXPECT_EQ(owned[n].extent[0], chosen(n) ? widths[n] : 0);
      EXPECT_EQ(lent[n].extent[0], chosen(n) ? widths[n] : 0);
      if (!chosen(n)) continue;
      EXPECT_EQ(owned[n](0), float(at));
      EXPECT_EQ(lent[n].data, biases[n]->data);
      at += widths[n];
    }
    EXPECT_EQ(own.size(), at);

    // One too many, one too few.
    for (int n = 0; n < 4; ++n) {
      Checkpoint spoilt(true);
      mha::WeightView<float, 1>* const all[] = {&spoilt.weights.query_bias, &spoilt.weights.key_bias,
                                                &spoilt.weights.value_bias, &spoilt.weights.output_bias};
      for (int other = 0; other < 4; ++other)
        if (chosen(other) == (other == n)) *all[other] = {};
      EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { own.borrow(spoilt.weights, nullptr); }),
                std::string("borrow: the ") + names[n] + " bias has " + std::to_string(chosen(n) ? 0 : widths[n]) +
                    " elements, expected " +
                    (chosen(n) ? std::to_string(widths[n])
                               : "0: set .bias in the configuration, or that of this projection"));
    }
  }
}

TEST(Parameters, AnOutputBiasNeedsAnOutputProjection) {
  Config c = sizes(true);
  EXPECT_EQ(Headless(c).views().output.bias.data, nullptr);
  c.output_bias = true;
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { Headless{c}; }),
            "Config: output_bias is true, but a layer with NoOutput has no output projection");
  c.output_bias = false;
  EXPECT_EQ(Headless(c).size(), query_size + 12 + key_size + 6 + value_size + 4);
}

TEST(Parameters, BorrowRecognisesATransposedMatrix) {
  EXPECT_EQ(error_of(false, [](Weights& w) { w.query = mha::transposed(w.query); }),
            "borrow: the query matrix is (12, 5), expected (5, 12): pass mha::transposed(view)");
  EXPECT_EQ(error_of(true, [](Weights& w) { w.output = mha::transposed(w.output); }),
            "borrow: the output matrix is (5, 8), expected (8, 5): pass mha::transposed(view)");
}

TEST(Parameters, BorrowWantsEveryBiasOrNone) {
  std::vector<float> one(12);
  EXPECT_EQ(
      error_of(false, [&](Weights& w) { w.key_bias = mha::view(std::as_const(one).data(), 6); }),
      "borrow: the key bias has 6 elements, expected 0: set .bias in the configuration, or that of this projection");
  EXPECT_EQ(error_of(true, [](Weights& w) { w.value_bias = {}; }), "borrow: the value bias has 0 elements, expected 4");
  EXPECT_EQ(error_of(true, [](Weights& w) { w.output_bias.extent[0] = 8; }),
            "borrow: the output bias has 8 elements, expected 5");
}

TEST(Parameters, WithoutOutputAnOutputMatrixIsRefused) {
  Checkpoint file(false);
  Headless p(sizes(false));
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { p.borrow(file.weights, nullptr); }),
            "borrow: the output matrix is (8, 5), expected (0, 0)");
  file.weights.output = {};
  p.borrow(file.weights, nullptr);
  EXPECT_TRUE(p.borrowed());
}

TEST(Parameters, BorrowWantsMemory) {
  EXPECT_EQ(error_of(false, [](Weights& w) { w.key.data = nullptr; }),
            "borrow: key has 42 elements but its data is null");
  EXPECT_EQ(error_of(true, [](Weights& w) { w.key_bias.data = nullptr; }),
            "borrow: key bias has 6 elements but its data is null");
}

TEST(Parameters, BorrowWantsNormsAndGatesWhereTheLayerHasThem) {
  std::vector<float> numbers(6);
  const auto vector = [&](int n) { return mha::view(std::as_const(numbers).data(), n); };
  EXPECT_EQ(error_of(false, [&](Weights& w) { w.query_norm = vector(3); }),
            "borrow: the query_norm has 3 elements, expected 0: name mha::QkNorm in the layer's type");
  EXPECT_EQ(error_of(false, [&](Weights& w) { w.key_norm = vector(3); }),
            "borrow: the key_norm has 3 elements, expected 0: name mha::QkNorm in the layer's type");
  EXPECT_EQ(error_of(false, [&](Weights& w) { w.gate = vector(4); }),
            "borrow: the gate has 4 elements, expected 0: name mha::GatedHeads in the layer's type");
  Checkpoint file(false);
  Everything p(sizes(false));
  const auto error = [&] { return mha_test::message_of<mha::ShapeError>([&] { p.borrow(file.weights, nullptr); }); };
  EXPECT_EQ(error(), "borrow: the query_norm has 0 elements, expected 3");
  file.weights.query_norm = vector(3);
  file.weights.key_norm = vector(2);
  EXPECT_EQ(error(), "borrow: the key_norm has 2 elements, expected 3");
  file.weights.key_norm = vector(3);
  EXPECT_EQ(error(), "borrow: the gate has 0 elements, expected 4");
  file.weights.gate = vector(4);
  EXPECT_EQ(error(), "");
  EXPECT_EQ(p.views().gate.data, numbers.data());
}

// Another layer's parameters, of any projection layout, are borrowed where they are.
TEST(Parameters, BorrowsTheViewsOfOthers) {
  PerHead owner(sizes(true));
  number(owner);
  Fused p(sizes(true));
  p.borrow(std::as_const(owner).views(), nullptr);
  EXPECT_EQ(p.views().query.heads(3, 4, 2), owner.views().query.heads(3, 4, 2));
  EXPECT_EQ(p.views().query.heads.data, owner.views().query.heads.data);
  EXPECT_THROW(static_cast<void>(p.views().flat()), mha::ShapeError);

  auto other = sizes(true);
  other.kv_model = 6;
  Fused narrow(other);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { narrow.borrow(owner.views(), nullptr); }),
            "borrow: the key weights are (2, 7, 3), expected (2, 6, 3)");
  other = sizes(true);
  other.value_model = 6;
  Fused of_values(other);
  EXPECT_EQ(of_values.views().value.model(), 6);
  EXPECT_EQ(of_values.size(), p.size() - 2 * 2);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { of_values.borrow(owner.views(), nullptr); }),
            "borrow: the value weights are (2, 7, 2), expected (2, 6, 2)");
  Fused plain(sizes(false));
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { plain.borrow(owner.views(), nullptr); }),
            "borrow: the query bias is (4, 3), expected (0, 0): set .bias in the configuration, or that of this "
            "projection");
}

// 4·65536² parameters are no error until the layer is to own them in one allocation.
TEST(Parameters, MoreThanAnIndexCountsCannotBeOwned) {
  Fused big(mha::detail::completed<mha::MultiHead>({.d_model = 65536, .num_heads = 512}));
  EXPECT_EQ(big.size(), 17179869184);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { big.writable(); }),
            "update: the layer has 17179869184 parameters, the limit of one allocation is 2147483647: borrow them");
}

// Borrowing from itself would free what it then reads.
TEST(Parameters, ItsOwnWeightsAreNotBorrowed) {
  Fused p(sizes(false));
  p.writable();
  EXPECT_NE(mha_test::message_of<mha::ShapeError>([&] { p.borrow(std::as_const(p).views(), nullptr); }).find("own"),
            std::string::npos);
  EXPECT_FALSE(p.borrowed());
}

}  // namespace
