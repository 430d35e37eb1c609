// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model.hpp"
#include "tiny_model.hpp"

namespace {

/// What loading the folder says, with the folder's own path left out.
std::string fault(const std::filesystem::path& folder) {
  std::string message = mha_test::message_of<std::runtime_error>([&] { semantic_search::SentenceModel model(folder); });
  for (std::size_t at; (at = message.find(folder.string())) != std::string::npos;)
    message.replace(at, folder.string().size(), "DIR");
  return message;
}

std::string fault_after(const std::function<void(tiny::Model&)>& change) {
  tiny::Model model;
  change(model);
  return fault(model.write());
}

TEST(Checkpoint, AGoodFolderLoads) {
  const tiny::Model model;
  const semantic_search::Checkpoint file(model.write());
  EXPECT_EQ(file.config().attention.num_heads, tiny::kHeads);
  EXPECT_EQ(file.max_tokens(), tiny::kPositions);  // never more than the positions
  EXPECT_EQ(fault(model.scratch.root()), "");
}

TEST(Checkpoint, APrefixOfTheEncoderIsFound) {
  const tiny::Model model;
  const auto folder = model.write();
  model.scratch.write("model.safetensors", model.weights("bert."));
  EXPECT_EQ(fault(folder), "");
}

TEST(Checkpoint, AMissingFolderSaysHowToGetIt) {
  EXPECT_EQ(fault("/no/such/folder"),
            "there is no model folder 'DIR': run cmake/fetch_minilm.sh to download all-MiniLM-L6-v2 (84 MB), or name "
            "a folder with --model");
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors"}) {
    const tiny::Model model;
    const auto folder = model.write();
    std::filesystem::remove(folder / file);
    EXPECT_EQ(fault(folder), std::string("the model folder 'DIR' has no ") + file +
                                 ": it should hold config.json, vocab.txt and model.safetensors, as "
                                 "cmake/fetch_minilm.sh makes it");
  }
}

TEST(Checkpoint, EveryKeyOfTheConfigIsNeeded) {
  for (const char* key : {"num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size",
                          "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_act"})
    EXPECT_EQ(fault_after([&](tiny::Model& m) { m.config.erase(key); }),
              std::string("DIR/config.json: there is no '") + key + "'");
}

TEST(Checkpoint, WhatTheConfigAsksForIsChecked) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    return fault_after([&](tiny::Model& m) { m.config[key] = value; });
  };
  EXPECT_EQ(with("hidden_act", "relu"), "DIR/config.json: the activation is relu, but the model is made with gelu");
  EXPECT_EQ(with("model_type", "gpt2"), "DIR/config.json: 'model_type' is \"gpt2\", expected bert");
  EXPECT_EQ(with("position_embedding_type", "relative_key"),
            "DIR/config.json: 'position_embedding_type' is \"relative_key\", expected \"absolute\"");
  EXPECT_EQ(with("hidden_size", 0), "DIR/config.json: 'hidden_size' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("hidden_size", -8), "DIR/config.json: 'hidden_size' is -8, expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("hidden_size", "8"),
            "DIR/config.json: 'hidden_size' is \"8\", expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("vocab_size", 5000000000),
            "DIR/config.json: 'vocab_size' is 5000000000, expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("num_attention_heads", 3), "DIR/config.json: 'num_attention_heads' 3 does not divide 'hidden_size' 8");
  EXPECT_EQ(with("layer_norm_eps", -1), "DIR/config.json: 'layer_norm_eps' is -1, expected at least 0");
}

TEST(Checkpoint, FilesThatAreNotJsonAreNamed) {
  const tiny::Model model;
  const auto folder = model.write();
  model.scratch.write("config.json", "{\"hidden_size\": ");
  EXPECT_EQ(fault(folder), "DIR/config.json: it is not valid JSON");
  model.scratch.write("config.json", "[]");
  EXPECT_EQ(fault(folder), "DIR/config.json: it is JSON, but not an object");
}

