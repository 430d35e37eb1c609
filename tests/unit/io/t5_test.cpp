// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <mha/io/t5.hpp>

#include "checkpoint_checks.hpp"
#include "failing_new.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_matrix;
using mha_test::expect_norm;

constexpr Index E = 12, H = 20, V = 17, D = 5, W = 3 * D;

/// An encoder of 2 blocks and a decoder of 1, whose 3 heads are 15 wide together.
struct Folder : mha_test::ModelFolder<float> {
  bool gated;

  explicit Folder(bool with_gate = true) : gated(with_gate) {
    config = {{"model_type", "t5"},
              {"num_layers", 2},
              {"num_decoder_layers", 1},
              {"d_model", E},
              {"d_kv", D},
              {"num_heads", 3},
              {"d_ff", H},
              {"layer_norm_epsilon", 1e-6},
              {"vocab_size", V},
              {"relative_attention_num_buckets", 8},
              {"relative_attention_max_distance", 20},
              {"feed_forward_proj", gated ? "gated-gelu" : "relu"}};
    add("shared.weight", {V, E});
    for (const char* i : {"0", "1"}) add_block(std::string("encoder.block.") + i + ".", false);
    add_block("decoder.block.0.", true);
    for (const std::string stack : {"encoder", "decoder"}) {
      add(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", {8, 3});
      add_norm(stack + ".final_layer_norm", E, false);
    }
  }
  void add_block(const std::string& at, bool decoder) {
    for (const char* part : {"layer.0.SelfAttention.", "layer.1.EncDecAttention."}) {
      if (!decoder && part[6] == '1') continue;
      for (const char* name : {"q", "k", "v"}) add_linear(at + part + name, W, E, false);
      add_linear(at + part + "o", E, W, false);
    }
    const std::string last = decoder ? "layer.2." : "layer.1.";
    add_norm(at + "layer.0.layer_norm", E, false);
    if (decoder) add_norm(at + "layer.1.layer_norm", E, false);
    add_norm(at + last + "layer_norm", E, false);
    if (gated) add_linear(at + last + "DenseReluDense.wi_0", H, E, false);
    add_linear(at + last + "DenseReluDense." + (gated ? "wi_1" : "wi"), H, E, false);
    add_linear(at + last + "DenseReluDense.wo", E, H, false);
  }
  void drop(const std::string& begin) {
    std::erase_if(file.tensors, [&](const auto& tensor) { return tensor.first.starts_with(begin); });
  }
};

template <class T>
void expect_block(const mha::BlockWeights<T>& w, const Folder& folder, const std::string& at, bool decoder) {
  SCOPED_TRACE(at);
  expect_linear(w.attention.query, w.attention.query_bias, folder, at + "layer.0.SelfAttention.q");
  expect_linear(w.attention.key, w.attention.key_bias, folder, at + "layer.0.SelfAttention.k");
  expect_linear(w.attention.value, w.attention.value_bias, folder, at + "layer.0.SelfAttention.v");
  expect_linear(w.attention.output, w.attention.output_bias, folder, at + "layer.0.SelfAttention.o");
  expect_norm(w.attention_norm, folder, at + "layer.0.layer_norm");
  if (decoder) {
    expect_linear(w.cross.query, w.cross.query_bias, folder, at + "layer.1.EncDecAttention.q");
    expect_linear(w.cross.key, w.cross.key_bias, folder, at + "layer.1.EncDecAttention.k");
    expect_linear(w.cross.value, w.cross.value_bias, folder, at + "layer.1.EncDecAttention.v");
    expect_linear(w.cross.output, w.cross.output_bias, folder, at + "layer.1.EncDecAttention.o");
    expect_norm(w.cross_norm, folder, at + "layer.1.layer_norm");
  } else {
    EXPECT_EQ(w.cross.query.data, nullptr);
  }
  const std::string last = at + (decoder ? "layer.2." : "layer.1.");
  expect_norm(w.feed_forward_norm, folder, last + "layer_norm");
  if (folder.gated)
    expect_linear(w.feed_forward.up.gate, w.feed_forward.up.gate_bias, folder, last + "DenseReluDense.wi_0");
  else
    EXPECT_EQ(w.feed_forward.up.gate.data, nullptr);
  expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder,
                last + "DenseReluDense." + (folder.gated ? "wi_1" : "wi"));
  expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, last + "DenseReluDense.wo");
}

