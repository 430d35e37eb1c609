// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/io/gemma.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_matrix;
using mha_test::expect_norm;
using mha_test::expect_vector;
using Windows = std::vector<Index>;

constexpr Index E = 12, H = 20, V = 17;

/// Two layers of 6 query heads on 2 key/value heads of 4.
struct Folder : mha_test::ModelFolder<float> {
  std::string prefix;

  explicit Folder(const std::string& type = "gemma2", std::string before = "model.") : prefix(std::move(before)) {
    config = {{"model_type", type},           {"num_hidden_layers", 2},   {"hidden_size", E},
              {"num_attention_heads", 6},     {"num_key_value_heads", 2}, {"head_dim", 4},
              {"intermediate_size", H},       {"rms_norm_eps", 1e-5},     {"vocab_size", V},
              {"max_position_embeddings", 32}};
    add(prefix + "embed_tokens.weight", {V, E});
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "layers." + i + ".";
      add_linear(at + "self_attn.q_proj", 24, E, false);
      add_linear(at + "self_attn.k_proj", 8, E, false);
      add_linear(at + "self_attn.v_proj", 8, E, false);
      add_linear(at + "self_attn.o_proj", E, 24, false);
      add_norm(at + "input_layernorm", E, false);
      add_norm(at + "post_attention_layernorm", E, false);
      if (type != "gemma")
        for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
          add_norm(at + norm, E, false);
      if (type == "gemma3_text")
        for (const char* norm : {"q_norm", "k_norm"}) add_norm(at + "self_attn." + norm, 4, false);
      add_linear(at + "mlp.gate_proj", H, E, false);
      add_linear(at + "mlp.up_proj", H, E, false);
      add_linear(at + "mlp.down_proj", E, H, false);
    }
    add_norm(prefix + "norm", E, false);
  }
};

template <class T> void expect_every_weight(const char* type) {
  SCOPED_TRACE(type);
  const bool gemma1 = std::string(type) == "gemma", gemma3 = std::string(type) == "gemma3_text";
  Folder folder(type, gemma1 ? "" : "model.");
  const mha::Checkpoint checkpoint(folder.write_as<T>());
  const mha::Gemma<T> gemma(checkpoint);
  const mha::GemmaConfig& c = gemma.config();
  EXPECT_EQ(c.model_type, type);
  EXPECT_EQ(c.attention.num_heads, 6);
  EXPECT_EQ(c.attention.num_kv_heads, 2);
  EXPECT_EQ(c.attention.head_dim, 4);
  EXPECT_FALSE(c.attention.bias || c.feed_forward.bias);
  EXPECT_EQ(c.activation, "gated gelu_tanh");
  EXPECT_EQ(c.norm.eps, 1e-5);
  EXPECT_TRUE(c.norm.zero_centered && c.tied);
  EXPECT_EQ(c.post_norms, !gemma1);
  EXPECT_EQ(c.qk_norm, gemma3);
  EXPECT_EQ(c.query_key_norm(), (mha::QkNorm{.eps = 1e-5, .zero_centered = true}));
  EXPECT_EQ(c.embedding_scale, std::sqrt(12.0));
  EXPECT_EQ(c.attention.scale, gemma1 ? std::nullopt : std::optional(1.0 / 16));
  for (int i = 0; i < 2; ++i) {
    const auto w = gemma.block(i);
    const std::string at = folder.prefix + "layers." + std::to_string(i) + ".";
    expect_linear(w.attention.query, w.attention.query_bias, folder, at + "self_attn.q_proj");
    expect_linear(w.attention.key, w.attention.key_bias, folder, at + "self_attn.k_proj");
    expect_linear(w.attention.value, w.attention.value_bias, folder, at + "self_attn.v_proj");
    expect_linear(w.attention.output, w.attention.output_bias, folder, at + "self_attn.o_proj");
    expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, at + "mlp.up_proj");
    expect_linear(w.feed_forward.up.gate, w.feed_forward.up.gate_bias, folder, at + "mlp.gate_proj");
    expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "mlp.down_proj");
    expect_norm(w.attention_norm, folder, at + "input_layernorm");
    if (gemma1) {
      expect_norm(w.feed_forward_norm, folder, at + "post_attention_layernorm");
      EXPECT_EQ(w.attention_post_norm.weight.extent[0] + w.feed_forward_post_norm.weight.extent[0], 0);
    } else {
      expect_norm(w.attention_post_norm, folder, at + "post_attention_layernorm");
      expect_norm(w.feed_forward_norm, folder, at + "pre_feedforward_layernorm");
      expect_norm(w.feed_forward_post_norm, folder, at + "post_feedforward_layernorm");
    }
    if (gemma3) {
      expect_vector(w.attention.query_norm, folder.file.tensors.at(at + "self_attn.q_norm.weight"));
      expect_vector(w.attention.key_norm, folder.file.tensors.at(at + "self_attn.k_norm.weight"));
    } else {
      EXPECT_EQ(w.attention.query_norm.extent[0], 0);
    }
  }
  expect_norm(gemma.final_norm(), folder, folder.prefix + "norm");
  const auto& tokens = folder.file.tensors.at(folder.prefix + "embed_tokens.weight");
  expect_matrix(gemma.token_embeddings(), tokens, true);
  expect_matrix(gemma.output().weight, tokens);
}

