// SPDX-License-Identifier: Apache-2.0
// A text read piece by piece through a key/value cache has the logits of the whole text, bit for bit; those are
// compared with Hugging Face's by the examples and in reference_test.cpp, those of each step with Hugging Face's own
// cache here (tests/golden/generation.txt).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint_copy.hpp"
#include "checks.hpp"
#include "compare.hpp"
#include "golden.hpp"
#include "replaced_new.hpp"
#include "scratch.hpp"

namespace {

using namespace models;
using models::testing::data;

std::vector<int> random_ids(int length, unsigned seed) {
  std::mt19937 draw(seed);
  std::vector<int> ids(static_cast<std::size_t>(length));
  for (int& id : ids) id = static_cast<int>(draw() % 32);
  return ids;
}

/// Lengths of pieces that are a text together; of one token each at the end.
std::vector<int> pieces_of(int length, int longest, std::mt19937& draw) {
  std::vector<int> pieces;
  for (int left = length; left > 0; left -= pieces.back())
    pieces.push_back(left < 4 ? 1 : std::min(left, 1 + static_cast<int>(draw() % static_cast<unsigned>(longest))));
  return pieces;
}

template <class Model, class Storage> void expect_same_bits(const Model& model, const Storage& storage, int length) {
  std::mt19937 draw(static_cast<unsigned>(length));
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::vector<int> ids = random_ids(length, seed);
    const Rows whole = model(ids);
    auto cache = model.make_cache(storage);
    const mha::SequenceId text = cache.add();
    Work work;
    int begin = 0;
    for (const int piece : pieces_of(length, seed == 0 ? 1 : 5, draw)) {
      const std::span part = std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(piece));
      work.x.setConstant(std::nanf(""));
      {
        auto step = cache.step(text, piece);
        EXPECT_EQ(model(part, step, work), whole.middleRows(begin, piece)) << "seed " << seed << ", from " << begin;
      }  // not committed: it has not happened
      auto step = cache.step(text, piece);
      EXPECT_EQ(model.next(part, step, work), whole.row(begin + piece - 1)) << "seed " << seed << ", from " << begin;
      step.commit();
      begin += piece;
    }
    EXPECT_EQ(cache.length(text), length);
  }
}

template <class Model> void expect_same_bits_in_every_storage(const Model& model, int length) {
  expect_same_bits(model, mha::Contiguous{.length = length}, length);
  expect_same_bits(model, mha::Paged{.pages = 8, .length = length, .page = 16}, length);
}

TEST(CachedModels, HaveTheBitsOfTheWholeText) {
  expect_same_bits_in_every_storage(Gpt2<>{mha::Gpt2<float>(data("gpt2"))}, 16);  // its last position
  for (const char* name : {"llama", "mistral", "qwen2"})
    expect_same_bits_in_every_storage(Llama<>{mha::Llama<float>(data(name))}, 50);
  expect_same_bits_in_every_storage(Llama<mha::QkNorm>{mha::Llama<float>(data("qwen3"))}, 50);
  expect_same_bits_in_every_storage(Llama<>{mha::Llama<float>(data("phi3"))}, 50);
  for (const char* name : {"gemma", "gemma2", "gemma3"}) {
    const mha::Gemma<float> weights(data(name));
    with_gemma(weights.config(), [&]<class Model>() { expect_same_bits_in_every_storage(Model(weights), 50); });
  }
}

TEST(CachedModels, HaveThemInARingBeyondTheWindow) {
  const Llama<> mistral{mha::Llama<float>(data("mistral"))};  // a window of 5
  expect_same_bits(mistral, mha::Ring{.left = 4, .rows = 5}, 50);
  expect_same_bits(mistral, mha::Ring{.left = 9, .rows = 7}, 50);
  expect_same_bits(Llama<>{mha::Llama<float>(data("phi3"))}, mha::Ring{.left = 6, .rows = 5}, 50);  // a window of 7
}

