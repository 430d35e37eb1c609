// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/cost.hpp>
#include <mha/mha.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>

#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::CallShape;
using mha::Config;
using mha::Cost;

Cost model(int d_model, int heads, int kv_heads = 0, int length = 1) {
  return mha::cost({.d_model = d_model, .num_heads = heads, .num_kv_heads = kv_heads}, 1, length, length);
}

TEST(Cost, HasThePublishedParameters) {
  EXPECT_EQ(model(512, 8).parameters(), 1'048'576) << "Transformer base";
  EXPECT_EQ(model(768, 12).parameters(), 2'359'296) << "GPT-2 small";
  EXPECT_EQ(model(12288, 96).parameters(), 603'979'776) << "GPT-3";
  EXPECT_EQ(model(4096, 32).parameters(), 67'108'864) << "Llama 3.1 8B, every head its own keys";
  EXPECT_EQ(model(4096, 32, 8).parameters(), 41'943'040) << "Llama 3.1 8B";
  EXPECT_EQ(model(16384, 128).parameters(), 1'073'741'824) << "Llama 3.1 405B, every head its own keys";
}

TEST(Cost, AttentionOvertakesTheProjectionsAtTwiceTheModelsWidth) {
  EXPECT_EQ(model(768, 12).crossover_length, 1536);
  EXPECT_EQ(model(12288, 96).crossover_length, 24576);
  EXPECT_EQ(model(4096, 32).crossover_length, 8192);
  EXPECT_EQ(model(16384, 128).crossover_length, 32768);
  const Cost at = model(768, 12, 0, 1536);
  EXPECT_EQ(at.attention_flop(), at.projection.flop + at.output.flop);
  const Config grouped{.d_model = 4096, .num_heads = 32, .num_kv_heads = 8};
  const int crossover = static_cast<int>(mha::cost(grouped, 1, 1, 1).crossover_length);
  const Cost there = mha::cost(grouped, 1, crossover, crossover);
  EXPECT_EQ(there.attention_flop(), there.projection.flop + there.output.flop);
}

TEST(Cost, CachesTheKeyValueHeadsOnly) {
  EXPECT_EQ(model(4096, 32).cache_elements, 2 * 32 * 128);
  EXPECT_EQ(model(4096, 32, 8).cache_elements, 2 * 8 * 128);
  EXPECT_EQ(model(4096, 32, 1).cache_elements, 2 * 128);
  EXPECT_EQ(mha::cost<mha::MultiQuery>({.d_model = 4096, .num_heads = 32}, 3, 5, 7).cache_elements, 3 * 7 * 2 * 128);
  EXPECT_EQ(mha::cost<mha::GroupedQuery<4>>({.d_model = 4096, .num_heads = 32}, 1, 1, 1).cache_elements, 2 * 4 * 128);
  EXPECT_EQ(mha::cost<mha::MultiHead>({.d_model = 64, .num_heads = 4}, 1, 1, 10).cache_elements, 10 * 2 * 64);
}

TEST(Cost, FollowsTheGeneralFormulas) {
  const Config c{.d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 5, .value_dim = 3, .kv_model = 14};
  const int B = 3, Lq = 7, Lk = 11;
  const Cost cost = mha::cost(c, B, Lq, Lk);
  const std::int64_t q = 20 * 6 * 5, k = 14 * 2 * 5, v = 14 * 2 * 3, o = 6 * 3 * 20;
  EXPECT_EQ(cost.parameters(), q + k + v + o);
  EXPECT_EQ(cost.projection.flop, 2.0 * B * (Lq * q + Lk * (k + v)));
  EXPECT_EQ(cost.output.flop, 2.0 * B * Lq * o);
  EXPECT_EQ(cost.visible_pairs, B * Lq * Lk);
  EXPECT_EQ(cost.score.flop, 2.0 * B * Lq * Lk * 6 * 5);
  EXPECT_EQ(cost.value.flop, 2.0 * B * Lq * Lk * 6 * 3);
  EXPECT_EQ(cost.attention_flop(), cost.score.flop + cost.value.flop);
  EXPECT_EQ(cost.total_flop(), cost.projection.flop + cost.attention_flop() + cost.output.flop);
  EXPECT_EQ(cost.cache_elements, B * Lk * 2 * (5 + 3));
  EXPECT_EQ(cost.activation_elements, B * (Lq * 6 * (5 + 3) + Lk * 2 * (5 + 3)));
  Config apart = c;
  apart.value_model = 9;
  EXPECT_EQ(mha::cost(apart, B, Lq, Lk).parameters(), q + k + 9 * 2 * 3 + o);
  EXPECT_EQ(mha::cost(apart, B, Lq, Lk).projection.bytes,
            4 * (q + k + 9 * 2 * 3 + B * Lq * (20 + 6 * 5) + B * Lk * (14 + 9 + 2 * (5 + 3))));
  Config with_bias = c;
  with_bias.bias = true;
  EXPECT_EQ(mha::cost(with_bias, B, Lq, Lk).parameters(), cost.parameters() + 6 * 5 + 2 * 5 + 2 * 3 + 20);
  with_bias.key_bias = false;
  EXPECT_EQ(mha::cost(with_bias, B, Lq, Lk).parameters(), cost.parameters() + 6 * 5 + 2 * 3 + 20);
  with_bias = c;
  with_bias.key_bias = true;
  EXPECT_EQ(mha::cost(with_bias, B, Lq, Lk).projection.parameters, q + k + v + 2 * 5);
  EXPECT_EQ(mha::cost(with_bias, B, Lq, Lk).output.parameters, o);
  EXPECT_EQ(cost.projection.parameters, q + k + v);
  EXPECT_EQ(cost.score.parameters, 0);
  EXPECT_EQ(cost.value.parameters, 0);
  EXPECT_EQ(cost.output.parameters, o);
  const double rows_q = B * Lq, rows_k = B * Lk;
  EXPECT_EQ(cost.projection.bytes, 4 * (q + k + v + rows_q * (20 + 6 * 5) + rows_k * (14 + 2 * (5 + 3))));
  EXPECT_EQ(cost.score.bytes, 4 * (rows_q * 6 * 5 + rows_k * 2 * 5));
  EXPECT_EQ(cost.value.bytes, 4 * (rows_k * 2 * 3 + rows_q * 6 * 3));
  EXPECT_EQ(cost.output.bytes, 4 * (o + rows_q * (6 * 3 + 20)));
  EXPECT_EQ(cost.total_bytes(), cost.projection.bytes + cost.score.bytes + cost.value.bytes + cost.output.bytes);
  EXPECT_EQ((mha::cost<mha::GroupedQuery<2>, double>(c, B, Lq, Lk).total_bytes()), 2 * cost.total_bytes());
  EXPECT_EQ((mha::cost<mha::GroupedQuery<2>, mha::half>(c, B, Lq, Lk).total_bytes()), cost.total_bytes() / 2);
  const Cost causal = mha::cost(c, B, Lk, Lk, mha::Causal{});
  EXPECT_EQ(causal.visible_pairs, B * Lk * (Lk + 1) / 2);
  EXPECT_EQ(mha::cost(c, B, 0, Lk, mha::Causal{}).visible_pairs, 0);
  EXPECT_EQ(causal.attention_flop(), 2 * causal.visible_pairs * 6 * (5 + 3));
}

TEST(BackwardCost, FollowsTheGeneralFormulas) {
  const Config c{.d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 5, .value_dim = 3, .kv_model = 14};
  const int B = 3, Lq = 7, Lk = 11;
  const mha::BackwardCost cost = mha::backward_cost(c, B, Lq, Lk);
  const std::int64_t q = 20 * 6 * 5, k = 14 * 2 * 5, v = 14 * 2 * 3, o = 6 * 3 * 20;
  EXPECT_EQ(cost.parameters(), q + k + v + o);
  EXPECT_EQ(cost.projection.flop, 4.0 * B * (Lq * q + Lk * (k + v)));
  EXPECT_EQ(cost.output.flop, 4.0 * B * Lq * o);
  EXPECT_EQ(cost.attention_flop(), 2.0 * B * Lq * Lk * 6 * (3 * 5 + 2 * 3));
  EXPECT_EQ(cost.total_flop(), cost.projection.flop + cost.attention_flop() + cost.output.flop);
  const double rows_q = B * Lq, rows_k = B * Lk, of_q = rows_q * 30, of_k = rows_k * 10, of_v = rows_k * 6,
               heads = rows_q * 18;
  EXPECT_EQ(cost.tape_bytes, 4 * (of_q + of_k + of_v + heads + 2 * rows_q * 6));
  EXPECT_EQ(cost.scratch_bytes, 4 * (heads + of_q + of_k + of_v));
  EXPECT_EQ(cost.output.bytes, 4 * (2 * o + rows_q * 20 + 2 * heads));
  EXPECT_EQ(cost.projection.bytes, 4 * (2 * (q + k + v) + 2 * (rows_q * 20 + rows_k * 14) + of_q + of_k + of_v));
  EXPECT_EQ(cost.score.bytes, 4 * (2 * of_q + 2 * of_k + 2 * rows_q * 6));
  EXPECT_EQ(cost.value.bytes, 4 * (2 * of_v + 2 * heads));
  EXPECT_EQ(cost.total_bytes(), 4 * (2 * (q + k + v + o) + 3 * rows_q * 20 + 2 * rows_k * 14 +
                                     3 * (of_q + of_k + of_v) + 4 * heads + 2 * rows_q * 6));
  const mha::BackwardCost half = mha::backward_cost<mha::GroupedQuery<2>, mha::half>(c, B, Lq, Lk);
  EXPECT_EQ(half.scratch_bytes, 2 * heads + 4 * (of_q + of_k + of_v));
  EXPECT_EQ(mha::backward_cost(c, B, Lk, Lk, mha::Causal{}).visible_pairs, B * Lk * (Lk + 1) / 2);
  const Config own{.d_model = 20, .num_heads = 5};  // key/value heads of their own
  EXPECT_EQ(mha::backward_cost(own, B, Lq, Lk).total_flop(),
            (mha::backward_cost<mha::MultiHead>(own, B, Lq, Lk).total_flop()));
}

TEST(BackwardCost, OnADeviceHasRowsAndGradientsThatProductsRead) {
  const Config c{.d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 5, .value_dim = 3, .kv_model = 14};
  using Plain = mha::detail::PoliciesByRole<mha::GroupedQuery<2>>;
  using Normed = mha::detail::PoliciesByRole<mha::GroupedQuery<2>, mha::QkNorm>;
  const auto more = [&]<class T, class Policies>(T, const Policies&, int Lq, int Lk) {
    const auto rows = mha::detail::call_rows<T>(c, 3, Lq, Lk, mha::Full{});
    return mha::detail::layer_backward_cost<T, Policies, true>(c, rows).scratch_bytes -
           mha::detail::layer_backward_cost<T, Policies>(c, rows).scratch_bytes;
  };
  EXPECT_EQ(more(float(), Plain{}, 7, 7), 4 * 21 * 20) << "x";
  EXPECT_EQ(more(mha::half(), Plain{}, 7, 7), 2 * 21 * (20 + 30 + 10 + 6)) << "x, rounded gradients";
  EXPECT_EQ(more(float(), Plain{}, 7, 50), 4 * 150 * 14) << "the memory";
  EXPECT_EQ(more(mha::half(), Plain{}, 8, 7), 2 * 24 * (20 + 30)) << "x, rounded gradients of q";
  EXPECT_EQ(more(float(), Plain{}, 700, 7), 4 * 2100 * 20) << "x of a call with a memory";
  EXPECT_EQ(more(float(), Normed{}, 7, 7), 4 * 21 * 30) << "terms of the norm of q";
}

/// Reference that counts the FLOP of its dense products.
struct Counting : mha::Reference {
  static inline double flop = 0;
  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace& workspace) const {
    flop += 2.0 * call.a.extent[0] * call.a.extent[1] * call.b.extent[1];
    mha::Reference::gemm(call, workspace);
  }
};

