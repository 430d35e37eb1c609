// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mha/systolic.hpp>

#include "environment.hpp"
#include "scratch.hpp"

namespace {

namespace fs = std::filesystem;

const std::string kRandom =
    "generate: the weights of this model are random, it was never trained: its text means nothing\n";

struct Result {
  int code;
  std::string out, log;
};

const fs::path kRandomBytes = fs::path(MHA_GOLDEN_DIR) / "random_bytes";

/// The model is one of bytes with random weights, unless the arguments name another.
Result run(std::vector<std::string> arguments, bool terminal = false) {
  if (std::find(arguments.begin(), arguments.end(), "--model") == arguments.end())
    arguments.insert(arguments.end(), {"--model", kRandomBytes.string()});
  std::vector<const char*> argv{"generate"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, log;
  const int code = generate::run(static_cast<int>(argv.size()), argv.data(), out, log, terminal);
  return {code, out.str(), log.str()};
}

TEST(GenerateApp, ContinuesThePromptAndReports) {
  const Result r = run({"--prompt", "Once", "--tokens", "5"});
  EXPECT_EQ(r.code, 0) << r.log;
  EXPECT_EQ(r.out.find("Once"), 0u);
  EXPECT_GT(r.out.size(), 5u);
  EXPECT_EQ(r.out.back(), '\n');
  EXPECT_EQ(r.log.find(kRandom + "prompt 4 tokens, "), 0u) << r.log;
  EXPECT_NE(r.log.find(" tokens/s; generated 5 tokens, "), std::string::npos) << r.log;
  // 9 positions of 2 layers, 2 heads of 8 numbers in a key and as many in a value.
  EXPECT_NE(r.log.find(" bytes in bfloat16; cache " + std::to_string(9 * 2 * 2 * 2 * 8 * 4) + " bytes\n"),
            std::string::npos)
      << r.log;
}

TEST(GenerateApp, SaysThatItsTextIsNotWritten) {
  const std::string folder = kRandomBytes.string();
  const std::vector<const char*> argv{"generate", "--model", folder.c_str(), "--tokens", "3"};
  std::ostringstream out, log;
  out.setstate(std::ios::badbit);  // as where the disk is full
  EXPECT_EQ(generate::run(static_cast<int>(argv.size()), argv.data(), out, log, false), 1);
  EXPECT_EQ(log.str(), kRandom + "generate: the text could not be written\n");
}

TEST(GenerateApp, RunsTheTrainedModelOfTheRepositoryByDefault) {
  std::ostringstream out, log;
  const std::vector<const char*> argv{"generate", "--temperature", "0", "--tokens", "60"};
  EXPECT_EQ(generate::run(static_cast<int>(argv.size()), argv.data(), out, log, false), 0) << log.str();
  EXPECT_EQ(out.str().find("Alice was "), 0u) << out.str();
  EXPECT_NE(out.str().find(" the "), std::string::npos) << out.str();  // it has learned words
  EXPECT_EQ(log.str().find("prompt 9 tokens, "), 0u) << log.str();
}

TEST(GenerateApp, WritesTheSameTextForAnyChunksAndStorage) {
  const std::string prompt = "the prompt has more bytes than the model's window, which is 32 of them";
  for (const std::string cache : {"float", "bfloat16", "int8"}) {
    const auto text = [&](const std::string& storage, const std::string& chunk, const std::string& seed) {
      const Result r = run({"-p", prompt, "-n", "120", "--cache", cache, "--storage", storage, "--chunk", chunk,
                            "--seed", seed, "--temperature", "0.9", "--top-k", "50", "--top-p", "0.95"});
      EXPECT_EQ(r.code, 0) << r.log;
      return r.out;
    };
    const std::string expected = text("contiguous", "1000", "3");
    for (const char* storage : {"contiguous", "paged", "ring"})
      for (const char* chunk : {"1", "7", "256"}) EXPECT_EQ(text(storage, chunk, "3"), expected) << storage << chunk;
    EXPECT_NE(text("contiguous", "1000", "4"), expected);
  }
}

TEST(GenerateApp, RunsOnTheMatrixUnitThatIsAsked) {
  const std::vector<std::string> arguments{"--prompt", "Once", "--tokens", "5", "--backend", "systolic"};
  {
    const support::Variable emulated("MHA_MATRIX_UNIT", "portable");
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 0) << r.log;
    EXPECT_EQ(r.out.find("Once"), 0u);
    EXPECT_TRUE(r.log.ends_with(std::string(" bytes; matrix unit ") + mha::to_string(mha::current_unit()) + "\n"))
        << r.log;
  }
  const support::Variable chosen_by_no_one("MHA_MATRIX_UNIT", nullptr);
  const Result r = run(arguments);
  const bool has_one = mha::best_unit() != mha::MatrixUnit::portable;
  EXPECT_EQ(r.code, has_one ? 0 : 1);
  EXPECT_EQ(
      r.log.find("generate: --backend systolic needs a matrix unit, but " + mha::missing(mha::MatrixUnit::amx)) == 0,
      !has_one)
      << r.log;
}

// The text is the same in float; in 8 and 4 bits it is one of its own.
TEST(GenerateApp, KeepsTheWeightsInTheBytesThatAreAsked) {
  const auto bytes = [](const Result& r, const std::string& scalar) {
    const std::string before = " tokens/s; weights ";
    const std::size_t at = r.log.find(before);
    EXPECT_NE(at, std::string::npos) << r.log;
    std::size_t digits = 0;
    const std::string rest = r.log.substr(at + before.size());
    const long count = std::stol(rest, &digits);
    EXPECT_EQ(rest.find(" bytes in " + scalar + "; cache "), digits) << r.log;
    return count;
  };
  const std::vector<std::string> arguments{"-p", "Down the rabbit", "-n", "100"};
  const auto with = [&](const char* weights) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--weights", weights});
    return run(all);
  };
  const Result plain = run(arguments), stored = with("stored"), wide = with("float"), eight = with("int8"),
               four = with("int4");
  EXPECT_EQ(plain.code, 0) << plain.log;
  EXPECT_GT(plain.out.size(), 16u);
  EXPECT_EQ(stored.out, plain.out);
  EXPECT_EQ(wide.out, plain.out);
  EXPECT_GT(bytes(plain, "bfloat16"), 0);
  EXPECT_EQ(bytes(stored, "bfloat16"), bytes(plain, "bfloat16"));
  EXPECT_EQ(bytes(wide, "float"), 2 * bytes(plain, "bfloat16"));
  for (const Result& rounded : {eight, four}) {
    EXPECT_EQ(rounded.code, 0) << rounded.log;
    EXPECT_EQ(rounded.out.find("Down the rabbit"), 0u);
    EXPECT_GT(rounded.out.size(), 16u);
  }
  EXPECT_GT(100 * bytes(eight, "scaled_int8"), 50 * bytes(plain, "bfloat16"));
  EXPECT_LT(100 * bytes(eight, "scaled_int8"), 58 * bytes(plain, "bfloat16"));
  EXPECT_GT(100 * bytes(four, "scaled_int4"), 28 * bytes(plain, "bfloat16"));
  EXPECT_LT(100 * bytes(four, "scaled_int4"), 33 * bytes(plain, "bfloat16"));
}

