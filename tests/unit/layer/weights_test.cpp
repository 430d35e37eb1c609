// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/backend/systolic/systolic.hpp>
#include <mha/core/scalar.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/layer/weights.hpp>
#include <mha/policy/qk_norm.hpp>

#include "compare.hpp"
#include "failing_new.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "replaced_new.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using support::message_of;

const mha::Config sizes{.d_model = 24, .num_heads = 4, .bias = true};

/// With every kind of weights.
template <class B, class... Policies>
using LayerOn = mha::MultiHeadAttention<float, B, mha::QkNorm, mha::GatedHeads, Policies...>;

/// Random weights, norms and gates too.
template <class Layer> void draw(Layer& layer, support::Random& random) {
  layer.update([&](auto& p) {
    for (auto& w : p.flat()) w = static_cast<float>(random.normal() / 4);
  });
}

Tensor<float, 2> rows(support::Random& random, Index count) {
  Tensor<float, 2> x(count, sizes.d_model);
  random.fill(x);
  return x;
}

template <class B> class LayerWeights : public testing::Test {};
using Backends = testing::Types<mha::Reference, mha::Cpu>;
TYPED_TEST_SUITE(LayerWeights, Backends, );

// Norms that start as the norm alone are stored as 0 where weights are stored less 1.
TYPED_TEST(LayerWeights, OfZeroCentredNormsAreDrawnLessOne) {
  support::Random random("zero-centred");
  const auto x = rows(random, 5);
  const auto draw = [](const mha::QkNorm& norm) {
    LayerOn<TypeParam> layer(sizes, norm);
    layer.initialize(mha::XavierUniform{.seed = 3});
    return layer;
  };
  const auto plain = draw({}), centred = draw({.zero_centered = true});
  for (const auto& [p, value] : {std::pair{plain.parameters(), 1.f}, std::pair{centred.parameters(), 0.f}})
    for (Index d = 0; d < 6; ++d) {
      EXPECT_EQ(p.query_norm(d), value);
      EXPECT_EQ(p.key_norm(d), value);
    }
  const auto y = plain(x), z = centred(x);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y.data()[i], z.data()[i]);
}

TYPED_TEST(LayerWeights, AreSharedUnderOtherPolicies) {
  using Owner = LayerOn<TypeParam>;
  static_assert(
      std::is_base_of_v<mha::LayerWeights<float, TypeParam, mha::detail::PoliciesByRole<mha::QkNorm, mha::GatedHeads>>,
                        Owner>);
  support::Random random("shared weights");
  Owner owner(sizes);
  draw(owner, random);
  LayerOn<TypeParam, mha::Causal> borrower(sizes);
  borrower.borrow(owner);
  const auto x = rows(random, 7);
  EXPECT_EQ(support::differing(borrower(x), owner(x, mha::Causal{})), 0u);
  EXPECT_EQ(borrower.parameters().gate.data, owner.parameters().gate.data);
}

/// Numbers in the place of memory that was freed, so that who still reads it gives other results.
void overwrite_freed_memory() {
  std::vector<Tensor<float, 1>> blocks;
  for (Index n = 1; n < 4096; n += 7) {
    blocks.emplace_back(n);
    std::fill(blocks.back().begin(), blocks.back().end(), 1e6f);
  }
}

// What the owner does after it lent its weights, it does to itself alone.
TYPED_TEST(LayerWeights, OutliveWhateverBecomesOfTheirOwner) {
  using Owner = LayerOn<TypeParam>;
  using Borrower = LayerOn<TypeParam, mha::Causal>;
  support::Random random("lent weights");
  const auto x = rows(random, 7);
  Owner other(sizes);
  draw(other, random);
  const auto expect_kept = [&](const char* what, auto&& change) {
    SCOPED_TRACE(what);
    auto owner = std::make_unique<Owner>(sizes);
    draw(*owner, random);
    Borrower first(sizes), second(sizes);
    first.borrow(*owner);
    second.borrow(first);
    const auto before = owner->operator()(x, mha::Causal{});
    const auto weights = owner->attention_weights(x, mha::Causal{});
    change(owner);
    overwrite_freed_memory();
    for (const Borrower* borrower : {&first, &second}) {
      EXPECT_EQ(support::differing((*borrower)(x), before), 0u);
      EXPECT_EQ(support::differing(borrower->attention_weights(x), weights), 0u);
    }
    const Borrower copy = first;
    EXPECT_EQ(support::differing(copy(x), before), 0u);
  };
  expect_kept("the owner is gone", [](auto& owner) { owner.reset(); });
  expect_kept("it borrows others", [&](auto& owner) { owner->borrow(other); });
  expect_kept("it borrows views", [&](auto& owner) { owner->borrow(other.parameters()); });
  expect_kept("it is assigned", [&](auto& owner) { *owner = other; });
  expect_kept("it is moved", [](auto& owner) { const Owner moved = std::move(*owner); });
  expect_kept("it is updated", [&](auto& owner) { draw(*owner, random); });
  expect_kept("one number is updated", [](auto& owner) { owner->update([](auto& p) { p.gate(1) += 1; }); });
  expect_kept("its update throws", [](auto& owner) {
    EXPECT_THROW(owner->update([](auto& p) {
      p.query_norm(0) += 1;
      p.query.heads(0, 0, 0) += 1;
      throw std::runtime_error("no");
    }),
                 std::runtime_error);
  });
  if constexpr (mha::PacksWeights<TypeParam, float>) {
    expect_kept("it drops the unpacked", [](auto& owner) { owner->drop_unpacked(); });
    expect_kept("it drops the unpacked and is gone", [](auto& owner) {
      owner->drop_unpacked();
      owner.reset();
    });
  }
}