TEST(Gemma, FindsEveryWeight) {
  for (const char* type : {"gemma", "gemma2", "gemma3_text"}) expect_every_weight<float>(type);
}
TEST(Gemma, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>("gemma2");
  expect_every_weight<mha::half>("gemma3_text");
}

mha::GemmaConfig config_of(const Folder& folder) { return mha::Gemma<float>(mha::Checkpoint(folder.write())).config(); }

TEST(Gemma, BiasesAndAHeadThatConfigAsksFor) {
  Folder folder;
  folder.config["attention_bias"] = true;
  folder.config["tie_word_embeddings"] = false;
  for (const char* i : {"0", "1"}) {
    const std::string at = std::string("model.layers.") + i + ".self_attn.";
    folder.add(at + "q_proj.bias", {24}), folder.add(at + "k_proj.bias", {8});
    folder.add(at + "v_proj.bias", {8}), folder.add(at + "o_proj.bias", {E});
  }
  const mha::Gemma<float> headless(mha::Checkpoint(folder.write()));
  EXPECT_TRUE(headless.config().attention.has_output_bias());
  EXPECT_FALSE(headless.has_output());
  folder.add("lm_head.weight", {V, E});
  const mha::Gemma<float> gemma(mha::Checkpoint(folder.write()));
  expect_matrix(gemma.output().weight, folder.file.tensors.at("lm_head.weight"));
  expect_vector(gemma.block(1).attention.output_bias, folder.file.tensors.at("model.layers.1.self_attn.o_proj.bias"));
}

TEST(Gemma, WindowsOfEveryLayer) {
  EXPECT_EQ(config_of(Folder("gemma")).windows, (Windows{0, 0}));
  Folder gemma2;
  EXPECT_EQ(config_of(gemma2).windows, (Windows{4096, 0}));
  gemma2.config["sliding_window"] = 6;
  EXPECT_EQ(config_of(gemma2).windows, (Windows{6, 0}));
  EXPECT_EQ(config_of(gemma2).window(0).left.value, 5);
  EXPECT_EQ(config_of(gemma2).window(1).left.value, std::numeric_limits<Index>::max());
  gemma2.config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(config_of(gemma2).windows, (Windows{0, 6}));
  Folder gemma3("gemma3_text");
  gemma3.config["sliding_window"] = 7;
  EXPECT_EQ(config_of(gemma3).windows, (Windows{7, 7})) << "the sixth layer would have none";
  gemma3.config["sliding_window_pattern"] = 2;
  EXPECT_EQ(config_of(gemma3).windows, (Windows{7, 0}));
  gemma3.config["sliding_window_pattern"] = 1;
  EXPECT_EQ(config_of(gemma3).windows, (Windows{0, 0}));
}

