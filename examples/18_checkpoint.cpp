// SPDX-License-Identifier: Apache-2.0
// 18: a checkpoint
//
// You learn   a layer with the weights of a mapped .safetensors file; the reader copies no tensor
// The maths   PyTorch's nn.Linear stores W as (out, in) and computes x Wᵀ + b; the layer's matrices are (in, out), so
//             each is given as a transposed view. nn.MultiheadAttention stores W_Q, W_K, W_V in the rows of one matrix.
// Symbols     E = 16 model width, H = 4 heads; in_proj (3·E, E)  out_proj (E, E)  x, y (L, E)
// Output      three lines that end in "yes"
// Next        19_feed_forward.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <mha/io.hpp>
#include <mha/mha.hpp>

constexpr int E = 16, H = 4, L = 5;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// What PyTorch would have saved for nn.MultiheadAttention(16, 4).
std::filesystem::path saved_checkpoint() {
  // A name of its own: another run of this program may be writing.
  const auto path = std::filesystem::temp_directory_path() /
                    ("mha_18_checkpoint_" + std::to_string(std::random_device{}()) + ".safetensors");
  std::vector<float> numbers;
  for (int i = 0; i < 4 * E * E + 4 * E; ++i) numbers.push_back(0.3f * std::sin(float(i * i % 1009)));
  const float* const in = numbers.data();
  const float* const in_bias = in + 3 * E * E;
  const float* const out = in_bias + 3 * E;
  mha::SafetensorsWriter file;
  file.add("self_attn.in_proj_weight", mha::view(in, 3 * E, E));
  file.add("self_attn.in_proj_bias", mha::view(in_bias, 3 * E));
  file.add("self_attn.out_proj.weight", mha::view(out, E, E));
  file.add("self_attn.out_proj.bias", mha::view(out + E * E, E));
  file.write(path);
  return path;
}

int main() {
  const auto path = saved_checkpoint();

  const mha::Safetensors file(path);
  const auto in = file.view<float, 2>("self_attn.in_proj_weight");  // (3·E, E), in the mapped file
  const auto in_bias = file.view<float, 1>("self_attn.in_proj_bias");
  const auto out = file.view<float, 2>("self_attn.out_proj.weight");                         // (E, E), stored (out, in)
  const auto rows = [&](int n) { return mha::transposed(mha::view(&in(n * E, 0), E, E)); };  // (in, out)
  const auto bias = [&](int n) { return mha::view(&in_bias(n * E), E); };

  mha::MultiHeadAttention<float> layer({.d_model = E, .num_heads = H, .bias = true});
  layer.borrow({.query = rows(0),
                .key = rows(1),
                .value = rows(2),
                .output = mha::transposed(out),
                .query_bias = bias(0),
                .key_bias = bias(1),
                .value_bias = bias(2),
                .output_bias = file.view<float, 1>("self_attn.out_proj.bias")},
               file.mapping());  // the layer keeps the mapping alive

  Eigen::MatrixXf x(L, E);  // (L, E)
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::cos(0.9f * float(i * E + e));
  const Eigen::MatrixXf y = layer(x);  // (L, E)

  // The same with Eigen, matrices as they are stored: q = W x + b for every token.
  using Stored = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  const Eigen::MatrixXd w = Stored(in.data, 3 * E, E).cast<double>(), o = Stored(out.data, E, E).cast<double>();
  const auto* const out_bias = file.view<float, 1>("self_attn.out_proj.bias").data;
  const Eigen::MatrixXd qkv = (x.cast<double>() * w.transpose()).rowwise() +
                              Eigen::Map<const Eigen::RowVectorXf>(in_bias.data, 3 * E).cast<double>();  // (L, 3·E)
  Eigen::MatrixXd heads(L, E);
  for (int h = 0, D = E / H; h < H; ++h) {
    Eigen::MatrixXd s = qkv.middleCols(h * D, D) * qkv.middleCols(E + h * D, D).transpose() / std::sqrt(double(D));
    s = s.array().exp();
    for (int i = 0; i < L; ++i) s.row(i) /= s.row(i).sum();
    heads.middleCols(h * D, D) = s * qkv.middleCols(2 * E + h * D, D);
  }
  const Eigen::MatrixXd expected =
      (heads * o.transpose()).rowwise() + Eigen::Map<const Eigen::RowVectorXf>(out_bias, E).cast<double>();
  check("the checkpoint's layer is nn.MultiheadAttention's", (y.cast<double>() - expected).norm() < 1e-5);

  // Wrong names and shapes are one sentence each, before anything is computed.
  const auto refused = [](auto&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      std::printf("  %s\n", error.what());
      return true;
    }
    return false;
  };
  check("a tensor that is not in the file", refused([&] { (void)file.view<float, 2>("self_attn.q_proj.weight"); }));
  check("a matrix of another shape", refused([&] {
          mha::MultiHeadAttention<float> other({.d_model = E, .num_heads = H});
          other.borrow({.query = in, .key = in, .value = in, .output = out}, file.mapping());
        }));
  std::filesystem::remove(path);
  return failures == 0 ? 0 : 1;
}