template <class T> void expect_every_weight() {
  for (const bool gated : {true, false}) {
    Folder folder(gated);
    if (!gated) folder.config.erase("feed_forward_proj");  // the files of T5 1.0 have none
    const mha::Checkpoint checkpoint(folder.write_as<T>());
    const mha::T5<T> t5(checkpoint);
    const mha::T5Config& c = t5.config();
    EXPECT_EQ(c.layers, 2);
    EXPECT_EQ(c.decoder_layers, 1);
    EXPECT_EQ(c.attention.head_dim, D);
    EXPECT_EQ(c.attention.scale, 1);
    EXPECT_FALSE(c.attention.bias || c.feed_forward.bias);
    EXPECT_EQ(c.activation, gated ? "gated gelu_tanh" : "relu");
    EXPECT_EQ(c.output_scale, 1 / std::sqrt(12.0));
    for (int i = 0; i < 2; ++i)
      expect_block(t5.encoder_block(i), folder, "encoder.block." + std::to_string(i) + ".", false);
    ASSERT_TRUE(t5.has_decoder());
    expect_block(t5.decoder_block(0), folder, "decoder.block.0.", true);
    expect_norm(t5.encoder_norm(), folder, "encoder.final_layer_norm");
    expect_norm(t5.decoder_norm(), folder, "decoder.final_layer_norm");
    for (const bool decoder : {false, true}) {
      const mha::RelativeBias bias = decoder ? t5.decoder_bias() : t5.encoder_bias();
      EXPECT_EQ(bias.table(), folder.file.tensors
                                  .at(std::string(decoder ? "decoder" : "encoder") +
                                      ".block.0.layer.0.SelfAttention.relative_attention_bias.weight")
                                  .values);
      EXPECT_EQ(bias.buckets().count, 8);
      EXPECT_EQ(bias.buckets().max_distance, 20);
      EXPECT_EQ(bias.buckets().bidirectional, !decoder);
    }
    expect_matrix(t5.output().weight, folder.file.tensors.at("shared.weight"));
    EXPECT_EQ(t5.output().weight.data, (checkpoint.view<T, 2>("shared.weight").data)) << "no copy";
  }
}

TEST(T5, FindsEveryWeightOfBothStacks) { expect_every_weight<float>(); }
TEST(T5, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>();
  expect_every_weight<mha::half>();
}

TEST(T5, AnOutputOfItsOwnIsNotScaled) {
  Folder folder;
  folder.config["tie_word_embeddings"] = false;
  folder.add("lm_head.weight", {V, E});
  {
    const mha::T5<float> t5(mha::Checkpoint(folder.write()));
    EXPECT_EQ(t5.config().output_scale, 1);
    expect_matrix(t5.output().weight, folder.file.tensors.at("lm_head.weight"));
  }
  folder.config["tie_word_embeddings"] = true;  // as transformers 5 writes it, with a key of its own
  folder.config["scale_decoder_outputs"] = false;
  EXPECT_EQ(mha::T5<float>(mha::Checkpoint(folder.write())).config().output_scale, 1);
}

