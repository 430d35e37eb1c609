// SPDX-License-Identifier: Apache-2.0
// 35: save what was trained
//
// You learn   one call that saves the weights of a part in a safetensors file, one that reads them again; how they are
//             named and laid out there
// The maths   h = norm(x), y = x + attention(h), z = y + feed_forward(y); L = ½ ‖Z − T‖², W ← W − rate · dL/dW
// Symbols     L = 8 tokens, E = 16 numbers per token, 32 hidden: x, h, y, z, T (L, E)
// Output      four lines that end in "yes"
// Next        36_positions_of_your_own.cpp
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>
#include <filesystem>
#include <random>
#include <string>

#include <mha/block.hpp>
#include <mha/io.hpp>
#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 8, E = 16;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

struct Block {
  mha::RmsNorm<float> norm{{.width = E}};
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> attention{{.d_model = E, .num_heads = 4}};
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> feed_forward{{.d_model = E, .d_hidden = 32}};

  Matrix operator()(const Matrix& x) const {
    const Matrix y = attention(Matrix(norm(x)), mha::residual(x));
    return feed_forward(y, mha::residual(y));
  }
};

// Some steps towards `target`, of everything that learns.
void train(Block& b, const Matrix& x, const Matrix& target) {
  auto norm_tape = b.norm.tape();
  auto tape = b.attention.tape();
  auto feed_forward_tape = b.feed_forward.tape();
  auto d_norm = b.norm.gradients();
  auto d_attention = b.attention.gradients();
  auto d_feed_forward = b.feed_forward.gradients();
  const auto descend = [](auto& part, auto& gradients) {
    part.update([&](auto& p) {
      p.for_each(gradients, [](auto numbers, auto d) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= 0.02f * d[i];
      });
    });
    gradients.clear();
  };
  for (int step = 0; step < 30; ++step) {
    const Matrix h = b.norm(x, norm_tape);
    const Matrix y = b.attention(h, tape, mha::residual(x));
    const Matrix z = b.feed_forward(y, feed_forward_tape, mha::residual(y));
    const Matrix dz = z - target;
    const Matrix dy = dz + Matrix(b.feed_forward.backward(dz, feed_forward_tape, d_feed_forward));
    static_cast<void>(b.norm.backward(Matrix(b.attention.backward(dy, tape, d_attention)), norm_tape, d_norm));
    descend(b.norm, d_norm), descend(b.attention, d_attention), descend(b.feed_forward, d_feed_forward);
  }
}

template <class Scalar> void save(const Block& block, const std::filesystem::path& path) {
  mha::SafetensorsWriter file;
  mha::save_weights<Scalar>(file, "norm", block.norm);            // norm.weight
  mha::save_weights<Scalar>(file, "self_attn", block.attention);  // self_attn.q_proj.weight, … (out, in)
  mha::save_weights<Scalar>(file, "mlp", block.feed_forward);     // mlp.gate_proj.weight, …
  file.metadata("steps", "30");
  file.write(path);  // whole, or not at all
}

Block load(const std::filesystem::path& path) {
  const mha::Safetensors file(path);
  Block block;
  mha::load_weights(file, "norm", block.norm);
  mha::load_weights(file, "self_attn", block.attention);
  mha::load_weights(file, "mlp", block.feed_forward);
  return block;
}

int main() {
  Matrix x(L, E), target(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float(i * E + e)), target(i, e) = std::cos(float(i + e));
  Block block;
  block.attention.initialize(mha::XavierUniform{.seed = 1});
  block.feed_forward.initialize(mha::XavierUniform{.seed = 2});
  const float before = (block(x) - target).norm();
  train(block, x, target);
  const float after = (block(x) - target).norm();

  // A name of its own: another run of this program may be writing.
  const auto path =
      std::filesystem::temp_directory_path() / ("mha_35_" + std::to_string(std::random_device{}()) + ".safetensors");
  save<float>(block, path);
  const auto bytes = std::filesystem::file_size(path);
  check("a fresh block with the saved weights has the same bits", after < 0.7f * before && load(path)(x) == block(x));

  // What a call has written: matrices are (out, in), as PyTorch stores them.
  const mha::Safetensors file(path);
  const auto stored = file.view<float, 2>("self_attn.q_proj.weight");
  const auto q = block.attention.parameters().query.matrix();
  bool equal = true;
  for (int i = 0; i < E; ++i)
    for (int j = 0; j < E; ++j) equal = equal && stored(j, i) == q(i, j);
  check("self_attn.q_proj.weight is the layer's matrix, transposed", equal);

  // Over the same file, which `file` still maps; and where that cannot be, the old one stays.
  save<mha::bfloat16>(block, path);
  const float change = (load(path)(x) - block(x)).norm() / block(x).norm();
  check("in bfloat16 half the numbers' bytes, two or three digits of them",
        10 * std::filesystem::file_size(path) < 7 * bytes && change > 0 && change < 0.02f);
  bool refused = false;
  try {
    save<float>(block, path / "no" / "such.safetensors");
  } catch (const mha::SafetensorsError& error) {
    refused = std::string(error.what()).starts_with("cannot write '");
  }
  check("a folder that is not there is one sentence", refused);
  std::filesystem::remove(path);
  return failures == 0 ? 0 : 1;
}
