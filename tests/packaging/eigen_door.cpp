// SPDX-License-Identifier: Apache-2.0
// A user of EigenCpu alone: a layer, a block of a transformer whose steps go through a cache, and attention and its
// gradients that allocate nothing from their second call on, by Eigen neither.
#define EIGEN_RUNTIME_NO_MALLOC
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <mha/eigen.hpp>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class B> struct Block {
  mha::RmsNorm<float, B> norm1{{.width = 64}}, norm2{{.width = 64}};
  mha::MultiHeadAttention<float, B, mha::Causal> attention{{.d_model = 64, .num_heads = 4}};
  mha::FeedForward<float, B, mha::SwiGlu> feed_forward{{.d_model = 64, .d_hidden = 96}};

  Block() {
    attention.initialize(mha::XavierUniform{.seed = 2});
    feed_forward.initialize(mha::XavierUniform{.seed = 3});
  }
  Matrix operator()(const Matrix& x, const auto&... step) const {
    const Matrix h = x + attention(norm1(x), step...);
    return h + feed_forward(norm2(h));
  }
};

/// Rows one by one through a cache in pages, against all at once on Reference.
float block_difference() {
  const Matrix x = Matrix::Random(21, 64);
  const Block<mha::EigenCpu> block;
  auto cache = mha::make_cache(block.attention, mha::Paged{.pages = 2, .length = 32, .page = 16}, {});
  const mha::SequenceId text = cache.add();
  Matrix y(21, 64);
  for (int i = 0; i < 21; ++i) {
    auto step = cache.step(text, 1);
    y.row(i) = block(x.row(i), step[0]);
    step.commit();
  }
  return (y - Block<mha::Reference>()(x)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
}

int main() {
  mha::MultiHeadAttention<float, mha::EigenCpu, mha::GroupedQuery<2>, mha::Causal> layer(
      {.d_model = 64, .num_heads = 8});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::MultiHeadAttention<float, mha::Reference, mha::GroupedQuery<2>, mha::Causal> reference(
      {.d_model = 64, .num_heads = 8});
  reference.borrow(layer);
  const Matrix x = Matrix::Random(70, 64);  // (L, E)
  const float difference =
      std::max((layer(x) - reference(x)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>(), block_difference());

  const mha::EigenCpuWith<mha::Serial> backend;
  bool same = true;
  for (const int dim : {16, 64, 128, 256}) {
    const Matrix q = Matrix::Random(300, dim), k = Matrix::Random(400, dim), v = Matrix::Random(400, dim);
    const Matrix d_out = Matrix::Random(300, dim);
    struct Results {
      Matrix out, d_q, d_k, d_v;
      bool operator==(const Results&) const = default;
    } first{q, q, k, v}, second = first;
    mha::Workspace workspace;
    mha::AttentionTape<float, mha::EigenCpuWith<mha::Serial>> tape;
    const auto compute = [&](Results& to) {
      mha::attention_into(to.out, q, k, v, mha::Causal{}, backend, workspace, mha::record(tape));
      mha::attention_backward_into({to.d_q, to.d_k, to.d_v}, d_out, q, k, v, to.out, tape, mha::Causal{}, workspace);
    };
    compute(first);
    const int allocations = workspace.allocations();
    Eigen::internal::set_is_malloc_allowed(false);
    compute(second);
    Eigen::internal::set_is_malloc_allowed(true);
    same = same && first == second && workspace.allocations() == allocations;
  }
  std::printf("largest difference from the reference: %g\n", static_cast<double>(difference));
  return difference < 1e-5f && same ? 0 : 1;
}
