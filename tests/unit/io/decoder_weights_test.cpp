// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/io/decoder_config.hpp>
#include <mha/io/decoder_weights.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;

/// A decoder of one layer of 2 heads of 3, E 4, H 5, V 6, by names of its own.
struct Weights : mha::DecoderWeights<float, mha::DecoderConfig> {
  static mha::DecoderConfig sizes(bool tied) {
    mha::DecoderConfig c;
    c.layers = 1;
    c.vocabulary = 6;
    c.norm.width = 4;
    c.feed_forward = {.d_model = 4, .d_hidden = 5, .bias = false};
    c.attention = {.d_model = 4, .num_heads = 2, .num_kv_heads = 2, .head_dim = 3, .value_dim = 3};
    c.tied = tied;
    return c;
  }
  Weights(const mha::Checkpoint& checkpoint, bool tied)
      : DecoderWeights(checkpoint, sizes(tied),
                       {.block = "layers.",
                        .attention_norm = "before",
                        .query = "q",
                        .key = "k",
                        .value = "v",
                        .output = "o",
                        .feed_forward_norm = "between",
                        .up = "up",
                        .down = "down",
                        .gate = "gate"}) {}
};

struct Folder : mha_test::ModelFolder<float> {
  Folder() {
    add("model.embed_tokens.weight", {6, 4});
    const std::string at = "model.layers.0.";
    for (const char* in : {"q", "k", "v"}) add_linear(at + in, 6, 4, false);
    add_linear(at + "o", 4, 6, false);
    for (const char* in : {"up", "gate"}) add_linear(at + in, 5, 4, false);
    add_linear(at + "down", 4, 5, false);
    for (const char* norm : {"before", "between"}) add_norm(at + norm, 4, false);
    add_norm("model.norm", 4, false);
  }
};

TEST(DecoderWeights, AreFoundByTheNamesOfTheFamily) {
  Folder folder;
  const Weights weights(mha::Checkpoint(folder.write()), true);
  EXPECT_EQ(weights.config().layers, 1);
  EXPECT_NE(weights.mapping(), nullptr);
  const auto up = weights.block(0).feed_forward.up;
  mha_test::expect_linear(up.weight, up.bias, folder, "model.layers.0.up");
  EXPECT_TRUE(weights.has_output());
  EXPECT_EQ(weights.output().weight.data, weights.token_embeddings().data);
  EXPECT_EQ(weights.final_norm().weight.extent[0], 4);
}

TEST(DecoderWeights, WithoutAHeadHaveNoOutput) {
  Folder folder;
  EXPECT_FALSE(Weights(mha::Checkpoint(folder.write()), false).has_output());
  folder.add("lm_head.weight", {6, 4});
  EXPECT_TRUE(Weights(mha::Checkpoint(folder.write()), false).has_output());
}

TEST(DecoderWeights, ATensorThatIsMissingIsOneSentence) {
  Folder folder;
  folder.file.tensors.erase("model.layers.0.between.weight");
  const mha::Checkpoint checkpoint(folder.write());
  const std::string message =
      mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(Weights(checkpoint, true)); });
  EXPECT_NE(message.find("layers.0.between.weight"), std::string::npos) << message;
}

}  // namespace
