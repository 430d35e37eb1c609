// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "environment.hpp"
#include "model.hpp"
#include "plain_bert.hpp"
#include "tiny_model.hpp"

namespace {

using semantic_search::Checkpoint;
using semantic_search::Encoder;
using semantic_search::EncoderOn;
using semantic_search::EncoderWork;
using semantic_search::Encoding;
using semantic_search::Machine;
using semantic_search::Matrix;
using OnCpu = EncoderOn<mha::Cpu>;

Encoding encoding(std::vector<int> ids) {
  Encoding e{std::move(ids), {}};
  for (const int id : e.ids) e.tokens.push_back(tiny::kVocabulary[static_cast<std::size_t>(id)]);
  return e;
}

const std::vector<Encoding> kTexts{encoding({2, 5, 6, 7, 8, 9, 10, 11, 3}), encoding({2, 13, 14, 3}), encoding({2, 3}),
                                   encoding({2, 5, 13, 12, 14, 11, 3}),
                                   encoding({2, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 3})};

/// The vectors of a batch, in memory that was NaN.
Matrix embedded(const Encoder& encoder, std::span<const Encoding> texts, EncoderWork& work) {
  Matrix vectors = Matrix::Constant(static_cast<Eigen::Index>(texts.size()), encoder.config().attention.d_model,
                                    std::numeric_limits<float>::quiet_NaN());
  encoder.embed(texts, vectors, work);
  return vectors;
}

void expect_plain_loops(const tiny::Model& model, const Encoder& encoder, double tolerance) {
  EncoderWork work;
  const Matrix rows = embedded(encoder, kTexts, work);
  for (std::size_t b = 0; b < kTexts.size(); ++b) {
    const std::vector<double> expected = tiny::pooled(tiny::hidden(model, kTexts[b].ids, tiny::kLayers));
    for (int e = 0; e < tiny::kHidden; ++e)
      EXPECT_NEAR(rows(static_cast<Eigen::Index>(b), e), expected[static_cast<std::size_t>(e)], tolerance)
          << b << ' ' << e;
  }
}

TEST(Encoder, AgreesWithPlainLoopsInDouble) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const tiny::Model model(seed);
  expect_plain_loops(model, OnCpu{Checkpoint(model.write())}, 1e-4);
}

TEST(Encoder, OnAMatrixUnitAgreesWithinItsRounding) {
  const tiny::Model model;
  expect_plain_loops(model, EncoderOn<mha::Systolic<>>{Checkpoint(model.write())}, 0.1);
}

TEST(Encoder, ATextAloneHasTheBitsThatItHasInABatch) {
  const tiny::Model model;
  const OnCpu encoder{Checkpoint(model.write())};
  EncoderWork work;
  const Matrix together = embedded(encoder, kTexts, work);
  for (std::size_t b = 0; b < kTexts.size(); ++b)
    EXPECT_EQ(embedded(encoder, {&kTexts[b], 1}, work), together.row(static_cast<Eigen::Index>(b))) << b;
}

TEST(Encoder, AfterTheLargestBatchItsWorkspaceAllocatesNothing) {
  const tiny::Model model;
  const OnCpu encoder{Checkpoint(model.write())};
  EncoderWork work;
  const Matrix first = embedded(encoder, kTexts, work);
  const int allocations = work.rows.workspace.allocations();
  EXPECT_GT(allocations, 0);
  EXPECT_EQ(embedded(encoder, kTexts, work), first);
  embedded(encoder, {&kTexts[1], 3}, work);
  embedded(encoder, {&kTexts[4], 1}, work);
  EXPECT_EQ(work.rows.workspace.allocations(), allocations);
}

TEST(Encoder, AttentionWeightsAreThoseOfTheHead) {
  const tiny::Model model;
  const OnCpu encoder{Checkpoint(model.write())};
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
  const OnCpu encoder(*file);
  EncoderWork work;
  const Matrix before = embedded(encoder, kTexts, work);
  file.reset();
  EXPECT_EQ(embedded(encoder, kTexts, work), before);
}

TEST(Encoder, AnEmptyBatchOrTextIsNoFault) {
  const tiny::Model model;
  const OnCpu encoder{Checkpoint(model.write())};
  EncoderWork work;
  EXPECT_EQ(embedded(encoder, {}, work).rows(), 0);
  const std::vector<Encoding> texts{encoding({}), kTexts[0], encoding({})};
  const Matrix vectors = embedded(encoder, texts, work);
  EXPECT_TRUE(vectors.row(0).isZero(0) && vectors.row(2).isZero(0));
  EXPECT_EQ(vectors.row(1), embedded(encoder, {&kTexts[0], 1}, work).row(0));
  EXPECT_TRUE(embedded(encoder, {texts.data(), 1}, work).isZero(0));
}