TEST(GenerateApp, GoesOnInARingBeyondTheModelsPositions) {
  const Result r = run({"--storage", "ring", "-p", std::string(4000, 'a'), "-n", "200"});
  EXPECT_EQ(r.code, 0) << r.log;
  EXPECT_NE(r.log.find("generated 200 tokens"), std::string::npos) << r.log;
}

TEST(GenerateApp, GeneratesAsFarAsThereArePositions) {
  const Result r = run({"-p", std::string(4000, 'a')});
  EXPECT_NE(r.log.find("prompt 4000 tokens"), std::string::npos) << r.log;
  EXPECT_NE(r.log.find("generated 96 tokens"), std::string::npos) << r.log;
  EXPECT_NE(run({"-p", "a"}).log.find("prompt 1 token, "), std::string::npos);
}

TEST(GenerateApp, ShowsProgressOnATerminalAlone) {
  const std::vector<std::string> arguments{"-p", "twelve bytes", "--chunk", "5", "-n", "1"};
  const std::string log = run(arguments, true).log;
  EXPECT_NE(log.find("\rreading the prompt, 5 of 12 tokens\rreading the prompt, 10 of 12 tokens"), std::string::npos);
  EXPECT_NE(log.find("12 of 12 tokens\r\033[K"), std::string::npos);
  EXPECT_EQ(run(arguments).log.find("reading"), std::string::npos);
  EXPECT_EQ(run({"-p", "short", "-n", "1"}, true).log.find("reading"), std::string::npos);
}