TEST(Gemma, CapsAndScaleOfLogits) {
  Folder gemma2, gemma3("gemma3_text");
  EXPECT_EQ(config_of(gemma2).attention_cap, 50.f) << "as transformers where nothing is said";
  EXPECT_EQ(config_of(gemma2).logit_cap, 30.f);
  EXPECT_FALSE(config_of(gemma3).attention_cap || config_of(gemma3).logit_cap);
  gemma2.config["attn_logit_softcapping"] = gemma2.config["final_logit_softcapping"] = nullptr;
  EXPECT_FALSE(config_of(gemma2).attention_cap || config_of(gemma2).logit_cap);
  gemma2.config["attn_logit_softcapping"] = 2.5;
  gemma2.config["final_logit_softcapping"] = gemma3.config["final_logit_softcapping"] = 7;
  gemma2.config["query_pre_attn_scalar"] = 16;
  EXPECT_EQ(config_of(gemma2).attention_cap, 2.5f);
  EXPECT_EQ(config_of(gemma2).logit_cap, 7.f);
  EXPECT_EQ(config_of(gemma2).attention.scale, 0.25);
  EXPECT_EQ(config_of(gemma3).logit_cap, 7.f);
}

TEST(Gemma, RotaryPositionsOfBothGenerationsOfConfigs) {
  Folder gemma2;
  gemma2.config["sliding_window"] = 6;
  EXPECT_EQ(config_of(gemma2).scaled_rotary(0).base, 10000);
  gemma2.config["rope_parameters"] = {{"rope_theta", 500}, {"rope_type", "linear"}, {"factor", 2}};
  for (const int layer : {0, 1}) {
    EXPECT_EQ(config_of(gemma2).scaled_rotary(layer).base, 500);
    EXPECT_EQ(config_of(gemma2).scaled_rotary(layer).scaling, mha::AnyScaling(mha::LinearScaling{.factor = 2.0}));
  }

  Folder gemma3("gemma3_text");
  gemma3.config["sliding_window_pattern"] = 2;
  EXPECT_EQ(config_of(gemma3).scaled_rotary(0).base, 1e4);
  EXPECT_EQ(config_of(gemma3).scaled_rotary(1).base, 1e6);
  const auto expect = [&](double near, double far) {
    const mha::GemmaConfig c = config_of(gemma3);
    EXPECT_EQ(c.scaled_rotary(0).base, near);
    EXPECT_EQ(c.scaled_rotary(0).scaling, mha::AnyScaling());
    EXPECT_EQ(c.scaled_rotary(1).base, far);
    EXPECT_EQ(c.scaled_rotary(1).scaling, mha::AnyScaling(mha::LinearScaling{.factor = 8.0}));
  };
  gemma3.config["rope_theta"] = 300;
  gemma3.config["rope_local_base_freq"] = 200;
  gemma3.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  expect(200, 300);
  gemma3.config.erase("rope_scaling");
  gemma3.config["rope_parameters"] = {{"sliding_attention", {{"rope_theta", 20}, {"rope_type", "default"}}},
                                      {"full_attention", {{"rope_theta", 30}, {"rope_type", "linear"}, {"factor", 8}}}};
  expect(20, 30);
  gemma3.config["rope_parameters"].erase("sliding_attention");
  expect(200, 30);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(config_of(gemma3).scaled_rotary(2)); }),
            "scaled_rotary: there is no layer 2 among the 2");
  gemma3.config["rope_parameters"] = {{"full_attention", {{"rope_type", "dynamic"}, {"factor", 2}}}};
  EXPECT_EQ(config_of(gemma3).scaled_rotary(1).scaling, mha::AnyScaling());
  EXPECT_EQ(config_of(gemma3).scaled_rotary(1, 64).scaling, mha::AnyScaling(mha::NtkScaling{.factor = 3.0}));
}