TEST(BackwardCost, HasTheFlopOfTheProductsThatAreSeen) {
  using Layer =
      mha::MultiHeadAttention<double, Counting, mha::GroupedQuery<2>, mha::Causal, mha::QkNorm, mha::GatedHeads>;
  Layer layer({.d_model = 12, .num_heads = 4, .head_dim = 5, .value_dim = 3, .bias = true});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<double, 3> x(2, 9, 12), memory(2, 11, 12), dx(2, 9, 12), d_memory(2, 11, 12);
  support::Random("counted").fill(x);
  support::Random("counted memory").fill(memory);
  auto tape = layer.tape();
  auto g = layer.gradients();
  mha::Workspace workspace;
  const auto expect = [&](const mha::BackwardCost& cost, const auto& back) {
    Counting::flop = 0;
    back();
    EXPECT_EQ(Counting::flop, cost.projection.flop + cost.output.flop);
    EXPECT_EQ(cost.parameters(), layer.parameter_count());
    EXPECT_GE(double(workspace.bytes()), cost.scratch_bytes);
  };
  static_cast<void>(layer(x, tape));
  expect(layer.backward_cost(2, 9, 9), [&] { layer.backward(x, tape, g, mha::into(dx), workspace); });
  static_cast<void>(layer(x, memory, tape));
  expect(layer.backward_cost(2, 9, 11),
         [&] { layer.backward(x, tape, g, mha::into(dx), mha::memory_into(d_memory), workspace); });
  const std::string text = layer.explain_backward(2, 9, 11);
  EXPECT_EQ(text.find("mask:        "), 0u) << text;
  EXPECT_NE(text.find("\nvisible:     126 of 198 pairs of each head\noutput:      "), std::string::npos) << text;
  EXPECT_NE(text.find("\nworkspace:   "), std::string::npos);
}

}  // namespace

