// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace semantic_search {
namespace {

// Checkpoints have weights as (out, in), the library's are (in, out): a transposed view, no copy.
mha::BorrowedLinear<float> linear(const Checkpoint& file, const std::string& name, int in, int out) {
  return {.weight = mha::transposed(file.matrix(name + ".weight", out, in)), .bias = file.vector(name + ".bias", out)};
}

mha::BorrowedNorm<float> norm(const Checkpoint& file, const std::string& name) {
  const int width = file.config().hidden;
  return {.weight = file.vector(name + ".weight", width), .bias = file.vector(name + ".bias", width)};
}

mha::BorrowedWeights<float> attention_weights_of(const Checkpoint& file, const std::string& name) {
  const int E = file.config().hidden;
  const auto q = linear(file, name + "self.query", E, E), k = linear(file, name + "self.key", E, E),
             v = linear(file, name + "self.value", E, E), o = linear(file, name + "output.dense", E, E);
  return {.query = q.weight,
          .key = k.weight,
          .value = v.weight,
          .output = o.weight,
          .query_bias = q.bias,
          .key_bias = k.bias,
          .value_bias = v.bias,
          .output_bias = o.bias};
}

/// The mean of the rows, divided by its length.
void write_mean(const Rows& x, float* vector) {
  const Eigen::Map<const Matrix> rows(x.data, x.extent[0], x.extent[1]);
  Eigen::Map<Eigen::RowVectorXf> mean(vector, x.extent[1]);
  mean = rows.colwise().sum();
  mean /= std::max(mean.norm(), 1e-12f);  // the number of rows cancels out
}

mha::NormConfig norm_config(const ModelConfig& c) { return {.width = c.hidden, .eps = c.layer_norm_eps}; }

}  // namespace

template <mha::Backend B>
Block<B>::Block(const Checkpoint& file, int index, const B& backend)
    : attention({.d_model = file.config().hidden, .num_heads = file.config().heads, .bias = true}, backend),
      feed_forward({.d_model = file.config().hidden, .d_hidden = file.config().intermediate}, backend),
      attention_norm(norm_config(file.config()), backend),
      output_norm(norm_config(file.config()), backend) {
  const int E = file.config().hidden, F = file.config().intermediate;
  const std::string name = "encoder.layer." + std::to_string(index) + ".";
  attention.borrow(attention_weights_of(file, name + "attention."), file.mapping());
  attention_norm.borrow(norm(file, name + "attention.output.LayerNorm"), file.mapping());
  feed_forward.up().borrow(linear(file, name + "intermediate.dense", E, F), file.mapping());
  feed_forward.down().borrow(linear(file, name + "output.dense", F, E), file.mapping());
  output_norm.borrow(norm(file, name + "output.LayerNorm"), file.mapping());
}

template <mha::Backend B>
EncoderOn<B>::EncoderOn(const Checkpoint& file, const B& backend)
    : Encoder(file.config()),
      word_(file.matrix("embeddings.word_embeddings.weight", config_.vocabulary, config_.hidden)),
      position_(file.matrix("embeddings.position_embeddings.weight", config_.positions, config_.hidden)),
      token_type_(file.matrix("embeddings.token_type_embeddings.weight", config_.token_types, config_.hidden)),
      embedding_norm_(norm_config(config_), backend),
      mapping_(file.mapping()) {
  embedding_norm_.borrow(norm(file, "embeddings.LayerNorm"), mapping_);
  for (int i = 0; i < config_.layers; ++i) blocks_.emplace_back(file, i, backend);
}

template <mha::Backend B> void EncoderOn<B>::check(const Encoding& text) const {
  if (static_cast<int>(text.ids.size()) > config_.positions)
    throw std::runtime_error("a text has " + std::to_string(text.ids.size()) + " tokens, the model has positions for " +
                             std::to_string(config_.positions));
  for (const int id : text.ids)
    if (id < 0 || id >= config_.vocabulary)
      throw std::runtime_error("token number " + std::to_string(id) + " is outside the model's vocabulary of " +
                               std::to_string(config_.vocabulary));
}