TEST(Checkpoint, WhatStandsBesideTheConfigIsChecked) {
  const tiny::Model model;
  const auto folder = model.write();
  model.scratch.write("sentence_bert_config.json", R"({"max_seq_length": 0})");
  EXPECT_EQ(fault(folder),
            "DIR/sentence_bert_config.json: 'max_seq_length' is 0, expected an integer from 1 to 2147483647");
  model.scratch.write("sentence_bert_config.json", "{}");
  EXPECT_EQ(fault(folder), "");
  const auto tokenizer = [&](const char* settings) {
    model.scratch.write("tokenizer_config.json", settings);
    return fault(folder);
  };
  EXPECT_EQ(tokenizer(R"({"model_max_length": 0})"),
            "DIR/tokenizer_config.json: 'model_max_length' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(tokenizer(R"({"model_max_length": "8"})"),
            "DIR/tokenizer_config.json: 'model_max_length' is \"8\", expected a number");
  EXPECT_EQ(tokenizer(R"({"strip_accents": 1})"),
            "DIR/tokenizer_config.json: 'strip_accents' is 1, expected true or false");
  EXPECT_EQ(tokenizer(R"({"tokenize_chinese_chars": false})"),
            "DIR/tokenizer_config.json: 'tokenize_chinese_chars' is false, expected true");
  EXPECT_EQ(tokenizer(R"({"tokenize_chinese_chars": true, "strip_accents": null})"), "");
  model.scratch.write("tokenizer_config.json", R"({"do_lower_case": 1})");
  EXPECT_EQ(fault(folder), "DIR/tokenizer_config.json: 'do_lower_case' is 1, expected true or false");
  model.scratch.write("tokenizer_config.json", "{\"do_lower_case\": ");
  EXPECT_EQ(fault(folder), "DIR/tokenizer_config.json: it is not valid JSON");
}

TEST(Checkpoint, WithoutMaxSeqLengthTheTokenizerLimitsTexts) {
  const tiny::Model model;
  const auto folder = model.write();
  const auto limit = [&](const char* tokenizer) {
    model.scratch.write("tokenizer_config.json", tokenizer);
    return semantic_search::Checkpoint(folder).max_tokens();
  };
  for (const char* sentence : {R"({"max_seq_length": null})", R"({"transformer_task": "feature-extraction"})"}) {
    model.scratch.write("sentence_bert_config.json", sentence);
    EXPECT_EQ(limit(R"({"model_max_length": 7})"), 7);
    EXPECT_EQ(limit(R"({"model_max_length": 1000000000000000019884624838656})"), tiny::kPositions);
    EXPECT_EQ(limit(R"({"model_max_length": 1e30})"), tiny::kPositions);
    EXPECT_EQ(limit(R"({"model_max_length": null})"), tiny::kPositions);
    EXPECT_EQ(limit("{}"), tiny::kPositions);
  }
  model.scratch.write("sentence_bert_config.json", R"({"max_seq_length": 9})");
  EXPECT_EQ(limit(R"({"model_max_length": 7})"), 9);
}

TEST(Checkpoint, AccentsAreStrippedAsTheTokenizerSays) {
  const tiny::Model model;
  const auto folder = model.write();
  const auto strips = [&](const char* tokenizer) {
    model.scratch.write("tokenizer_config.json", tokenizer);
    return semantic_search::Checkpoint(folder).strip_accents();
  };
  EXPECT_TRUE(strips("{}"));
  EXPECT_TRUE(strips(R"({"do_lower_case": true, "strip_accents": null})"));
  EXPECT_FALSE(strips(R"({"do_lower_case": true, "strip_accents": false})"));
  EXPECT_FALSE(strips(R"({"do_lower_case": false})"));
  EXPECT_TRUE(strips(R"({"do_lower_case": false, "strip_accents": true})"));
  EXPECT_EQ(semantic_search::SentenceModel(folder).tokenise("c\xC3\xA1t").ids, (std::vector<int>{2, 6, 3}));
}

