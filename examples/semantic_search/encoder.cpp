// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace semantic_search {
namespace {

Eigen::Map<const Matrix> matrix(const Checkpoint& file, const std::string& name, int rows, int columns) {
  return {file.matrix(name, rows, columns).data, rows, columns};
}
Eigen::Map<const Eigen::RowVectorXf> vector(const Checkpoint& file, const std::string& name, int size) {
  return {file.vector(name, size).data, size};
}

// x · Φ(x) with the exact normal distribution, as BERT was trained.
void gelu(Matrix& x) {
  x = x.unaryExpr([](float v) { return 0.5f * v * (1 + std::erf(v * (1 / std::numbers::sqrt2_v<float>))); });
}

// The checkpoint has its projections as (out, in) and the layer wants (in, out): a transposed view, no copy.
template <mha::Backend B>
std::unique_ptr<mha::MultiHeadAttention<float, B>> attention_of(const Checkpoint& file, const std::string& name) {
  const ModelConfig& c = file.config();
  const auto weight = [&](const char* part) {
    return mha::transposed(file.matrix(name + part + ".weight", c.hidden, c.hidden));
  };
  const auto bias = [&](const char* part) { return file.vector(name + part + ".bias", c.hidden); };
  auto layer = std::make_unique<mha::MultiHeadAttention<float, B>>(
      mha::Config{.d_model = c.hidden, .num_heads = c.heads, .bias = true});
  layer->borrow({.query = weight("self.query"),
                 .key = weight("self.key"),
                 .value = weight("self.value"),
                 .output = weight("output.dense"),
                 .query_bias = bias("self.query"),
                 .key_bias = bias("self.key"),
                 .value_bias = bias("self.value"),
                 .output_bias = bias("output.dense")},
                file.mapping());
  return layer;
}

std::string layer_name(int index) { return "encoder.layer." + std::to_string(index) + "."; }

}  // namespace

Dense::Dense(const Checkpoint& file, const std::string& name, int out, int in)
    : weight(matrix(file, name + ".weight", out, in)), bias(vector(file, name + ".bias", out)) {}

Matrix Dense::operator()(const Matrix& x) const {
  Matrix y(x.rows(), weight.rows());
  y.noalias() = x * weight.transpose();
  y.rowwise() += bias;
  return y;
}

LayerNorm::LayerNorm(const Checkpoint& file, const std::string& name)
    : scale(vector(file, name + ".weight", file.config().hidden)),
      shift(vector(file, name + ".bias", file.config().hidden)),
      eps(file.config().layer_norm_eps) {}

void LayerNorm::operator()(Matrix& x) const {
  for (auto row : x.rowwise()) {
    row.array() -= row.mean();
    const float variance = row.squaredNorm() / static_cast<float>(row.size());
    row = row.cwiseProduct(scale) / std::sqrt(variance + eps) + shift;
  }
}

template <mha::Backend B>
EncoderLayer<B>::EncoderLayer(const Checkpoint& file, int index)
    : attention(attention_of<B>(file, layer_name(index) + "attention.")),
      attention_norm(file, layer_name(index) + "attention.output.LayerNorm"),
      expand(file, layer_name(index) + "intermediate.dense", file.config().intermediate, file.config().hidden),
      contract(file, layer_name(index) + "output.dense", file.config().hidden, file.config().intermediate),
      output_norm(file, layer_name(index) + "output.LayerNorm") {}

template <mha::Backend B>
EncoderOn<B>::EncoderOn(const Checkpoint& file)
    : config_(file.config()),
      mapping_(file.mapping()),
      word_(matrix(file, "embeddings.word_embeddings.weight", config_.vocabulary, config_.hidden)),
      position_(matrix(file, "embeddings.position_embeddings.weight", config_.positions, config_.hidden)),
      token_type_(matrix(file, "embeddings.token_type_embeddings.weight", config_.token_types, config_.hidden)),
      embedding_norm_(file, "embeddings.LayerNorm") {
  for (int i = 0; i < config_.layers; ++i) layers_.emplace_back(file, i);
}

