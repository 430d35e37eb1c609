// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/io/llama.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_matrix;
using mha_test::expect_norm;
using mha_test::expect_vector;

constexpr Index E = 12, H = 20, V = 17;

/// Two layers of 6 query heads on 2 key/value heads of 4.
struct Folder : mha_test::ModelFolder<float> {
  std::string prefix;

  explicit Folder(const std::string& type = "llama", std::string before = "model.") : prefix(std::move(before)) {
    const bool qwen2 = type == "qwen2", qwen3 = type == "qwen3", phi3 = type == "phi3";
    config = {{"model_type", type},       {"num_hidden_layers", 2},
              {"hidden_size", E},         {"num_attention_heads", 6},
              {"num_key_value_heads", 2}, {"head_dim", 4},
              {"intermediate_size", H},   {"rms_norm_eps", 1e-5},
              {"hidden_act", "silu"},     {"max_position_embeddings", 32},
              {"vocab_size", V},          {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}}};
    if (type == "mistral") config["sliding_window"] = 5;
    add(prefix + "embed_tokens.weight", {V, E});
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "layers." + i + ".";
      add_norm(at + "input_layernorm", E, false);
      if (phi3) {
        add_linear(at + "self_attn.qkv_proj", 40, E, false);
        add_linear(at + "mlp.gate_up_proj", 2 * H, E, false);
      } else {
        add_linear(at + "self_attn.q_proj", 24, E, qwen2);
        add_linear(at + "self_attn.k_proj", 8, E, qwen2);
        add_linear(at + "self_attn.v_proj", 8, E, qwen2);
        add_linear(at + "mlp.gate_proj", H, E, false);
        add_linear(at + "mlp.up_proj", H, E, false);
      }
      add_linear(at + "self_attn.o_proj", E, 24, false);
      if (qwen3) add_norm(at + "self_attn.q_norm", 4, false), add_norm(at + "self_attn.k_norm", 4, false);
      add_norm(at + "post_attention_layernorm", E, false);
      add_linear(at + "mlp.down_proj", E, H, false);
    }
    add_norm(prefix + "norm", E, false);
    add("lm_head.weight", {V, E});
  }
  /// As LLaMA has them where config.json asks for attention_bias and mlp_bias.
  void add_biases() {
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "layers." + i + ".";
      add(at + "self_attn.q_proj.bias", {24}), add(at + "self_attn.k_proj.bias", {8});
      add(at + "self_attn.v_proj.bias", {8}), add(at + "self_attn.o_proj.bias", {E});
      add(at + "mlp.gate_proj.bias", {H}), add(at + "mlp.up_proj.bias", {H}), add(at + "mlp.down_proj.bias", {E});
    }
  }
};

template <class T> void expect_blocks(const mha::Llama<T>& llama, const Folder& folder) {
  for (int i = 0; i < 2; ++i) {
    const auto w = llama.block(i);
    const std::string at = folder.prefix + "layers." + std::to_string(i) + ".";
    expect_linear(w.attention.query, w.attention.query_bias, folder, at + "self_attn.q_proj");
    expect_linear(w.attention.key, w.attention.key_bias, folder, at + "self_attn.k_proj");
    expect_linear(w.attention.value, w.attention.value_bias, folder, at + "self_attn.v_proj");
    expect_linear(w.attention.output, w.attention.output_bias, folder, at + "self_attn.o_proj");
    expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, at + "mlp.up_proj");
    expect_linear(w.feed_forward.up.gate, w.feed_forward.up.gate_bias, folder, at + "mlp.gate_proj");
    expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "mlp.down_proj");
    expect_norm(w.attention_norm, folder, at + "input_layernorm");
    expect_norm(w.feed_forward_norm, folder, at + "post_attention_layernorm");
    if (llama.config().qk_norm) {
      expect_vector(w.attention.query_norm, folder.file.tensors.at(at + "self_attn.q_norm.weight"));
      expect_vector(w.attention.key_norm, folder.file.tensors.at(at + "self_attn.k_norm.weight"));
    } else {
      EXPECT_EQ(w.attention.query_norm.extent[0], 0);
    }
  }
  expect_norm(llama.final_norm(), folder, folder.prefix + "norm");
}

