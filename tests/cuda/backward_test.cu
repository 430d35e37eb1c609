// SPDX-License-Identifier: Apache-2.0
// The backward pass on the GPU against the reference in double.
#include <cstddef>
#include <span>

#include <mha/cuda.cuh>

#include "gpu.hpp"
#include "gradient_checks.hpp"

namespace {

using gradient_checks::expect_right;
using gradient_checks::expect_scores_right;

TEST(CudaBackward, OfBfloat16) {
  MHA_NEEDS_GPU();
  for (const int dim : {8, 40, 64, 72, 128, 300})
    for (const int queries : {1, 64, 65, 333})
      expect_right<mha::Cuda, mha::bfloat16>("cuda backward bfloat16", {2, queries, 200, 4, 2, dim, dim},
                                             mha::Causal{});
}

/// A user's two numbers.
template <class X = float> struct BentOnDevice {
  X slope, bend;
  template <class S> MHA_HOST_DEVICE auto operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + bend * mha::tanh(s) - slope * (static_cast<float>((1 + h) * mha::abs(q - k)) * 0.03125f);
  }
};

TEST(CudaBackward, OfABiasAndOfAScoresNumbers) {
  MHA_NEEDS_GPU();
  const mha::Chain learnt{mha::AlibiSlopes({0.5f, 0.25f, 0.125f, 0.f}), BentOnDevice<>{0.5f, 0.75f}};
  for (int axes = 0; axes < 16; ++axes)
    expect_scores_right<mha::Cuda, float>("cuda scores", {2, 130, 200, 4, 1, 40, 72}, axes, learnt, mha::Causal{});
}

/// A table that tells its gradients: a pair adds to its own number and to the last one.
struct TableOnDevice {
  float table[40];
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  MHA_HOST_DEVICE static std::size_t at(mha::Index b, mha::Index h, mha::Index q, mha::Index k) {
    return static_cast<std::size_t>(5 * b + 3 * h + mha::abs(q - k)) % 39;
  }
  template <class S> MHA_HOST_DEVICE S operator()(S s, mha::Index b, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + table[at(b, h, q, k)] + 0.25f * table[39];
  }
  template <class G, class S>
  MHA_HOST_DEVICE void accumulate(G gradient, S dt, S, mha::Index b, mha::Index h, mha::Index q, mha::Index k) const {
    gradient[at(b, h, q, k)] += dt;
    gradient[39] += 0.25f * dt;
  }
};

TEST(CudaBackward, OfAScoreThatAccumulates) {
  MHA_NEEDS_GPU();
  TableOnDevice table{};
  for (std::size_t i = 0; i < 40; ++i) table.table[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  const mha::Chain learnt{table, BentOnDevice<>{0.5f, 0.75f}};
  for (const int axes : {0, 5, 15})
    expect_scores_right<mha::Cuda, float>("cuda own sums", {2, 130, 200, 4, 1, 40, 72}, axes, learnt, mha::Causal{});
}

}  // namespace
