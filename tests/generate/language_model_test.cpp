// SPDX-License-Identifier: Apache-2.0
#include "language_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint_copy.hpp"
#include "environment.hpp"
#include "gemma.hpp"
#include "gpt2.hpp"
#include "llama.hpp"
#include "scratch.hpp"

namespace {

using namespace generate;
namespace fs = std::filesystem;

fs::path data(const char* name) { return fs::path(MHA_MODELS_DATA) / name; }

std::vector<int> some_ids(int length) {
  std::vector<int> ids;
  for (int i = 0; i < length; ++i) ids.push_back(i * i * 7 % 32);
  return ids;
}

/// The logits behind each chunk.
std::vector<std::vector<float>> logits_of(const LanguageModel& model, const CacheOptions& options,
                                          std::span<const int> ids) {
  const auto text = model.begin(options);
  std::vector<std::vector<float>> all;
  for (std::size_t begin = 0; begin < ids.size();) {
    const auto n = std::min(static_cast<std::size_t>(options.chunk), ids.size() - begin);
    const auto logits = text->read(ids.subspan(begin, n));
    all.emplace_back(logits.begin(), logits.end());
    begin += n;
  }
  return all;
}

TEST(LanguageModel, HasTheLogitsOfItsFamily) {
  const std::vector<int> ids = some_ids(14);
  const std::pair<const char*, models::Rows> cases[]{
      {"gpt2", models::Gpt2<>(mha::Gpt2<float>(data("gpt2")))(ids)},
      {"llama", models::Llama<>(mha::Llama<float>(data("llama")))(ids)},
      {"mistral", models::Llama<>(mha::Llama<float>(data("mistral")))(ids)},
      {"qwen2", models::Llama<>(mha::Llama<float>(data("qwen2")))(ids)},
      {"qwen3", models::Llama<mha::QkNorm>(mha::Llama<float>(data("qwen3")))(ids)},
      {"phi3", models::Llama<>(mha::Llama<float>(data("phi3")))(ids)},
      {"gemma", models::Gemma<>(mha::Gemma<float>(data("gemma")))(ids)},
      {"gemma2", models::Gemma<mha::NoNorm, mha::SoftCap>(mha::Gemma<float>(data("gemma2")))(ids)},
      {"gemma3", models::Gemma<mha::QkNorm>(mha::Gemma<float>(data("gemma3")))(ids)},
  };
  for (const auto& [name, whole] : cases) {
    const auto model = open_model(data(name));
    EXPECT_EQ(model->facts().vocabulary, 32) << name;
    EXPECT_EQ(model->facts().positions, std::string(name) == "gpt2" ? 16 : 64) << name;
    EXPECT_EQ(model->facts().window, std::string(name) == "mistral" ? 5 : std::string(name) == "phi3" ? 7 : 0) << name;
    EXPECT_FALSE(model->facts().random_weights);
    for (const Storage storage : {Storage::contiguous, Storage::paged, Storage::ring}) {
      if (storage == Storage::ring && model->facts().window == 0) continue;
      const auto all = logits_of(*model, {.storage = storage, .positions = 14, .chunk = 7}, ids);
      ASSERT_EQ(all.size(), 2u);
      for (int i = 0; i < 2; ++i)
        for (int v = 0; v < 32; ++v)
          EXPECT_EQ(all[static_cast<std::size_t>(i)][static_cast<std::size_t>(v)], whole(i * 7 + 6, v)) << name;
    }
  }
}

// The families on a matrix unit: the logits of the processor, but for the rounding of factors to bfloat16, and the same
// for all storages and chunks.
TEST(LanguageModel, OnAMatrixUnitAgreesWithinItsRounding) {
  const support::Variable emulated("MHA_MATRIX_UNIT", "portable");
  const std::vector<int> ids = some_ids(14);
  const CacheOptions whole{.positions = 14, .chunk = 14};
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3"}) {
    const auto model = open_model(data(name), Weights::as_stored, 0, Machine::systolic);
    const auto found = logits_of(*model, whole, ids).back(),
               right = logits_of(*open_model(data(name)), whole, ids).back();
    float largest = 0;
    for (const float x : right) largest = std::max(largest, std::abs(x));
    for (std::size_t v = 0; v < right.size(); ++v) EXPECT_NEAR(found[v], right[v], 0.05f * largest) << name << v;
    EXPECT_NE(found, right) << name << ": nothing was rounded";
    for (const Storage storage : {Storage::contiguous, Storage::paged, Storage::ring}) {
      if (storage == Storage::ring && model->facts().window == 0) continue;
      for (const int chunk : {1, 5})
        EXPECT_EQ(logits_of(*model, {storage, Stored::in_float, 14, chunk}, ids).back(), found) << name << chunk;
    }
  }
}

