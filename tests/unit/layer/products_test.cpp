// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/layer/products.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "every_isa.hpp"
#include "four_bits.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TensorView;
using mha::detail::LayerMatrix;
using mha::detail::LayerProducts;
using mha::detail::PoliciesByRole;
using support::message_of;

/// A backend that counts what it is asked for, its products those of the reference.
struct Counting : mha::Reference {
  static inline int packs = 0, packed_products = 0;
  struct Packed {
    std::vector<Tensor<double, 2>> matrices;
    std::vector<Tensor<double, 1>> biases;
    std::size_t bytes() const { return 8 * matrices.size(); }
  };
  template <class T> Packed pack(std::span<const mha::DenseWeights<T>> weights) const {
    ++packs;
    Packed packed;
    for (const auto& w : weights) {
      auto& matrix = packed.matrices.emplace_back(w.matrix.extent[0], w.matrix.extent[1]);
      auto& bias = packed.biases.emplace_back(w.matrix.extent[1]);
      for (Index j = 0; j < w.matrix.extent[1]; ++j) {
        bias(j) = w.bias(j);
        for (Index k = 0; k < w.matrix.extent[0]; ++k) matrix(k, j) = w.matrix(k, j);
      }
    }
    return packed;
  }
  using mha::Reference::gemm;
  void gemm(const mha::PackedGemmCall<double, Packed>& call, Workspace& workspace) const {
    ++packed_products;
    for (std::size_t i = 0; i < call.c.size(); ++i) {
      const std::size_t part = static_cast<std::size_t>(call.first) + i;
      gemm(mha::GemmCall<double>{call.a, call.weights.matrices[part].view(), call.weights.biases[part].view(),
                                 call.c[i]},
           workspace);
    }
  }
};
static_assert(mha::PacksWeights<Counting, double> && mha::PacksWeights<mha::Cpu, float>);
static_assert(!mha::PacksWeights<mha::Reference, double> && !mha::PacksWeights<mha::Cpu, long double>);

const mha::Config config = mha::detail::completed<mha::GroupedQuery<2>>(
    {.d_model = 10, .num_heads = 4, .head_dim = 3, .value_dim = 5, .bias = true});

/// Parameters as a projection policy lays them out, with random numbers.
template <class P> struct Made {
  mha::Parameters<double, PoliciesByRole<P>> parameters{config};
  Made() {
    support::Random random("products");
    auto p = parameters.writable();
    for (double& x : p.flat()) x = random.normal();
  }
};

template <class B, class P> std::vector<Tensor<double, 2>> all_products(bool pack) {
  const Made<P> made;
  const auto w = made.parameters.views();
  const B backend;
  const LayerProducts<double, B> products =
      pack ? LayerProducts<double, B>(backend, w, true) : LayerProducts<double, B>();
  support::Random random("product rows");
  Tensor<double, 2> x(7, 10), heads(7, 20);
  random.fill(x);
  random.fill(heads);
  std::vector<Tensor<double, 2>> results;
  for (const Index columns : {12, 6, 10, 10}) results.emplace_back(7, columns);
  std::vector<TensorView<double, 2>> to;
  for (auto& r : results) to.push_back(r.view());
  typename B::Workspace workspace;
  const std::span<const TensorView<double, 2>> all(to);
  products.run(backend, std::as_const(x).view(), w, LayerMatrix::query, all.first(3), workspace);
  products.run(backend, std::as_const(heads).view(), w, LayerMatrix::output, all.subspan(3), workspace);
  return results;
}

template <class P> class ProductsOf : public testing::Test {};
using Policies = testing::Types<mha::FusedProjection, mha::PerHeadProjection>;
TYPED_TEST_SUITE(ProductsOf, Policies, );

TYPED_TEST(ProductsOf, PackedAreWhatTheyAreUnpacked) {
  const auto expected = all_products<mha::Reference, TypeParam>(false);
  const auto packed = all_products<Counting, TypeParam>(true), cpu = all_products<mha::Cpu, TypeParam>(true),
             cpu_unpacked = all_products<mha::Cpu, TypeParam>(false);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(support::differing(cpu[i], cpu_unpacked[i]), 0u) << i;
    for (std::size_t e = 0; e < expected[i].size(); ++e) {
      EXPECT_DOUBLE_EQ(packed[i].data()[e], expected[i].data()[e]) << i;
      EXPECT_NEAR(cpu[i].data()[e], expected[i].data()[e], 1e-13) << i;
    }
  }
}

