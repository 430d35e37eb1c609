// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/io/bert.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_norm;

constexpr Index E = 12, H = 20, V = 17, P = 9;

/// Two layers under a prefix.
template <class T = float> struct Folder : mha_test::ModelFolder<T> {
  std::string prefix;

  explicit Folder(std::string before = "") : prefix(std::move(before)) {
    this->config = {{"model_type", "bert"},         {"num_hidden_layers", 2}, {"hidden_size", E},
                    {"num_attention_heads", 3},     {"intermediate_size", H}, {"layer_norm_eps", 1e-12},
                    {"max_position_embeddings", P}, {"type_vocab_size", 2},   {"vocab_size", V},
                    {"hidden_act", "gelu"},         {"is_decoder", false}};
    this->add(prefix + "embeddings.word_embeddings.weight", {V, E});
    this->add(prefix + "embeddings.position_embeddings.weight", {P, E});
    this->add(prefix + "embeddings.token_type_embeddings.weight", {2, E});
    this->add_norm(prefix + "embeddings.LayerNorm", E);
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "encoder.layer." + i + ".";
      for (const char* part : {"self.query", "self.key", "self.value", "output.dense"})
        this->add_linear(at + "attention." + part, E, E);
      this->add_norm(at + "attention.output.LayerNorm", E);
      this->add_linear(at + "intermediate.dense", H, E);
      this->add_linear(at + "output.dense", E, H);
      this->add_norm(at + "output.LayerNorm", E);
    }
    this->add_linear(prefix + "pooler.dense", E, E);
    this->add("cls.predictions.bias", {V});  // of a head, which is not read
  }
};

template <class T> void expect_every_weight() {
  for (const char* prefix : {"", "bert."}) {
    Folder<> folder(prefix);
    const mha::Checkpoint checkpoint(folder.write_as<T>());
    const mha::Bert<T> bert(checkpoint);
    const mha::BertConfig& c = bert.config();
    EXPECT_EQ(c.layers, 2);
    EXPECT_EQ(c.vocabulary, V);
    EXPECT_EQ(c.positions, P);
    EXPECT_EQ(c.token_types, 2);
    EXPECT_EQ(c.attention.num_heads, 3);
    EXPECT_TRUE(c.attention.bias && c.feed_forward.bias);
    EXPECT_EQ(c.norm.eps, 1e-12);
    EXPECT_EQ(c.activation, "gelu");
    const auto words = bert.word_embeddings();
    EXPECT_EQ(support::to_double(words(V - 1, E - 1)),
              folder.file.tensors.at(folder.prefix + "embeddings.word_embeddings.weight").values.back());
    EXPECT_EQ(words.data, (checkpoint.view<T, 2>(folder.prefix + "embeddings.word_embeddings.weight").data))
        << "no copy";
    EXPECT_EQ(bert.position_embeddings().extent[0], P);
    EXPECT_EQ(bert.token_type_embeddings().extent[0], 2);
    expect_norm(bert.embedding_norm(), folder, prefix + std::string("embeddings.LayerNorm"));
    for (int i = 0; i < 2; ++i) {
      const auto w = bert.block(i);
      const std::string at = prefix + std::string("encoder.layer.") + std::to_string(i) + ".";
      expect_linear(w.attention.query, w.attention.query_bias, folder, at + "attention.self.query");
      expect_linear(w.attention.key, w.attention.key_bias, folder, at + "attention.self.key");
      expect_linear(w.attention.value, w.attention.value_bias, folder, at + "attention.self.value");
      expect_linear(w.attention.output, w.attention.output_bias, folder, at + "attention.output.dense");
      expect_norm(w.attention_norm, folder, at + "attention.output.LayerNorm");
      expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, at + "intermediate.dense");
      expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "output.dense");
      expect_norm(w.feed_forward_norm, folder, at + "output.LayerNorm");
      EXPECT_EQ(w.feed_forward.up.gate.data, nullptr);
      EXPECT_EQ(w.cross.query.data, nullptr);
    }
    ASSERT_TRUE(bert.has_pooler());
    expect_linear(bert.pooler().weight, bert.pooler().bias, folder, prefix + std::string("pooler.dense"));
    EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(bert.block(2)); }),
              checkpoint.path() + ": there is no block 2 among the 2 of this model");
  }
}

TEST(Bert, FindsEveryWeightWithAndWithoutPrefix) { expect_every_weight<float>(); }
TEST(Bert, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>();
  expect_every_weight<mha::half>();
}