/// A number that counts its multiplications.
struct Number {
  double value = 0;
  static inline double products = 0;
  Number() = default;
  template <class X>
  requires(std::is_arithmetic_v<X>) Number(X x) : value(static_cast<double>(x)) {}
  explicit operator double() const { return value; }
  friend Number operator*(const Number& a, const Number& b) { return ++products, Number(a.value * b.value); }
  friend Number operator/(const Number& a, const Number& b) { return Number(a.value / b.value); }
  friend Number operator+(const Number& a, const Number& b) { return Number(a.value + b.value); }
  friend Number operator-(const Number& a, const Number& b) { return Number(a.value - b.value); }
  Number operator-() const { return Number(-value); }
  Number& operator+=(const Number& x) { return *this = *this + x; }
  Number& operator-=(const Number& x) { return *this = *this - x; }
  Number& operator*=(const Number& x) { return *this = *this * x; }
  Number& operator/=(const Number& x) { return *this = *this / x; }
  friend auto operator<=>(const Number& a, const Number& b) { return a.value <=> b.value; }
  friend bool operator==(const Number& a, const Number& b) { return a.value == b.value; }
  friend Number exp(const Number& x) { return Number(std::exp(x.value)); }
  friend Number log(const Number& x) { return Number(std::log(x.value)); }
  friend Number sqrt(const Number& x) { return Number(std::sqrt(x.value)); }
};
template <> struct std::numeric_limits<Number> : std::numeric_limits<double> {
  static Number infinity() { return Number(std::numeric_limits<double>::infinity()); }
  static Number quiet_NaN() { return Number(std::numeric_limits<double>::quiet_NaN()); }
  static Number lowest() { return Number(std::numeric_limits<double>::lowest()); }
};

