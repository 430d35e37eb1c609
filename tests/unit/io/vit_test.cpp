// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <mha/io/vit.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_norm;

constexpr Index E = 12, H = 20, C = 2, PH = 4, PW = 3;

/// Images of 8 x 12 pixels in 2 x 4 patches.
struct Folder : mha_test::ModelFolder<float> {
  std::string prefix;

  explicit Folder(std::string before = "vit.", bool bias = true) : prefix(std::move(before)) {
    config = {{"model_type", "vit"},      {"num_hidden_layers", 2}, {"hidden_size", E},
              {"num_attention_heads", 3}, {"intermediate_size", H}, {"layer_norm_eps", 1e-12},
              {"hidden_act", "gelu"},     {"image_size", {8, 12}},  {"patch_size", {PH, PW}},
              {"num_channels", C},        {"qkv_bias", bias},       {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}};
    add(prefix + "embeddings.cls_token", {1, 1, E});
    add(prefix + "embeddings.position_embeddings", {1, 9, E});
    add(prefix + "embeddings.patch_embeddings.projection.weight", {E, C, PH, PW});
    add(prefix + "embeddings.patch_embeddings.projection.bias", {E});
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "encoder.layer." + i + ".";
      for (const char* part : {"query", "key", "value"}) add_linear(at + "attention.attention." + part, E, E, bias);
      add_linear(at + "attention.output.dense", E, E);
      add_norm(at + "layernorm_before", E);
      add_norm(at + "layernorm_after", E);
      add_linear(at + "intermediate.dense", H, E);
      add_linear(at + "output.dense", E, H);
    }
    add_norm(prefix + "layernorm", E);
    add_linear("classifier", 3, E);
  }
};

template <class T> void expect_every_weight() {
  for (const bool whole : {true, false}) {
    Folder folder(whole ? "vit." : "", whole);
    const mha::Checkpoint checkpoint(folder.write_as<T>());
    const mha::Vit<T> vit(checkpoint);
    const mha::VitConfig& c = vit.config();
    EXPECT_EQ(c.patches(), 8);
    EXPECT_EQ(c.patch_size(), C * PH * PW);
    EXPECT_EQ(c.labels, 3);
    EXPECT_EQ(c.attention.has_query_bias() && c.attention.has_key_bias() && c.attention.has_value_bias(), whole);
    EXPECT_TRUE(c.attention.has_output_bias() && c.feed_forward.bias);
    for (int i = 0; i < 2; ++i) {
      const auto w = vit.block(i);
      const std::string at = folder.prefix + "encoder.layer." + std::to_string(i) + ".";
      expect_linear(w.attention.query, w.attention.query_bias, folder, at + "attention.attention.query");
      expect_linear(w.attention.key, w.attention.key_bias, folder, at + "attention.attention.key");
      expect_linear(w.attention.value, w.attention.value_bias, folder, at + "attention.attention.value");
      expect_linear(w.attention.output, w.attention.output_bias, folder, at + "attention.output.dense");
      expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, at + "intermediate.dense");
      expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "output.dense");
      expect_norm(w.attention_norm, folder, at + "layernorm_before");
      expect_norm(w.feed_forward_norm, folder, at + "layernorm_after");
    }
    expect_norm(vit.final_norm(), folder, folder.prefix + "layernorm");
    expect_linear(vit.classifier().weight, vit.classifier().bias, folder, "classifier");
    const auto patches = vit.patches().weight;
    const auto& stored = folder.file.tensors.at(folder.prefix + "embeddings.patch_embeddings.projection.weight");
    ASSERT_EQ(patches.extent[0], c.patch_size());
    ASSERT_EQ(patches.extent[1], E);
    for (int e = 0; e < E; ++e)
      for (int channel = 0; channel < C; ++channel)
        for (int y = 0; y < PH; ++y)
          for (int x = 0; x < PW; ++x)
            ASSERT_EQ(support::to_double(patches((channel * PH + y) * PW + x, e)),
                      stored.values[static_cast<std::size_t>(((e * C + channel) * PH + y) * PW + x)]);
    mha_test::expect_vector(vit.patches().bias,
                            folder.file.tensors.at(folder.prefix + "embeddings.patch_embeddings.projection.bias"));
    mha_test::expect_vector(vit.class_token(), folder.file.tensors.at(folder.prefix + "embeddings.cls_token"));
    EXPECT_EQ(vit.position_embeddings().extent[0], 9);
    EXPECT_EQ(support::to_double(vit.position_embeddings()(8, E - 1)),
              folder.file.tensors.at(folder.prefix + "embeddings.position_embeddings").values.back());
    EXPECT_EQ(vit.classifier().weight.data, (checkpoint.view<T, 2>("classifier.weight").data)) << "no copy";
  }
}

TEST(Vit, FindsEveryWeightWithAndWithoutPrefix) { expect_every_weight<float>(); }
TEST(Vit, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>();
  expect_every_weight<mha::half>();
}

std::string fault(const std::function<void(Folder&)>& change) {
  return mha_test::fault_after<mha::Vit<float>, Folder>(change);
}

TEST(Vit, WhatDoesNotFitIsOneSentence) {
  EXPECT_EQ(fault([](Folder&) {}), "");
  EXPECT_EQ(fault([](Folder& f) { f.config["image_size"] = 12; }),
            "DIR/model.safetensors: tensor 'vit.embeddings.position_embeddings' has shape (1, 9, 12), config.json asks "
            "for (1, 13, 12)");
  EXPECT_EQ(
      fault([](Folder& f) { f.config["num_channels"] = 3; }),
      "DIR/model.safetensors: tensor 'vit.embeddings.patch_embeddings.projection.weight' has shape (12, 2, 4, 3), "
      "config.json asks for (12, 3, 4, 3)");
  EXPECT_EQ(fault([](Folder& f) { f.config["qkv_bias"] = false; }),
            "DIR/model.safetensors: tensor 'vit.encoder.layer.0.attention.attention.query.bias' is there, config.json "
            "asks for none");
  EXPECT_EQ(fault([](Folder& f) { f.config.erase("id2label"); }),
            "DIR/model.safetensors: tensor 'classifier.weight' has shape (3, 12), config.json asks for (2, 12)");
  EXPECT_EQ(fault([](Folder& f) {
              f.config.erase("id2label");
              f.config["num_labels"] = 3;
            }),
            "");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["id2label"] = {"a", "b", "c"};
            }),
            "DIR/config.json: 'id2label' is [\"a\",\"b\",\"c\"], expected an object");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["id2label"] = nullptr;
              f.config["num_labels"] = 4;
            }),
            "DIR/model.safetensors: tensor 'classifier.weight' has shape (3, 12), config.json asks for (4, 12)");
  EXPECT_EQ(fault([](Folder& f) {
              f.config.erase("id2label");
              f.config["num_labels"] = -1;
            }),
            "DIR/config.json: 'num_labels' is -1, expected an integer from 0 to 2147483647");
  EXPECT_EQ(fault([](Folder& f) { f.config["patch_size"] = 9; }),
            "DIR/config.json: 'patch_size' is (9, 9), but 'image_size' is (8, 12)");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["image_size"] = {8, 12, 3};
            }),
            "DIR/config.json: 'image_size' is [8,12,3], expected an integer from 1 to 2147483647");
  EXPECT_EQ(
      fault([](Folder& f) { f.config["image_size"] = f.config["num_channels"] = f.config["patch_size"] = 40000; }),
      "DIR/config.json: the width of a patch is 1600000000, the limit is 1073741823");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "deit"; }),
            "DIR/config.json: 'model_type' is \"deit\", expected vit");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
}

}  // namespace
