// SPDX-License-Identifier: Apache-2.0
// The model, a small LLaMA, with its backward pass. All that is dense is the library's; the loop over the blocks, the
// sums of the residual and the embedding are here.
//
//   x = tokens[ids]
//   in every block:  x = x + attention(norm₁(x)),  x = x + (Silu(h W_gate) ∘ (h W_up)) W_down with h = norm₂(x)
//   logits = norm(x) W_logits
//
// Backwards, with dx for dL/dx: a sum x + f(x) has dx ← dx + f.backward(dx), and every part adds to its gradients.
//
// Symbols  B sequences, L tokens of each, E model width, V vocabulary;  x (B, L, E)  logits (B·L, V)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "embedding.hpp"

namespace train {

struct ModelConfig {
  int vocabulary = 256;  ///< tokens are bytes
  int width = 64, hidden = 128, heads = 4, layers = 4;
  int context = 128;  ///< tokens of a sequence
  int batch = 8;      ///< sequences of a step
};

/// A layer of the library with what it takes to train it.
template <class Layer> struct Trained {
  template <class... Values> explicit Trained(const Values&... values) : layer(values...) {}

  Layer layer;
  decltype(std::declval<const Layer&>().tape()) tape = layer.tape();
  decltype(std::declval<const Layer&>().gradients()) gradients = layer.gradients();
};

/// x += y, both (B, L, E).
template <class T> void add(const mha::TensorView<T, 3>& x, const mha::TensorView<T, 3>& y) {
  for (std::ptrdiff_t i = 0; i < x.size(); ++i) x.data[i] += y.data[i];
}

template <class T> struct Block {
  using Rows = mha::TensorView<T, 3>;
  using Norm = mha::RmsNorm<T>;
  using Attention = mha::MultiHeadAttention<T, mha::Cpu, mha::Causal, mha::Rotary<>>;
  using FeedForward = mha::FeedForward<T, mha::Cpu, mha::SwiGlu>;

  Block(const ModelConfig& c, const mha::Cpu& machine)
      : norm1(mha::NormConfig{.width = c.width}, machine),
        norm2(mha::NormConfig{.width = c.width}, machine),
        attention(mha::Config{.d_model = c.width, .num_heads = c.heads}, machine),
        feed_forward(mha::FeedForwardConfig{.d_model = c.width, .d_hidden = c.hidden, .bias = false}, machine),
        normed1_(c.batch, c.context, c.width),
        sum_(c.batch, c.context, c.width),
        normed2_(c.batch, c.context, c.width) {}

  /// y = block(x). x stays as it is until the backward pass.
  void operator()(const Rows& x, const Rows& y, mha::Workspace& workspace) {
    const int batch = x.extent[0], length = x.extent[1];
    const Rows h1 = first(normed1_, batch, length), sum = first(sum_, batch, length);
    const Rows h2 = first(normed2_, batch, length);
    norm1.layer(x, norm1.tape, mha::into(h1), workspace);
    attention.layer(h1, attention.tape, mha::into(sum), workspace);
    add(sum, x);
    norm2.layer(sum, norm2.tape, mha::into(h2), workspace);
    feed_forward.layer(h2, feed_forward.tape, mha::residual(sum), mha::into(y), workspace);
  }

  /// dx: dL/dy → dL/dx; a is rows to work in.
  void backward(const Rows& dx, const Rows& a, mha::Workspace& workspace) {
    feed_forward.layer.backward(dx, feed_forward.tape, feed_forward.gradients, mha::into(a), workspace);
    norm2.layer.backward(a, norm2.tape, norm2.gradients, mha::add_to(dx), workspace);
    attention.layer.backward(dx, attention.tape, attention.gradients, mha::into(a), workspace);
    norm1.layer.backward(a, norm1.tape, norm1.gradients, mha::add_to(dx), workspace);
  }

  mha::Tensor<T, 4> attention_weights(int batch, int length) {
    return attention.layer.attention_weights(first(normed1_, batch, length));
  }

  /// Memory for so many rows at the beginning of a tensor.
  static Rows first(mha::Tensor<T, 3>& t, int batch, int length) {
    return mha::view(t.data(), batch, length, t.extent(2));
  }

  Trained<Norm> norm1, norm2;
  Trained<Attention> attention;
  Trained<FeedForward> feed_forward;

 private:
  mha::Tensor<T, 3> normed1_, sum_, normed2_;
};

template <class T> class Model {
 public:
  using Rows = mha::TensorView<T, 3>;

  Model(const ModelConfig& config, std::uint64_t seed, const mha::ThreadPool& threads = {})
      : config_(config),
        machine_(threads),
        embedding_(config.vocabulary, config.width),
        embedding_gradients_(embedding_.gradients()),
        norm_(mha::NormConfig{.width = config.width}, machine_),
        head_(mha::LinearConfig{.inputs = config.width, .outputs = config.vocabulary, .bias = false}, machine_) {
    for (int i = 0; i < config.layers; ++i) blocks_.emplace_back(config, machine_);
    for (int i = 0; i <= config.layers; ++i) rows_.emplace_back(config.batch, config.context, config.width);
    for (auto* t : {&normed_, &dx_, &a_}) *t = mha::Tensor<T, 3>(config.batch, config.context, config.width);
    logits_ = mha::Tensor<T, 3>(config.batch, config.context, config.vocabulary);
    initialize(seed);
  }

  const ModelConfig& config() const { return config_; }
  const mha::ThreadPool& threads() const { return machine_.threads(); }

  /// The logits of the token that follows each of these: (B·L) → (B, L, V), which the next call overwrites. The ids
  /// stay as they are until the backward pass. B and L are at most the configuration's.
  Rows forward(std::span<const int> ids, int batch) {
    ids_ = ids;
    batch_ = batch;
    length_ = static_cast<int>(ids.size()) / batch;
    embedding_(ids, flat(rows_.front()));
    for (int i = 0; i < config_.layers; ++i) blocks_[at(i)](rows(i), rows(i + 1), workspace_);
    const Rows normed = first(normed_), logits = first(logits_), x = rows(config_.layers);
    norm_.layer(x, norm_.tape, mha::into(normed), workspace_);
    head_.layer(normed, head_.tape, mha::into(logits), workspace_);
    return logits;
  }

  /// Adds dL/dw of every weight to the gradients, given dL/dlogits of the last forward().
  void backward(const Rows& d_logits) {
    const Rows dx = first(dx_), a = first(a_);
    head_.layer.backward(d_logits, head_.tape, head_.gradients, mha::into(a), workspace_);
    norm_.layer.backward(a, norm_.tape, norm_.gradients, mha::into(dx), workspace_);
    for (int i = config_.layers; i-- > 0;) blocks_[at(i)].backward(dx, a, workspace_);
    embedding_.backward(ids_, flat(dx_), embedding_gradients_);
  }

  /// f(part, gradients, decays) for everything that learns, always in the same order; a part is changed by its
  /// update().
  template <class F> void for_each(F&& f) {
    f(embedding_, embedding_gradients_, false);
    for (Block<T>& block : blocks_) {
      f(block.norm1.layer, block.norm1.gradients, false);
      f(block.attention.layer, block.attention.gradients, true);
      f(block.norm2.layer, block.norm2.gradients, false);
      f(block.feed_forward.layer.up(), block.feed_forward.gradients.up, true);
      f(block.feed_forward.layer.down(), block.feed_forward.gradients.down, true);
    }
    f(norm_.layer, norm_.gradients, false);
    f(head_.layer, head_.gradients, true);
  }

  /// As a step begins.
  void clear_gradients() {
    for_each([](auto&, auto& gradients, bool) { std::fill(gradients.flat().begin(), gradients.flat().end(), T(0)); });
  }

  std::size_t parameter_count() {
    std::size_t count = 0;
    for_each([&](auto&, auto& gradients, bool) { count += gradients.flat().size(); });
    return count;
  }

  const Embedding<T>& embedding() const { return embedding_; }
  const std::deque<Block<T>>& blocks() const { return blocks_; }
  const auto& norm() const { return norm_.layer; }
  const auto& head() const { return head_.layer; }
  /// What the heads of a block attended to in the last forward(): (B, H, L, L).
  mha::Tensor<T, 4> attention_weights(int block) { return blocks_[at(block)].attention_weights(batch_, length_); }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Rows first(mha::Tensor<T, 3>& t) { return Block<T>::first(t, batch_, length_); }
  Rows rows(int i) { return first(rows_[at(i)]); }
  mha::TensorView<T, 2> flat(mha::Tensor<T, 3>& t) { return mha::view(t.data(), batch_ * length_, t.extent(2)); }

  /// The branches that end in a sum begin small, so that the sum of all is no larger than the embedding's rows.
  void initialize(std::uint64_t seed) {
    const double branch = 1 / std::sqrt(2.0 * config_.layers);
    embedding_.initialize(seed = seed * 1000 + 1, 0.1);
    for (Block<T>& block : blocks_) {
      block.attention.layer.initialize(mha::XavierUniform{.seed = ++seed});
      block.feed_forward.layer.up().initialize(mha::XavierUniform{.seed = ++seed});
      block.feed_forward.layer.down().initialize(mha::XavierUniform{.seed = ++seed, .gain = branch});
      block.attention.layer.update([&](auto& p) {
        for (int i = 0; i < p.output.weight.extent[0]; ++i)
          for (int j = 0; j < p.output.weight.extent[1]; ++j) p.output.weight(i, j) *= T(branch);
      });
    }
    head_.layer.initialize(mha::XavierUniform{.seed = ++seed, .gain = 0.1});
  }

  ModelConfig config_;
  mha::Cpu machine_;
  Embedding<T> embedding_;
  typename Embedding<T>::Gradients embedding_gradients_;
  std::deque<Block<T>> blocks_;
  Trained<mha::RmsNorm<T>> norm_;
  Trained<mha::Linear<T>> head_;

  std::span<const int> ids_;  // of the last forward()
  int batch_ = 0, length_ = 0;
  std::deque<mha::Tensor<T, 3>> rows_;  // before every block and after the last
  mha::Tensor<T, 3> normed_, logits_, dx_, a_;
  mha::Workspace workspace_;
};

extern template class Model<float>;  // in model.cpp

}  // namespace train