template <class T> void expect_every_weight() {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    Folder folder(type, type == std::string("llama") ? "" : "model.");
    const mha::Checkpoint checkpoint(folder.write_as<T>());
    const mha::Llama<T> llama(checkpoint);
    const mha::LlamaConfig& c = llama.config();
    EXPECT_EQ(c.model_type, type);
    EXPECT_EQ(c.attention.num_heads, 6);
    EXPECT_EQ(c.attention.num_kv_heads, 2);
    EXPECT_EQ(c.attention.head_dim, 4);
    const bool qwen2 = type == std::string("qwen2");
    EXPECT_EQ(c.attention.has_query_bias() && c.attention.has_key_bias() && c.attention.has_value_bias(), qwen2);
    EXPECT_FALSE(c.attention.has_output_bias());
    EXPECT_FALSE(c.feed_forward.bias);
    EXPECT_EQ(c.activation, "gated silu");
    EXPECT_EQ(c.rotary().base, 5e5);
    EXPECT_EQ(c.window(0).left.value, type == std::string("mistral") ? 4 : std::numeric_limits<Index>::max());
    expect_blocks(llama, folder);
    expect_matrix(llama.output().weight, folder.file.tensors.at("lm_head.weight"));
    expect_matrix(llama.token_embeddings(), folder.file.tensors.at(folder.prefix + "embed_tokens.weight"), true);
    EXPECT_EQ(llama.block(1).feed_forward.up.gate.data,
              (checkpoint.view<T, 2>(folder.prefix + "layers.1.mlp.gate_proj.weight").data))
        << "no copy";
  }
}

TEST(Llama, FindsEveryWeightOfEveryRelative) { expect_every_weight<float>(); }
TEST(Llama, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>();
  expect_every_weight<mha::half>();
}

TEST(Llama, AnOutputBesideTiedEmbeddingsIsReadWhereItDiffers) {
  Folder folder("llama", "model.");
  folder.config["tie_word_embeddings"] = true;
  {
    const mha::Llama<float> llama(mha::Checkpoint(folder.write()));
    expect_matrix(llama.output().weight, folder.file.tensors.at("lm_head.weight"));
  }
  folder.file.tensors.at("lm_head.weight") = folder.file.tensors.at("model.embed_tokens.weight");
  const mha::Llama<float> llama(mha::Checkpoint(folder.write()));
  EXPECT_EQ(llama.output().weight.data, llama.token_embeddings().data);
}

TEST(Llama, BiasesAndSizesThatConfigAsksFor) {
  Folder folder("llama", "");
  folder.config["attention_bias"] = folder.config["mlp_bias"] = true;
  folder.config["num_key_value_heads"] = nullptr;
  folder.config.erase("head_dim");  // 2 = 12 / 6
  folder.config.erase("hidden_act");
  folder.add_biases();
  for (const char* i : {"0", "1"}) {
    const std::string at = std::string("layers.") + i + ".self_attn.";
    for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) folder.add_linear(at + part, E, E);
  }
  folder.file.tensors.erase("lm_head.weight");
  folder.config["tie_word_embeddings"] = true;
  const mha::Llama<float> llama(mha::Checkpoint(folder.write()));
  EXPECT_EQ(llama.config().attention.num_kv_heads, 6);
  EXPECT_EQ(llama.config().attention.head_dim, 2);
  EXPECT_TRUE(llama.config().attention.has_output_bias());
  EXPECT_TRUE(llama.config().feed_forward.bias);
  expect_blocks(llama, folder);
  expect_matrix(llama.output().weight, folder.file.tensors.at("embed_tokens.weight"));
}

/// w (in, out) is the rows of a tensor (out, in), from `first` on.
template <class W> void expect_rows(const W& w, const mha_test::FileTensor<float>& stored, Index first, Index rows) {
  ASSERT_EQ(w.extent[0], stored.shape[1]);
  ASSERT_EQ(w.extent[1], rows);
  for (Index i = 0; i < w.extent[0]; ++i)
    for (Index j = 0; j < rows; ++j)
      ASSERT_EQ(w(i, j), stored.values[static_cast<std::size_t>((first + j) * stored.shape[1] + i)]);
}