// The first files say gelu and mean the one by way of tanh; later ones mean what they say.
TEST(Gemma, ActivationsOfEveryGeneration) {
  Folder gemma("gemma"), gemma2;
  gemma.config["hidden_act"] = gemma2.config["hidden_act"] = gemma2.config["hidden_activation"] = "gelu";
  EXPECT_EQ(config_of(gemma).activation, "gated gelu_tanh");
  EXPECT_EQ(config_of(gemma2).activation, "gated gelu");
}

std::string fault(const std::function<void(Folder&)>& change) {
  return mha_test::fault_after<mha::Gemma<float>, Folder>(change);
}
std::string fault_of(const char* key, const nlohmann::json& value, const char* type = "gemma2") {
  Folder folder(type);
  folder.config[key] = value;
  const std::string root = folder.write().string();
  std::string said = mha_test::message_of<mha::SafetensorsError>([&] { mha::Gemma<float>{mha::Checkpoint(root)}; });
  if (const auto at = said.find(root); at != said.npos) said.replace(at, root.size(), "DIR");
  return said;
}

TEST(Gemma, WhatDoesNotFitIsOneSentence) {
  EXPECT_EQ(fault([](Folder&) {}), "");
  EXPECT_EQ(fault_of("model_type", "gemma3"),
            "DIR/config.json: 'model_type' is \"gemma3\", expected gemma or gemma2 or gemma3_text");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
  EXPECT_EQ(fault_of("num_key_value_heads", 4),
            "DIR/config.json: 'num_key_value_heads' 4 does not divide 'num_attention_heads' 6");
  EXPECT_EQ(fault_of("num_key_value_heads", nullptr), "DIR/config.json: there is no 'num_key_value_heads'");
  EXPECT_EQ(fault_of("head_dim", nullptr),
            "DIR/model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight' has shape (24, 12), config.json "
            "asks for (1536, 12)");
  EXPECT_EQ(fault([](Folder& f) { f.file.tensors.erase("model.layers.1.post_feedforward_layernorm.weight"); }),
            "DIR/model.safetensors: there is no tensor 'model.layers.1.post_feedforward_layernorm.weight' among the 23 "
            "of this checkpoint");
  EXPECT_EQ(fault([](Folder& f) { f.add("model.layers.1.self_attn.q_norm.weight", {4}); }),
            "DIR/model.safetensors: tensor 'model.layers.1.self_attn.q_norm.weight' is there, config.json asks for "
            "none for model_type gemma2");
  EXPECT_EQ(fault_of("use_bidirectional_attention", true),
            "DIR/config.json: 'use_bidirectional_attention' is true, expected false");
  EXPECT_EQ(fault_of("use_bidirectional_attention", nullptr), "");
  EXPECT_EQ(fault([](Folder& f) { f.config["is_causal"] = false; }),
            "DIR/config.json: 'is_causal' is false, expected true");
  EXPECT_EQ(
      fault_of("hidden_activation", "mish"),
      "DIR/config.json: 'hidden_activation' is \"mish\", expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, "
      "silu, swish");
}

