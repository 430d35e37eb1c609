// SPDX-License-Identifier: Apache-2.0
// GPT-2: Radford et al. 2019, Language models are unsupervised multitask learners, §2.3
//
//   x = wte[ids] + wpe[0 … L)
//   in every block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   logits = norm(x) wteᵀ
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  wte (V, E)  wpe (positions, E)  logits (L, V)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "rows.hpp"

namespace models {

template <mha::Backend B = mha::Cpu> class Gpt2 {
 public:
  explicit Gpt2(const Checkpoint& file)
      : tokens_(file.tensor<2>("transformer.wte.weight")),
        positions_(file.tensor<2>("transformer.wpe.weight")),
        norm_({.width = file.value<int>("n_embd"), .eps = file.value<double>("layer_norm_epsilon")}),
        logits_({.inputs = file.value<int>("n_embd"), .outputs = file.value<int>("vocab_size"), .bias = false}) {
    for (int i = 0; i < file.value<int>("n_layer"); ++i)
      blocks_.emplace_back(file, "transformer.h." + std::to_string(i) + ".");
    load_norm(norm_, file, "transformer.ln_f");
    logits_.borrow({.weight = mha::transposed(tokens_)}, file.keep());  // the embedding again
  }

  /// The logits of the token that follows each of these: (L) → (L, V).
  Rows operator()(std::span<const int> ids) const {
    Rows x = embed(tokens_, ids);
    x += matrix(positions_).topRows(x.rows());
    Rows h(x.rows(), x.cols()), r(x.rows(), x.cols());
    mha::Workspace workspace;
    for (const Block& block : blocks_) block(x, h, r, workspace);
    norm_(x, mha::into(x), workspace);
    return logits_(x, workspace);
  }

 private:
  struct Block {
    mha::LayerNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::Causal> attention;
    mha::FeedForward<float, B, mha::GeluTanh> feed_forward;

    Block(const Checkpoint& file, const std::string& name)
        : norm1({.width = file.value<int>("n_embd"), .eps = file.value<double>("layer_norm_epsilon")}),
          norm2(norm1.config()),
          attention({.d_model = file.value<int>("n_embd"), .num_heads = file.value<int>("n_head"), .bias = true}),
          feed_forward({.d_model = file.value<int>("n_embd"), .d_hidden = 4 * file.value<int>("n_embd")}) {
      load_norm(norm1, file, name + "ln_1");
      load_norm(norm2, file, name + "ln_2");
      // Conv1D: stored (in, out), with query, key and value side by side.
      const auto qkv = file.tensor<2>(name + "attn.c_attn.weight");
      const auto qkv_bias = file.tensor<1>(name + "attn.c_attn.bias");
      const int E = attention.config().d_model;
      const auto part = [&](int n) { return mha::TensorView<const float, 2>{qkv.data + n * E, {E, E}, {3 * E, 1}}; };
      const auto bias = [&](int n) { return mha::view(qkv_bias.data + n * E, E); };
      attention.borrow({.query = part(0),
                        .key = part(1),
                        .value = part(2),
                        .output = file.tensor<2>(name + "attn.c_proj.weight"),
                        .query_bias = bias(0),
                        .key_bias = bias(1),
                        .value_bias = bias(2),
                        .output_bias = file.tensor<1>(name + "attn.c_proj.bias")},
                       file.keep());
      feed_forward.up().borrow(
          {.weight = file.tensor<2>(name + "mlp.c_fc.weight"), .bias = file.tensor<1>(name + "mlp.c_fc.bias")},
          file.keep());
      feed_forward.down().borrow(
          {.weight = file.tensor<2>(name + "mlp.c_proj.weight"), .bias = file.tensor<1>(name + "mlp.c_proj.bias")},
          file.keep());
    }

    // x ← block(x); h and r are rows to work in.
    void operator()(Rows& x, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

  mha::TensorView<const float, 2> tokens_, positions_;
  std::vector<Block> blocks_;
  mha::LayerNorm<float, B> norm_;
  mha::Linear<float, B> logits_;
};

}  // namespace models
