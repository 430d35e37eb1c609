// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <mha/io/gpt2.hpp>

#include "checkpoint_checks.hpp"

namespace {

using mha::Index;
using mha_test::expect_linear;
using mha_test::expect_matrix;
using mha_test::expect_norm;
using mha_test::expect_vector;

constexpr Index E = 12, V = 17, P = 9;

struct Folder : mha_test::ModelFolder<float> {
  std::string prefix;

  explicit Folder(std::string before = "") : prefix(std::move(before)) {
    config = {{"model_type", "gpt2"}, {"n_layer", 2},       {"n_embd", E},
              {"n_head", 3},          {"n_inner", nullptr}, {"layer_norm_epsilon", 1e-5},
              {"n_positions", P},     {"vocab_size", V},    {"activation_function", "gelu_new"},
              {"n_ctx", P + 1}};
    add(prefix + "wte.weight", {V, E});
    add(prefix + "wpe.weight", {P, E});
    for (const char* i : {"0", "1"}) {
      const std::string at = prefix + "h." + i + ".";
      add_norm(at + "ln_1", E);
      add_conv(at + "attn.c_attn", E, 3 * E);
      add_conv(at + "attn.c_proj", E, E);
      add_norm(at + "ln_2", E);
      add_conv(at + "mlp.c_fc", E, 4 * E);
      add_conv(at + "mlp.c_proj", 4 * E, E);
      add(at + "attn.bias", {1, 1, P, P});  // a mask that old files hold, which is not read
    }
    add_norm(prefix + "ln_f", E);
  }
  void add_conv(const std::string& name, Index in, Index out) {
    add(name + ".weight", {in, out});
    add(name + ".bias", {out});
  }
};

template <class T> void expect_every_weight(std::size_t shift = 0) {
  for (const char* prefix : {"", "transformer."}) {
    Folder folder(prefix);
    folder.file.shift = shift;
    const mha::Checkpoint checkpoint(folder.write_as<T>());
    const mha::Gpt2<T> gpt2(checkpoint);
    EXPECT_EQ(gpt2.config().positions, P);
    EXPECT_EQ(gpt2.config().feed_forward.d_hidden, 4 * E);
    EXPECT_EQ(gpt2.config().activation, "gelu_tanh");
    for (int i = 0; i < 2; ++i) {
      const auto w = gpt2.block(i);
      const std::string at = prefix + std::string("h.") + std::to_string(i) + ".";
      const auto& fused = folder.file.tensors.at(at + "attn.c_attn.weight");
      const auto& bias = folder.file.tensors.at(at + "attn.c_attn.bias");
      Index first = 0;
      for (const auto& [weight, row] :
           {std::pair{w.attention.query, w.attention.query_bias}, std::pair{w.attention.key, w.attention.key_bias},
            std::pair{w.attention.value, w.attention.value_bias}}) {
        ASSERT_EQ(weight.extent[1], E);
        expect_matrix(weight, fused, true, first);
        ASSERT_EQ(row.extent[0], E);
        expect_vector(row, bias, first);
        first += E;
      }
      expect_linear(w.attention.output, w.attention.output_bias, folder, at + "attn.c_proj", true);
      expect_linear(w.feed_forward.up.weight, w.feed_forward.up.bias, folder, at + "mlp.c_fc", true);
      expect_linear(w.feed_forward.down.weight, w.feed_forward.down.bias, folder, at + "mlp.c_proj", true);
      expect_norm(w.attention_norm, folder, at + "ln_1");
      expect_norm(w.feed_forward_norm, folder, at + "ln_2");
    }
    expect_norm(gpt2.final_norm(), folder, prefix + std::string("ln_f"));
    expect_matrix(gpt2.position_embeddings(), folder.file.tensors.at(prefix + std::string("wpe.weight")), true);
    const void* const stored = checkpoint.bytes(prefix + std::string("h.0.attn.c_attn.weight")).data();
    EXPECT_EQ(gpt2.block(0).attention.query.data == stored, shift == 0) << "no copy where there need not be one";
    expect_matrix(gpt2.output().weight, folder.file.tensors.at(prefix + std::string("wte.weight")));
    EXPECT_EQ(gpt2.output().bias.extent[0], 0);
  }
}

TEST(Gpt2, FindsEveryWeightWithAndWithoutPrefix) { expect_every_weight<float>(); }
TEST(Gpt2, FindsThemAtAnOddByte) {  // as in the Hub's own gpt2
  expect_every_weight<float>(1);
  expect_every_weight<mha::bfloat16>(5);
}
TEST(Gpt2, FindsThemIn16Bits) {
  expect_every_weight<mha::bfloat16>();
  expect_every_weight<mha::half>();
}

TEST(Gpt2, AnOutputOfItsOwnIsReadWhereItIsNotTied) {
  Folder folder("transformer.");
  folder.config["tie_word_embeddings"] = false;
  {
    const mha::Gpt2<float> base(mha::Checkpoint(folder.write()));
    EXPECT_FALSE(base.has_output());
    EXPECT_NE(mha_test::message_of<mha::SafetensorsError>([&] {
                static_cast<void>(base.output());
              }).find("there is no tensor 'lm_head.weight' among"),
              std::string::npos);
  }
  folder.add("lm_head.weight", {V, E});
  const mha::Gpt2<float> gpt2(mha::Checkpoint(folder.write()));
  ASSERT_TRUE(gpt2.has_output());
  expect_matrix(gpt2.output().weight, folder.file.tensors.at("lm_head.weight"));
}

TEST(Gpt2, AnOutputBesideTiedEmbeddingsIsReadWhereItDiffers) {
  Folder folder("transformer.");
  folder.file.tensors["lm_head.weight"] = folder.file.tensors.at("transformer.wte.weight");
  {
    const mha::Gpt2<float> gpt2(mha::Checkpoint(folder.write()));
    EXPECT_EQ(gpt2.output().weight.data, gpt2.token_embeddings().data);
  }
  folder.file.tensors.at("lm_head.weight").values.at(3) += 1;
  const mha::Gpt2<float> gpt2(mha::Checkpoint(folder.write()));
  expect_matrix(gpt2.output().weight, folder.file.tensors.at("lm_head.weight"));
}

TEST(Gpt2, BlocksMayHaveTheirMasks) {
  Folder folder("transformer.");
  folder.add("transformer.h.0.attn.bias", {1, 1, 8, 8});
  folder.add("transformer.h.1.attn.masked_bias", {1});
  EXPECT_EQ(mha::Gpt2<float>(mha::Checkpoint(folder.write())).config().layers, 2);
}

std::string fault(const std::function<void(Folder&)>& change) {
  return mha_test::fault_after<mha::Gpt2<float>, Folder>(change);
}

TEST(Gpt2, WhatDoesNotFitIsOneSentence) {
  EXPECT_EQ(fault([](Folder&) {}), "");
  EXPECT_EQ(fault([](Folder& f) {
              f.add("h.0.attn.c_attn.weight", {3 * E, E});
            }),
            "DIR/model.safetensors: tensor 'h.0.attn.c_attn.weight' has shape (36, 12), config.json asks for (12, 36)");
  EXPECT_EQ(fault([](Folder& f) { f.add("h.0.attn.c_attn.bias", {E}); }),
            "DIR/model.safetensors: tensor 'h.0.attn.c_attn.bias' has shape (12), config.json asks for (36)");
  EXPECT_EQ(fault([](Folder& f) { f.add("h.1.crossattention.c_attn.bias", {E}); }),
            "DIR/model.safetensors: tensor 'h.1.crossattention.c_attn.bias' is there, config.json asks for no such "
            "tensor in a block");
  EXPECT_EQ(fault([](Folder& f) { f.config["n_inner"] = 20; }),
            "DIR/model.safetensors: tensor 'h.0.mlp.c_fc.weight' has shape (12, 48), config.json asks for (12, 20)");
  EXPECT_EQ(fault([](Folder& f) {
              f.add("lm_head.weight", {V, E + 1});
            }),
            "DIR/model.safetensors: tensor 'lm_head.weight' has shape (17, 13), config.json asks for (17, 12)");
  EXPECT_EQ(fault([](Folder& f) {
              f.add("lm_head.bias", {V}), f.add("lm_head.weight", {V, E});
            }),
            "DIR/model.safetensors: tensor 'lm_head.bias' is there, config.json asks for none");
  EXPECT_EQ(fault([](Folder& f) { f.config["model_type"] = "bert"; }),
            "DIR/config.json: 'model_type' is \"bert\", expected gpt2");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["per_layer_config"] = {{"1", {{"norm", 2}}}};
            }),
            "DIR/config.json: 'per_layer_config' is {\"1\":{\"norm\":2}}, expected null");
  EXPECT_EQ(fault([](Folder& f) {
              f.config["quantization_config"] = {{"bits", 4}};
            }),
            "DIR/config.json: 'quantization_config' is {\"bits\":4}, but quantized weights are not read");
  EXPECT_EQ(fault([](Folder& f) { f.config["scale_attn_by_inverse_layer_idx"] = true; }),
            "DIR/config.json: 'scale_attn_by_inverse_layer_idx' is true, expected false");
  EXPECT_EQ(fault([](Folder& f) { f.config["is_causal"] = false; }),
            "DIR/config.json: 'is_causal' is false, expected true");
  mha_test::expect_common_names<mha::Gpt2<float>, Folder>({{"num_hidden_layers", "n_layer"},
                                                           {"hidden_size", "n_embd"},
                                                           {"num_attention_heads", "n_head"},
                                                           {"max_position_embeddings", "n_positions"}});
  EXPECT_EQ(fault([](Folder& f) {
              f.config["n_embd"] = 300'000'000;
              f.config["n_head"] = 1;
            }),
            "DIR/config.json: the width of mlp.c_fc is 1200000000, the limit is 1073741823");
}

}  // namespace