namespace {

/// Multiplications of a causal backward pass by sizes of heads.
double backward_products(mha::Index dim, mha::Index value_dim) {
  using Tensor = mha::Tensor<Number, 4>;
  Tensor q(2, 5, 4, dim), k(2, 7, 2, dim), v(2, 7, 2, value_dim);
  double x = 0;
  for (Tensor* t : {&q, &k, &v})
    for (Number& n : *t) n = Number(std::sin(x += 1));
  mha::AttentionTape<Number, mha::Reference> tape;
  const auto out = mha::attention<mha::Reference>(q, k, v, mha::Causal{}, mha::Scale{0.5}, mha::record(tape));
  Number::products = 0;
  static_cast<void>(mha::attention_backward(out, q, k, v, out, tape, mha::Causal{}, mha::Scale{0.5}));
  return Number::products;
}

TEST(BackwardCost, HasTheFlopOfTheAttentionThatAreSeen) {
  const auto cost = [](int dim, int value_dim) {
    return mha::backward_cost(
        {.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .head_dim = dim, .value_dim = value_dim}, 2, 5, 7,
        mha::Causal{});
  };
  // A multiplication and an addition for each FLOP that grows with the heads; what does not is not counted.
  EXPECT_EQ(2 * (backward_products(9, 3) - backward_products(5, 3)),
            cost(9, 3).attention_flop() - cost(5, 3).attention_flop());
  // D = d_out · out of each row, which is no product of a pair, grows with the values too.
  EXPECT_EQ(2 * (backward_products(5, 7) - backward_products(5, 3) - 2 * 5 * 4 * 4),
            cost(5, 7).attention_flop() - cost(5, 3).attention_flop());
}

TEST(Cost, IsTheTextbooksForEqualHeads) {
  const double L = 100, E = 64;
  const Cost cost = model(64, 4, 0, 100);
  EXPECT_EQ(cost.projection.flop, 6 * L * E * E);
  EXPECT_EQ(cost.score.flop, 2 * L * L * E);
  EXPECT_EQ(cost.value.flop, 2 * L * L * E);
  EXPECT_EQ(cost.output.flop, 2 * L * E * E);
}

TEST(Cost, OfLongBatchesDoesNotOverflow) {
  const Cost cost = mha::cost({.d_model = 16384, .num_heads = 128}, 64, 100'000, 100'000);
  EXPECT_EQ(cost.visible_pairs, 64e10);
  EXPECT_EQ(cost.cache_elements, std::int64_t{64} * 100'000 * 2 * 16384);
}

TEST(Cost, RefusesAConfigurationThatDoesNotFit) {
  const auto refusal = [](const Config& c) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::cost(c, 1, 1, 1)); });
  };
  EXPECT_EQ(refusal({.d_model = 12, .num_heads = 3}), "");
  EXPECT_EQ(refusal({.d_model = 12, .num_heads = 4, .num_kv_heads = 3}),
            "Config: num_kv_heads 3 does not divide num_heads 4");
  EXPECT_NE(refusal({.d_model = 12, .num_heads = 0}), "");
}