TEST(Llama, FindsThePartsOfPhi3sMatrices) {
  Folder folder("phi3");
  const mha::Llama<float> llama(mha::Checkpoint(folder.write()));
  for (int i = 0; i < 2; ++i) {
    const auto w = llama.block(i);
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const auto &qkv = folder.file.tensors.at(at + "self_attn.qkv_proj.weight"),
               &both = folder.file.tensors.at(at + "mlp.gate_up_proj.weight");
    expect_rows(w.attention.query, qkv, 0, 24);
    expect_rows(w.attention.key, qkv, 24, 8);
    expect_rows(w.attention.value, qkv, 32, 8);
    expect_rows(w.feed_forward.up.gate, both, 0, H);
    expect_rows(w.feed_forward.up.weight, both, H, H);
    EXPECT_EQ(
        w.attention.query_bias.extent[0] + w.feed_forward.up.bias.extent[0] + w.feed_forward.up.gate_bias.extent[0], 0);
    expect_linear(w.attention.output, w.attention.output_bias, folder, at + "self_attn.o_proj");
    expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "mlp.down_proj");
    expect_norm(w.attention_norm, folder, at + "input_layernorm");
    expect_norm(w.feed_forward_norm, folder, at + "post_attention_layernorm");
  }
  EXPECT_EQ(llama.config().windows, (std::vector<Index>{0, 0})) << "without a sliding_window";
  EXPECT_EQ(llama.config().rope.dims, 0);
}

mha::LlamaConfig config_of(const Folder& folder) { return mha::Llama<float>(mha::Checkpoint(folder.write())).config(); }

TEST(Llama, WindowsOfEveryLayer) {
  using Windows = std::vector<Index>;
  Folder qwen("qwen2");
  qwen.config["sliding_window"] = 6;
  EXPECT_EQ(config_of(qwen).windows, (Windows{0, 0})) << "not used";
  qwen.config["use_sliding_window"] = true;
  qwen.config["max_window_layers"] = 1;
  EXPECT_EQ(config_of(qwen).windows, (Windows{0, 6}));
  qwen.config["max_window_layers"] = 0;
  EXPECT_EQ(config_of(qwen).windows, (Windows{6, 6}));
  qwen.config["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(config_of(qwen).windows, (Windows{6, 0}));
  EXPECT_EQ(config_of(qwen).window(0).left.value, 5);
  Folder mistral("mistral");
  EXPECT_EQ(config_of(mistral).windows, (Windows{5, 5}));
  mistral.config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(config_of(mistral).windows, (Windows{0, 5}));
  mistral.config.erase("layer_types");
  mistral.config["sliding_window"] = nullptr;
  EXPECT_EQ(config_of(mistral).windows, (Windows{0, 0}));
  Folder phi3("phi3");
  phi3.config["sliding_window"] = 7;
  EXPECT_EQ(config_of(phi3).windows, (Windows{7, 7}));
}

TEST(Llama, RotaryPositionsOfBothGenerationsOfConfigs) {
  Folder folder;
  folder.config.erase("rope_parameters");
  EXPECT_EQ(config_of(folder).rotary().base, 10000);
  folder.config["rope_theta"] = 1e6;
  folder.config["rope_scaling"] = nullptr;
  EXPECT_EQ(config_of(folder).rotary().base, 1e6);
  EXPECT_EQ(config_of(folder).scaled_rotary().scaling, mha::AnyScaling(mha::Unscaled{}));
  const nlohmann::json llama3{{"factor", 32.0},
                              {"low_freq_factor", 1.5},
                              {"high_freq_factor", 4.5},
                              {"original_max_position_embeddings", 4096},
                              {"rope_type", "llama3"}};
  folder.config["rope_scaling"] = llama3;
  for (int generation = 4; generation < 6; ++generation) {
    const mha::LlamaConfig c = config_of(folder);
    const auto rotary = c.scaled_rotary();
    EXPECT_EQ(rotary.base, 1e6);
    EXPECT_EQ(rotary.scaling,
              (mha::Llama3Scaling{.factor = 32, .low_frequency = 1.5, .high_frequency = 4.5, .original_length = 4096}));
    const std::string said = mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(c.rotary()); });
    EXPECT_TRUE(said.ends_with("config.json: the rope_type is 'llama3', but the model is made without scaling"))
        << said;
    folder.config.erase("rope_theta");
    folder.config.erase("rope_scaling");
    folder.config["rope_parameters"] = llama3;
    folder.config["rope_parameters"]["rope_theta"] = 1e6;
  }
}