TEST(T5, AStackMayHaveACopyOfTheEmbeddings) {
  Folder folder;
  for (const char* stack : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"})
    folder.file.tensors[stack] = folder.file.tensors.at("shared.weight");
  const mha::T5<float> t5(mha::Checkpoint(folder.write()));
  EXPECT_EQ(t5.output().weight.data, t5.token_embeddings().data);
}

TEST(T5, AnEncoderAloneIsAModel) {
  Folder folder;
  folder.drop("decoder.");
  folder.file.tensors["encoder.embed_tokens.weight"] = folder.file.tensors.at("shared.weight");
  folder.drop("shared.");
  const mha::Checkpoint checkpoint(folder.write());
  const mha::T5<float> t5(checkpoint);
  EXPECT_FALSE(t5.has_decoder());
  EXPECT_EQ(t5.token_embeddings().extent[0], V);
  EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(t5.decoder_block(0)); }),
            checkpoint.path() + ": there is no block 0 among the 0 of this model");
}

// What has to be widened is widened by the constructor, so that later calls may come from many threads.
TEST(T5, TheOutputOfAnEncoderAloneIsReadOnce) {
  Folder folder;
  folder.drop("decoder.");
  folder.add("lm_head.weight", {V, E});
  const mha::T5<double> t5(mha::Checkpoint(folder.write()));
  support::largest_allocation = 0;
  const auto output = t5.output().weight;
  EXPECT_LT(support::largest_allocation, V * E * sizeof(double));
  EXPECT_EQ(output(2, 3), double(folder.file.tensors.at("lm_head.weight").values.at(3 * E + 2)));
}

std::string fault(const std::function<void(Folder&)>& change) {
  return mha_test::fault_after<mha::T5<float>, Folder>(change);
}