TEST(Products, QueryKeyAndValueAreOneProductOfWeightsPackedOnce) {
  Counting::packs = Counting::packed_products = 0;
  static_cast<void>(all_products<Counting, mha::FusedProjection>(true));
  EXPECT_EQ(Counting::packs, 1);
  EXPECT_EQ(Counting::packed_products, 2);
}

TEST(Products, SayHowManyBytesArePacked) {
  const Made<mha::FusedProjection> made;
  const auto w = made.parameters.views();
  EXPECT_EQ((LayerProducts<double, Counting>(Counting{}, w, true).bytes()), 32u);
  EXPECT_EQ((LayerProducts<double, Counting>(Counting{}, w, false).bytes()), 24u);
  EXPECT_EQ((LayerProducts<double, Counting>().bytes()), 0u);
  EXPECT_EQ((LayerProducts<double, mha::Reference>(mha::Reference{}, w, true).bytes()), 0u);
}

const mha::Config narrow_config{.d_model = 70,
                                .num_heads = 6,
                                .num_kv_heads = 2,
                                .head_dim = 10,
                                .value_dim = 14,
                                .kv_model = 52,
                                .bias = true,
                                .key_bias = false};
template <class T, class B>
using NarrowLayer =
    mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::QkNorm, mha::GatedHeads>;

/// Weights of narrow_config in W as a checkpoint has them, (out, in).
template <class W> struct NarrowCheckpoint {
  Tensor<W, 2> query{60, 70}, key{20, 52}, value{28, 52}, output{70, 84};
  Tensor<W, 1> query_bias{60}, value_bias{28}, output_bias{70}, query_norm{10}, key_norm{10}, gate{6};

  explicit NarrowCheckpoint(support::Random& random) {
    for (auto* w : {&query, &key, &value, &output})
      for (W& x : *w) x = support::Random::rounded<W>(random.normal() / 8);
    for (auto* v : {&query_bias, &value_bias, &output_bias, &query_norm, &key_norm, &gate}) random.fill(*v);
  }
  mha::BorrowedWeights<W> borrowed() const {
    return {.query = mha::transposed(query.view()),
            .key = mha::transposed(key.view()),
            .value = mha::transposed(value.view()),
            .output = mha::transposed(output.view()),
            .query_bias = query_bias,
            .value_bias = value_bias,
            .output_bias = output_bias,
            .query_norm = query_norm,
            .key_norm = key_norm,
            .gate = gate};
  }
  /// The same numbers as a layer's own.
  template <class Layer> void write(Layer& layer) const {
    using T = typename Layer::Scalar;
    const auto turned = [](const Tensor<W, 2>& w) {
      Tensor<T, 2> t(w.extent(1), w.extent(0));
      for (Index i = 0; i < t.extent(0); ++i)
        for (Index j = 0; j < t.extent(1); ++j) t(i, j) = T(float(w(j, i)));
      return t;
    };
    const auto copy = [](const Tensor<W, 1>& from, const TensorView<T, 1>& to) {
      for (Index i = 0; i < to.extent[0]; ++i) to(i) = T(float(from(i)));
    };
    layer.update([&](auto& p) {
      p.query = turned(query);
      p.key = turned(key);
      p.value = turned(value);
      p.output = turned(output);
      copy(query_bias, p.query.bias_row());
      copy(value_bias, p.value.bias_row());
      copy(output_bias, p.output.bias);
      copy(query_norm, p.query_norm);
      copy(key_norm, p.key_norm);
      copy(gate, p.gate);
    });
  }
};

