// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/layer/explain.hpp>

namespace {

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
  EXPECT_EQ((mha::detail::explain_layer<float, mha::Reference>(c, cost, shape, "owned", {"Fused", "Linear"})),
            "heads:       4 query, 2 key/value, head_dim 2, value_dim 3\n"
            "weights:     12 float, owned\n"
            "policies:    Fused, Linear\n"
            "projections: 1.000000 GFLOP, 101 bytes\n"
            "attention:   3.000000 GFLOP, 205 bytes\n"
            "visible:     60 of 100 pairs of each head\n"
            "output:      0.500000 GFLOP, 104 bytes\n"
            "kernel:      " +
                mha::Reference{}.explain<float>({shape, 2, 2, 3}) +
                "\n"
                "workspace:   4000 bytes for Q, K, V and the heads\n");
}

}  // namespace