TEST(T5, WhatDoesNotFitIsOneSentence) {
  EXPECT_EQ(fault([](Folder&) {}), "");
  EXPECT_EQ(fault([](Folder& f) { f.config["feed_forward_proj"] = "relu"; }),
            "DIR/model.safetensors: tensor 'encoder.block.0.layer.1.DenseReluDense.wi_0.weight' is there, config.json "
            "asks for no such tensor in a block");
  const std::string table = "SelfAttention.relative_attention_bias.weight";
  EXPECT_EQ(fault([&](Folder& f) {
              f.add("encoder.block.1.layer.0." + table, {8, 3});
            }),
            "DIR/model.safetensors: tensor 'encoder.block.1.layer.0." + table +
                "' is there, config.json asks for no such tensor in a block");
  EXPECT_EQ(fault([](Folder& f) {
              f.add("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", {8, 3});
            }),
            "");
  EXPECT_EQ(
      fault([](Folder& f) { f.config["num_decoder_layers"] = nullptr; }),
      "DIR/model.safetensors: there is no tensor 'decoder.block.1.layer.0.layer_norm.weight' among the 37 of this "
      "checkpoint");
  EXPECT_EQ(
      fault([](Folder& f) { f.drop("decoder.final"); }),
      "DIR/model.safetensors: there is no tensor 'decoder.final_layer_norm.weight' among the 36 of this checkpoint");
  EXPECT_EQ(fault([](Folder& f) { f.config["tie_word_embeddings"] = false; }),
            "DIR/model.safetensors: there is no tensor 'lm_head.weight' among the 37 of this checkpoint");
  EXPECT_EQ(fault([](Folder& f) {
              f.add("encoder.embed_tokens.weight", {1, 1});
            }),
            "DIR/model.safetensors: tensor 'encoder.embed_tokens.weight' is no copy of 'shared.weight', expected the "
            "same embeddings in both stacks");
  EXPECT_EQ(fault([](Folder& f) {
              f.file.tensors["encoder.embed_tokens.weight"] = f.file.tensors.at("shared.weight");
              f.drop("shared.");
              f.add("decoder.embed_tokens.weight", {V, E});
            }),
            "DIR/model.safetensors: tensor 'decoder.embed_tokens.weight' is no copy of 'encoder.embed_tokens.weight', "
            "expected the same embeddings in both stacks");
  EXPECT_EQ(fault([](Folder& f) { f.config["scale_decoder_outputs"] = nullptr; }),
            "DIR/config.json: 'scale_decoder_outputs' is null, expected true or false");
  EXPECT_EQ(fault([](Folder& f) { f.config["num_decoder_layers"] = 2147483647; }),
            "DIR/config.json: 'num_decoder_layers' is 2147483647, expected at most 100000");
  EXPECT_EQ(fault([](Folder& f) { f.config["num_layers"] = 100001; }),
            "DIR/config.json: 'num_layers' is 100001, expected at most 100000");
  EXPECT_EQ(fault([](Folder& f) { f.config["d_kv"] = 4; }),
            "DIR/model.safetensors: tensor 'encoder.block.0.layer.0.SelfAttention.q.weight' has shape (15, 12), "
            "config.json asks for (12, 12)");
  EXPECT_EQ(fault([](Folder& f) { f.config["relative_attention_num_buckets"] = 9; }),
            "DIR/model.safetensors: tensor 'encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight' has "
            "shape (8, 3), config.json asks for (9, 3)");
  EXPECT_EQ(fault([](Folder& f) { f.config["relative_attention_num_buckets"] = 3; }),
            "DIR/config.json: 'relative_attention_num_buckets' is 3, expected at least 4");
  EXPECT_EQ(fault([](Folder& f) { f.config["relative_attention_max_distance"] = 4; }),
            "DIR/config.json: 'relative_attention_max_distance' 4 is not above half of "
            "'relative_attention_num_buckets' 8");
  EXPECT_EQ(
      fault([](Folder& f) { f.config["feed_forward_proj"] = "gated-mish"; }),
      "DIR/config.json: 'feed_forward_proj' is \"mish\", expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, "
      "silu, swish");
  mha_test::expect_common_names<mha::T5<float>, Folder>({{"num_hidden_layers", "num_layers"},
                                                         {"hidden_size", "d_model"},
                                                         {"num_attention_heads", "num_heads"},
                                                         {"head_dim", "d_kv"}});
  const auto beside = [](const char* kind, const char* key, const nlohmann::json& value) {
    return fault([&](Folder& f) {
      f.file.tensors = Folder(std::string(kind).starts_with("gated")).file.tensors;
      f.config["feed_forward_proj"] = kind;
      f.config[key] = value;
    });
  };
  EXPECT_EQ(beside("gated-gelu", "dense_act_fn", "gelu_new"), "");
  EXPECT_EQ(beside("gated-silu", "dense_act_fn", "silu"), "");
  EXPECT_EQ(beside("relu", "dense_act_fn", "relu"), "");
  EXPECT_EQ(beside("gated-gelu", "is_gated_act", true), "");
  EXPECT_EQ(beside("relu", "is_gated_act", false), "");
  EXPECT_EQ(
      beside("gated-gelu", "dense_act_fn", "gelu"),
      "DIR/config.json: 'dense_act_fn' is \"gelu\", expected \"gelu_new\" as 'feed_forward_proj' is \"gated-gelu\"");
  EXPECT_EQ(beside("relu", "dense_act_fn", "gelu_new"),
            "DIR/config.json: 'dense_act_fn' is \"gelu_new\", expected \"relu\" as 'feed_forward_proj' is \"relu\"");
  EXPECT_EQ(beside("relu", "dense_act_fn", nullptr),
            "DIR/config.json: 'dense_act_fn' is null, expected \"relu\" as 'feed_forward_proj' is \"relu\"");
  EXPECT_EQ(beside("gated-gelu", "is_gated_act", false),
            "DIR/config.json: 'is_gated_act' is false, expected true as 'feed_forward_proj' is \"gated-gelu\"");
  EXPECT_EQ(beside("relu", "is_gated_act", true),
            "DIR/config.json: 'is_gated_act' is true, expected false as 'feed_forward_proj' is \"relu\"");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "umt5"; }),
            "DIR/config.json: 'model_type' is \"umt5\", expected t5");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
  EXPECT_EQ(fault([](Folder& f) { f.config["is_causal"] = false; }),
            "DIR/config.json: 'is_causal' is false, expected true");
}

}  // namespace
