// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/dispatch.hpp>
#include <mha/checked_call.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>
#include <mha/policy/sink.hpp>

namespace {

using mha::Index;
using mha::Tensor;

/// Notes what it is asked to launch.
struct Notes {
  std::string kernel, all;
  mha::cuda::BlockIndex grid{};
  mha::cuda::Shared bytes = 0;
  int threads = 0, launches = 0;

  template <class Kernel, class Params>
  void launch(mha::cuda::BlockIndex blocks, mha::cuda::Shared shared, const Params&) {
    kernel = Kernel::name;
    threads = Kernel::threads;
    grid = blocks;
    bytes = shared;
    all += kernel + '\n';
    ++launches;
  }
  template <class A> A* parts(std::ptrdiff_t) { return nullptr; }
  unsigned* counters(std::ptrdiff_t) { return nullptr; }
};

template <class T> Notes plan(Index batch, Index queries, Index keys, Index heads, Index dim, Index value_dim) {
  const Tensor<T, 4> q(batch, queries, heads, dim), k(batch, keys, heads, dim), v(batch, keys, heads, value_dim);
  Tensor<T, 4> out(batch, queries, heads, value_dim);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const mha::ContiguousKv<T> kv{k.view(), v.view()};
  const auto call = mha::detail::attend_call<T>("attention", out.view(), q.view(), kv, mha::Full{}, mha::NoScore{},
                                                mha::NoSink{}, {}, frame);
  Notes notes;
  mha::cuda::attend(call, mha::cuda::DeviceFacts{}, notes);
  return notes;
}

TEST(Dispatch, SixteenBitsRunOnTensorCoresUpToAHeadSizeOf256) {
  for (const Index dim : {32, 40, 128, 256}) {
    const Notes notes = plan<mha::bfloat16>(2, 300, 300, 3, dim, dim);
    EXPECT_EQ(notes.kernel, "attention (tensor cores)") << dim;
    EXPECT_EQ(notes.launches, 1);
    EXPECT_EQ(notes.grid.x, 2 * 3 * 3) << "tiles of 128 queries";
    EXPECT_LE(notes.bytes, 227 * 1024);
  }
  EXPECT_EQ(plan<mha::half>(1, 300, 300, 1, 320, 64).kernel, "attention (multiply-adds)");
}

TEST(Dispatch, FloatAndDoubleRunOnMultiplyAdds) {
  EXPECT_EQ(plan<float>(2, 100, 100, 3, 64, 64).kernel, "attention (multiply-adds)");
  EXPECT_EQ(plan<double>(2, 100, 100, 3, 64, 300).kernel, "attention (multiply-adds)");
}

TEST(Dispatch, FewQueriesHaveAKernelOfTheirOwn) {
  EXPECT_EQ(plan<mha::bfloat16>(2, 1, 5000, 4, 128, 128).kernel, "attention (few queries)");
  EXPECT_EQ(plan<float>(2, 2, 5000, 1, 64, 64).kernel, "attention (few queries)");
}

/// The kernels of a ragged call, one a line.
std::string kernels_of(const std::vector<Index>& rows, std::optional<mha::DropoutSeed> seed = {}) {
  std::vector<Index> offsets{0};
  for (const Index n : rows) offsets.push_back(offsets.back() + n);
  const Index all = offsets.back();
  const Tensor<float, 4> q(1, all, 8, 64), k(1, all, 2, 64), v(1, all, 2, 64);
  Tensor<float, 4> out(1, all, 8, 64);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  mha::detail::CallOptions<float> options;
  options.ragged = mha::Ragged{offsets};
  if (seed) options.dropout = 0.1f;
  options.dropout_seed = seed;
  const mha::ContiguousKv<float> kv{k.view(), v.view(), offsets};
  const auto call = mha::detail::attend_call<float>("attention", out.view(), q.view(), kv, mha::Full{}, mha::NoScore{},
                                                    mha::NoSink{}, options, frame);
  Notes notes;
  mha::cuda::attend(call, mha::cuda::DeviceFacts{}, notes);
  return notes.all;
}

TEST(Dispatch, SequencesOfFewQueriesHaveTheirKernelBesideOthers) {
  const std::string few = "attention (few queries)\n", many = "attention (multiply-adds)\n";
  EXPECT_EQ(kernels_of({1, 300, 0, 8}), few + many);
  EXPECT_EQ(kernels_of({9, 8}), few + many);
  EXPECT_EQ(kernels_of({1, 8, 0, 3}), few);
  EXPECT_EQ(kernels_of({9, 300}), many);
  EXPECT_EQ(kernels_of({0, 300}), many) << "a sequence without queries needs no launch";
  EXPECT_EQ(kernels_of({1, 300}, mha::DropoutSeed{1}), many) << "the body for few queries drops nothing";
}

TEST(Dispatch, ExplainsWhatItWouldLaunch) {
  const mha::AttendPlan call{{2, 8, 512, 512, 0}, 2, 64, 64};
  const std::string mma = mha::cuda::explain<mha::bfloat16>(call, {}), fma = mha::cuda::explain<double>(call, {});
  EXPECT_NE(mma.find("tensor cores in bfloat16"), std::string::npos) << mma;
  EXPECT_NE(fma.find("multiply-adds in double"), std::string::npos) << fma;
  const std::string warpgroups = mha::cuda::explain<mha::bfloat16>(call, {.warpgroups = true});
  EXPECT_EQ(warpgroups.find("warpgroups on tensor cores in bfloat16"), 0u) << warpgroups;
  const std::string few = mha::cuda::explain<float>({{2, 8, 1, 4096, 4095}, 8, 64, 64}, {});
  EXPECT_NE(few.find("few queries in float"), std::string::npos) << few;
  mha::AttendPlan mixed{{2, 8, 512, 4096, 0}, 2, 64, 64};
  mixed.shape.fewest_queries = 1;
  const std::string both = mha::cuda::explain<mha::bfloat16>(mixed, {});
  EXPECT_EQ(both.find("tensor cores in bfloat16"), 0u) << both;
  EXPECT_NE(both.find("; sequences of up to 8 queries: few queries in bfloat16"), std::string::npos) << both;
  // Dropped weights are of the body on multiply-adds alone.
  for (const mha::Index queries : {1, 512}) {
    const std::string dropping = mha::cuda::explain<mha::bfloat16>({{2, 8, queries, 4096, 0}, 8, 64, 64, true}, {});
    EXPECT_EQ(dropping.find("multiply-adds in float"), 0u) << dropping;
  }
  // Rows of 100 numbers of 2 bytes do not begin on 16 bytes: another kernel.
  const std::string any = mha::cuda::explain<mha::half>({{2, 8, 512, 512, 0}, 2, 100, 100}, {});
  EXPECT_NE(any.find("tiles of 64 queries x 64 keys"), std::string::npos) << any;
}

}  // namespace