// In 16 and in 8 bits the logits are others, but the same for all storages and chunks.
TEST(LanguageModel, StoresFewerBytes) {
  const auto model = open_model(data("mistral"));
  const std::vector<int> ids = some_ids(30);
  const CacheOptions wide{.positions = 30, .chunk = 30};
  const std::size_t bytes = model->begin(wide)->cache_bytes();
  const auto in_float = logits_of(*model, wide, ids).back();
  for (const Stored stored : {Stored::in_bfloat16, Stored::in_int8}) {
    const CacheOptions narrow{.stored = stored, .positions = 30, .chunk = 30};
    EXPECT_EQ(2 * model->begin(narrow)->cache_bytes(), bytes);  // heads of 4 numbers, beside a scale of 4 bytes
    const auto last = logits_of(*model, narrow, ids).back();
    EXPECT_NE(last, in_float);
    for (const Storage storage : {Storage::contiguous, Storage::paged, Storage::ring})
      for (const int chunk : {1, 7}) EXPECT_EQ(logits_of(*model, {storage, stored, 30, chunk}, ids).back(), last);
  }
}

/// The greedy text of a model behind some tokens, with the logits of each step.
std::pair<std::vector<int>, std::vector<std::vector<float>>> continued(const LanguageModel& model) {
  const auto text = model.begin({.positions = 40, .chunk = 12});
  std::vector<int> ids = some_ids(12);
  std::vector<std::vector<float>> all;
  std::span<const float> logits = text->read(ids);
  for (int i = 0; i < 28; ++i) {
    all.emplace_back(logits.begin(), logits.end());
    ids.push_back(static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    logits = text->read(std::span(&ids.back(), 1));
  }
  return {ids, all};
}

/// Weights in fewer bits than a checkpoint has: their name, what they take of float's memory at most (the matrices are
/// small, and so few inputs share a scale), and how far logits move.
struct Rounded {
  Weights weights;
  const char* scalar;
  double of_float;
  float near;
};

// In the scalar of the checkpoint or on another machine.
TEST(LanguageModel, RoundsTheWeights) {
  constexpr Rounded ways[] = {{Weights::in_int8, "scaled_int8", 0.4, 0.07f},
                              {Weights::in_int4, "scaled_int4", 0.25, 0.7f}};
  const support::Variable emulated("MHA_MATRIX_UNIT", "portable");
  const std::vector<int> ids = some_ids(14);
  const CacheOptions whole{.positions = 14, .chunk = 14};
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3"}) {
    SCOPED_TRACE(name);
    const auto exact = open_model(data(name), Weights::as_float);
    const auto right = logits_of(*exact, whole, ids).back();
    float largest = 0;
    for (const float x : right) largest = std::max(largest, std::abs(x));
    for (const Rounded& way : ways) {
      for (const Machine machine : {Machine::cpu, Machine::systolic}) {
        const auto model = open_model(data(name), way.weights, 0, machine);
        EXPECT_STREQ(model->facts().scalar, way.scalar);
        if (machine == Machine::cpu) {
          EXPECT_LT(static_cast<double>(model->weight_bytes()),
                    way.of_float * static_cast<double>(exact->weight_bytes()));
        }
        const auto found = logits_of(*model, whole, ids).back();
        for (std::size_t v = 0; v < right.size(); ++v) EXPECT_NEAR(found[v], right[v], way.near * largest) << v;
        EXPECT_NE(found, right) << "nothing was rounded";
        EXPECT_EQ(logits_of(*model, {Storage::paged, Stored::in_float, 14, 5}, ids).back(), found);
      }
    }
  }
}

