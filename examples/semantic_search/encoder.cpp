// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace semantic_search {
namespace {

/// The mean of the rows, divided by its length.
void write_mean(const Rows& x, float* vector) {
  const Eigen::Map<const Matrix> rows(x.data, x.extent[0], x.extent[1]);
  Eigen::Map<Eigen::RowVectorXf> mean(vector, x.extent[1]);
  mean = rows.colwise().sum();
  mean /= std::max(mean.norm(), 1e-12f);  // the number of rows cancels out
}

}  // namespace

template <mha::Backend B>
EncoderOn<B>::EncoderOn(const Checkpoint& file, const B& backend)
    : Encoder(file.config()),
      word_(file.bert().word_embeddings()),
      position_(file.bert().position_embeddings()),
      token_type_(file.bert().token_type_embeddings()),
      embedding_norm_(config_.norm, backend),
      mapping_(file.bert().mapping()) {
  embedding_norm_.borrow(file.bert().embedding_norm(), mapping_);
  for (int i = 0; i < config_.layers; ++i) blocks_.emplace_back(file.bert(), i, backend);
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
    for (int e = 0; e < config_.attention.d_model; ++e) x(t, e) = word_(id, e) + position_(t, e) + token_type_(0, e);
  }
}

template <mha::Backend B>
void EncoderOn<B>::embed(std::span<const Encoding> texts, const Rows& vectors, mha::Workspace& workspace) const {
  const int E = config_.attention.d_model;
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
  mha::Tensor<float, 2> x(offsets[1], config_.attention.d_model), y(offsets[1], config_.attention.d_model);  // (L, E)
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
