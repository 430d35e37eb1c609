// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/explain.hpp>

namespace {

TEST(ExplainLayer, SaysOneFactALine) {
  mha::Config c{.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3};
  mha::Cost cost;
  cost.projection_flop = 1e9;
  cost.output_flop = 5e8;
  cost.score_flop = 2e9;
  cost.value_flop = 1e9;
  cost.activation_elements = 1000;
  EXPECT_EQ(mha::detail::explain_layer(c, cost, "12 float, owned", "Fused, Linear", "Some: kernel", 4),
            "heads:       4 query, 2 key/value, head_dim 2, value_dim 3\n"
            "weights:     12 float, owned\n"
            "policies:    Fused, Linear\n"
            "projections: 1.500000 GFLOP in dense products\n"
            "attention:   3.000000 GFLOP if every pair were visible\n"
            "kernel:      Some: kernel\n"
            "workspace:   4000 bytes for Q, K, V and the heads\n");
}

}  // namespace
