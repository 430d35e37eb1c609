// SPDX-License-Identifier: Apache-2.0
#include "generation.hpp"

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "scratch.hpp"

namespace {

using generate::generate_text;

/// Counts on: behind token t the likeliest of eight is t + 1.
class Counting final : public generate::Text {
 public:
  std::span<const float> read(std::span<const int> ids) override {
    steps.push_back({ids.begin(), ids.end()});
    logits_.assign(8, 0.0f);
    logits_[static_cast<std::size_t>(ids.back() + 1) % 8] = 50.0f;
    return logits_;
  }
  std::size_t cache_bytes() const override { return 0; }

  std::vector<std::vector<int>> steps;

 private:
  std::vector<float> logits_;
};

struct Course {
  std::vector<std::vector<int>> steps;
  std::vector<int> written;
  generate::GenerationTimes times;
};

Course run(const std::vector<int>& prompt, const generate::GenerationOptions& options) {
  Counting text;
  Course r;
  r.times = generate_text(text, prompt, options, [&](int token) { r.written.push_back(token); });
  r.steps = text.steps;
  return r;
}

TEST(Generation, ReadsThePromptInChunksThenTokenByToken) {
  std::vector<std::size_t> told;
  const Course r = run({0, 0, 0, 0, 2},
                       {.tokens = 3, .chunk = 2, .known = 8, .read_so_far = [&](std::size_t n) { told.push_back(n); }});
  // The last token is not read: nothing follows it.
  EXPECT_EQ(r.steps, (std::vector<std::vector<int>>{{0, 0}, {0, 0}, {2}, {3}, {4}}));
  EXPECT_EQ(r.written, (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(told, (std::vector<std::size_t>{2, 4, 5}));
  EXPECT_EQ(r.times.prompt_tokens, 5u);
  EXPECT_EQ(r.times.tokens, 3u);
}

TEST(Generation, StopsBeforeAnEnd) {
  const std::vector<int> ends{0, 6};
  const Course r = run({3}, {.tokens = 100, .ends = ends, .known = 8});
  EXPECT_EQ(r.written, (std::vector<int>{4, 5}));
  EXPECT_EQ(r.times.tokens, 2u);
}

TEST(Generation, DrawsKnownTokensAlone) {
  const Course r = run({3}, {.tokens = 3, .sampling = {.temperature = 0}, .known = 5});
  EXPECT_EQ(r.written, (std::vector<int>{4, 0, 1}));  // 5 is unknown: the first of equal ones
}

TEST(Generation, OfNoTokensReadsThePrompt) {
  const Course r = run({3, 4}, {.tokens = 0, .known = 8});
  EXPECT_EQ(r.steps.size(), 1u);
  EXPECT_TRUE(r.written.empty());
}

TEST(Generation, RefusesAnEmptyPrompt) {
  EXPECT_EQ(mha_test::message_of<std::exception>([] { run({}, {.tokens = 3, .known = 8}); }),
            "the prompt is empty: a model goes on from one token at least");
}

}  // namespace