/// A call by weights in W has the bits of the same weights in float, and is the formula in double.
template <class B, class W> void expect_narrow_right(double bound) {
  support::Random random("narrow layer");
  NarrowLayer<float, B> narrow(narrow_config), wide(narrow_config);
  NarrowLayer<double, mha::Reference> exact(narrow_config);
  {
    const NarrowCheckpoint<W> checkpoint(random);
    narrow.borrow(checkpoint.borrowed());
    checkpoint.write(wide);
    checkpoint.write(exact);
  }
  for (const Index queries : {1, 7, 150}) {
    Tensor<float, 3> x(2, queries, 70), memory(2, queries + 3, 52), y(2, queries, 70);
    Tensor<double, 3> exact_x(2, queries, 70), exact_memory(2, queries + 3, 52);
    random.fill(x);
    random.fill(memory);
    std::copy(x.begin(), x.end(), exact_x.begin());
    std::copy(memory.begin(), memory.end(), exact_memory.begin());
    support::poison_all(y);
    narrow(x, memory, mha::into(y));
    EXPECT_EQ(support::differing(y, wide(x, memory)), 0u) << queries;
    EXPECT_LE(support::largest_difference(y, exact(exact_x, exact_memory)), bound) << queries;
    const auto kept = narrow.project_memory(memory);
    EXPECT_EQ(support::differing(narrow(x, kept), y), 0u) << queries;
  }
}

template <class W> class NarrowLayerWeights : public testing::Test {};
using Narrow = testing::Types<mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(NarrowLayerWeights, Narrow, );

TYPED_TEST(NarrowLayerWeights, AgreeWithTheFormulaAndWithWideOnes) {
  support::at_every_isa([] { expect_narrow_right<mha::Cpu, TypeParam>(2e-4); });
  expect_narrow_right<mha::CpuWith<mha::Serial>, TypeParam>(2e-4);
  expect_narrow_right<mha::Reference, TypeParam>(2e-4);
  expect_narrow_right<mha::EigenCpu, TypeParam>(2e-4);
  expect_narrow_right<mha::Systolic<>, TypeParam>(0.2);
}

TYPED_TEST(NarrowLayerWeights, AreReadWhenBorrowedOnlyAndCounted) {
  using W = TypeParam;
  support::Random random("narrow bytes");
  auto checkpoint = std::make_shared<NarrowCheckpoint<W>>(random);
  NarrowLayer<float, mha::Cpu> layer(narrow_config), wide(narrow_config);
  layer.borrow(checkpoint->borrowed(), checkpoint);
  EXPECT_EQ(checkpoint.use_count(), 1);
  const double in = 60 * 70 + (20 + 28) * 52, out = 84 * 70;
  const auto narrow_cost = layer.cost(1, 5, 5), wide_cost = wide.cost(1, 5, 5);
  EXPECT_EQ(wide_cost.projection.bytes - narrow_cost.projection.bytes, 2 * in);
  EXPECT_EQ(wide_cost.output.bytes - narrow_cost.output.bytes, 2 * out);
  EXPECT_EQ(narrow_cost.parameters(), wide_cost.parameters());
  const std::size_t packed = std::size_t{2} * 48 * (2 * 70 + 52 + 52 + 2 * 84) + std::size_t{4} * 48 * (2 + 1 + 2);
  EXPECT_EQ(layer.packed_bytes(), packed);
  EXPECT_EQ(wide.packed_bytes(), 0u) << "it has no weights";
  const std::string scalar = std::is_same_v<W, mha::half> ? "half" : "bfloat16";
  EXPECT_NE(layer.explain(1, 5, 5).find(" " + scalar + ", packed only, in " + std::to_string(packed) + " bytes\n"),
            std::string::npos)
      << layer.explain(1, 5, 5);
  EXPECT_EQ(layer.parameters().query.heads.data, nullptr);
  EXPECT_EQ(layer.parameters().output.weight.data, nullptr);
  EXPECT_EQ(layer.parameters().gate(3), float(checkpoint->gate(3)));
  EXPECT_EQ(layer.parameters().key_norm(9), float(checkpoint->key_norm(9)));
}