// Short of the original length and beyond it positions turn by other factors, each the same in every step.
TEST(CachedModels, HaveThemForEachLengthThatPositionsAreMadeFor) {
  const mha::Llama<float> weights(data("phi3"));  // an original length of 6
  const std::vector<int> ids = random_ids(6, 3);
  EXPECT_FALSE(Llama<>(weights, 6)(ids).isApprox(Llama<>(weights, 7)(ids), 1e-3f));
  expect_same_bits(Llama<>{weights, 6}, mha::Contiguous{.length = 6}, 6);
}

template <class Model, class Storage>
void expect_logits(const Model& model, const golden::Case& c, const Storage& storage) {
  const auto integers = [&](const char* key) {
    const std::vector<double>& values = c.tensor(key).values;
    return std::vector<int>(values.begin(), values.end());
  };
  const std::vector<int> ids = integers("ids");
  auto cache = model.make_cache(storage);
  const mha::SequenceId text = cache.add();
  Work work;
  std::size_t begin = 0;
  const double* wanted = c.tensor("logits").values.data();
  double worst = 0, largest = 0;
  for (const int rows : integers("steps")) {
    auto step = cache.step(text, rows);
    const Rows& logits = model(std::span(ids).subspan(begin, static_cast<std::size_t>(rows)), step, work);
    for (const float x : logits.reshaped<Eigen::RowMajor>()) {
      worst = support::maximum(worst, std::abs(static_cast<double>(x) - *wanted));
      largest = std::max(largest, std::abs(*wanted++));
    }
    step.commit();
    begin += static_cast<std::size_t>(rows);
  }
  EXPECT_EQ(begin, ids.size());
  EXPECT_LE(worst, 1e-5 * largest) << c.name;
}

TEST(CachedModels, HaveTheLogitsOfTransformersWithItsOwnCache) {
  int checked = 0;
  for (const golden::Case& c : golden::read(MHA_GOLDEN_DIR "/generation.txt")) {
    if (!c.has("checkpoint")) continue;
    const std::string& name = c.text("checkpoint");
    mha_test::CheckpointCopy copy(data(name.c_str()));
    if (c.has("change")) copy.config.merge_patch(nlohmann::json::parse(c.text("change")));
    const mha::Checkpoint checkpoint(copy.write());
    const auto in_storages = [&](const auto& model) {
      const int length = c.tensor("ids").extent[0];
      expect_logits(model, c, mha::Contiguous{.length = length});
      expect_logits(model, c, mha::Paged{.pages = 2, .length = length, .page = 16});
      if (c.has("window"))  // of every layer
        expect_logits(model, c, mha::Ring{.left = static_cast<int>(c.integer("window")) - 1, .rows = 7});
      ++checked;
    };
    const int longest = static_cast<int>(c.integer("longest", 0));
    const std::string type = copy.config["model_type"];
    if (type == "gpt2") {
      in_storages(Gpt2<>{mha::Gpt2<float>(checkpoint)});
    } else if (type.starts_with("gemma")) {
      const mha::Gemma<float> weights(checkpoint);
      with_gemma(weights.config(), [&]<class Model>() { in_storages(Model(weights, longest)); });
    } else {
      in_storages(Llama<>(mha::Llama<float>(checkpoint), longest));
    }
  }
  EXPECT_EQ(checked, 11);
}

TEST(CachedModels, RefuseARingShorterThanTheWindow) {
  const auto read = [](const auto& model, const mha::Ring& ring) {
    auto cache = model.make_cache(ring);
    const mha::SequenceId text = cache.add();
    Work work;
    for (const int id : random_ids(8, 1)) {
      auto step = cache.step(text, 1);
      model.next(std::span(&id, 1), step, work);
      step.commit();
    }
  };
  EXPECT_THROW(read(Llama<>{mha::Llama<float>(data("mistral"))}, {.left = 3, .rows = 1}), mha::ShapeError);
  // The second layer has no window.
  const Gemma<mha::NoNorm, mha::SoftCap> gemma2{mha::Gemma<float>(data("gemma2"))};
  EXPECT_THROW(read(gemma2, {.left = 4, .rows = 1}), mha::ShapeError);
}