TEST(Cost, RefusesNegativeSizes) {
  const auto refusal = [](int batch, int queries, int keys) {
    return mha_test::message_of<mha::ShapeError>(
        [&] { static_cast<void>(mha::cost({.d_model = 12, .num_heads = 3}, batch, queries, keys)); });
  };
  EXPECT_EQ(refusal(0, 0, 0), "");
  EXPECT_EQ(refusal(-1, 1, 1), "cost: batch is -1, it must be at least 0");
  EXPECT_EQ(refusal(1, -2, 1), "cost: queries is -2, it must be at least 0");
  EXPECT_EQ(refusal(1, 1, -3), "cost: keys is -3, it must be at least 0");
}

/// The pairs of every head, one by one.
template <class M> double by_counting(const M& mask, const CallShape& s) {
  const auto ready = mha::prepared(mask, s);
  double pairs = 0;
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h)
      for (int q = s.origin[b]; q < s.origin[b] + s.queries; ++q)
        for (int k = 0; k < s.keys; ++k) pairs += ready(b, h, q, k) ? 1 : 0;
  return pairs / s.heads;
}

struct Strided {
  bool operator()(int, int h, int q, int k) const { return (q + k + 900) % (3 + h) == 0; }
};

TEST(VisiblePairs, AreCountedAsTheMaskShowsThem) {
  support::Random random("pairs");
  constexpr int keys = 150, B = 2;
  const std::vector<int> lengths{37, 150};
  std::vector<int> ids;
  for (int b = 0, id = 0; b < B; ++b, id = 0)
    for (int k = 0; k < keys; ++k) ids.push_back(id += random.chance(0.03) ? 1 : 0);
  std::vector<std::uint8_t> map(100);
  for (auto& bit : map) bit = random.chance(0.4) ? 1 : 0;
  for (const int queries : {1, 63, 64, 65, 150})
    for (const int origin : {keys - queries, 0, -20}) {
      const CallShape s{.batch = B, .heads = 2, .queries = queries, .keys = keys, .origin = origin};
      const std::string at = std::to_string(queries) + " queries from " + std::to_string(origin);
      const auto check = [&](const char* name, const auto& mask) {
        EXPECT_EQ(mha::visible_pairs(mask, s), by_counting(mask, s)) << name << ", " << at;
      };
      check("full", mha::Full{});
      check("causal", mha::Causal{});
      check("top left", mha::CausalTopLeft{});
      check("window", mha::SlidingWindow{.left = 20, .right = 3});
      check("padding", mha::Padding{lengths});
      check("document", mha::Document{ids});
      check("prefix", mha::Prefix{lengths});
      check("block sparse", mha::BlockSparseView{.block = 15, .query_blocks = 10, .key_blocks = 10, .map = map});
      check("block sparse, by head",
            mha::BlockSparse({.block = 30, .query_blocks = 5, .key_blocks = 5}, {map.begin(), map.begin() + 50}));
      check("functor", Strided{});
      check("composed", (mha::Causal{} && mha::Padding{lengths}) || !mha::SlidingWindow{.left = 9});
      mha::Tensor<bool, 2> table(queries, keys);
      for (bool& visible : table) visible = random.chance(0.5);
      check("dense", mha::Dense{table});
    }
}

