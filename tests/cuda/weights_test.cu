// SPDX-License-Identifier: Apache-2.0
// The materialised softmax on the GPU against the reference in double.
#include <vector>

#include "on_gpu.hpp"

namespace {

using on_gpu::Index;
using on_gpu::Inputs;
using on_gpu::Sizes;
using on_gpu::Tensor;

template <class T> double bound() { return sizeof(T) == 8 ? 1e-13 : 1e-5; }

template <class T> void expect_weights(const char* name) {
  support::Random random(name);
  for (const Sizes& s :
       {Sizes{2, 70, 133, 4, 2, 64, 64}, Sizes{1, 1, 1000, 3, 1, 40, 40}, Sizes{1, 9, 4, 2, 2, 8, 8}}) {
    const Inputs<T> in(s, random);
    const std::vector<Index> lengths{s.keys, 2};
    const mha::Padding padding{mha::Borrowed<Index>(lengths.data(), s.batch)};
    const mha::Sink sink(std::vector<float>(std::size_t(s.heads), 0.5f));
    const auto there = mha::attention_weights<mha::Cuda>(mha::to_device(in.q), mha::to_device(in.k), mha::Causal{},
                                                         mha::on_device(padding), mha::on_device(sink));
    const auto here = mha::attention_weights<mha::Reference>(Inputs<T>::wide(in.q), Inputs<T>::wide(in.k),
                                                             mha::Causal{}, padding, sink);
    on_gpu::expect_near(mha::to_host(there), here, bound<T>(), s.text());
  }
}

TEST(CudaWeights, OfEveryScalar) {
  MHA_NEEDS_GPU();
  expect_weights<mha::bfloat16>("cuda weights bfloat16");
  expect_weights<mha::half>("cuda weights half");
  expect_weights<float>("cuda weights float");
  expect_weights<double>("cuda weights double");
}

TEST(CudaWeights, OfRaggedBatchesAndLayers) {
  MHA_NEEDS_GPU();
  support::Random random("cuda weights ragged");
  const mha::Config config{.d_model = 48, .num_heads = 4};
  mha::MultiHeadAttention<double, mha::Cuda, mha::Causal> there(config);
  mha::MultiHeadAttention<double, mha::Reference, mha::Causal> here(config);
  there.initialize(mha::XavierUniform{.seed = 3});
  here.initialize(mha::XavierUniform{.seed = 3});
  Tensor<double, 2> x(50, 48);
  random.fill(x);
  const auto far_x = mha::to_device(x);
  const std::vector<Index> offsets{0, 3, 3, 40, 50};
  mha::Cuda::Workspace workspace;
  on_gpu::expect_near(mha::to_host(there.attention_weights(far_x, mha::Ragged{offsets}, workspace)),
                      here.attention_weights(x, mha::Ragged{offsets}), 1e-12, "ragged");
  on_gpu::expect_near(mha::to_host(there.mean_attention_weights(far_x, workspace)), here.mean_attention_weights(x),
                      1e-12, "mean");
}

}  // namespace