// GPT-2 adds to every row the position that its own sequence has reached.
TEST(CachedModels, MixTextsOfDifferentLengthsInOneStep) {
  const Gpt2<> gpt2{mha::Gpt2<float>(data("gpt2"))};
  const std::vector<int> a = random_ids(9, 5), b = random_ids(14, 6);
  auto cache = gpt2.make_cache(mha::Contiguous{.length = 16}, 2);
  const mha::SequenceId texts[] = {cache.add(), cache.add()};
  Work work;
  const auto read = [&](std::vector<int> of_a, const std::vector<int>& of_b) -> Rows {
    const int rows[] = {static_cast<int>(of_a.size()), static_cast<int>(of_b.size())};
    of_a.insert(of_a.end(), of_b.begin(), of_b.end());
    auto step = cache.step(texts, rows);
    const Rows logits = gpt2.next(of_a, step, work);
    step.commit();
    return logits;
  };
  read({a.begin(), a.begin() + 8}, {b.begin(), b.begin() + 3});
  const Rows last = read({a[8]}, {b.begin() + 3, b.end()});
  EXPECT_EQ(last.row(0), gpt2(a).bottomRows(1));
  EXPECT_EQ(last.row(1), gpt2(b).bottomRows(1));
}

TEST(CachedModels, RefuseIdsThatAreNotTheSteps) {
  const Gpt2<> gpt2{mha::Gpt2<float>(data("gpt2"))};
  auto cache = gpt2.make_cache(mha::Contiguous{.length = 20});
  const mha::SequenceId text = cache.add();
  Work work;
  const auto read = [&](int rows, int ids) {
    return mha_test::message_of<std::exception>([&] {
      auto step = cache.step(text, rows);
      gpt2.next(random_ids(ids, 1), step, work);
      step.commit();
    });
  };
  EXPECT_EQ(read(3, 2), "there are 2 ids, but the step has 3 rows");
  EXPECT_EQ(read(0, 0), "sequence 0 of the step has no row to go on from");
  EXPECT_EQ(read(15, 15), "");
  EXPECT_EQ(read(2, 2), "a text has 17 tokens, the model has positions for 16");
  EXPECT_EQ(cache.length(text), 15);
  EXPECT_EQ(read(1, 1), "");
}

// Every step of one token takes the memory of the one before: its rows, its workspace, what the cache reserved.
TEST(CachedModels, AllocateNothingForOneTokenAfterAnother) {
  const Gpt2<> gpt2{mha::Gpt2<float>(data("gpt2"))};
  const Llama<> mistral{mha::Llama<float>(data("mistral"))};
  const auto allocated = [](const auto& model, const auto& storage, int length) {
    auto cache = model.make_cache(storage);
    const mha::SequenceId text = cache.add();
    Work work;
    for (int i = 0; i < length; ++i) {
      if (i == length - 5) support::largest_allocation = 0;
      const int id = i % 32;
      auto step = cache.step(text, 1);
      model.next(std::span(&id, 1), step, work);
      step.commit();
    }
    return support::largest_allocation;
  };
  EXPECT_EQ(allocated(gpt2, mha::Contiguous{.length = 16}, 16), 0u);
  EXPECT_EQ(allocated(mistral, mha::Contiguous{.length = 60}, 60), 0u);
  EXPECT_EQ(allocated(mistral, mha::Paged{.pages = 4, .length = 60, .page = 16}, 60), 0u);
  EXPECT_EQ(allocated(mistral, mha::Ring{.left = 4, .rows = 1}, 60), 0u);
  const Llama<> phi3{mha::Llama<float>(data("phi3"))};
  const Gemma<mha::NoNorm, mha::SoftCap> gemma2{mha::Gemma<float>(data("gemma2"))};
  EXPECT_EQ(allocated(phi3, mha::Contiguous{.length = 60}, 60), 0u);
  EXPECT_EQ(allocated(gemma2, mha::Contiguous{.length = 60}, 60), 0u);
  EXPECT_EQ(allocated(gemma2, mha::Paged{.pages = 4, .length = 60, .page = 16}, 60), 0u);
}

}  // namespace
