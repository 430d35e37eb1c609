// SPDX-License-Identifier: Apache-2.0
// A user of EigenCpu alone: a layer, and attention that allocates nothing from its second call on, by Eigen neither.
#define EIGEN_RUNTIME_NO_MALLOC
#include <cmath>
#include <cstdio>
#include <vector>

#include <mha/eigen.hpp>

int main() {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  mha::MultiHeadAttention<float, mha::EigenCpu, mha::GroupedQuery<2>, mha::Causal> layer(
      {.d_model = 64, .num_heads = 8});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::MultiHeadAttention<float, mha::Reference, mha::GroupedQuery<2>, mha::Causal> reference(
      {.d_model = 64, .num_heads = 8});
  reference.borrow(layer);
  const Matrix x = Matrix::Random(70, 64);  // (L, E)
  const float difference = (layer(x) - reference(x)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();

  const mha::EigenCpuWith<mha::Serial> backend;
  bool same = true;
  for (const int dim : {16, 64, 128, 256}) {
    const Matrix q = Matrix::Random(300, dim), k = Matrix::Random(400, dim), v = Matrix::Random(400, dim);
    Matrix first(300, dim), second(300, dim);
    mha::Workspace workspace;
    mha::attention_into(first, q, k, v, mha::Causal{}, backend, workspace);
    const int allocations = workspace.allocations();
    Eigen::internal::set_is_malloc_allowed(false);
    mha::attention_into(second, q, k, v, mha::Causal{}, backend, workspace);
    Eigen::internal::set_is_malloc_allowed(true);
    same = same && first == second && workspace.allocations() == allocations;
  }
  std::printf("largest difference from the reference: %g\n", static_cast<double>(difference));
  return difference < 1e-5f && same ? 0 : 1;
}
