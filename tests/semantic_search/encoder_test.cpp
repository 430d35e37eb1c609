// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model.hpp"
#include "plain_bert.hpp"
#include "tiny_model.hpp"

namespace {

using semantic_search::Checkpoint;
using semantic_search::Encoder;
using semantic_search::Encoding;
using semantic_search::Matrix;

Encoding encoding(std::vector<int> ids) {
  Encoding e{std::move(ids), {}};
  for (const int id : e.ids) e.tokens.push_back(tiny::kVocabulary[static_cast<std::size_t>(id)]);
  return e;
}

const std::vector<Encoding> kTexts{encoding({2, 5, 6, 7, 8, 9, 10, 11, 3}), encoding({2, 13, 14, 3}), encoding({2, 3}),
                                   encoding({2, 5, 13, 12, 14, 11, 3}),
                                   encoding({2, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 3})};

TEST(Encoder, AgreesWithPlainLoopsInDouble) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const tiny::Model model(seed);
  const Encoder encoder{Checkpoint(model.write())};
  mha::Workspace workspace;
  std::vector<const Encoding*> batch;
  for (const Encoding& text : kTexts) batch.push_back(&text);
  const Matrix rows = encoder.embed(batch, workspace);
  ASSERT_EQ(rows.rows(), static_cast<Eigen::Index>(kTexts.size()));
  ASSERT_EQ(rows.cols(), tiny::kHidden);
  for (std::size_t b = 0; b < kTexts.size(); ++b) {
    const std::vector<double> expected = tiny::pooled(tiny::hidden(model, kTexts[b].ids, tiny::kLayers));
    for (int e = 0; e < tiny::kHidden; ++e)
      EXPECT_NEAR(rows(static_cast<Eigen::Index>(b), e), expected[static_cast<std::size_t>(e)], 1e-4) << b << ' ' << e;
  }
}

TEST(Encoder, AttentionWeightsAreThoseOfTheHead) {
  const tiny::Model model;
  const Encoder encoder{Checkpoint(model.write())};
  for (int layer = 0; layer < tiny::kLayers; ++layer) {
    const auto weights = encoder.attention_weights(kTexts[0], layer);
    ASSERT_EQ(weights.extent(0), 1);
    ASSERT_EQ(weights.extent(1), tiny::kHeads);
    const tiny::Rows x = tiny::hidden(model, kTexts[0].ids, layer);
    const std::string name = "encoder.layer." + std::to_string(layer) + ".attention.self.";
    for (int head = 0; head < tiny::kHeads; ++head) {
      const auto expected =
          tiny::probabilities(tiny::dense(model, name + "query", x), tiny::dense(model, name + "key", x), head);
      for (int q = 0; q < weights.extent(2); ++q)
        for (int k = 0; k < weights.extent(3); ++k)
          EXPECT_NEAR(weights(0, head, q, k), expected[static_cast<std::size_t>(q)][static_cast<std::size_t>(k)], 1e-4);
    }
  }
}

TEST(Encoder, OutlivesTheCheckpoint) {
  const tiny::Model model;
  auto file = std::make_unique<Checkpoint>(model.write());
  const Encoder encoder(*file);
  mha::Workspace workspace;
  const Encoding* const batch[] = {&kTexts[0]};
  const Matrix before = encoder.embed(batch, workspace);
  file.reset();
  EXPECT_EQ(encoder.embed(batch, workspace), before);
}

TEST(Encoder, AnEmptyBatchHasNoRows) {
  const tiny::Model model;
  const Encoder encoder{Checkpoint(model.write())};
  mha::Workspace workspace;
  EXPECT_EQ(encoder.embed({}, workspace).rows(), 0);
}

TEST(Encoder, WhatTheModelHasNotIsRefused) {
  const tiny::Model model;
  const Encoder encoder{Checkpoint(model.write())};
  mha::Workspace workspace;
  const auto says = [&](const Encoding& text) {
    const Encoding* const batch[] = {&text};
    return mha_test::message_of<std::runtime_error>([&] { encoder.embed(batch, workspace); });
  };
  EXPECT_EQ(says({{2, 15, 3}, {}}), "token number 15 is outside the model's vocabulary of 15");
  EXPECT_EQ(says({{2, -1, 3}, {}}), "token number -1 is outside the model's vocabulary of 15");
  EXPECT_EQ(says({std::vector<int>(17, 5), {}}), "a text has 17 tokens, the model has positions for 16");
  EXPECT_EQ(mha_test::message_of<std::runtime_error>([&] { encoder.attention_weights(kTexts[0], 2); }),
            "there is no layer 2: the model has 2, counted from 0");
}

TEST(SentenceModel, RowsFollowTheTextsWhateverTheBatches) {
  const tiny::Model model;
  const semantic_search::SentenceModel sentences(model.write());
  const Matrix all = sentences.embed(kTexts);
  std::size_t reported = 0;
  for (const int batch : {1, 2, 3}) {
    for (const int threads : {1, 3}) {
      std::mutex mutex;
      const auto progress = [&](std::size_t done) {
        const std::lock_guard lock(mutex);
        reported = std::max(reported, done);
      };
      const Matrix again = sentences.embed(kTexts, {.batch = batch, .threads = threads, .progress = progress});
      EXPECT_LT((again - all).cwiseAbs().maxCoeff(), 1e-6f) << batch << ' ' << threads;
      EXPECT_EQ(std::exchange(reported, 0u), kTexts.size());
    }
  }
  EXPECT_GT((all.row(0) - all.row(1)).norm(), 1e-3f);
}

TEST(SentenceModel, AFaultInAThreadArrives) {
  const tiny::Model model;
  const semantic_search::SentenceModel sentences(model.write());
  std::vector<Encoding> texts(8, kTexts[0]);
  texts.push_back({{2, 99, 3}, {}});
  EXPECT_EQ(mha_test::message_of<std::runtime_error>([&] { sentences.embed(texts, {.batch = 1, .threads = 3}); }),
            "token number 99 is outside the model's vocabulary of 15");
}

TEST(SentenceModel, TokenisesWithTheFoldersSettings) {
  const tiny::Model model;
  const auto folder = model.write();
  EXPECT_EQ(semantic_search::SentenceModel(folder).tokenise("The CATS.").ids, (std::vector<int>{2, 5, 6, 12, 11, 3}));
  model.scratch.write("tokenizer_config.json", R"({"do_lower_case": false})");
  model.scratch.write("sentence_bert_config.json", R"({"max_seq_length": 4})");
  const semantic_search::SentenceModel other(folder);
  EXPECT_EQ(other.tokenise("The cats.").ids, (std::vector<int>{2, 1, 6, 3}));
}

}  // namespace
