// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

#include "progress.hpp"
#include "scratch.hpp"

namespace {

namespace fs = std::filesystem;

struct Result {
  int code;
  std::string out, log;
};

Result run(const std::vector<std::string>& arguments, bool terminal = false) {
  std::vector<const char*> argv{"train"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, log;
  const int code = train::run(static_cast<int>(argv.size()), argv.data(), out, log, terminal);
  return {code, out.str(), log.str()};
}

std::string bytes_of(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

/// The first bytes of the carried text, as a file of its own.
class TrainApp : public ::testing::Test {
 protected:
  void SetUp() override { text = scratch.write("some.txt", bytes_of(TRAIN_DEFAULT_TEXT).substr(0, 4000)).string(); }

  Result train(const std::string& folder, std::vector<std::string> arguments, bool terminal = false) {
    arguments.insert(arguments.end(), {"--text", text, "--out", (scratch.root() / folder).string(), "--tokens", "20"});
    return run(arguments, terminal);
  }
  std::string file(const std::string& folder, const char* name) const {
    return bytes_of(scratch.root() / folder / name);
  }

  mha_test::Scratch scratch;
  std::string text;
};

TEST_F(TrainApp, LearnsAndWritesEverything) {
  const Result r = train("out", {"--steps", "15", "--prompt", "Alice"});
  ASSERT_EQ(r.code, 0) << r.log;
  const std::string begins =
      "197184 parameters, 15 steps of 8 windows of 128 characters from some.txt: the loss on the "
      "held-out 400 characters fell from ";
  ASSERT_EQ(r.log.find(begins), 0u) << r.log;
  EXPECT_NEAR(std::stod(r.log.substr(begins.size())), 5.55, 0.1) << r.log;  // ln 256
  const std::size_t to = r.log.find(" to ", begins.size());
  EXPECT_LT(std::stod(r.log.substr(to + 4)), 4.1) << r.log;
  EXPECT_EQ(r.out.find("Alice"), 0u);
  EXPECT_NE(file("out", "config.json").find("\"mha_made_by\": \"train --steps 15 --seed 1 --text some.txt\""),
            std::string::npos);
  EXPECT_EQ(file("out", "loss.svg").find("<svg"), 0u);
  const std::string page = file("out", "page.html");
  EXPECT_NE(page.find("<b>Alice</b>"), std::string::npos);
  EXPECT_NE(page.find("layer 3, head 3"), std::string::npos);
}

TEST_F(TrainApp, MakesTheSameModelWithAnyThreads) {
  ASSERT_EQ(train("one", {"--steps", "2", "--threads", "1"}).code, 0);
  const Result r = train("more", {"--steps", "2", "--threads", "3"});
  ASSERT_EQ(r.code, 0) << r.log;
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "loss.svg", "page.html"})
    EXPECT_TRUE(file("more", name) == file("one", name)) << name;
  ASSERT_EQ(train("other", {"--steps", "2", "--seed", "2"}).code, 0);
  EXPECT_FALSE(file("other", "model.safetensors") == file("one", "model.safetensors"));
}

// A training is not lost for the name of its text.
TEST_F(TrainApp, TakesATextWhoseNameIsNotUtf8) {
  const fs::path odd = scratch.root() / "b\xFFy.txt";
  std::error_code error;
  fs::copy_file(text, odd, error);
  if (error) GTEST_SKIP() << "this file system has no such names";
  text = odd.string();
  const Result r = train("out", {"--steps", "1"});
  EXPECT_EQ(r.code, 0) << r.log;
  EXPECT_NE(file("out", "config.json").find("--text b\xEF\xBF\xBDy.txt\""), std::string::npos);
}

TEST_F(TrainApp, SaysThatItsTextIsNotWritten) {
  const std::string folder = (scratch.root() / "out").string();
  const std::vector<const char*> argv{"train", "--text", text.c_str(), "--out", folder.c_str(), "--steps", "1"};
  std::ostringstream out, log;
  out.setstate(std::ios::badbit);  // as where the disk is full
  EXPECT_EQ(train::run(static_cast<int>(argv.size()), argv.data(), out, log, false), 1);
  EXPECT_TRUE(log.str().ends_with("train: the text that the model goes on with could not be written\n")) << log.str();
  EXPECT_TRUE(fs::exists(scratch.root() / "out" / "page.html"));
}

TEST_F(TrainApp, ShowsProgressOnATerminalAlone) {
  const std::string log = train("out", {"--steps", "8"}, true).log;
  EXPECT_EQ(log.find("\rstep "), 0u) << log;
  EXPECT_NE(log.find(" characters/s, 0:0"), std::string::npos) << log;
  EXPECT_EQ(train("out", {"--steps", "1"}).log.find("\r"), std::string::npos);
}

TEST(TrainProgress, TellsStepLossSpeedAndTimeLeft) {
  std::ostringstream out;
  const train::Progress progress(out, false, 1500, 1000);
  EXPECT_EQ(progress.line(300, 2.0249, 10),
            "step 300/1500 [######........................] loss 2.02, 30000 "
            "characters/s, 0:40 left");
  EXPECT_NE(progress.line(10, 2, 10).find("24:50 left"), std::string::npos);
  EXPECT_EQ(out.str(), "");
}

TEST_F(TrainApp, EveryErrorIsOneSentence) {
  const auto said = [](const std::vector<std::string>& arguments) {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 1) << r.log;
    EXPECT_EQ(r.out, "");
    return r.log;
  };
  EXPECT_EQ(said({"--text", "/no/such"}), "train: cannot read the text '/no/such'\n");
  EXPECT_EQ(said({"--out", text + "/below"}), "train: cannot make the folder '" + text + "/below'\n");
  EXPECT_EQ(said({"--prompt", ""}), "train: the prompt is empty: a model goes on from one character at least\n");
  EXPECT_EQ(said({"--prompt", std::string(97, 'a'), "--tokens", "4000"}),
            "train: the prompt has 97 characters and 4000 shall follow, the model has positions for 4096\n");
  EXPECT_EQ(said({"--steps", "0"}).find("train: --steps: Value 0 not in range"), 0u);
  EXPECT_EQ(said({"--threads", "0"}).find("train: --threads: Value 0 not in range"), 0u);
  EXPECT_EQ(said({"--seed", "x"}).find("train: "), 0u);
}

}  // namespace
