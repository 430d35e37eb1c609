// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <mha/systolic.hpp>

#include "environment.hpp"
#include "progress.hpp"
#include "tiny_model.hpp"

namespace {

struct Result {
  int code;
  std::string out, log;
};

Result run(const std::vector<std::string>& arguments, bool terminal = false) {
  std::vector<const char*> argv{"semantic_search"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, log;
  const int code = semantic_search::run(static_cast<int>(argv.size()), argv.data(), out, log, terminal);
  return {code, out.str(), log.str()};
}

class App : public ::testing::Test {
 protected:
  tiny::Model model;
  std::string folder = model.write().string();
  std::string text =
      model.scratch.write("a.txt", "the cat sat\non a mat.\n\nthe dog ran\n\n# Cats\n\na cat\n").string();

  Result search(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--model", folder});
    return run(arguments);
  }
};

TEST_F(App, RanksTheTextItselfFirst) {
  const Result by_paragraph = search({"--question", "The dog ran", text});
  EXPECT_EQ(by_paragraph.code, 0) << by_paragraph.log;
  EXPECT_EQ(by_paragraph.out.find("1. 1.000  " + text + ":4\n   the dog ran\n2. "), 0u) << by_paragraph.out;
  EXPECT_NE(by_paragraph.out.find(text + ":8  (Cats)\n   a cat\n"), std::string::npos) << by_paragraph.out;
  EXPECT_EQ(by_paragraph.log.find("embedded 3 passages, "), 0u) << by_paragraph.log;

  const Result by_line =
      search({"-q", "on a mat.", "--by", "line", "--top", "1", "--batch-tokens", "2", "--threads", "2", text});
  EXPECT_EQ(by_line.code, 0) << by_line.log;
  EXPECT_EQ(by_line.out, "1. 1.000  " + text + ":2\n   on a mat.\n");
  EXPECT_NE(by_line.log.find(" tokens/s, 2 threads)\n"), std::string::npos) << by_line.log;
}

TEST_F(App, RunsOnTheMatrixUnitThatIsAsked) {
  const std::vector<std::string> arguments{"--question", "The dog ran", "--backend", "systolic", text};
  {
    const support::Variable emulated("MHA_MATRIX_UNIT", "portable");
    const Result result = search(arguments);
    EXPECT_EQ(result.code, 0) << result.log;
    EXPECT_EQ(result.out.find("1. 1.000  " + text + ":4\n   the dog ran\n2. "), 0u) << result.out;
    const std::string unit = std::string(", matrix unit ") + mha::to_string(mha::current_unit()) + ")\n";
    EXPECT_TRUE(result.log.ends_with(unit)) << result.log;
  }
  const support::Variable chosen_by_no_one("MHA_MATRIX_UNIT", nullptr);
  const Result result = search(arguments);
  const bool has_one = mha::best_unit() != mha::MatrixUnit::portable;
  EXPECT_EQ(result.code, has_one ? 0 : 1);
  EXPECT_EQ(result.log.find("semantic_search: --backend systolic needs a matrix unit") == 0, !has_one) << result.log;
}

TEST_F(App, SaysWhenPassagesAreCut) {
  const auto long_text =
      model.scratch.write("long.txt", "cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat\n");
  const Result result = search({"-q", "cat", long_text.string()});
  EXPECT_EQ(result.log.find("1 of 1 passages fill the model's 16 tokens; what is beyond was not read\n"), 0u)
      << result.log;
}

TEST_F(App, DrawsAHead) {
  const std::string svg = (model.scratch.root() / "head.svg").string();
  const Result result = search({"--heatmap", "1:0", svg, "--heatmap-text", "the cat <sat>"});
  EXPECT_EQ(result.code, 0) << result.log;
  EXPECT_EQ(result.log, "wrote " + svg + "\n");
  std::ifstream file(svg);
  const std::string drawn{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(drawn.find("attention of layer 1, head 0"), std::string::npos);
  EXPECT_NE(drawn.find(">cat</text>"), std::string::npos);
}

TEST_F(App, NoControlCharacterReachesTheTerminal) {
  // U+009B begins a command as ESC [ does, and so does its byte alone where a terminal does not read UTF-8.
  const auto odd = model.scratch.write(
      "odd.txt",
      "# a \x1b]0;title\x07 of \xC2\x9Bthe \xC3\xA9\n\nthe \x1b[31mcat \xC2\x9B\x31m\x9B\x31m\xE2\x82\xAC\n");
  const Result result = search({"-q", "cat", odd.string()});
  EXPECT_EQ(result.code, 0) << result.log;
  EXPECT_TRUE(result.out.ends_with(":3  (a ?]0;title? of ?the \xC3\xA9)\n   the ?[31mcat ?1m?1m\xE2\x82\xAC\n"))
      << result.out;
}

TEST_F(App, SaysThatItsAnswersAreNotWritten) {
  const std::vector<const char*> argv{"semantic_search", "--model", folder.c_str(), "-q", "cat", text.c_str()};
  std::ostringstream out, log;
  out.setstate(std::ios::badbit);  // as where the disk is full
  EXPECT_EQ(semantic_search::run(static_cast<int>(argv.size()), argv.data(), out, log, false), 1);
  EXPECT_EQ(log.str(), "semantic_search: the answers could not be written\n");
}

TEST_F(App, FaultsAreOneSentenceAndExitCodeOne) {
  const auto says = [&](const std::vector<std::string>& arguments) {
    const Result result = search(arguments);
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out, "");
    return result.log;
  };
  EXPECT_EQ(says({}),
            "semantic_search: nothing to do: give --question TEXT and files to search, or --heatmap (see --help)\n");
  EXPECT_EQ(says({"-q", "cat"}), "semantic_search: no files to search: name at least one after the options\n");
  EXPECT_EQ(says({text}), "semantic_search: files to search, but no question: give --question TEXT\n");
  EXPECT_EQ(says({"--heatmap", "0:0", "a.svg"}),
            "semantic_search: --heatmap needs a text: give --heatmap-text TEXT or --question TEXT\n");
  EXPECT_EQ(says({"-q", "cat", text, "--heatmap-text", "x"}),
            "semantic_search: --heatmap-text needs --heatmap LAYER:HEAD FILE.svg\n");
  for (const char* head : {"0", "0:", ":0", "a:0", "0:0x", "0-0"})
    EXPECT_EQ(says({"-q", "cat", "--heatmap", head, "a.svg"}),
              std::string("semantic_search: --heatmap '") + head + "' is not LAYER:HEAD, such as 0:3\n");
  EXPECT_EQ(says({"-q", "cat", "--heatmap", "2:0", "a.svg"}),
            "semantic_search: there is no layer 2: the model has 2, counted from 0\n");
  EXPECT_EQ(says({"-q", "cat", "--heatmap", "0:2", "a.svg"}),
            "semantic_search: there is no head 2: layer 0 has 2, counted from 0\n");
  EXPECT_EQ(says({"-q", "cat", "--heatmap", "0:1", "/no/such/a.svg"}),
            "semantic_search: cannot write '/no/such/a.svg'\n");
  EXPECT_EQ(says({"-q", "cat", "/no/such.txt"}), "semantic_search: there is no file '/no/such.txt'\n");
  const auto blank = model.scratch.write("blank.txt", "\n***\n").string();
  EXPECT_EQ(says({"-q", "cat", "--by", "line", blank}), "semantic_search: the files hold no line with a word in it\n");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--bogus"},
                                                {"-q", "cat", "--by", "word", text},
                                                {"-q", "cat", "--batch-tokens", "0", text},
                                                {"-q", "cat", "--backend", "tpu", text},
                                                {"-q", "cat", "--threads", "0", text},
                                                {"-q", "cat", "--top", "0", text},
                                                {"-q", "cat", "--threads", "none", text}}) {
    const std::string log = says(wrong);
    EXPECT_EQ(log.find("semantic_search: "), 0u);
    EXPECT_EQ(log.find('\n'), log.size() - 1);
  }
}

TEST(AppWithoutModel, SaysHowToGetOne) {
  const Result result = run({"--model", "/no/such/folder", "-q", "cat", "/dev/null"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.log.find("semantic_search: there is no model folder '/no/such/folder': run cmake/fetch_minilm.sh"),
            0u);
}

TEST(AppWithoutModel, HelpIsNoFault) {
  const Result result = run({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.out.find("--question"), std::string::npos);
}

TEST(Progress, IsDrawnOnTerminalsOnlyAndWipedAtTheEnd) {
  std::ostringstream hidden, shown;
  {
    semantic_search::Progress quiet(hidden, false, 10), bar(shown, true, 10);
    quiet.update(5);
    bar.update(1);  // too early: short input shows no bar
    EXPECT_EQ(shown.str(), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    quiet.update(6);
    bar.update(5);
    EXPECT_EQ(shown.str(), "\rembedding [" + std::string(20, '#') + std::string(20, '.') + "] 5/10");
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    bar.update(4);  // a late thread
    EXPECT_EQ(shown.str().find("4/10"), std::string::npos);
  }
  EXPECT_EQ(hidden.str(), "");
  EXPECT_TRUE(shown.str().ends_with("\r\033[K"));
}

}  // namespace