template <mha::Backend B> Matrix EncoderOn<B>::embeddings(std::span<const Encoding* const> batch, int length) const {
  Matrix x = Matrix::Zero(static_cast<Eigen::Index>(batch.size()) * length, config_.hidden);  // (B·L, E)
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const std::vector<int>& ids = batch[b]->ids;
    for (int t = 0; t < static_cast<int>(ids.size()); ++t) {
      const int id = ids[static_cast<std::size_t>(t)];
      if (id < 0 || id >= config_.vocabulary)
        throw std::runtime_error("token number " + std::to_string(id) + " is outside the model's vocabulary of " +
                                 std::to_string(config_.vocabulary));
      // One text per input, so every token is of type 0. Rows past the end stay 0: the padding mask hides them.
      x.row(static_cast<Eigen::Index>(b) * length + t) = word_.row(id) + position_.row(t) + token_type_.row(0);
    }
  }
  embedding_norm_(x);
  return x;
}

template <mha::Backend B>
void EncoderOn<B>::run(const EncoderLayer<B>& layer, Matrix& x, const std::vector<int>& lengths,
                       mha::Workspace& workspace) const {
  const int batch = static_cast<int>(lengths.size());
  const int length = static_cast<int>(x.rows()) / batch;
  Matrix y(x.rows(), x.cols());
  const auto in = mha::view(std::as_const(x).data(), batch, length, config_.hidden);  // (B, L, E)
  const auto out = mha::view(y.data(), batch, length, config_.hidden);                // (B, L, E)
  (*layer.attention)(in, mha::Padding{lengths}, mha::into(out), workspace);
  x += y;
  layer.attention_norm(x);

  Matrix wide = layer.expand(x);  // (B·L, F)
  gelu(wide);
  x += layer.contract(wide);
  layer.output_norm(x);
}

template <mha::Backend B>
Matrix EncoderOn<B>::embed(std::span<const Encoding* const> batch, mha::Workspace& workspace) const {
  std::vector<int> lengths;
  for (const Encoding* text : batch) lengths.push_back(static_cast<int>(text->ids.size()));
  const int length = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  Matrix result(static_cast<Eigen::Index>(batch.size()), config_.hidden);
  if (length > config_.positions)
    throw std::runtime_error("a text has " + std::to_string(length) + " tokens, the model has positions for " +
                             std::to_string(config_.positions));
  if (length == 0) return result.setZero();

  Matrix x = embeddings(batch, length);
  for (const EncoderLayer<B>& layer : layers_) run(layer, x, lengths, workspace);
  for (Eigen::Index b = 0; b < result.rows(); ++b) {
    const int tokens = lengths[static_cast<std::size_t>(b)];
    result.row(b) = x.middleRows(b * length, tokens).colwise().sum() / static_cast<float>(std::max(tokens, 1));
    result.row(b) /= std::max(result.row(b).norm(), 1e-12f);
  }
  return result;
}

template <mha::Backend B> mha::Tensor<float, 4> EncoderOn<B>::attention_weights(const Encoding& text, int layer) const {
  if (layer < 0 || layer >= config_.layers)
    throw std::runtime_error("there is no layer " + std::to_string(layer) + ": the model has " +
                             std::to_string(config_.layers) + ", counted from 0");
  const int length = static_cast<int>(text.ids.size());
  const Encoding* const batch[] = {&text};
  Matrix x = embeddings(batch, length);
  mha::Workspace workspace;
  for (int i = 0; i < layer; ++i) run(layers_[static_cast<std::size_t>(i)], x, {length}, workspace);
  const auto in = mha::view(std::as_const(x).data(), 1, length, config_.hidden);  // (1, L, E)
  return layers_[static_cast<std::size_t>(layer)].attention->attention_weights(in);
}

template class EncoderOn<mha::Cpu>;
template class EncoderOn<mha::Systolic<>>;

}  // namespace semantic_search
