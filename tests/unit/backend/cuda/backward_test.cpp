// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/backward.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>

namespace {

using mha::Index;
using mha::Tensor;
using Kernels = std::vector<std::string>;

/// Notes what it is asked to launch.
struct Notes {
  Kernels kernels;
  std::vector<Index> grids;
  std::ptrdiff_t numbers = 0;
  mha::cuda::Shared most = 0;

  template <class Kernel, class Params>
  void launch(mha::cuda::BlockIndex blocks, mha::cuda::Shared shared, const Params&) {
    kernels.emplace_back(Kernel::name);
    grids.push_back(blocks.x);
    most = shared > most ? shared : most;
  }
  template <class A> A* parts(std::ptrdiff_t n) {
    numbers = n;
    return nullptr;
  }
};

struct Wanted {
  bool query = true, key = true, value = true, sink = false, drops = false;
};

template <class T> Notes plan(Index queries, Index keys, Index dim, const Wanted& wanted = {}) {
  Tensor<T, 4> q(2, queries, 6, dim), k(2, keys, 3, dim);
  std::vector<mha::LongSum<mha::Accumulator<T>>> sink(6);
  mha::AttendBackwardCall<T, mha::ContiguousKv<T>, mha::Full, mha::NoScore> call{};
  call.forward.q = call.out = call.d_out = q.view();
  call.forward.kv = {k.view(), k.view()};
  call.forward.shape = {2, 6, queries, keys};
  call.forward.kv_heads = 3;
  call.forward.head_dim = call.forward.value_dim = dim;
  if (wanted.query) call.query = q;
  if (wanted.key) call.key = k;
  if (wanted.value) call.value = k;
  if (wanted.sink) call.sink = sink.data();
  if (wanted.drops) call.forward.dropout.threshold = 1;
  Notes notes;
  mha::cuda::attend_backward(call, mha::cuda::DeviceFacts{}, notes);
  return notes;
}

const std::string rows = "attention_backward (rows)", sink = "attention_backward (sink)",
                  mma = "attention_backward (tensor cores)", fma = "attention_backward (multiply-adds)";

TEST(CudaBackward, SixteenBitsRunOnTensorCoresUpToAHeadSizeOf128) {
  for (const Index dim : {8, 64, 128}) {
    const Notes notes = plan<mha::bfloat16>(130, 200, dim);
    EXPECT_EQ(notes.kernels, (Kernels{rows, mma, mma})) << dim;
    EXPECT_EQ(notes.grids, (std::vector<Index>{33 * 12, 3 * 12, 4 * 6}));
    EXPECT_EQ(notes.numbers, 4 * 2 * 6 * 130);
    EXPECT_LE(notes.most, 100 * 1024) << "two blocks a multiprocessor";
  }
  EXPECT_EQ(plan<mha::half>(130, 200, 136).kernels, (Kernels{rows, fma, fma, fma}));
  EXPECT_EQ(plan<mha::half>(130, 200, 60).kernels, (Kernels{rows, fma, fma, fma})) << "rows of no whole 16 bytes";
}

TEST(CudaBackward, OthersRunOnMultiplyAdds) {
  EXPECT_EQ(plan<float>(130, 200, 64).grids, (std::vector<Index>{33 * 12, 3 * 12, 4 * 6, 4 * 6}));
  EXPECT_EQ(plan<float>(130, 200, 300).grids, (std::vector<Index>{33 * 12, 3 * 3 * 12, 3 * 4 * 6, 3 * 4 * 6}));
  EXPECT_EQ(plan<double>(130, 200, 300).grids, (std::vector<Index>{33 * 12, 5 * 3 * 12, 5 * 4 * 6, 5 * 4 * 6}));
  EXPECT_EQ(plan<mha::half>(9, 9, 64, {.drops = true}).kernels, (Kernels{rows, fma, fma, fma}));
}

TEST(CudaBackward, LaunchesWhatIsWanted) {
  EXPECT_EQ(plan<float>(9, 9, 8, {.query = false}).kernels, (Kernels{rows, fma, fma}));
  EXPECT_EQ(plan<float>(9, 9, 8, {.query = false, .key = false, .sink = true}).kernels, (Kernels{rows, sink, fma}));
  EXPECT_EQ(plan<mha::half>(9, 9, 8, {.key = false, .value = false}).kernels, (Kernels{rows, mma}));
  EXPECT_EQ(plan<mha::half>(9, 9, 8, {.query = false, .key = false}).kernels, (Kernels{rows, mma}));
  EXPECT_EQ(plan<float>(0, 9, 8).kernels, (Kernels{fma, fma})) << "keys that nobody asks have the gradient 0";
}

}  // namespace