TEST(Llama, RotaryPositionsStretchedLinearlyAndByYarn) {
  const auto scaling = [](const nlohmann::json& parameters) {
    Folder folder;
    folder.config["max_position_embeddings"] = 512;
    folder.config["rope_parameters"] = parameters;
    return config_of(folder).scaled_rotary().scaling;
  };
  EXPECT_EQ(scaling({{"rope_type", "linear"}, {"factor", 4}}), mha::AnyScaling(mha::LinearScaling{.factor = 4.0}));
  EXPECT_EQ(scaling({{"rope_type", "yarn"}, {"factor", 4}}),
            (mha::YarnScaling{.factor = 4.0, .original_length = 512.0}));
  EXPECT_EQ(scaling({{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 64}}),
            (mha::YarnScaling{.factor = 8.0, .original_length = 64.0}));
  nlohmann::json yarn{{"type", "yarn"},  {"factor", 40},          {"original_max_position_embeddings", 64},
                      {"beta_fast", 16}, {"beta_slow", 2},        {"truncate", false},
                      {"mscale", 0.707}, {"mscale_all_dim", 1.0}, {"attention_factor", nullptr}};
  mha::YarnScaling wanted{.factor = 40.0, .original_length = 64.0, .fast = 16, .slow = 2, .rounded = false};
  wanted.attention_factor = (0.1 * 0.707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1);
  EXPECT_EQ(scaling(yarn), wanted);
  yarn["attention_factor"] = 1.25;
  wanted.attention_factor = 1.25;
  EXPECT_EQ(scaling(yarn), wanted);
}

// What depends on the length is for as many tokens as there are positions, or for as many as the caller says.
TEST(Llama, RotaryPositionsForTheLongestText) {
  Folder phi3("phi3");
  phi3.config["original_max_position_embeddings"] = 16;
  phi3.config["rope_parameters"] = {
      {"rope_type", "longrope"}, {"short_factor", {1}}, {"long_factor", {2}}, {"partial_rotary_factor", 0.5}};
  const mha::LlamaConfig c = config_of(phi3);
  const auto factor = [&](Index length) {
    return std::get<mha::LongRopeScaling>(c.scaled_rotary(length).scaling.one).factors;
  };
  EXPECT_EQ(factor(0), std::vector<double>{2}) << "32 positions";
  EXPECT_EQ(factor(16), std::vector<double>{1});
  EXPECT_EQ(factor(17), std::vector<double>{2});
  EXPECT_EQ(c.scaled_rotary().dims, 2);
  Folder llama;
  llama.config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2}};
  EXPECT_EQ(config_of(llama).scaled_rotary().scaling, mha::AnyScaling());
  EXPECT_EQ(config_of(llama).scaled_rotary(64).scaling, mha::AnyScaling(mha::NtkScaling{.factor = 3.0}));
  phi3.config["rope_parameters"] = {{"partial_rotary_factor", 0.5}};
  EXPECT_EQ(config_of(phi3).rotary().dims, 2);
}

TEST(Llama, BlocksMayHaveOldBuffersButNoTensorOfAnotherArchitecture) {
  const auto fault_with = [](const std::string& name, const char* type = "llama") {
    Folder folder(type);
    folder.add(name, {1});
    const mha::Checkpoint checkpoint(folder.write());
    const std::string fault =
        mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(mha::Llama<float>(checkpoint)); });
    return fault.empty() ? fault : fault.substr(checkpoint.path().size());
  };
  const auto refused = [](const std::string& name) {
    return ": tensor '" + name + "' is there, config.json asks for no such tensor in a block";
  };
  EXPECT_EQ(fault_with("model.layers.1.self_attn.rotary_emb.inv_freq"), "");
  EXPECT_EQ(fault_with("model.rotary_emb.inv_freq"), "");
  for (const char* name : {"model.layers.0.self_attn.sinks", "model.layers.1.mlp.experts.0.up_proj.weight",
                           "model.layers.1.pre_feedforward_layernorm.weight", "model.layers.0.mlp.up_proj.weight_scale",
                           "model.layers.00.mlp.up_proj.weight", "model.layers.norm.weight", "model.layers.0"})
    EXPECT_EQ(fault_with(name), refused(name));
  EXPECT_EQ(fault_with("model.layers.0.self_attn.q_proj.weight", "phi3"),
            refused("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_EQ(fault_with("model.layers.0.self_attn.qkv_proj.weight"),
            refused("model.layers.0.self_attn.qkv_proj.weight"));
}

std::string fault(const std::function<void(Folder&)>& change) {
  return mha_test::fault_after<mha::Llama<float>, Folder>(change);
}