TEST(Encoder, WhatTheModelHasNotIsRefused) {
  const tiny::Model model;
  const OnCpu encoder{Checkpoint(model.write())};
  EncoderWork work;
  const auto says = [&](const Encoding& text) {
    const std::vector<Encoding> batch{kTexts[0], text};
    return mha_test::message_of<std::invalid_argument>([&] { embedded(encoder, batch, work); });
  };
  EXPECT_EQ(says({{2, 15, 3}, {}}), "token 15 is outside the vocabulary of 15");
  EXPECT_EQ(says({{2, -1, 3}, {}}), "token -1 is outside the vocabulary of 15");
  EXPECT_EQ(says({std::vector<int>(17, 5), {}}), "a text has 17 tokens, the model has positions for 16");
  EXPECT_EQ(mha_test::message_of<std::invalid_argument>([&] { encoder.attention_weights(kTexts[0], 2); }),
            "there is no layer 2: the model has 2, counted from 0");
}

TEST(Encoder, IsMadeForTheMachineThatIsAsked) {
  const tiny::Model model;
  const Checkpoint file(model.write());
  const mha::ThreadPool threads(2);
  expect_plain_loops(model, *make_encoder(file, Machine::cpu, threads), 1e-4);

  const support::Variable chosen_by_no_one("MHA_MATRIX_UNIT", nullptr);
  if (mha::best_unit() == mha::MatrixUnit::portable)
    EXPECT_EQ(mha_test::message_of<std::runtime_error>([&] { make_encoder(file, Machine::systolic, threads); }),
              "--backend systolic needs a matrix unit, but " + mha::missing(mha::MatrixUnit::amx) +
                  ": take --backend cpu, or set MHA_MATRIX_UNIT=portable to emulate one");
  else
    expect_plain_loops(model, *make_encoder(file, Machine::systolic, threads), 0.1);
  const support::Variable emulated("MHA_MATRIX_UNIT", "portable");
  expect_plain_loops(model, *make_encoder(file, Machine::systolic, threads), 0.1);
}

TEST(SentenceModel, RowsAreTheTextsWhateverTheBatches) {
  const tiny::Model model;
  const auto folder = model.write();
  const Matrix all = semantic_search::SentenceModel(folder).embed(kTexts);
  for (const int threads : {1, 3}) {
    const semantic_search::SentenceModel sentences(folder, {.threads = mha::ThreadPool(threads)});
    EXPECT_EQ(sentences.threads(), threads);
    for (const std::size_t tokens : {1u, 12u, 1000u}) {
      std::atomic<std::size_t> reported = 0;
      const auto progress = [&](std::size_t done) { reported = std::max(reported.load(), done); };
      EXPECT_EQ(sentences.embed(kTexts, {.tokens = tokens, .progress = progress}), all) << tokens << ' ' << threads;
    }
  }
  EXPECT_GT((all.row(0) - all.row(1)).norm(), 1e-3f);
}

TEST(SentenceModel, ManyTextsAreSharedOutAndFewAreNot) {
  const tiny::Model model;
  const semantic_search::SentenceModel sentences(model.write(), {.threads = mha::ThreadPool(2)});
  const Encoding sixteen = kTexts.back();
  const auto batches = [&](std::size_t texts, std::size_t tokens) {
    std::mutex mutex;
    std::vector<std::size_t> done;
    const auto progress = [&](std::size_t count) {
      const std::lock_guard lock(mutex);
      done.push_back(count);
    };
    sentences.embed(std::vector<Encoding>(texts, sixteen), {.tokens = tokens, .progress = progress});
    std::sort(done.begin(), done.end());
    return done;
  };
  using Done = std::vector<std::size_t>;
  EXPECT_EQ(batches(0, 100), Done{});
  EXPECT_EQ(batches(7, 1000), Done{7}) << "112 tokens: threads would each read the weights for few";
  EXPECT_EQ(batches(8, 1000), (Done{4, 8})) << "128 tokens: a batch for each thread";
  EXPECT_EQ(batches(12, 64), (Done{3, 6, 9, 12})) << "3 batches would leave a thread idle";
  EXPECT_EQ(batches(2, 1), (Done{1, 2}));
}

TEST(SentenceModel, ABatchHasTokens) {
  const tiny::Model model;
  const semantic_search::SentenceModel sentences(model.write());
  EXPECT_EQ(mha_test::message_of<std::invalid_argument>([&] { sentences.embed(kTexts, {.tokens = 0}); }),
            "a batch has at least 1 token, got 0");
}

TEST(SentenceModel, AFaultInAThreadArrives) {
  const tiny::Model model;
  const semantic_search::SentenceModel sentences(model.write(), {.threads = mha::ThreadPool(3)});
  std::vector<Encoding> texts(8, kTexts[0]);
  texts.push_back({{2, 99, 3}, {}});
  EXPECT_EQ(mha_test::message_of<std::invalid_argument>([&] { sentences.embed(texts, {.tokens = 1}); }),
            "token 99 is outside the vocabulary of 15");
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