TYPED_TEST(NarrowLayerWeights, OfALayerOfThatScalarWhateverItsProjection) {
  using W = TypeParam;
  const mha::Config sizes{.d_model = 24, .num_heads = 4, .bias = true};
  mha::MultiHeadAttention<W, mha::Cpu, mha::PerHeadProjection> owner(sizes);
  owner.initialize(mha::XavierUniform{.seed = 4});
  const auto p = owner.parameters();
  mha::MultiHeadAttention<float, mha::Cpu, mha::NoOutput> heads({.d_model = 24, .num_heads = 4});
  mha::MultiHeadAttention<float, mha::Cpu, mha::PerHeadProjection> layer(sizes);
  mha::MultiHeadAttention<float, mha::Reference, mha::PerHeadProjection> same(sizes);
  layer.borrow(p);
  same.borrow(p);
  support::Random random("per head");
  Tensor<float, 2> x(9, 24);
  random.fill(x);
  EXPECT_LE(support::largest_difference(layer(x), same(x)), 1e-5);
  Tensor<W, 2> matrix(24, 24);
  random.fill(matrix);
  heads.borrow(mha::BorrowedWeights<W>{.query = matrix, .key = matrix, .value = matrix});
  mha::MultiHeadAttention<float, mha::Reference, mha::NoOutput> plain({.d_model = 24, .num_heads = 4});
  plain.borrow(mha::BorrowedWeights<W>{.query = matrix, .key = matrix, .value = matrix});
  EXPECT_LE(support::largest_difference(heads(x), plain(x)), 1e-4);
}

TYPED_TEST(NarrowLayerWeights, OfAnotherShapeAreRefusedAndNothingChanges) {
  using W = TypeParam;
  support::Random random("wrong");
  NarrowLayer<float, mha::Cpu> layer(narrow_config);
  layer.initialize(mha::XavierUniform{.seed = 1});
  const NarrowCheckpoint<W> checkpoint(random);
  auto turned = checkpoint.borrowed(), biased = checkpoint.borrowed(), without = checkpoint.borrowed();
  turned.value = checkpoint.value;
  biased.key_bias = checkpoint.value_bias;
  without.gate = {};
  EXPECT_EQ(message_of([&] { layer.borrow(turned); }),
            "borrow: the value matrix is (28, 52), expected (52, 28): pass mha::transposed(view)");
  EXPECT_EQ(
      message_of([&] { layer.borrow(biased); }),
      "borrow: the key bias has 28 elements, expected 0: set .bias in the configuration, or that of this projection");
  EXPECT_EQ(message_of([&] { layer.borrow(without); }), "borrow: the gate has 0 elements, expected 6");
  EXPECT_NE(layer.explain(1, 1, 1).find(" float, owned"), std::string::npos);
}

TEST(LayerDropUnpacked, LeavesTheResultsAndKeptMemory) {
  support::Random random("drop");
  Tensor<float, 2> x(9, 70), memory(9, 52);
  random.fill(x);
  random.fill(memory);
  NarrowLayer<float, mha::Cpu> layer(narrow_config);
  EXPECT_EQ(message_of([&] { layer.drop_unpacked(); }), "drop_unpacked: expected " +
                                                            std::to_string(layer.parameter_count()) +
                                                            " weights, got 0: call initialize, update or borrow first");
  NarrowCheckpoint<mha::bfloat16>(random).write(layer);
  const auto before = layer(x, memory);
  const auto kept = layer.project_memory(memory);
  layer.drop_unpacked();
  layer.drop_unpacked();
  EXPECT_EQ(support::differing(layer(x, memory), before), 0u);
  EXPECT_EQ(support::differing(layer(x, kept), before), 0u);
  EXPECT_EQ(layer.parameters().query.heads.data, nullptr);
  EXPECT_EQ(message_of([&] { layer.update([](auto&) {}); }),
            "update: of the layer's " + std::to_string(layer.parameter_count()) +
                " parameters only the packed ones are left, so they cannot be written");
  const NarrowLayer<float, mha::Cpu> copy = layer;
  EXPECT_EQ(support::differing(copy(x, memory), before), 0u);
  auto weights = std::make_shared<NarrowCheckpoint<float>>(random);
  layer.borrow(weights->borrowed(), weights);
  EXPECT_THROW(static_cast<void>(layer(x, kept)), mha::ShapeError);
  EXPECT_EQ(weights.use_count(), 2);
  layer.drop_unpacked();
  EXPECT_EQ(weights.use_count(), 1);
}

TEST(LayerDropUnpacked, IsRefusedWithoutPackedWeights) {
  mha::MultiHeadAttention<float, mha::Reference> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { layer.drop_unpacked(); }),
            "drop_unpacked: Reference reads the layer's 256 parameters where they are, expected a backend that packs "
            "them");
  EXPECT_NE(layer.parameters().query.heads.data, nullptr);
}

