// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers of the CUDA backend on the host, in memory that the host does not reach.
#include "far_cuda.hpp"
#include "layer_training_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarLayerTraining, HaveEveryPolicy) {
  training_checks::expect_full_layers<FarCuda, float>("far layers, HaveEveryPolicy, float");
  training_checks::expect_full_layers<FarCuda, double>("far layers, HaveEveryPolicy, double");
  training_checks::expect_full_layers<FarCuda, mha::bfloat16>("far layers, HaveEveryPolicy, bfloat16");
  training_checks::expect_full_layers<FarCuda, mha::half>("far layers, HaveEveryPolicy, half");
}
TEST(FarLayerTraining, OfAMemory) {
  training_checks::expect_memories<FarCuda, float>("far layers, OfAMemory, float");
  training_checks::expect_memories<FarCuda, mha::bfloat16>("far layers, OfAMemory, bfloat16");
}
TEST(FarLayerTraining, WithWhatACallIsGiven) {
  training_checks::expect_calls<FarCuda, float>("far layers, WithWhatACallIsGiven, float");
  training_checks::expect_calls<FarCuda, mha::bfloat16>("far layers, WithWhatACallIsGiven, bfloat16");
}
/// The Workspace of a backward pass has what its cost says.
template <class T> void expect_scratch() {
  support::Random random("far layers, scratch");
  mha::MultiHeadAttention<T, FarCuda, mha::GroupedQuery<mha::Dynamic>, mha::QkNorm> layer(
      {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<T, 3> rows(2, 20, 24), of_memory(2, 35, 24);
  random.fill(rows), random.fill(of_memory);
  const auto x = mha::to_device(rows), memory = mha::to_device(of_memory);
  mha::DeviceTensor<T, 3> dx(2, 20, 24), d_memory(2, 35, 24);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  const auto expect = [&](const mha::BackwardCost& cost, const auto&... more) {
    FarCuda::Workspace workspace;
    layer.backward(x, tape, gradients, mha::into(dx), more..., workspace);
    EXPECT_GE(double(workspace.bytes()), cost.scratch_bytes);
    EXPECT_LE(double(workspace.bytes()), 4 * cost.scratch_bytes);
  };
  static_cast<void>(layer(x, tape));
  expect(layer.backward_cost(2, 20, 20));
  static_cast<void>(layer(x, memory, tape));
  expect(layer.backward_cost(2, 20, 35), mha::memory_into(d_memory));
}
TEST(FarLayerTraining, TakesTheScratchOfItsCost) {
  expect_scratch<float>();
  expect_scratch<mha::bfloat16>();
}

TEST(FarLayerTraining, WithHeadsOfTheirOwn) {
  training_checks::expect_bare_layers<FarCuda, float>("far layers, WithHeadsOfTheirOwn, float");
  training_checks::expect_bare_layers<FarCuda, mha::bfloat16>("far layers, WithHeadsOfTheirOwn, bfloat16");
}

}  // namespace