TYPED_TEST(LayerWeights, AreWrittenInPlaceUnlessTheyAreLent) {
  support::Random random("in place");
  LayerOn<TypeParam> owner(sizes);
  draw(owner, random);
  const float* const memory = owner.parameters().flat().data();
  draw(owner, random);
  EXPECT_EQ(owner.parameters().flat().data(), memory);
  {
    LayerOn<TypeParam, mha::Causal> borrower(sizes);
    borrower.borrow(owner);
    const float last = owner.parameters().gate(3);
    owner.update([](auto& p) { p.gate(0) += 1; });
    EXPECT_NE(owner.parameters().flat().data(), memory);
    EXPECT_EQ(owner.parameters().gate(3), last);
    EXPECT_EQ(owner.parameters().gate(0), borrower.parameters().gate(0) + 1);
    borrower.borrow(owner);
    const auto x = rows(random, 3);
    EXPECT_EQ(support::differing(borrower(x), owner(x, mha::Causal{})), 0u);
  }
  const float* const now = owner.parameters().flat().data();
  draw(owner, random);
  EXPECT_EQ(owner.parameters().flat().data(), now);
}

TYPED_TEST(LayerWeights, OfAMovedFromLayerAreGone) {
  support::Random random("moved from");
  const auto x = rows(random, 4);
  Tensor<mha::bfloat16, 2> narrow(24, 24);
  random.fill(narrow);
  Tensor<mha::bfloat16, 1> bias(24), norm(6), gate(4);
  for (auto* v : {&bias, &norm, &gate}) random.fill(*v);
  const mha::BorrowedWeights<mha::bfloat16> stored{.query = narrow,
                                                   .key = narrow,
                                                   .value = narrow,
                                                   .output = narrow,
                                                   .query_bias = bias,
                                                   .key_bias = bias,
                                                   .value_bias = bias,
                                                   .output_bias = bias,
                                                   .query_norm = norm,
                                                   .key_norm = norm,
                                                   .gate = gate};
  const auto expect_gone = [&](auto&& prepare) {
    LayerOn<TypeParam> layer(sizes), assigned(sizes);
    prepare(layer);
    const auto before = layer(x);
    const LayerOn<TypeParam> taken = std::move(layer);
    EXPECT_EQ(support::differing(taken(x), before), 0u);
    const std::string rest = ": expected 2416 weights, got 0: call initialize, update or borrow ";
    EXPECT_EQ(message_of([&] { static_cast<void>(layer(x)); }), "layer" + rest + "first");
    EXPECT_EQ(message_of([&] { layer.drop_unpacked(); }), "drop_unpacked" + rest + "first");
    EXPECT_EQ(message_of([&] { assigned.borrow(layer); }), "borrow" + rest + "on it first");
    EXPECT_EQ(layer.parameters().query.heads.data, nullptr);
    EXPECT_NE(layer.explain(1, 1, 1).find("2416 float, none yet\n"), std::string::npos) << layer.explain(1, 1, 1);
    layer = taken;
    EXPECT_EQ(support::differing(layer(x), before), 0u);
    assigned = std::move(layer);
    EXPECT_EQ(support::differing(assigned(x), before), 0u);
    draw(layer, random);
    EXPECT_NE(support::differing(layer(x), before), 0u);
  };
  expect_gone([&](auto& layer) { draw(layer, random); });
  expect_gone([&](auto& layer) { layer.borrow(stored); });
  expect_gone([&](auto& layer) {
    LayerOn<TypeParam> owner(sizes);
    draw(owner, random);
    layer.borrow(owner);
  });
  if constexpr (mha::PacksWeights<TypeParam, float>)
    expect_gone([&](auto& layer) {
      draw(layer, random);
      layer.drop_unpacked();
    });
}