TEST(GenerateApp, EveryErrorIsOneSentence) {
  const auto said = [](const std::vector<std::string>& arguments) {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 1) << r.log;
    EXPECT_EQ(r.out, "");
    return r.log;
  };
  const auto data = [](const char* name) { return (fs::path(MHA_MODELS_DATA) / name).string(); };
  EXPECT_EQ(said({"--prompt", ""}),
            kRandom + "generate: the prompt is empty: a model goes on from one token at least\n");
  EXPECT_EQ(said({"--prompt", std::string(4097, 'a')}),
            kRandom + "generate: the prompt has 4097 tokens, the model has positions for 4096\n");
  EXPECT_EQ(said({"--prompt", "abc", "--tokens", "4094"}),
            kRandom + "generate: the prompt has 3 tokens and 4094 shall follow, the model has positions for 4096\n");
  EXPECT_EQ(
      said({"--model", "/no/such"}),
      "generate: there is no model in '/no/such': it should be a folder with config.json and model.safetensors\n");
  EXPECT_EQ(said({"--model", data("llama")}),
            "generate: there is no tokenizer.json in '" + data("llama") +
                "', and bytes cannot be tokens: the vocabulary is 32, they are 256\n");
  EXPECT_EQ(
      said({"--model", data("llama"), "--context", "65"}),
      "generate: the model has positions for 64 tokens, but the context is 65 (--context), and only the rope_type "
      "\"dynamic\" goes on\n");
  EXPECT_EQ(said({"--prompt", "Once", "--context", "3"}),
            kRandom + "generate: the prompt has 4 tokens, but the context is 3 (--context)\n");
  for (const char* storage : {"contiguous", "ring"})
    EXPECT_EQ(said({"--prompt", "Once", "--context", "8", "--tokens", "5", "--storage", storage}),
              kRandom + "generate: the prompt has 4 tokens and 5 shall follow, but the context is 8 (--context)\n");
  EXPECT_NE(said({"--context", "-1"}).find("--context"), std::string::npos);
  EXPECT_TRUE(said({"--model", data("t5")})
                  .ends_with("'model_type' is \"t5\", expected gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 "
                             "or gemma3_text\n"));
  EXPECT_EQ(said({"--temperature", "-1"}), "generate: the temperature must be a number from 0 on\n");
  EXPECT_EQ(said({"--top-p", "0"}), "generate: top-p must be a probability above 0 and at most 1\n");
  EXPECT_EQ(said({"--top-k", "-2"}), "generate: top-k must be a number of tokens, or 0 for all\n");
  EXPECT_EQ(said({"--storage", "tape"}).find("generate: --storage: tape not in {"), 0u);
  EXPECT_EQ(said({"--weights", "half"}).find("generate: --weights: half not in {"), 0u);
  EXPECT_EQ(said({"--chunk", "0"}).find("generate: --chunk: Value 0 not in range"), 0u);
}