template <mha::Backend B> void EncoderOn<B>::write_embeddings(const Encoding& text, const Rows& x) const {
  for (int t = 0; t < x.extent[0]; ++t) {
    const int id = text.ids[static_cast<std::size_t>(t)];
    // One text per input, so every token is of type 0.
    for (int e = 0; e < config_.hidden; ++e) x(t, e) = word_(id, e) + position_(t, e) + token_type_(0, e);
  }
}

template <mha::Backend B>
void EncoderOn<B>::embed(std::span<const Encoding> texts, const Rows& vectors, mha::Workspace& workspace) const {
  const int E = config_.hidden;
  for (const Encoding& text : texts) check(text);

  // Memory of the workspace, which is kept for the next call.
  auto frame = workspace.frame();
  const std::span offsets(frame.take<int>(texts.size() + 1), texts.size() + 1);
  offsets[0] = 0;
  for (std::size_t b = 0; b < texts.size(); ++b) offsets[b + 1] = offsets[b] + static_cast<int>(texts[b].ids.size());
  const auto n = static_cast<std::size_t>(offsets.back()) * static_cast<std::size_t>(E);
  const Rows x = mha::view(frame.take<float>(n), offsets.back(), E);  // (ΣL, E): no row of it is padding
  const Rows y = mha::view(frame.take<float>(n), offsets.back(), E);
  const auto rows_of = [&](std::size_t b) { return mha::view(&x(offsets[b], 0), offsets[b + 1] - offsets[b], E); };

  for (std::size_t b = 0; b < texts.size(); ++b) write_embeddings(texts[b], rows_of(b));
  embedding_norm_(x, mha::into(x), workspace);
  for (const Block<B>& block : blocks_) block(x, y, mha::Ragged{offsets}, workspace);
  for (std::size_t b = 0; b < texts.size(); ++b) write_mean(rows_of(b), &vectors(static_cast<int>(b), 0));
}

template <mha::Backend B> mha::Tensor<float, 4> EncoderOn<B>::attention_weights(const Encoding& text, int layer) const {
  if (layer < 0 || layer >= config_.layers)
    throw std::runtime_error("there is no layer " + std::to_string(layer) + ": the model has " +
                             std::to_string(config_.layers) + ", counted from 0");
  check(text);
  const std::array offsets{0, static_cast<int>(text.ids.size())};
  mha::Tensor<float, 2> x(offsets[1], config_.hidden), y(offsets[1], config_.hidden);  // (L, E)
  mha::Workspace workspace;
  write_embeddings(text, x.view());
  embedding_norm_(x, mha::into(x), workspace);
  for (int i = 0; i < layer; ++i)
    blocks_[static_cast<std::size_t>(i)](x.view(), y.view(), mha::Ragged{offsets}, workspace);
  return blocks_[static_cast<std::size_t>(layer)].attention.attention_weights(x, workspace);
}

template class EncoderOn<mha::Cpu>;
template class EncoderOn<mha::Systolic<>>;

std::unique_ptr<const Encoder> make_encoder(const Checkpoint& file, Machine machine, const mha::ThreadPool& threads) {
  if (machine == Machine::cpu) return std::make_unique<EncoderOn<mha::Cpu>>(file, mha::Cpu(threads));
  // Without one Systolic emulates it, slowly: only for who asks for that.
  const char* const asked = std::getenv("MHA_MATRIX_UNIT");
  if (mha::best_unit() == mha::MatrixUnit::portable && (asked == nullptr || *asked == '\0'))
    throw std::runtime_error("--backend systolic needs a matrix unit, but " + mha::missing(mha::MatrixUnit::amx) +
                             ": take --backend cpu, or set MHA_MATRIX_UNIT=portable to emulate one");
  return std::make_unique<EncoderOn<mha::Systolic<>>>(file, mha::Systolic<>(threads));
}

}  // namespace semantic_search
