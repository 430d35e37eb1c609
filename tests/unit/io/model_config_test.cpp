// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <mha/io/model_config.hpp>

#include "scratch.hpp"

namespace {

using mha::ConfigFile;
using mha::ModelConfig;

constexpr mha::detail::ModelKeys keys{"layers", "width", "heads", "hidden", "eps"};

std::string says(std::string_view text, mha::Index head_dim = 0) {
  return mha_test::message_of<mha::SafetensorsError>([&] {
    ModelConfig c;
    mha::detail::read_sizes(ConfigFile("c", text), keys, c, head_dim);
  });
}

TEST(ModelConfig, SizesAreThoseOfTheParts) {
  ModelConfig c;
  mha::detail::read_sizes(ConfigFile("c", R"({"layers":3,"width":12,"heads":4,"hidden":20,"eps":1e-6})"), keys, c);
  EXPECT_EQ(c.path, "c");
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.attention.d_model, 12);
  EXPECT_EQ(c.attention.num_heads, 4);
  EXPECT_EQ(c.attention.num_kv_heads, 4);
  EXPECT_EQ(c.attention.head_dim, 3);
  EXPECT_EQ(c.feed_forward.d_model, 12);
  EXPECT_EQ(c.feed_forward.d_hidden, 20);
  EXPECT_EQ(c.norm.width, 12);
  EXPECT_EQ(c.norm.eps, 1e-6);
  mha::detail::read_sizes(ConfigFile("c", R"({"layers":3,"width":10,"heads":4,"hidden":20,"eps":0})"), keys, c, 7);
  EXPECT_EQ(c.attention.head_dim, 7);
}

TEST(ModelConfig, SizesThatDoNotFitAreRefused) {
  EXPECT_EQ(says(R"({"layers":3,"width":10,"heads":4,"hidden":20,"eps":0})"),
            "c: 'heads' 4 does not divide 'width' 10");
  EXPECT_EQ(says(R"({"layers":3,"width":10,"heads":4,"hidden":20,"eps":0})", 5), "");
  EXPECT_EQ(says(R"({"layers":3,"width":12,"heads":4,"hidden":20,"eps":-1})"), "c: 'eps' is -1, expected at least 0");
  EXPECT_EQ(says(R"({"layers":3,"width":12,"heads":4,"hidden":20})"), "c: there is no 'eps'");
  EXPECT_EQ(says(R"({"layers":3,"width":12,"heads":40000,"hidden":20,"eps":0})", 40000),
            "c: the width of all heads is 1600000000, the limit is 1073741823");
}

TEST(ModelConfig, ActivationsHaveTheNamesOfTheirTypes) {
  const ConfigFile file("c", "{}");
  const auto is = [&]<class F>(F, const char* name, const std::string& gate = "") {
    return mha_test::message_of<mha::SafetensorsError>([&] {
      ModelConfig c;
      c.path = "c";
      c.activation = gate + mha::detail::activation_of(file, "act", name);
      c.require_activation<F>();
    });
  };
  EXPECT_EQ(is(mha::Gelu{}, "gelu"), "");
  EXPECT_EQ(is(mha::GeluTanh{}, "gelu_new"), "");
  EXPECT_EQ(is(mha::GeluTanh{}, "gelu_pytorch_tanh"), "");
  EXPECT_EQ(is(mha::Relu{}, "relu"), "");
  EXPECT_EQ(is(mha::Silu{}, "silu"), "");
  EXPECT_EQ(is(mha::Silu{}, "swish"), "");
  EXPECT_EQ(is(mha::SwiGlu{}, "silu", "gated "), "");
  EXPECT_EQ(is(mha::Gated<mha::GeluTanh>{}, "gelu_new", "gated "), "");
  EXPECT_EQ(is(mha::Gelu{}, "gelu_new"), "c: the activation is gelu_tanh, but the model is made with gelu");
  EXPECT_EQ(is(mha::Silu{}, "silu", "gated "), "c: the activation is gated silu, but the model is made with silu");
  EXPECT_EQ(is(mha::Gelu{}, "mish"),
            "c: 'act' is \"mish\", expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish");
}

TEST(ModelConfig, AnotherFamilyIsRefused) {
  const auto type = [](std::string_view text) {
    return mha_test::message_of<mha::SafetensorsError>([&] {
      EXPECT_EQ(mha::detail::model_type_of(ConfigFile("c", text), {"llama", "qwen2"}), "qwen2");
    });
  };
  EXPECT_EQ(type(R"({"model_type":"qwen2"})"), "");
  EXPECT_EQ(type(R"({"model_type":"gpt2"})"), "c: 'model_type' is \"gpt2\", expected llama or qwen2");
  EXPECT_EQ(type("{}"), "c: there is no 'model_type'");
}

TEST(ModelConfig, ChangesThatNoFamilyReadsAreRefused) {
  const auto with = [](const std::string& key, const std::string& value) {
    const std::string text = R"({"model_type":"llama",")" + key + "\":" + value + "}";
    return mha_test::message_of<mha::SafetensorsError>(
        [&] { mha::detail::model_type_of(ConfigFile("c", text), {"llama"}); });
  };
  EXPECT_EQ(with("per_layer_config", "null"), "");
  EXPECT_EQ(with("per_layer_config", R"({"1":{"num_attention_heads":2}})"),
            "c: 'per_layer_config' is {\"1\":{\"num_attention_heads\":2}}, expected null");
  EXPECT_EQ(with("per_layer_config", "{}"), "c: 'per_layer_config' is {}, expected null");
  EXPECT_EQ(with("quantization_config", "null"), "");
  EXPECT_EQ(with("quantization_config", R"({"quant_method":"gptq"})"),
            "c: 'quantization_config' is {\"quant_method\":\"gptq\"}, but quantized weights are not read");
}

TEST(ModelConfig, ASizeByTwoNamesIsTheSame) {
  const auto beside = [](std::string_view text) {
    return mha_test::message_of<mha::SafetensorsError>(
        [&] { mha::detail::require_same_size(ConfigFile("c", text), "num_attention_heads", "n_head", 4); });
  };
  EXPECT_EQ(beside("{}"), "");
  EXPECT_EQ(beside(R"({"num_attention_heads":null})"), "");
  EXPECT_EQ(beside(R"({"num_attention_heads":4})"), "");
  EXPECT_EQ(beside(R"({"num_attention_heads":2})"), "c: 'num_attention_heads' is 2, expected 4 as 'n_head' is");
  EXPECT_EQ(beside(R"({"num_attention_heads":"4"})"), "c: 'num_attention_heads' is \"4\", expected 4 as 'n_head' is");
}

TEST(ModelConfig, ADecoderThatSeesWhatFollowsIsRefused) {
  const auto causal = [](std::string_view text) {
    return mha_test::message_of<mha::SafetensorsError>([&] { mha::detail::require_causal(ConfigFile("c", text)); });
  };
  EXPECT_EQ(causal("{}"), "");
  EXPECT_EQ(causal(R"({"is_causal":true})"), "");
  EXPECT_EQ(causal(R"({"is_causal":false})"), "c: 'is_causal' is false, expected true");
  EXPECT_EQ(causal(R"({"is_causal":null})"), "c: 'is_causal' is null, expected true");
}

}  // namespace