TEST(LayerDropUnpacked, WhatIsPackedAloneIsSharedOnTheSameBackend) {
  support::Random random("share");
  const mha::Config sizes{.d_model = 24, .num_heads = 4, .bias = true};
  mha::MultiHeadAttention<float> owner(sizes);
  owner.initialize(mha::XavierUniform{.seed = 5});
  owner.drop_unpacked();
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> causal(sizes);
  causal.borrow(owner);
  Tensor<float, 2> x(6, 24);
  random.fill(x);
  EXPECT_EQ(support::differing(causal(x), owner(x, mha::Causal{})), 0u);
  mha::MultiHeadAttention<float, mha::Reference> elsewhere(sizes);
  EXPECT_EQ(message_of([&] { elsewhere.borrow(owner); }),
            "borrow: of the owner's 2400 parameters only those are left that its backend packed, expected a backend of "
            "the same type");
  const auto refused = [&]<class L>(L layer) { return message_of([&] { layer.borrow(owner); }); };
  EXPECT_EQ(refused(mha::MultiHeadAttention<float>({.d_model = 32, .num_heads = 4, .bias = true})),
            "borrow: the packed weights' d_model is 24, expected 32");
  EXPECT_EQ(refused(mha::MultiHeadAttention<float>({.d_model = 24, .num_heads = 4})),
            "borrow: the packed weights' query_bias is 1, expected 0");
  EXPECT_EQ(refused(mha::MultiHeadAttention<float, mha::Cpu, mha::NoOutput>(
                {.d_model = 24, .num_heads = 4, .bias = true, .output_bias = false})),
            "borrow: the packed weights' number of output projections is 1, expected 0");
  EXPECT_EQ(refused(mha::MultiHeadAttention<float, mha::Cpu, mha::QkNorm>(sizes)),
            "borrow: the packed weights' number of norms is 0, expected 1");
}

/// The numbers that a checkpoint's matrices become in Q, in T; its vectors are not rounded.
template <class Q, class T> struct RoundedCheckpoint {
  Tensor<T, 2> query, key, value, output;
  Tensor<T, 1> query_bias{60}, value_bias{28}, output_bias{70}, query_norm{10}, key_norm{10}, gate{6};

  template <class W>
  explicit RoundedCheckpoint(const NarrowCheckpoint<W>& from)
      : query(support::rounded_weights<Q, T>(mha::transposed(from.query.view()))),
        key(support::rounded_weights<Q, T>(mha::transposed(from.key.view()))),
        value(support::rounded_weights<Q, T>(mha::transposed(from.value.view()))),
        output(support::rounded_weights<Q, T>(mha::transposed(from.output.view()))) {
    const auto copy = [](const Tensor<W, 1>& v, Tensor<T, 1>& to) {
      for (Index i = 0; i < to.extent(0); ++i) to(i) = T(v(i));
    };
    copy(from.query_bias, query_bias), copy(from.value_bias, value_bias), copy(from.output_bias, output_bias);
    copy(from.query_norm, query_norm), copy(from.key_norm, key_norm), copy(from.gate, gate);
  }
  mha::BorrowedWeights<T> borrowed() const {
    return {.query = query,
            .key = key,
            .value = value,
            .output = output,
            .query_bias = query_bias,
            .value_bias = value_bias,
            .output_bias = output_bias,
            .query_norm = query_norm,
            .key_norm = key_norm,
            .gate = gate};
  }
};

