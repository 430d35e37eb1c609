// SPDX-License-Identifier: Apache-2.0
// The models on Reference; on Cpu the examples themselves are the tests.
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "scratch.hpp"

namespace {

using namespace models;
using On = mha::Reference;

using models::testing::Case;
constexpr auto& kCases = models::testing::cases<On>;

TEST(Models, EqualHuggingFacesOnReference) {
  for (const Case& c : kCases) EXPECT_LT(c.check(c.name, models::testing::data(c.name)), tolerance) << c.name;
}

// Phi-3 turns short texts by other factors. All positions that the model has are not what it is made for here.
TEST(Models, EqualHuggingFacesForAShortText) {
  const Expected expected(models::testing::data("phi3"));
  std::vector<int> ids = expected.ids("ids");
  ids.resize(4);
  const mha::Llama<float> weights(models::testing::data("phi3"));
  const auto model = models::testing::made_for<Llama<mha::NoNorm, On>>(weights, ids);
  EXPECT_LT(expected.difference(model(ids), "short_logits"), tolerance);
  EXPECT_GT(expected.difference(Llama<mha::NoNorm, On>(weights)(ids), "short_logits"), 10 * tolerance);
}

// The checkpoints show what they are there for: with another value in config.json the results are others.
TEST(Models, CheckpointsTellTheirFeatures) {
  struct Change {
    const char* name;
    const char* pointer;  // into config.json
    nlohmann::json value;
  };
  const Change changes[]{
      {"bert", "/layer_norm_eps", 1e-2},
      {"bert", "/num_attention_heads", 4},
      {"gpt2", "/layer_norm_epsilon", 1e-2},
      {"gpt2", "/n_head", 3},
      {"llama", "/rope_parameters/factor", 1.0},
      {"llama", "/rope_parameters/rope_theta", 10000.0},
      {"mistral", "/sliding_window", nullptr},
      {"mistral", "/sliding_window", 4},
      {"mistral", "/sliding_window", 6},
      {"qwen2", "/rope_parameters/rope_theta", 500.0},
      {"qwen3", "/rms_norm_eps", 1e-2},
      {"phi3", "/original_max_position_embeddings", 64},
      {"phi3", "/rope_parameters/long_factor/2", 5.5},
      {"phi3", "/rope_parameters/attention_factor", 1.0},
      {"phi3", "/rope_parameters/rope_theta", 120.0},
      {"phi3", "/sliding_window", 6},
      {"gemma", "/rope_parameters/rope_theta", 500.0},
      {"gemma", "/rms_norm_eps", 1e-2},
      {"gemma2", "/query_pre_attn_scalar", 6},
      {"gemma2", "/attn_logit_softcapping", 2.1},
      {"gemma2", "/attn_logit_softcapping", nullptr},
      {"gemma2", "/final_logit_softcapping", 3.1},
      {"gemma2", "/final_logit_softcapping", nullptr},
      {"gemma2", "/sliding_window", 6},
      {"gemma2", "/layer_types/1", "sliding_attention"},
      {"gemma3", "/final_logit_softcapping", 9.0},
      {"gemma3", "/layer_types/0", "full_attention"},
      {"gemma3", "/query_pre_attn_scalar", 6},
      {"gemma3", "/rope_parameters/full_attention/factor", 1.0},
      {"gemma3", "/rope_parameters/full_attention/rope_theta", 100.0},
      {"gemma3", "/rope_parameters/sliding_attention/rope_theta", 1000.0},
      {"gemma3", "/rms_norm_eps", 1e-2},
      {"t5", "/relative_attention_max_distance", 6},
      {"t5_v1_1", "/relative_attention_max_distance", 20},
      {"t5_v1_1", "/layer_norm_epsilon", 1e-2},
      {"vit", "/layer_norm_eps", 1e-2},
  };
  const mha_test::Scratch scratch;
  for (const Change& change : changes) {
    const auto from = models::testing::data(change.name);
    nlohmann::json config;
    std::ifstream(from / "config.json") >> config;
    config[nlohmann::json::json_pointer(change.pointer)] = change.value;
    const auto folder = scratch.root() / change.name;
    scratch.write(folder / "config.json", config.dump());
    std::filesystem::copy_file(from / "model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    for (const Case& c : kCases) {
      if (std::string(c.name) != change.name) continue;
      EXPECT_GT(c.check(c.name, folder), 10 * tolerance) << change.name << change.pointer << ' ' << change.value;
    }
  }
}

template <class F> std::string refusal(F&& f) { return mha_test::message_of<std::exception>(f); }

TEST(Models, RefuseInputsThatDoNotFit) {
  const Gpt2<On> gpt2{mha::Gpt2<float>(models::testing::data("gpt2"))};
  for (const int id : {-1, 32})
    EXPECT_EQ(refusal([&] {
                (void)gpt2(std::vector<int>{0, id});
              }),
              "token " + std::to_string(id) + " is outside the vocabulary of 32");
  EXPECT_EQ(refusal([&] { (void)gpt2(std::vector<int>(17, 0)); }),
            "a text has 17 tokens, the model has positions for 16");

  const Bert<On> bert{mha::Bert<float>(models::testing::data("bert"))};
  const std::vector<int> three(3, 0), two(2, 0);
  EXPECT_EQ(refusal([&] {
              (void)bert(three, two, std::vector<int>{0, 3});
            }),
            "there are 3 ids, 2 token types and texts of 3 tokens together");
  EXPECT_EQ(refusal([&] {
              (void)bert(three, three, std::vector<int>{0, 2});
            }),
            "there are 3 ids, 3 token types and texts of 2 tokens together");
  EXPECT_EQ(refusal([&] {
              (void)bert(three, std::vector<int>{0, 1, 9}, std::vector<int>{0, 3});
            }),
            "token type 9 is outside the vocabulary of 2");
  for (const std::vector<int>& offsets : {std::vector<int>{1, 3}, std::vector<int>{0, 7, 2, 3}})
    EXPECT_EQ(refusal([&] { (void)bert(three, three, offsets); }),
              "the offsets of texts begin with 0, never decrease and end with the rows, 3");
  const Rows x = Rows::Zero(3, bert(three, three, std::vector<int>{0, 3}).cols());
  EXPECT_EQ(refusal([&] { (void)bert.pool(x, std::vector<int>{0, 3, 3}); }), "text 1 has no token");
  for (const std::vector<int>& offsets : {std::vector<int>{}, std::vector<int>{0, 2}, std::vector<int>{0, 4}})
    EXPECT_EQ(refusal([&] { (void)bert.pool(x, offsets); }),
              "the offsets of texts begin with 0, never decrease and end with the rows, 3");

  const Vit<On> vit{mha::Vit<float>(models::testing::data("vit"))};
  const std::vector<float> pixels(3 * 12 * 16);
  EXPECT_EQ(refusal([&] { (void)vit(mha::view(pixels.data(), 3, 12, 16)); }),
            "axis 2 of the pixels is 16, the model's images have 12");
}

// Such a checkpoint gives rows all the same.
TEST(Models, RefuseToPoolWithoutAPooler) {
  const auto from = models::testing::data("bert");
  std::ostringstream stored;
  stored << std::ifstream(from / "model.safetensors", std::ios::binary).rdbuf();
  std::string bytes = stored.str();
  for (std::size_t at; (at = bytes.find("pooler.dense")) != bytes.npos;) bytes.replace(at, 6, "pooled");
  const mha_test::Scratch scratch;
  scratch.write("model.safetensors", bytes);
  std::filesystem::copy_file(from / "config.json", scratch.root() / "config.json");
  const Bert<On> bert{mha::Bert<float>(scratch.root())};
  const std::vector<int> three(3, 0), offsets{0, 3};
  const Rows x = bert(three, three, offsets);
  EXPECT_TRUE(x == Bert<On>(mha::Bert<float>(from))(three, three, offsets));
  EXPECT_EQ(refusal([&] { (void)bert.pool(x, offsets); }), "the checkpoint has no pooler");
}

TEST(Models, RefuseWeightsOfAnotherGemma) {
  const mha::Gemma<float> gemma2(models::testing::data("gemma2")), gemma3(models::testing::data("gemma3"));
  EXPECT_EQ(refusal([&] { Gemma<mha::QkNorm, mha::NoScore, On>{gemma2}; }),
            "Gemma: a gemma2 has no norm of queries and keys and a cap of attention's logits, the model's type is "
            "another");
  EXPECT_EQ(refusal([&] { Gemma<mha::NoNorm, mha::NoScore, On>{gemma3}; }),
            "Gemma: a gemma3_text has a norm of queries and keys and no cap of attention's logits, the model's type is "
            "another");
}

TEST(Models, RefuseWeightsOfAnotherActivation) {
  const mha::T5<float> gated(models::testing::data("t5_v1_1"));
  EXPECT_NE(refusal([&] { T5<mha::Relu, On>{gated}; }).find("the activation is gated gelu_tanh"), std::string::npos);
}

}  // namespace