TEST(LanguageModel, KeepsTheWeightsInTheScalarOfTheCheckpoint) {
  const mha_test::Scratch scratch;
  const auto expect = [](const fs::path& folder, const std::string& scalar) {
    SCOPED_TRACE(folder.string() + " in " + scalar);
    const auto stored = open_model(folder), wide = open_model(folder, Weights::as_float);
    EXPECT_EQ(stored->facts().scalar, scalar);
    EXPECT_STREQ(wide->facts().scalar, "float");
    EXPECT_EQ(wide->weight_bytes(), (scalar == "float" ? 1 : 2) * stored->weight_bytes());
    EXPECT_EQ(continued(*stored), continued(*wide));
  };
  for (const char* name : {"llama", "mistral", "qwen3", "phi3", "gemma2"}) {
    mha_test::CheckpointCopy copy(data(name));
    expect(copy.write_as<mha::half>(), "half");
    expect(copy.write_as<mha::bfloat16>(), "bfloat16");
    expect(copy.write(), "float");
  }
  expect(data("mistral"), "bfloat16");
}

// Those of the float checkpoint of the same numbers, which knows nothing of 16 bits.
TEST(LanguageModel, HasTheTokensOfTheRoundedWeights) {
  mha_test::CheckpointCopy narrow(data("llama")), rounded(data("llama"));
  const auto model = open_model(narrow.write_as<mha::bfloat16>());
  rounded.file = narrow.file;
  EXPECT_EQ(continued(*model), continued(*open_model(rounded.write())));
  EXPECT_NE(continued(*model).second, continued(*open_model(data("llama"))).second) << "nothing was rounded";
}

/// A checkpoint of two shards, the named tensor in float, all others in bfloat16.
fs::path with_one_in_float(mha_test::CheckpointCopy& from, const std::string& name) {
  from.write_as<mha::bfloat16>();
  mha_test::TensorFile<mha::bfloat16> narrow;
  mha_test::TensorFile<float> wide;
  nlohmann::json shard_of;
  for (const auto& [tensor, numbers] : from.file.tensors) {
    shard_of[tensor] = tensor == name ? "wide.safetensors" : "narrow.safetensors";
    if (tensor == name) {
      wide.tensors[tensor] = numbers;
      continue;
    }
    auto& to = narrow.tensors[tensor] = {numbers.shape, {}};
    for (const float x : numbers.values) to.values.push_back(mha::bfloat16(x));
  }
  from.scratch.write("wide.safetensors", wide.bytes());
  from.scratch.write("narrow.safetensors", narrow.bytes());
  from.scratch.write("model.safetensors.index.json", nlohmann::json{{"weight_map", shard_of}}.dump());
  fs::remove(from.scratch.root() / "model.safetensors");
  return from.scratch.root();
}

TEST(LanguageModel, WidensWhereATensorThatItReadsIsFloat) {
  mha_test::CheckpointCopy mixed(data("mistral")), spare(data("mistral"));
  const auto narrow = continued(*open_model(data("mistral")));
  const auto model = open_model(with_one_in_float(mixed, "model.norm.weight"));
  EXPECT_STREQ(model->facts().scalar, "float");
  EXPECT_EQ(continued(*model), narrow);
  spare.add("model.rotary_emb.inv_freq", {4});  // as old checkpoints have it, read by nobody
  const auto unread = open_model(with_one_in_float(spare, "model.rotary_emb.inv_freq"));
  EXPECT_STREQ(unread->facts().scalar, "bfloat16");
  EXPECT_EQ(continued(*unread), narrow);
}

/// A checkpoint with another config.json, and a generation_config.json if `generation` has one.
std::unique_ptr<LanguageModel> changed(const char* name, const char* key, const nlohmann::json& value,
                                       const std::string& generation = "", int length = 0) {
  const mha_test::Scratch scratch;
  nlohmann::json config;
  std::ifstream(data(name) / "config.json") >> config;
  config[key] = value;
  scratch.write("config.json", config.dump());
  if (!generation.empty()) scratch.write("generation_config.json", generation);
  fs::copy_file(data(name) / "model.safetensors", scratch.root() / "model.safetensors");
  return open_model(scratch.root(), Weights::as_stored, length);
}