/// A call by weights of W rounded to Q has the bits of the rounded numbers in T, and so have its gradients.
template <class Q, class B, class T, class W> void expect_quantized_right() {
  support::Random random("layer of integers");
  NarrowLayer<T, B> layer(narrow_config), same(narrow_config);
  auto checkpoint = std::make_unique<NarrowCheckpoint<W>>(random);
  const RoundedCheckpoint<Q, T> rounded(*checkpoint);
  layer.template quantize<Q>(checkpoint->borrowed());
  checkpoint.reset();
  same.borrow(rounded.borrowed());
  for (const Index queries : {1, 7, 150}) {
    Tensor<T, 3> x(2, queries, 70), memory(2, queries + 3, 52), y(2, queries, 70);
    random.fill(x);
    random.fill(memory);
    support::poison_all(y);
    layer(x, memory, mha::into(y));
    EXPECT_EQ(support::differing(y, same(x, memory)), 0u) << B::name << ", " << queries;
    const auto kept = layer.project_memory(memory);
    EXPECT_EQ(support::differing(layer(x, kept), y), 0u) << queries;
  }
  const auto p = layer.parameters();
  EXPECT_EQ(p.gate(3), rounded.gate(3));
  EXPECT_EQ(p.query_norm(9), rounded.query_norm(9));
  EXPECT_EQ(p.key_norm(0), rounded.key_norm(0));
  EXPECT_EQ(p.query.heads.data == nullptr, (mha::PacksWeights<B, T>));
  if constexpr (std::is_same_v<typename B::Workspace, mha::Workspace>) {
    Tensor<T, 3> x(2, 9, 70), memory(2, 12, 52), dy(2, 9, 70), d_memory(2, 12, 52), same_d_memory(2, 12, 52);
    random.fill(x), random.fill(memory), random.fill(dy);
    auto tape = layer.tape(), same_tape = same.tape();
    EXPECT_EQ(support::differing(layer(x, memory, tape), same(x, memory, same_tape)), 0u);
    const auto expected = same.backward(dy, same_tape, mha::memory_into(same_d_memory));
    EXPECT_EQ(support::differing(layer.backward(dy, tape, mha::memory_into(d_memory)), expected), 0u) << B::name;
    EXPECT_EQ(support::differing(d_memory, same_d_memory), 0u) << B::name;
    auto gradients = layer.gradients(), same_gradients = same.gradients();
    EXPECT_EQ(support::differing(layer.backward(dy, tape, gradients, mha::memory_into(d_memory)), expected), 0u);
    static_cast<void>(same.backward(dy, same_tape, same_gradients, mha::memory_into(same_d_memory)));
    EXPECT_EQ(support::differing(gradients.flat(), same_gradients.flat()), 0u) << B::name;
  }
}

/// Weights of W that are rounded to Q.
template <class Q_, class W_> struct As {
  using Q = Q_;
  using W = W_;
};
template <class Case> class QuantizedLayer : public testing::Test {};
using Quantized =
    testing::Types<As<mha::scaled_int8, float>, As<mha::scaled_int8, mha::half>, As<mha::scaled_int8, mha::bfloat16>,
                   As<mha::scaled_int4, float>, As<mha::scaled_int4, mha::half>, As<mha::scaled_int4, mha::bfloat16>>;
TYPED_TEST_SUITE(QuantizedLayer, Quantized, );

TYPED_TEST(QuantizedLayer, HasTheBitsOfRoundedWeights) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  using InDouble = std::conditional_t<std::is_same_v<W, float>, double, W>;
  support::at_every_isa([] { expect_quantized_right<Q, mha::Cpu, float, W>(); });
  expect_quantized_right<Q, mha::CpuWith<mha::Serial>, float, W>();
  expect_quantized_right<Q, mha::Cpu, double, InDouble>();
  expect_quantized_right<Q, mha::Reference, float, W>();
  expect_quantized_right<Q, mha::EigenCpu, float, W>();
  expect_quantized_right<Q, mha::Systolic<>, float, W>();
}