TEST(Llama, WhatDoesNotFitIsOneSentence) {
  EXPECT_EQ(fault([](Folder&) {}), "");
  EXPECT_EQ(
      fault([](Folder& f) { f.config["num_key_value_heads"] = 3; }),
      "DIR/model.safetensors: tensor 'model.layers.0.self_attn.k_proj.weight' has shape (8, 12), config.json asks "
      "for (12, 12)");
  EXPECT_EQ(fault([](Folder& f) { f.config["num_key_value_heads"] = 4; }),
            "DIR/config.json: 'num_key_value_heads' 4 does not divide 'num_attention_heads' 6");
  EXPECT_EQ(fault([](Folder& f) { f.add("model.layers.1.self_attn.o_proj.bias", {E}); }),
            "DIR/model.safetensors: tensor 'model.layers.1.self_attn.o_proj.bias' is there, config.json asks for none");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "qwen2"; }),
            "DIR/model.safetensors: there is no tensor 'model.layers.0.self_attn.q_proj.bias' among the 21 of this "
            "checkpoint");
  EXPECT_EQ(
      fault([](Folder& f) { f.add("model.layers.1.self_attn.q_norm.weight", {4}); }),
      "DIR/model.safetensors: tensor 'model.layers.1.self_attn.q_norm.weight' is there, config.json asks for none "
      "for model_type llama");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "gemma"; }),
            "DIR/config.json: 'model_type' is \"gemma\", expected llama or mistral or qwen2 or qwen3 or phi3");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
  EXPECT_EQ(fault([](Folder& f) { f.config["hidden_act"] = "mish"; }),
            "DIR/config.json: 'hidden_act' is \"mish\", expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, "
            "swish");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "mistral"; }),
            "DIR/config.json: there is no 'sliding_window'");
  EXPECT_EQ(fault([](Folder& f) { f.config["is_causal"] = false; }),
            "DIR/config.json: 'is_causal' is false, expected true");
}

TEST(Llama, RotaryPositionsAndWindowsThatAreNotKnownAreOneSentence) {
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"]["rope_type"] = "mrope"; }),
            "DIR/config.json: 'rope_type' is \"mrope\", expected \"default\", \"linear\", \"dynamic\", \"llama3\", "
            "\"yarn\" or \"longrope\"");
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"]["rope_type"] = "longrope"; }),
            "DIR/config.json: 'rope_parameters' has no 'short_factor'");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4}, {"truncate", 1}};
            }),
            "DIR/config.json: 'truncate' is 1, expected true or false");
  for (const char* type : {"linear", "llama3", "yarn"})
    EXPECT_EQ(fault([&](Folder& f) {
                f.config["rope_parameters"] = {{"rope_type", type}, {"factor", 0}};
              }),
              "DIR/config.json: 'factor' is 0, expected more than 0");
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"]["rope_type"] = "llama3"; }),
            "DIR/config.json: 'rope_parameters' has no 'factor'");
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"]["rope_theta"] = 0; }),
            "DIR/config.json: 'rope_theta' is 0, expected more than 0");
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"]["partial_rotary_factor"] = 0.5; }),
            "DIR/config.json: 'partial_rotary_factor' is 0.5, expected 1.0");
  EXPECT_EQ(fault([](Folder& f) { f.config["rope_parameters"] = 3; }),
            "DIR/config.json: 'rope_parameters' is 3, expected an object");
  const auto windows = [](const nlohmann::json& types, const nlohmann::json& window) {
    return fault([&](Folder& f) {
      f.config["model_type"] = "qwen3";
      f.config["use_sliding_window"] = true;
      f.config["sliding_window"] = window;
      f.config["layer_types"] = types;
    });
  };
  EXPECT_EQ(windows({"full_attention"}, 4),
            "DIR/config.json: 'layer_types' is [\"full_attention\"], expected a list of 2 texts, one a layer");
  EXPECT_EQ(windows({"full_attention", "chunked_attention"}, 4),
            "DIR/config.json: 'layer_types' is \"chunked_attention\", expected \"full_attention\" or "
            "\"sliding_attention\"");
  EXPECT_EQ(windows({"full_attention", "sliding_attention"}, nullptr),
            "DIR/config.json: 'layer_types' has \"sliding_attention\", but there is no 'sliding_window' in use");
}

}  // namespace