/// The random weights under another configuration, with a tokenizer of 503 tokens.
class OtherModel : public ::testing::Test {
 protected:
  Result with(const char* key, const nlohmann::json& value, std::vector<std::string> arguments) {
    const fs::path from = kRandomBytes;
    nlohmann::json config;
    std::ifstream(from / "config.json") >> config;
    config[key] = value;
    scratch.write("config.json", config.dump());
    fs::copy_file(from / "model.safetensors", scratch.root() / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    arguments.insert(arguments.begin(), {"--model", scratch.root().string()});
    return run(arguments);
  }
  mha_test::Scratch scratch;
};

TEST_F(OtherModel, WithoutAWindowRefusesARing) {
  EXPECT_EQ(with("model_type", "llama", {"--storage", "ring"}).log,
            kRandom + "generate: a ring keeps the last tokens alone, but a layer of this model looks back at all\n");
}

// Up to 16 tokens its positions are others than beyond, and so is the text; unless told otherwise, by its own length.
TEST_F(OtherModel, MakesPositionsForTheTextItself) {
  const nlohmann::json longrope{{"rope_type", "longrope"},
                                {"original_max_position_embeddings", 16},
                                {"attention_factor", 1.0},
                                {"short_factor", {1, 1, 1, 1}},
                                {"long_factor", {9, 9, 9, 9}}};
  const auto text = [&](const std::string& tokens, const std::string& context, const std::string& storage) {
    const Result r =
        with("rope_parameters", longrope,
             {"-p", "Once a", "-n", tokens, "--context", context, "--storage", storage, "--temperature", "0"});
    EXPECT_EQ(r.code, 0) << r.log;
    return r.out;
  };
  for (const char* storage : {"contiguous", "ring"}) {
    EXPECT_EQ(text("10", "0", storage), text("10", "16", storage));
    EXPECT_NE(text("10", "0", storage), text("10", "17", storage));
    EXPECT_EQ(text("11", "0", storage), text("11", "4096", storage));
  }
}

// As Gemma 3's tokenizer has one for images, which its text model has no row for.
TEST_F(OtherModel, KnowsNoAddedTokensBeyondItsVocabulary) {
  nlohmann::json file;
  std::ifstream(fs::path(MHA_GOLDEN_DIR) / "bpe" / "gpt2.json") >> file;
  nlohmann::json vocabulary;
  for (const auto& [spelled, id] : file["model"]["vocab"].items())
    if (id < 256) vocabulary[spelled] = id;
  file["model"]["vocab"] = vocabulary;
  file["model"]["merges"] = nlohmann::json::array();
  file["added_tokens"] =
      nlohmann::json::array({{{"id", 256}, {"content", "<image>"}}, {{"id", 90000}, {"content", "<b>"}}});
  scratch.write("tokenizer.json", file.dump());
  const Result r = with("mha_random_weights", false, {"-p", "<image>", "-n", "40"});
  EXPECT_EQ(r.code, 0) << r.log;
  EXPECT_EQ(r.log.find("prompt 7 tokens, "), 0u) << r.log;
}

TEST_F(OtherModel, RefusesATokenizerOfAnotherVocabulary) {
  fs::copy_file(fs::path(MHA_GOLDEN_DIR) / "bpe" / "gpt2.json", scratch.root() / "tokenizer.json");
  EXPECT_EQ(with("mha_random_weights", false, {}).log,
            "generate: tokenizer.json has token 499, but the model's vocabulary is 256\n");
}

// Every token begins with a blank, which is not written where the text begins with it.
TEST_F(OtherModel, WritesTokensOverCharacters) {
  const std::string blank = "\xE2\x96\x81";
  nlohmann::json vocabulary{{"<unk>", 0}, {"<s>", 1}, {blank + "x", 2}, {blank, 3}, {"x", 4}};
  for (int id = 5; id < 256; ++id) vocabulary[blank + std::to_string(id)] = id;
  const nlohmann::json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", blank}},
      back{{"type", "Replace"}, {"pattern", {{"String", blank}}}, {"content", " "}},
      steps{back,
            {{"type", "ByteFallback"}},
            {{"type", "Fuse"}},
            {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}},
      prepend{{"type", "Prepend"}, {"prepend", blank}}, begin{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
      text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json file{
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"unk_token", "<unk>"},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array({blank + " x"})}}},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", nlohmann::json::array({prepend, replace})}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", steps}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", nlohmann::json::array({begin, text})},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}}}}}}}};
  scratch.write("tokenizer.json", file.dump());
  const Result empty = with("mha_random_weights", false, {"-p", "", "-n", "8"});
  EXPECT_EQ(empty.log.find("prompt 1 token, "), 0u) << empty.log;
  EXPECT_NE(empty.out.front(), ' ') << empty.out;
  EXPECT_EQ(std::count(empty.out.begin(), empty.out.end(), ' '), 7) << empty.out;
  const Result x = with("mha_random_weights", false, {"-p", "x", "-n", "8"});
  EXPECT_EQ(x.log.find("prompt 2 tokens, "), 0u) << x.log;
  EXPECT_EQ(x.out.find("x "), 0u) << x.out;
  EXPECT_EQ(std::count(x.out.begin(), x.out.end(), ' '), 8) << x.out;
}

TEST_F(OtherModel, StopsAtItsEnd) {
  const Result whole = with("eos_token_id", nullptr, {"-n", "50"});
  ASSERT_NE(whole.log.find("generated 50 tokens"), std::string::npos);
  // Whatever comes: all tokens end the text.
  std::vector<int> all;
  for (int i = 0; i < 256; ++i) all.push_back(i);
  const Result r = with("eos_token_id", all, {"-n", "50", "-p", "so"});
  EXPECT_EQ(r.out, "so\n");
  EXPECT_NE(r.log.find("generated 0 tokens; "), std::string::npos) << r.log;
}

}  // namespace
