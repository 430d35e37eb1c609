// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/layer/explain.hpp>
#include <mha/layer/policies.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

namespace {

using Policies = mha::LayerPolicies<mha::MultiHead, mha::Full, mha::SoftCap>;

struct Unnamed {
  bool operator()(int, int, int, int) const { return true; }
};
struct Named : Unnamed {
  static constexpr const char* name = "every second key";
};

TEST(ExplainLayer, PutsPoliciesInWords) {
  using mha::detail::InWords;
  using Either = mha::Or<Unnamed, mha::Prefix>;
  EXPECT_EQ(InWords<mha::Full>::text(), "Full");
  EXPECT_EQ((InWords<mha::And<mha::And<mha::Causal, Named>, Either>>::text()),
            "Causal and every second key and (functor or Prefix)");
  EXPECT_EQ(InWords<mha::Not<Either>>::text(), "not (functor or Prefix)");
  EXPECT_EQ((InWords<mha::Not<mha::And<mha::Causal, mha::Not<mha::Dense>>>>::text()), "not (Causal and not Dense)");
  EXPECT_EQ((InWords<mha::Chain<mha::SoftCap, mha::Chain<mha::Alibi, mha::AdditiveBias<float>>>>::text()),
            "SoftCap, then Alibi, then AdditiveBias");
  EXPECT_EQ(InWords<decltype(mha::mask([](int, int, int, int) { return true; }))>::text(), "functor");
}

TEST(ExplainLayer, SaysHowHeadsShareKeys) {
  using mha::detail::heads_of;
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 8}), "8 query heads with a key/value head each");
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 2}), "8 query heads share 2 key/value heads");
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 1}), "8 query heads share 1 key/value head");
}

TEST(ExplainLayer, SaysWhichProjectionsAddABias) {
  using mha::detail::biases_of;
  EXPECT_EQ(biases_of({}, true), "none");
  EXPECT_EQ(biases_of({.bias = true}, true), "query, key, value, output");
  EXPECT_EQ(biases_of({.bias = true}, false), "query, key, value");
  EXPECT_EQ(biases_of({.bias = true, .key_bias = false}, true), "query, value, output");
  EXPECT_EQ(biases_of({.output_bias = true}, true), "output");
}

TEST(ExplainLayer, SaysOneFactALine) {
  const mha::Config c{.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3};
  mha::Cost cost;
  cost.projection = {5, 1e9, 101};
  cost.score = {0, 2e9, 102};
  cost.value = {0, 1e9, 103};
  cost.output = {7, 5e8, 104};
  cost.visible_pairs = 60;
  cost.activation_elements = 1000;
  const mha::CallShape shape{.batch = 2, .heads = 4, .queries = 5, .keys = 10, .origin = 5};
  EXPECT_EQ((mha::detail::explain_layer<float, mha::And<mha::Causal, mha::Padding>, Policies>(
                mha::Reference{}, c, cost, shape, {"float, owned", "", 100, 5})),
            "heads:       4 query heads share 2 key/value heads, head_dim 2, value_dim 3\n"
            "weights:     12 float, owned\n"
            "biases:      none\n"
            "mask:        Causal and Padding\n"
            "score:       SoftCap\n"
            "sink:        none\n"
            "policies:    FusedProjection, NoNorm, NoPosition, ConcatHeads, LinearOutput\n"
            "projections: 1.000000 GFLOP, 101 bytes\n"
            "attention:   3.000000 GFLOP, 205 bytes\n"
            "visible:     60 of 100 pairs of each head\n"
            "output:      0.500000 GFLOP, 104 bytes\n"
            "kernel:      " +
                mha::Reference{}.explain<float>({shape, 2, 2, 3}) +
                "\n"
                "workspace:   4000 bytes for Q, K, V and the heads\n");
}

// Of a step of a cache: what the cache stores, and the kernels of the longest and of the shortest sequence.
TEST(ExplainLayer, SaysWhatACacheStoresAndEveryKernel) {
  const mha::CallShape shape{.batch = 3, .heads = 4, .queries = 5, .keys = 10, .origin = 5};
  const auto text = mha::detail::explain_layer<float, mha::Causal, Policies>(
      mha::Reference{}, {.num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3}, {}, shape,
      {"float", "Paged, 7 pages", 70, 1});
  const std::string kernel = mha::Reference{}.explain<float>({shape, 2, 2, 3});
  mha::CallShape one = shape;
  one.queries = 1;
  EXPECT_NE(text.find("\nvisible:     0 of 70 pairs of each head\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\ncache:       Paged, 7 pages\nkernel:      of 5 rows: " + kernel +
                      "\nkernel:      of 1 row: " + mha::Reference{}.explain<float>({one, 2, 2, 3}) + "\nworkspace: "),
            std::string::npos)
      << text;
}

}  // namespace