// What holds borrowed weights alive, such as the copy that was made of 16-bit ones, is kept if they are borrowed again.
TYPED_TEST(LayerWeights, BorrowedAgainKeepWhatHoldsThem) {
  support::Random random("again");
  const auto x = rows(random, 4);
  LayerOn<TypeParam> layer(sizes), owner(sizes);
  draw(owner, random);
  {
    mha::MultiHeadAttention<mha::half, mha::Cpu, mha::QkNorm, mha::GatedHeads> narrow(sizes);
    narrow.initialize(mha::XavierUniform{.seed = 3});
    layer.borrow(narrow.parameters());
  }
  const auto before = layer(x);
  auto views = layer.parameters();
  if (views.query.heads.data == nullptr) {  // packed in 16 bits
    const auto gate = views.gate, query_norm = views.query_norm, key_norm = views.key_norm;
    views = owner.parameters();
    views.gate = gate, views.query_norm = query_norm, views.key_norm = key_norm;
  }
  const float kept = views.gate(2), weight = views.output.weight(1, 2);
  layer.borrow(views);
  overwrite_freed_memory();
  EXPECT_EQ(layer.parameters().gate(2), kept);
  EXPECT_EQ(layer.parameters().output.weight(1, 2), weight);
  if (!mha::PacksWeights<TypeParam, float>) {
    EXPECT_EQ(support::differing(layer(x), before), 0u);
  }

  auto held = std::make_shared<Tensor<float, 1>>(4);
  const std::weak_ptr<Tensor<float, 1>> watch = held;
  views = owner.parameters();
  views.gate = std::as_const(*held).view();
  layer.borrow(views, std::exchange(held, nullptr));
  layer.borrow(layer.parameters());
  EXPECT_FALSE(watch.expired());
  LayerOn<TypeParam> second(sizes);
  second.borrow(layer);
  layer.borrow(owner);
  EXPECT_FALSE(watch.expired());
  second.borrow(owner);
  EXPECT_TRUE(watch.expired());
}

