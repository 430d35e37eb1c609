// SPDX-License-Identifier: Apache-2.0
// Definitions of what computed.hpp declares of ours; each scalar is compiled in a file of its own.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <mha/cuda.cuh>

#include "computed.hpp"
#include "patterns.hpp"

namespace bench::gpu {

template <class T>
void attend(std::string_view pattern, const mha::TensorView<T, 4>& out, const mha::TensorView<const T, 4>& q,
            const mha::TensorView<const T, 4>& k, const mha::TensorView<const T, 4>& v,
            mha::cuda::Workspace& workspace) {
  const auto run = [&](const auto& mask, const auto& score) {
    mha::attention_into<mha::Cuda>(out, q, k, v, mask, score, workspace);
  };
  if constexpr (std::is_same_v<T, mha::bfloat16>) {
    with_pattern(pattern, run);
  } else {
    if (pattern != "full" && pattern != "causal")
      throw std::runtime_error(std::string(pattern) + " is compiled for bfloat16 alone");
    with_plain_pattern(pattern, run);
  }
}

template <class T> class PackedProjection final : public Projection<T> {
 public:
  explicit PackedProjection(const mha::TensorView<const T, 2>& w) : packed_(pack({w, {}})) {}
  void run(const mha::TensorView<const T, 2>& x, const mha::TensorView<T, 2>& y,
           mha::cuda::Workspace& workspace) const override {
    mha::Cuda{}.gemm(mha::PackedGemmCall<T, mha::cuda::PackedWeights<T>>{x, packed_, 0, {&y, 1}}, workspace);
  }

 private:
  static auto pack(const mha::DenseWeights<T>& w) {
    return mha::Cuda{}.pack(std::span<const mha::DenseWeights<T>>(&w, 1));
  }
  mha::cuda::PackedWeights<T> packed_;
};
template <class T> std::unique_ptr<Projection<T>> make_projection(const mha::TensorView<const T, 2>& w) {
  return std::make_unique<PackedProjection<T>>(w);
}

}  // namespace bench::gpu

#define MHA_BENCH_SCALAR(T)                                                                                   \
  template void bench::gpu::attend<T>(std::string_view, const mha::TensorView<T, 4>&,                         \
                                      const mha::TensorView<const T, 4>&, const mha::TensorView<const T, 4>&, \
                                      const mha::TensorView<const T, 4>&, mha::cuda::Workspace&);             \
  template std::unique_ptr<bench::gpu::Projection<T>> bench::gpu::make_projection<T>(const mha::TensorView<const T, 2>&)