TEST(Gemma, CapsWindowsAndPositionsThatAreNotKnownAreOneSentence) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})
    EXPECT_EQ(fault_of(key, 0), std::string("DIR/config.json: '") + key + "' is 0, expected more than 0");
  // As doubles they are positive, but a SoftCap is float.
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    for (const auto& [value, text] : {std::pair{1e-46, "1e-46"}, std::pair{1e39, "1e+39"}, std::pair{1e300, "1e+300"}})
      EXPECT_EQ(fault_of(key, value), std::string("DIR/config.json: '") + key + "' is " + text +
                                          ", expected a float, from 1.40129846e-45 to 3.40282347e+38");
  EXPECT_EQ(fault_of("attn_logit_softcapping", 3e38), "");
  EXPECT_EQ(fault_of("attn_logit_softcapping", 50.0, "gemma3_text"),
            "DIR/config.json: 'attn_logit_softcapping' is 50.0, expected null");
  EXPECT_EQ(fault_of("attn_logit_softcapping", 50.0, "gemma"),
            "DIR/config.json: 'attn_logit_softcapping' is 50.0, expected null");
  EXPECT_EQ(fault_of("final_logit_softcapping", 30.0, "gemma"),
            "DIR/config.json: 'final_logit_softcapping' is 30.0, expected null");
  EXPECT_EQ(fault_of("sliding_window", nullptr),
            "DIR/config.json: 'sliding_window' is null, expected the window of the layers that have one");
  EXPECT_EQ(fault_of("sliding_window", 0),
            "DIR/config.json: 'sliding_window' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(fault_of("sliding_window_pattern", 0, "gemma3_text"),
            "DIR/config.json: 'sliding_window_pattern' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(fault_of("layer_types", {"full_attention"}),
            "DIR/config.json: 'layer_types' is [\"full_attention\"], expected a list of 2 texts, one a layer");
  EXPECT_EQ(fault_of("rope_parameters", 3, "gemma3_text"),
            "DIR/config.json: 'rope_parameters' is 3, expected an object");
  EXPECT_EQ(fault_of("rope_parameters", {{"rope_theta", 100}}, "gemma3_text"),
            "DIR/config.json: 'rope_parameters' is {\"rope_theta\":100}, expected an object with 'full_attention' and "
            "'sliding_attention'");
  EXPECT_EQ(fault_of("rope_parameters", {{"full_attention", 3}}, "gemma3_text"),
            "DIR/config.json: 'rope_parameters.full_attention' is 3, expected an object");
  EXPECT_EQ(fault_of("rope_parameters", {{"full_attention", {{"rope_type", "linear"}}}}, "gemma3_text"),
            "DIR/config.json: 'rope_parameters.full_attention' has no 'factor'");
  EXPECT_EQ(fault_of("rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}}}}),
            "DIR/config.json: 'rope_parameters' has 'full_attention', expected one set and none for a kind of layers");
  // transformers 4 takes these two into account, transformers 5 does not.
  EXPECT_EQ(fault_of("rope_scaling", {{"type", "linear"}, {"factor", 8}}, "gemma3_text"),
            "DIR/config.json: 'rope_scaling' has 'type', expected 'rope_type'");
  EXPECT_EQ(fault_of("rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 8}}, "gemma3_text"), "");
  EXPECT_EQ(fault_of("rope_scaling", {{"rope_type", "yarn"}, {"factor", 8}, {"truncate", false}}, "gemma3_text"),
            "DIR/config.json: 'truncate' is false, expected true for a kind of layers");
  EXPECT_EQ(fault_of("rope_scaling", {{"rope_type", "yarn"}, {"factor", 8}, {"truncate", true}}, "gemma3_text"), "");
  EXPECT_EQ(fault_of("rope_scaling", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}}}}, "gemma3_text"),
            "DIR/config.json: 'rope_scaling' has 'full_attention', expected one set and none for a kind of layers");
  for (const std::string type : {"gemma2", "gemma3_text"})
    EXPECT_EQ(fault([&](Folder& f) {
                f.config["model_type"] = type;
                f.config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
                f.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
              }),
              "DIR/config.json: there are both 'rope_parameters' and 'rope_scaling', expected one of them");
  EXPECT_EQ(fault_of("rope_local_base_freq", -1, "gemma3_text"),
            "DIR/config.json: 'rope_local_base_freq' is -1, expected more than 0");
}

}  // namespace