TYPED_TEST(QuantizedLayer, SaysWhatItKeepsAndRefusesToWriteIt) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  support::Random random("quantized bytes");
  auto checkpoint = std::make_unique<NarrowCheckpoint<W>>(random);
  NarrowLayer<float, mha::Cpu> layer(narrow_config), wide(narrow_config);
  layer.template quantize<Q>(checkpoint->borrowed());
  const double in = 60 * 70 + (20 + 28) * 52, out = 84 * 70;
  constexpr bool four = std::is_same_v<Q, mha::scaled_int4>;
  const double saved = 4 - (four ? 0.5625 : 1.015625);
  const auto narrow_cost = layer.cost(1, 5, 5), wide_cost = wide.cost(1, 5, 5);
  EXPECT_EQ(wide_cost.projection.bytes - narrow_cost.projection.bytes, saved * in);
  EXPECT_EQ(wide_cost.output.bytes - narrow_cost.output.bytes, saved * out);
  const std::size_t packed = support::rounded_bytes<Q>(70, 60) + support::rounded_bytes<Q>(52, 20) +
                             support::rounded_bytes<Q>(52, 28) + support::rounded_bytes<Q>(84, 70) +
                             std::size_t{4} * 48 * (2 + 1 + 2);
  EXPECT_EQ(layer.packed_bytes(), packed);
  EXPECT_NE(layer.explain(1, 5, 5).find((four ? " scaled_int4" : " scaled_int8") + std::string(", packed only, in ") +
                                        std::to_string(packed) + " bytes\n"),
            std::string::npos)
      << layer.explain(1, 5, 5);
  const std::string left =
      "of the layer's " + std::to_string(layer.parameter_count()) + " parameters only the packed ones are left";
  EXPECT_EQ(message_of([&] { layer.update([](auto&) {}); }), "update: " + left + ", so they cannot be written");
  EXPECT_EQ(message_of([&] { layer.template quantize<Q>(); }), "");
  EXPECT_EQ(message_of([&] { wide.template quantize<Q>(); }),
            "quantize: expected " + std::to_string(wide.parameter_count()) +
                " weights, got 0: call initialize, update or borrow first");
  layer.drop_unpacked();
  Tensor<float, 2> x(5, 70), memory(6, 52);
  random.fill(x), random.fill(memory);
  const auto y = layer(x, memory);
  const NarrowLayer<float, mha::Cpu> copy = layer;
  // Own weights, then ones in 8 bits again.
  const NarrowCheckpoint<float> others(random);
  layer.borrow(others.borrowed());
  wide.borrow(others.borrowed());
  EXPECT_EQ(support::differing(layer(x, memory), wide(x, memory)), 0u);
  layer.template quantize<Q>();
  wide.template quantize<Q>(others.borrowed());
  EXPECT_EQ(support::differing(layer(x, memory), wide(x, memory)), 0u);
  EXPECT_EQ(support::differing(copy(x, memory), y), 0u);
}

TYPED_TEST(QuantizedLayer, OfAnotherShapeIsRefusedAndNothingChanges) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  support::Random random("wrong");
  NarrowLayer<float, mha::Cpu> layer(narrow_config);
  layer.initialize(mha::XavierUniform{.seed = 1});
  const NarrowCheckpoint<W> checkpoint(random);
  auto turned = checkpoint.borrowed(), biased = checkpoint.borrowed(), without = checkpoint.borrowed();
  turned.value = checkpoint.value;
  biased.key_bias = checkpoint.value_bias;
  without.gate = {};
  EXPECT_EQ(message_of([&] { layer.template quantize<Q>(turned); }),
            "quantize: the value matrix is (28, 52), expected (52, 28): pass mha::transposed(view)");
  EXPECT_EQ(
      message_of([&] { layer.template quantize<Q>(biased); }),
      "quantize: the key bias has 28 elements, expected 0: set .bias in the configuration, or that of this projection");
  EXPECT_EQ(message_of([&] { layer.template quantize<Q>(without); }), "quantize: the gate has 0 elements, expected 6");
  mha::MultiHeadAttention<W, mha::Cpu> other({.d_model = 20, .num_heads = 2});
  other.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] {
              layer.template quantize<Q>(other.parameters());
            }).rfind("quantize: the query weights are (2, 20, 10)", 0),
            0u);
  EXPECT_NE(layer.explain(1, 1, 1).find(" float, owned"), std::string::npos);
  layer.update([](auto&) {});
}

