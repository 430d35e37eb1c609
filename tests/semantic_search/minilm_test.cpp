// SPDX-License-Identifier: Apache-2.0
// The real checkpoint: folder in MHA_MINILM_DIR. Where there is none the tests are skipped; under CI that is a failure.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "golden.hpp"
#include "model.hpp"
#include "ranking.hpp"

namespace {

using semantic_search::Encoding;
using semantic_search::Matrix;
using semantic_search::SentenceModel;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

class MiniLm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string folder = variable("MHA_MINILM_DIR");
    if (!folder.empty() && std::filesystem::is_directory(folder)) model = std::make_unique<SentenceModel>(folder);
  }
  static void TearDownTestSuite() { model.reset(); }

  void SetUp() override {
    if (model) return;
    const std::string sentence = "MHA_MINILM_DIR ('" + variable("MHA_MINILM_DIR") +
                                 "') is no folder: run cmake/fetch_minilm.sh to test with the real weights";
    if (variable("CI") == "true") FAIL() << sentence;
    GTEST_SKIP() << sentence;
  }

  static std::vector<golden::Case> cases() { return golden::read(MHA_GOLDEN_DIR "/minilm_sentences.txt"); }
  static std::vector<Encoding> tokenised(const std::vector<golden::Case>& all) {
    std::vector<Encoding> texts;
    for (const golden::Case& c : all) texts.push_back(model->tokenise(c.text("text")));
    return texts;
  }
  /// Every fifth text by length, the longest among them.
  static std::vector<Encoding> short_to_long() {
    std::vector<Encoding> all = tokenised(cases()), some;
    std::stable_sort(all.begin(), all.end(),
                     [](const Encoding& a, const Encoding& b) { return a.ids.size() < b.ids.size(); });
    for (std::size_t i = (all.size() + 4) % 5; i < all.size(); i += 5) some.push_back(all[i]);
    return some;
  }

  static Matrix embedded(const semantic_search::Encoder& encoder, const std::vector<Encoding>& texts) {
    Matrix vectors(static_cast<Eigen::Index>(texts.size()), encoder.config().attention.d_model);
    semantic_search::EncoderWork work;
    encoder.embed(texts, vectors, work);
    return vectors;
  }

  static inline std::unique_ptr<SentenceModel> model;
};

TEST_F(MiniLm, EmbeddingsAgreeWithTheOriginal) {
  const auto all = cases();
  ASSERT_GE(all.size(), 50u);
  const std::vector<Encoding> texts = tokenised(all);
  const Matrix vectors = model->embed(texts);
  double worst = 1;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<int> ids;
    for (const double id : all[i].tensor("ids").values) ids.push_back(static_cast<int>(id));
    EXPECT_EQ(texts[i].ids, ids) << all[i].name;
    const golden::Tensor& expected = all[i].tensor("embedding");
    ASSERT_EQ(expected.values.size(), static_cast<std::size_t>(vectors.cols()));
    const Eigen::Map<const Eigen::RowVectorXd> e(expected.values.data(), vectors.cols());
    const Eigen::RowVectorXd ours = vectors.row(static_cast<Eigen::Index>(i)).cast<double>();
    const double cosine = ours.dot(e) / (ours.norm() * e.norm());
    EXPECT_GE(cosine, 0.9999) << all[i].name;
    EXPECT_NEAR(ours.norm(), 1, 1e-5) << all[i].name;
    // Far inside the bound above: a difference here is a difference of the arithmetic, not of rounding.
    EXPECT_LT((ours - e).cwiseAbs().maxCoeff(), 1e-5) << all[i].name;
    worst = std::min(worst, cosine);
  }
  RecordProperty("worst_cosine_shortfall", std::to_string(1 - worst));
}

TEST_F(MiniLm, ASentenceAloneHasTheBitsThatItHasInABatch) {
  const std::vector<Encoding> texts = short_to_long();
  const Matrix together = embedded(model->encoder(), texts);
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(model->embed({texts[i]}).row(0), together.row(static_cast<Eigen::Index>(i))) << i;
}

TEST_F(MiniLm, OnAMatrixUnitItSaysTheSame) {
  const semantic_search::EncoderOn<mha::Systolic<>> encoder{semantic_search::Checkpoint(variable("MHA_MINILM_DIR"))};
  const std::vector<Encoding> texts = short_to_long();
  const Matrix exact = embedded(model->encoder(), texts), rounded = embedded(encoder, texts);
  float worst = 1;
  for (Eigen::Index i = 0; i < exact.rows(); ++i) {
    const float cosine = rounded.row(i).dot(exact.row(i));  // both have length 1
    EXPECT_GE(cosine, 0.999f) << i;
    worst = std::min(worst, cosine);
  }
  EXPECT_GT((rounded - exact).cwiseAbs().maxCoeff(), 0) << "bfloat16 operands leave a trace";
  RecordProperty("worst_cosine_shortfall", std::to_string(1 - worst));
}

TEST_F(MiniLm, AttentionOfEveryHeadIsADistribution) {
  const Encoding text = model->tokenise("What does a head attend to?");
  const int length = static_cast<int>(text.ids.size());
  for (int layer = 0; layer < model->encoder().config().layers; ++layer) {
    const auto weights = model->encoder().attention_weights(text, layer);  // (1, H, L, L)
    ASSERT_EQ(weights.extent(1), model->encoder().config().attention.num_heads);
    ASSERT_EQ(weights.extent(2), length);
    for (int h = 0; h < weights.extent(1); ++h)
      for (int q = 0; q < length; ++q) {
        float sum = 0;
        for (int k = 0; k < length; ++k) sum += weights(0, h, q, k);
        EXPECT_NEAR(sum, 1, 1e-5) << layer << ' ' << h << ' ' << q;
      }
  }
}

TEST_F(MiniLm, AnswersRankAboveOtherSubjects) {
  const std::vector<std::string> passages{"The recipe needs two eggs and a cup of flour.",
                                          "Hidden keys get a weight of exactly zero, so padding changes nothing.",
                                          "The train to Vienna leaves at seven in the morning.",
                                          "A football match lasts ninety minutes."};
  const std::vector<std::pair<std::string, std::size_t>> questions{{"What ingredients do I need for the cake?", 0},
                                                                   {"How are masked positions treated?", 1},
                                                                   {"When can I travel by rail?", 2},
                                                                   {"How long is a soccer game?", 3}};
  std::vector<Encoding> texts;
  for (const std::string& passage : passages) texts.push_back(model->tokenise(passage));
  const Matrix vectors = model->embed(texts);
  for (const auto& [question, answer] : questions) {
    const Matrix vector = model->embed({model->tokenise(question)});
    EXPECT_EQ(semantic_search::rank(vector.row(0), vectors, 1).at(0).index, answer) << question;
  }
}

}  // namespace