// By the longest text: Phi-3's are the short factors up to 6 tokens, those of "dynamic" stretch beyond 64.
TEST(LanguageModel, MakesPositionsForTheLongestText) {
  const std::vector<int> ids = some_ids(6);
  const auto last = [&](const LanguageModel& model) {
    return logits_of(model, {.positions = 6, .chunk = 6}, ids).back();
  };
  const auto expected = [&](const auto& model) {
    const models::Rows logits = model(ids).bottomRows(1);
    return std::vector<float>(logits.data(), logits.data() + logits.size());
  };
  const auto open = [](const char* name, int length) { return open_model(data(name), Weights::as_stored, length); };
  const mha::Llama<float> phi3(data("phi3"));
  EXPECT_EQ(last(*open("phi3", 6)), expected(models::Llama<>(phi3, 6)));
  EXPECT_EQ(last(*open("phi3", 7)), expected(models::Llama<>(phi3)));
  EXPECT_NE(last(*open("phi3", 6)), last(*open("phi3", 0)));
  EXPECT_EQ(open("phi3", 6)->facts().positions, 64);
  EXPECT_FALSE(open("phi3", 6)->facts().stretches);
  const nlohmann::json dynamic{{"rope_type", "dynamic"}, {"factor", 2.0}};
  const auto stretched = changed("llama", "rope_parameters", dynamic, "", 128);
  EXPECT_EQ(stretched->facts().positions, 64);
  EXPECT_TRUE(stretched->facts().stretches);
  EXPECT_NE(last(*stretched), last(*changed("llama", "rope_parameters", dynamic)));
}

TEST(LanguageModel, KnowsWhatEndsAText) {
  const auto ends = [](const auto&... change) { return changed("gpt2", change...)->facts().ends; };
  EXPECT_EQ(ends("eos_token_id", 7), std::vector<int>{7});
  EXPECT_EQ(ends("eos_token_id", nullptr), std::vector<int>{});
  EXPECT_EQ(ends("eos_token_id", std::vector<int>{3, 4}), (std::vector<int>{3, 4}));
  EXPECT_EQ(ends("eos_token_id", 7, R"({"eos_token_id": [8, 9]})"), (std::vector<int>{8, 9}));
  EXPECT_EQ(ends("eos_token_id", 7, R"({"do_sample": true})"), std::vector<int>{7});
  EXPECT_TRUE(changed("gpt2", "mha_random_weights", true)->facts().random_weights);
}

TEST(LanguageModel, LooksBackAsFarAsItsLongestWindow) {
  // Qwen's first layer sees everything, or both look back.
  const auto window = [](const std::vector<std::string>& types) {
    const mha_test::Scratch scratch;
    nlohmann::json config;
    std::ifstream(data("qwen2") / "config.json") >> config;
    config.update({{"layer_types", types}, {"use_sliding_window", true}, {"sliding_window", 6}});
    scratch.write("config.json", config.dump());
    fs::copy_file(data("qwen2") / "model.safetensors", scratch.root() / "model.safetensors");
    return open_model(scratch.root())->facts().window;
  };
  EXPECT_EQ(window({"full_attention", "sliding_attention"}), 0);
  EXPECT_EQ(window({"sliding_attention", "sliding_attention"}), 6);
}

TEST(LanguageModel, RefusesWhatItCannotContinue) {
  const auto said = [](auto&& f) { return mha_test::message_of<std::exception>(f); };
  EXPECT_EQ(said([] { open_model("/no/such/model"); }),
            "there is no model in '/no/such/model': it should be a folder with config.json and model.safetensors");
  EXPECT_EQ(said([] { open_model(data("bert")); }),
            (data("bert") / "config.json").string() +
                ": 'model_type' is \"bert\", expected gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 or "
                "gemma3_text");
  EXPECT_TRUE(said([] {
                changed("gemma3", "model_type", "gemma3");
              }).ends_with("'model_type' is \"gemma3\", expected gemma or gemma2 or gemma3_text"));
  EXPECT_NE(said([] { changed("gpt2", "tie_word_embeddings", false); }).find("has no lm_head"), std::string::npos);
  EXPECT_NE(said([] { changed("gpt2", "eos_token_id", "end"); }).find("'eos_token_id' is \"end\", expected an integer"),
            std::string::npos);
  const auto llama = open_model(data("llama"));
  EXPECT_EQ(said([&] { llama->begin({.storage = Storage::ring, .positions = 4, .chunk = 1}); }),
            "a ring keeps the last tokens alone, but a layer of this model looks back at all");
}

}  // namespace