TEST(LayerWeightsDrop, AfterAnUpdateThatThrewSaysSo) {
  mha::MultiHeadAttention<float> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_THROW(layer.update([](auto&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(message_of([&] { layer.drop_unpacked(); }),
            "drop_unpacked: the layer's 256 parameters are not packed, because the last update() threw: call it again");
  EXPECT_NE(layer.parameters().query.heads.data, nullptr);
  layer.update([](auto&) {});
  layer.drop_unpacked();
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.parameters().flat()); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
}

TYPED_TEST(LayerWeights, AreNoneAfterAFirstUpdateThatThrew) {
  mha::MultiHeadAttention<float, TypeParam> layer({.d_model = 8, .num_heads = 2}),
      other({.d_model = 8, .num_heads = 2});
  const auto none = [&] {
    EXPECT_EQ(layer.parameters().query.heads.data, nullptr);
    EXPECT_EQ(message_of([&] { static_cast<void>(layer(Tensor<float, 2>(1, 8))); }),
              "layer: expected 256 weights, got 0: call initialize, update or borrow first");
  };
  EXPECT_THROW(layer.initialize(mha::XavierUniform{.gain = std::nan("")}), mha::ShapeError);
  none();
  EXPECT_THROW(layer.update([&](auto& p) {
    p.query.heads(0, 0, 0) = 4;
    other.borrow(layer);
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  none();
  EXPECT_EQ(other.parameters().query.heads(0, 0, 0), 4) << "a layer that borrowed them meanwhile keeps them";
  EXPECT_THROW(layer.update([&](auto&) {
    layer.borrow(other);
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ(layer.parameters().query.heads.data, other.parameters().query.heads.data) << "what f borrowed stays";
}

// What f borrows counts, and the update says that it wrote nothing of it.
TYPED_TEST(LayerWeights, BorrowedOrMovedAwayInAnUpdateAreRefused) {
  using Narrow = mha::bfloat16;
  using L = mha::MultiHeadAttention<float, TypeParam>;
  support::Random random("borrowed in an update");
  const auto x = rows(random, 3);
  Tensor<Narrow, 2> narrow(24, 24);
  Tensor<float, 2> w(24, 24);
  random.fill(narrow);
  std::copy(narrow.begin(), narrow.end(), w.begin());
  const mha::Config plain{.d_model = 24, .num_heads = 4, .bias = false};
  L expected(plain), layer(plain), other(plain);
  expected.borrow({.query = w, .key = w, .value = w, .output = w});
  const auto y = expected(x);
  const std::string size = "2304 parameters ", rest = " so they cannot be written";
  const char* const left = mha::PacksWeights<TypeParam, float> ? "only the packed ones are left," : nullptr;
  const std::string borrowed =
      "update: the layer's " + size + "are borrowed," + rest + ": copy them in the update() of a new layer";
  EXPECT_EQ(
      message_of([&] {
        layer.update([&](auto&) {
          layer.borrow(mha::BorrowedWeights<Narrow>{.query = narrow, .key = narrow, .value = narrow, .output = narrow});
        });
      }),
      left != nullptr ? "update: of the layer's " + size + left + rest : borrowed);
  EXPECT_EQ(support::differing(layer(x), y), 0u);
  EXPECT_EQ(message_of([&] { other.update([&](auto&) { other.borrow(expected); }); }), borrowed);
  EXPECT_EQ(support::differing(other(x), y), 0u);
  L moved(plain);
  EXPECT_EQ(message_of([&] { moved.update([&](auto&) { other = std::move(moved); }); }),
            "update: the layer has 0 of its 2304 parameters, because it was moved from");
  EXPECT_EQ(other(x)(2, 23), 0);
}

/// Every change of a layer's weights, with each of its allocations failing: it computes what it did, or what it is to.
template <class B> void expect_all_or_nothing() {
  support::Random random("short of memory");
  const auto x = rows(random, 3);
  mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, mha::QkNorm, mha::GatedHeads> narrow(sizes);
  narrow.initialize(mha::XavierUniform{.seed = 2});
  LayerOn<B> owner(sizes), first(sizes);
  mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>, mha::QkNorm, mha::GatedHeads> elsewhere(sizes);
  draw(owner, random);
  draw(elsewhere, random);
  draw(first, random);
  const auto check = [&](const char* what, auto&& change) {
    SCOPED_TRACE(what);
    LayerOn<B> layer = first;
    const auto before = layer(x);
    const float* const memory = layer.parameters().gate.data;
    const std::string plan = layer.explain(1, 3, 3);
    const int failures = support::with_each_allocation_failing([&] { change(layer); },
                                                               [&](int n) {
                                                                 EXPECT_EQ(support::differing(layer(x), before), 0u)
                                                                     << n;
                                                                 EXPECT_EQ(layer.parameters().gate.data, memory) << n;
                                                                 EXPECT_EQ(layer.explain(1, 3, 3), plan) << n;
                                                               });
    EXPECT_GT(failures, 0);
    return layer(x);
  };
  EXPECT_EQ(support::differing(check("borrow of a layer", [&](auto& l) { l.borrow(owner); }), owner(x)), 0u);
  check("borrow of another backend's layer", [&](auto& l) { l.borrow(elsewhere); });
  check("borrow of views", [&](auto& l) { l.borrow(owner.parameters()); });
  LayerOn<B> same(sizes);
  same.borrow(narrow.parameters());
  EXPECT_EQ(support::differing(check("borrow of 16 bits", [&](auto& l) { l.borrow(narrow.parameters()); }), same(x)),
            0u);
  LayerOn<B> of_owner(sizes), of_narrow(sizes);
  of_owner.quantize(owner.parameters());
  of_narrow.quantize(narrow.parameters());
  EXPECT_EQ(support::differing(check("quantize", [&](auto& l) { l.quantize(owner.parameters()); }), of_owner(x)), 0u);
  EXPECT_EQ(
      support::differing(check("quantize of 16 bits", [&](auto& l) { l.quantize(narrow.parameters()); }), of_narrow(x)),
      0u);
  check("quantize its own", [](auto& l) { l.quantize(); });
  of_owner.template quantize<mha::scaled_int4>(owner.parameters());
  EXPECT_EQ(
      support::differing(check("4 bits", [&](auto& l) { l.template quantize<mha::scaled_int4>(owner.parameters()); }),
                         of_owner(x)),
      0u);
  check("its own in 4 bits", [](auto& l) { l.template quantize<mha::scaled_int4>(); });
  EXPECT_EQ(support::differing(check("assignment", [&](auto& l) { l = owner; }), owner(x)), 0u);
  if constexpr (mha::PacksWeights<B, float>) check("drop_unpacked", [](auto& l) { l.drop_unpacked(); });
}

TEST(LayerWeightsShortOfMemory, ChangeWhollyOrNot) {
  EXPECT_FALSE(std::is_nothrow_copy_assignable_v<LayerOn<mha::Cpu>>);
  expect_all_or_nothing<mha::Reference>();
  expect_all_or_nothing<mha::CpuWith<mha::Serial>>();
  expect_all_or_nothing<mha::Systolic<>>();
}

}  // namespace