TEST(VisiblePairs, OfManyTokensAreNotCountedOneByOne) {
  constexpr int length = 1 << 28;
  const CallShape s{.batch = 2, .heads = 8, .queries = length, .keys = length, .origin = 0};
  const double L = length, half = 0.5 * L * (L + 1);
  EXPECT_EQ(mha::visible_pairs(mha::Full{}, s), 2 * L * L);
  EXPECT_EQ(mha::visible_pairs(mha::Causal{}, s), 2 * half);
  EXPECT_EQ(mha::visible_pairs(mha::SlidingWindow{.left = 1023}, s), 2 * (1024 * L - 1023 * 1024 / 2));
  const std::vector<int> lengths{length, length / 2};
  const double hidden = 0.5 * (L / 2) * (L / 2 + 1);
  EXPECT_EQ(mha::visible_pairs(mha::Causal{} && mha::Padding{lengths}, s), 2 * half - hidden);
  EXPECT_EQ(mha::cost({.d_model = 8, .num_heads = 2}, 1, length, length, mha::Causal{}).visible_pairs, half);
}

TEST(VisiblePairs, OfManyTokensAreFoundByTiles) {
  constexpr int length = 1 << 20;
  const CallShape s{.batch = 1, .heads = 1, .queries = length, .keys = length, .origin = 0};
  std::vector<int> ids(length, 1);
  std::fill_n(ids.begin(), 1000, 0);
  const double rest = length - 1000;
  EXPECT_EQ(mha::visible_pairs(mha::Document{ids}, s), 1e6 + rest * rest);
}

TEST(VisiblePairs, AreCountedAtTheLastPositions) {
  const CallShape s{.batch = 1, .heads = 3, .queries = 2, .keys = 5, .origin = 2147483646};
  EXPECT_EQ(mha::visible_pairs(mha::Full{}, s), 2 * 5);
  EXPECT_EQ(mha::visible_pairs(mha::Causal{}, s), 2 * 5);
  EXPECT_EQ(mha::visible_pairs(mha::SlidingWindow{.left = 2147483644}, s), 3 + 2);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::visible_pairs(Strided{}, s)); }),
            "cost: the origin 2147483646 puts 2 queries beyond position 2147483647");
  const CallShape before{.batch = 1, .heads = 1, .queries = 2, .keys = 5, .origin = 2147483645};
  const auto even = mha::mask([](int, int, int q, int k) { return (q - k) % 2 == 0; });
  EXPECT_EQ(mha::visible_pairs(even, before), by_counting(even, before));
}

TEST(VisiblePairs, OfNothingAreNone) {
  EXPECT_EQ(mha::visible_pairs(mha::Full{}, {.batch = 1, .heads = 0, .queries = 3, .keys = 3, .origin = 0}), 0);
  EXPECT_EQ(mha::visible_pairs(mha::Causal{}, {.batch = 0, .heads = 1, .queries = 3, .keys = 3, .origin = 0}), 0);
  EXPECT_EQ(mha::visible_pairs(mha::Full{}, {.batch = 1, .heads = 1, .queries = 0, .keys = 3, .origin = 0}), 0);
  EXPECT_EQ(mha::visible_pairs(mha::Full{}, {.batch = 1, .heads = 1, .queries = 3, .keys = 0, .origin = 0}), 0);
}

}  // namespace