// Columns of heads are rounded as those of the whole matrix.
TEST(QuantizedLayerOf, WhateverProjectionAndOutput) {
  const mha::Config sizes{.d_model = 300, .num_heads = 4, .head_dim = 11, .bias = true};
  support::Random random("whatever projection");
  Tensor<float, 2> x(9, 300);
  random.fill(x);
  const auto expect = [&]<class Q, class B>(Q, const B&) {
    mha::MultiHeadAttention<float, B, mha::PerHeadProjection> per_head(sizes);
    mha::MultiHeadAttention<float, B> fused(sizes);
    mha::MultiHeadAttention<float, B, mha::NoOutput> without({.d_model = 300, .num_heads = 4, .head_dim = 11}),
        plain({.d_model = 300, .num_heads = 4, .head_dim = 11});
    fused.initialize(mha::XavierUniform{.seed = 4});
    per_head.borrow(fused.parameters());
    per_head.template quantize<Q>();
    const auto before = fused(x);
    fused.template quantize<Q>();
    EXPECT_EQ(support::differing(per_head(x), fused(x)), 0u) << B::name;
    EXPECT_NE(support::differing(fused(x), before), 0u) << B::name;
    Tensor<float, 2> query(300, 44), key(300, 44), value(300, 44);
    for (auto* w : {&query, &key, &value})
      for (float& v : *w) v = static_cast<float>(random.normal() / 16);
    const auto q = support::rounded_weights<Q, float>(std::as_const(query).view()),
               k = support::rounded_weights<Q, float>(std::as_const(key).view()),
               v = support::rounded_weights<Q, float>(std::as_const(value).view());
    without.template quantize<Q>({.query = query, .key = key, .value = value});
    plain.borrow({.query = q, .key = k, .value = v});
    EXPECT_EQ(support::differing(without(x), plain(x)), 0u) << B::name;
  };
  expect(mha::scaled_int8{}, mha::Cpu{});
  expect(mha::scaled_int8{}, mha::Reference{});
  expect(mha::scaled_int4{}, mha::Cpu{});
  expect(mha::scaled_int4{}, mha::Reference{});
}

template <class Q> void expect_borrowed_with_what_is_packed() {
  support::Random random("share");
  const mha::Config sizes{.d_model = 24, .num_heads = 4, .bias = true};
  auto owner = std::make_unique<mha::MultiHeadAttention<float>>(sizes);
  owner->initialize(mha::XavierUniform{.seed = 5});
  owner->template quantize<Q>();
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> causal(sizes);
  causal.borrow(*owner);
  EXPECT_EQ(causal.packed_bytes(), owner->packed_bytes());
  Tensor<float, 2> x(6, 24);
  random.fill(x);
  const auto y = owner->operator()(x, mha::Causal{});
  owner.reset();
  EXPECT_EQ(support::differing(causal(x), y), 0u);
  // One row after another has the same bits.
  auto cache = mha::make_cache(causal, mha::Contiguous{.length = 8});
  cache.add();
  for (Index i = 0; i < 6; ++i) {
    const auto step = causal.step(mha::view(&std::as_const(x)(i, 0), 1, 24), cache);
    for (Index e = 0; e < 24; ++e) ASSERT_EQ(support::bits(step(0, e)), support::bits(y(i, e))) << i << ", " << e;
  }
}

TEST(QuantizedLayerOf, AnotherIsBorrowedWithWhatItPacked) {
  expect_borrowed_with_what_is_packed<mha::scaled_int8>();
  expect_borrowed_with_what_is_packed<mha::scaled_int4>();
}

TEST(QuantizedLayerOf, AnotherKindIsRefused) {
  support::Random random("kinds");
  mha::MultiHeadAttention<float> layer({.d_model = 24, .num_heads = 4}), eight({.d_model = 24, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 5});
  eight.quantize<mha::scaled_int8>(std::as_const(layer).parameters());
  mha::MultiHeadAttention<float> by_default({.d_model = 24, .num_heads = 4});
  by_default.quantize(std::as_const(layer).parameters());
  Tensor<float, 2> x(6, 24);
  random.fill(x);
  EXPECT_EQ(support::differing(by_default(x), eight(x)), 0u);
  layer.quantize<mha::scaled_int4>();
  const auto y = layer(x), of_eight = eight(x);
  const std::string refusal =
      "quantize: of the layer's 2304 parameters only the packed ones are left: pass the weights themselves, "
      "quantize(weights)";
  EXPECT_EQ(message_of([&] { layer.quantize(); }), refusal);
  EXPECT_EQ(message_of([&] { layer.quantize<mha::scaled_int4>(); }), "");
  EXPECT_EQ(message_of([&] { eight.quantize<mha::scaled_int4>(); }), refusal);
  EXPECT_EQ(message_of([&] { eight.quantize(); }), "");
  EXPECT_EQ(support::differing(layer(x), y), 0u);
  EXPECT_EQ(support::differing(eight(x), of_eight), 0u);
  EXPECT_NE(support::differing(y, of_eight), 0u);
}

}  // namespace