TEST(Checkpoint, OtherPoolingIsRefused) {
  const tiny::Model model;
  const auto folder = model.write();
  model.scratch.write("1_Pooling/config.json",
                      R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false})");
  EXPECT_EQ(fault(folder), "");
  model.scratch.write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  EXPECT_EQ(fault(folder), "DIR/1_Pooling/config.json: 'pooling_mode_cls_token' is true, expected false");
  for (const std::string other : {"pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"}) {
    model.scratch.write("1_Pooling/config.json", "{\"" + other + "\": true}");
    EXPECT_EQ(fault(folder), "DIR/1_Pooling/config.json: '" + other + "' is true, expected false");
  }
  // As sentence-transformers 6 writes it.
  const auto mode = [&](const std::string& value) {
    model.scratch.write("1_Pooling/config.json",
                        R"({"embedding_dimension": 8, "include_prompt": true, "pooling_mode": )" + value + "}");
    return fault(folder);
  };
  EXPECT_EQ(mode("\"mean\""), "");
  EXPECT_EQ(mode("[\"mean\"]"), "");
  EXPECT_EQ(mode("\"cls\""), "DIR/1_Pooling/config.json: 'pooling_mode' is \"cls\", expected \"mean\"");
  EXPECT_EQ(mode("[\"mean\",\"max\"]"),
            "DIR/1_Pooling/config.json: 'pooling_mode' is [\"mean\",\"max\"], expected \"mean\"");
}

TEST(Checkpoint, MissingOrMisshapenTensorsAreNamed) {
  const std::string name = "encoder.layer.1.attention.self.query.weight";
  EXPECT_EQ(fault_after([&](tiny::Model& m) { m.tensors.erase(name); }),
            "DIR/model.safetensors: there is no tensor '" + name + "' among the 36 of this checkpoint");
  EXPECT_EQ(fault_after([&](tiny::Model& m) {
              m.add(name, {8, 7});
            }),
            "DIR/model.safetensors: tensor '" + name + "' has shape (8, 7), config.json asks for (8, 8)");
  EXPECT_EQ(fault_after([&](tiny::Model& m) { m.add("embeddings.LayerNorm.bias", {9}); }),
            "DIR/model.safetensors: tensor 'embeddings.LayerNorm.bias' has shape (9), config.json asks for (8)");
  EXPECT_EQ(fault_after([&](tiny::Model& m) {
              m.add("embeddings.LayerNorm.bias", {8, 1});
            }),
            "DIR/model.safetensors: tensor 'embeddings.LayerNorm.bias' has shape (8, 1), config.json asks for (8)");
  EXPECT_EQ(fault_after([&](tiny::Model& m) { m.config["vocab_size"] = 16; }),
            "DIR/model.safetensors: tensor 'embeddings.word_embeddings.weight' has shape (15, 8), config.json asks for "
            "(16, 8)");
}

TEST(Checkpoint, DamagedWeightsAreOneSentence) {
  const tiny::Model model;
  const auto folder = model.write();
  const std::string good = model.weights();
  const auto with = [&](const std::string& bytes) {
    model.scratch.write("model.safetensors", bytes);
    return fault(folder);
  };
  EXPECT_EQ(with(good.substr(0, good.size() - 100)).find("DIR/model.safetensors: tensor 'encoder.layer."), 0u);
  EXPECT_NE(with(good.substr(0, good.size() - 100)).find("(is it truncated?)"), std::string::npos);
  EXPECT_EQ(with("").find("DIR/model.safetensors: the file is truncated"), 0u);
  std::string long_header = good;
  long_header[3] = '\x01';  // 16 MiB longer
  EXPECT_EQ(with(long_header).find("DIR/model.safetensors: the header length is "), 0u);
  std::string other_dtype = good;
  other_dtype.replace(other_dtype.find("\"F32\""), 5, "\"I32\"");
  EXPECT_EQ(with(other_dtype), "DIR/model.safetensors: tensor 'embeddings.LayerNorm.bias' has dtype I32, expected F32");
}

TEST(Checkpoint, AVocabularyLargerThanTheModelIsRefused) {
  const tiny::Model model;
  const auto folder = model.write();
  std::string words;
  for (const char* word : tiny::kVocabulary) words += std::string(word) + "\n";
  model.scratch.write("vocab.txt", words + "extra\n");
  EXPECT_EQ(fault(folder), "DIR/vocab.txt: has 16 tokens, config.json says 15");
}

}  // namespace