TEST(Bert, WeightAndBiasOfANormMayBeCalledGammaAndBeta) {
  Folder folder;
  auto& tensors = folder.file.tensors;
  for (auto at = tensors.begin(); at != tensors.end();) {
    std::string name = at->first;
    const std::size_t norm = name.find("LayerNorm.");
    if (norm == name.npos) {
      ++at;
      continue;
    }
    name = name.substr(0, norm) + (name.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
    tensors[name] = at->second;
    at = tensors.erase(at);
  }
  const mha::Bert<float> bert(mha::Checkpoint(folder.write()));
  const auto w = bert.block(1).attention_norm;
  mha_test::expect_vector(w.weight, tensors.at("encoder.layer.1.attention.output.LayerNorm.gamma"));
  mha_test::expect_vector(w.bias, tensors.at("encoder.layer.1.attention.output.LayerNorm.beta"));
}

// Stored in 16 bits: as it is for its own scalar, widened for a wider one, and never rounded.
TEST(Bert, NarrowWeightsAreWidenedOnce) {
  const Folder<mha::bfloat16> folder;
  const mha::Checkpoint checkpoint(folder.write());
  const mha::Bert<mha::bfloat16> stored(checkpoint);
  expect_linear(stored.block(1).feed_forward.up.weight, stored.block(1).feed_forward.up.bias, folder,
                "encoder.layer.1.intermediate.dense");
  std::shared_ptr<const void> keep;
  mha::BlockWeights<double> w;
  {
    const mha::Bert<double> wide(checkpoint);
    w = wide.block(1);
    EXPECT_EQ(w.feed_forward.up.weight.data, wide.block(1).feed_forward.up.weight.data) << "once";
    keep = wide.mapping();
  }
  expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, "encoder.layer.1.intermediate.dense");
  const mha::Bert<float> single(checkpoint);
  expect_norm(single.block(0).attention_norm, folder, "encoder.layer.0.attention.output.LayerNorm");
  const Folder<> wide;
  const mha::Checkpoint floats(wide.write());
  EXPECT_EQ(
      mha_test::message_of<mha::SafetensorsError>([&] { mha::Bert<mha::bfloat16>{floats}; }),
      floats.path() + ": tensor 'encoder.layer.0.attention.output.LayerNorm.weight' has dtype F32, expected BF16");
}

std::string fault(const std::function<void(Folder<>&)>& change) {
  return mha_test::fault_after<mha::Bert<float>, Folder<>>(change);
}

TEST(Bert, WhatDoesNotFitIsOneSentence) {
  using F = Folder<>;
  EXPECT_EQ(fault([](F&) {}), "");
  EXPECT_EQ(fault([](F& f) { f.file.tensors.erase("encoder.layer.1.attention.self.key.bias"); }),
            "DIR/model.safetensors: there is no tensor 'encoder.layer.1.attention.self.key.bias' among the 39 of this "
            "checkpoint");
  EXPECT_EQ(fault([](F& f) {
              f.add("encoder.layer.1.attention.self.distance_embedding.weight", {3, 4});
            }),
            "DIR/model.safetensors: tensor 'encoder.layer.1.attention.self.distance_embedding.weight' is there, "
            "config.json asks for no such tensor in a block");
  EXPECT_EQ(fault([](F& f) {
              f.add("embeddings.position_ids", {1, 9});
              f.add("cls.predictions.bias", {3});
            }),
            "");
  EXPECT_EQ(fault([](F& f) {
              f.add("encoder.layer.1.intermediate.dense.weight", {E, H});
            }),
            "DIR/model.safetensors: tensor 'encoder.layer.1.intermediate.dense.weight' has shape (12, 20), config.json "
            "asks for (20, 12)");
  EXPECT_EQ(fault([](F& f) {
              f.add("embeddings.LayerNorm.bias", {E, 1});
            }),
            "DIR/model.safetensors: tensor 'embeddings.LayerNorm.bias' has shape (12, 1), config.json asks for (12)");
  EXPECT_EQ(
      fault([](F& f) { f.config["vocab_size"] = V + 1; }),
      "DIR/model.safetensors: tensor 'embeddings.word_embeddings.weight' has shape (17, 12), config.json asks for "
      "(18, 12)");
  EXPECT_EQ(fault([](F& f) { f.config["num_hidden_layers"] = 1; }),
            "DIR/model.safetensors: tensor 'encoder.layer.1.attention.output.LayerNorm.bias' is of block 1, counted "
            "from 0, but config.json asks for 1 blocks");
  EXPECT_EQ(fault([](F& f) { f.config["num_hidden_layers"] = 3; }),
            "DIR/model.safetensors: there is no tensor 'encoder.layer.2.attention.output.LayerNorm.weight' among the "
            "40 of this checkpoint");
  EXPECT_EQ(fault([](F& f) {
              f.add("pooler.dense.weight", {E, H});
            }),
            "DIR/model.safetensors: tensor 'pooler.dense.weight' has shape (12, 20), config.json asks for (12, 12)");
  EXPECT_EQ(fault([](F& f) { f.file.tensors.erase("embeddings.word_embeddings.weight"); }),
            "DIR/model.safetensors: there is no tensor 'embeddings.word_embeddings.weight' or "
            "'bert.embeddings.word_embeddings.weight' among the 39 of this checkpoint");
  EXPECT_EQ(fault([](F& f) {
              f.add("bert.embeddings.word_embeddings.weight", {V, E});
            }),
            "DIR/model.safetensors: tensor 'embeddings.word_embeddings.weight' is there, and "
            "'bert.embeddings.word_embeddings.weight' too, expected one of them");
}

TEST(Bert, ConfigsOfOtherModelsAreOneSentence) {
  using F = Folder<>;
  EXPECT_EQ(fault([](F& f) { f.config["model_type"] = "gpt2"; }),
            "DIR/config.json: 'model_type' is \"gpt2\", expected bert");
  EXPECT_EQ(fault([](F& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](F& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
  EXPECT_EQ(fault([](F& f) { f.config["is_decoder"] = true; }),
            "DIR/config.json: 'is_decoder' is true, expected false");
  EXPECT_EQ(fault([](F& f) { f.config["position_embedding_type"] = "relative_key"; }),
            "DIR/config.json: 'position_embedding_type' is \"relative_key\", expected \"absolute\"");
  EXPECT_EQ(fault([](F& f) { f.config.erase("hidden_act"); }), "DIR/config.json: there is no 'hidden_act'");
  EXPECT_EQ(fault([](F& f) { f.config["num_attention_heads"] = 5; }),
            "DIR/config.json: 'num_attention_heads' 5 does not divide 'hidden_size' 12");
}

}  // namespace
