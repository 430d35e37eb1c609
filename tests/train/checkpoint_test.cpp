// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llama.hpp"
#include "scratch.hpp"
#include "text.hpp"
#include "tokenizer.hpp"

namespace {

namespace fs = std::filesystem;
using train::Model;
using train::ModelConfig;

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The model that writes the checkpoint has its rounded weights, so that both compute the same.
TEST(TrainCheckpoint, IsTheModelThatWasTrained) {
  const ModelConfig config{
      .vocabulary = 256, .width = 24, .hidden = 40, .heads = 3, .layers = 2, .context = 16, .batch = 1};
  Model<float> model(config, 3);
  const mha_test::Scratch scratch;
  int part = 0;
  model.for_each([&](auto& layer, auto&, bool) {
    ++part;
    layer.update([&](auto& p) {
      int i = 0;
      for (float& w : p.flat()) w = float(mha::bfloat16(w + 0.2f * std::sin(float(part * 100 + i++))));
    });
  });
  train::write_checkpoint(model, scratch.root(), "a test");

  const mha::Llama<float> weights(scratch.root());
  EXPECT_EQ(weights.config().windows, std::vector<int>(2, 16));
  const models::Llama<> read(weights);
  std::vector<int> ids;
  for (int i = 0; i < 16; ++i) ids.push_back(i * i * 7 % 256);
  const models::Rows logits = read(ids);  // (L, V)
  const auto expected = model.forward(ids, 1);
  double largest = 0;
  for (int i = 0; i < 16; ++i)
    for (int v = 0; v < 256; ++v) {
      EXPECT_NEAR(logits(i, v), expected(0, i, v), 1e-4) << i << ' ' << v;
      largest = std::max(largest, std::abs(double(logits(i, v))));
    }
  EXPECT_GT(largest, 0.5);
}

TEST(TrainCheckpoint, RoundsToTheNearest) {
  const ModelConfig config{
      .vocabulary = 256, .width = 8, .hidden = 8, .heads = 2, .layers = 1, .context = 4, .batch = 1};
  const Model<float> model(config, 3);
  const mha_test::Scratch scratch;
  train::write_checkpoint(model, scratch.root(), "a test");
  const mha::Safetensors file(scratch.root() / "model.safetensors");
  const auto table = file.view<mha::bfloat16, 2>("model.embed_tokens.weight");
  for (int v = 0; v < 256; ++v)
    for (int e = 0; e < 8; ++e) EXPECT_EQ(float(table(v, e)), float(mha::bfloat16(model.embedding().table()(v, e))));
}

TEST(TrainCheckpoint, HasEveryByteAsAToken) {
  const Model<float> model({.width = 8, .hidden = 8, .heads = 2, .layers = 1, .context = 4, .batch = 1}, 3);
  const mha_test::Scratch scratch;
  train::write_checkpoint(model, scratch.root(), "a test");
  const generate::Tokenizer tokenizer(scratch.root() / "tokenizer.json");
  EXPECT_EQ(tokenizer.size(), 256);
  std::string all;
  std::vector<int> ids;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    ids.push_back(byte);
  }
  EXPECT_EQ(tokenizer.encode(all), ids);
}

TEST(TrainCheckpoint, SaysWhatItCannotWrite) {
  const Model<float> model({.width = 8, .hidden = 8, .heads = 2, .layers = 1, .context = 4, .batch = 1}, 3);
  EXPECT_EQ(mha_test::message_of<std::exception>([&] { train::write_checkpoint(model, "/no/such", "a test"); }),
            "cannot write '/no/such/config.json'");
}

/// The one that the repository carries.
TEST(CarriedCheckpoint, HasLearnedTheHeldOutText) {
  const fs::path folder = GENERATE_DEFAULT_MODEL;
  EXPECT_LE(fs::file_size(folder / "model.safetensors"), 500'000u);
  EXPECT_NE(bytes_of(folder / "config.json").find("\"mha_made_by\": \"train --steps "), std::string::npos);
  const models::Llama<> model{mha::Llama<float>(folder)};
  const train::Text text = train::read_text(TRAIN_DEFAULT_TEXT, 128);
  double loss = 0;
  std::size_t count = 0;
  for (std::size_t first = 0; first + 128 < text.held_out.size(); first += 128) {
    const models::Rows logits = model({text.held_out.data() + first, 128});  // (L, V)
    for (int i = 0; i < 128; ++i, ++count) {
      double sum = 0;
      for (int v = 0; v < 256; ++v) sum += std::exp(double(logits(i, v)));
      loss += std::log(sum) - double(logits(i, text.held_out[first + static_cast<std::size_t>(i) + 1]));
    }
  }
  EXPECT_LE(loss / static_cast<double>(count), 2.0);
}

}  // namespace
