// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "ours.cuh"

MHA_BENCH_SCALAR(mha::bfloat16);

namespace bench::gpu {

mha::Support supported() { return mha::Cuda{}.supported(); }

namespace {

using Causal = mha::MultiHeadAttention<mha::bfloat16, mha::Cuda, mha::GroupedQuery<mha::Dynamic>, mha::Causal>;

class CausalLayer final : public Layer {
 public:
  explicit CausalLayer(const mha::Config& config) : layer_(config) { layer_.initialize(mha::XavierUniform{.seed = 1}); }
  void run(const mha::TensorView<mha::bfloat16, 2>& x, const mha::TensorView<mha::bfloat16, 2>& y,
           mha::cuda::Workspace& workspace) const override {
    layer_(x, mha::into(mha::TensorView<mha::bfloat16, 2>(y)), workspace);
  }
  mha::BorrowedWeights<mha::bfloat16> weights() const override {
    const auto p = layer_.parameters();
    return {.query = p.query.matrix(), .key = p.key.matrix(), .value = p.value.matrix(), .output = p.output.matrix()};
  }

 private:
  Causal layer_;
};

}  // namespace

std::unique_ptr<Layer> make_layer(const mha::Config& config) { return std::make_unique<CausalLayer>(config); }

}  // namespace bench::gpu
