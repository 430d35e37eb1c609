// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/backward.hpp>
#include <mha/core/check.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi_slopes.hpp>

#include "message_of.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using Kernels = std::vector<std::string>;

/// Notes what it is asked to launch.
struct Notes {
  Kernels kernels;
  std::vector<Index> grids;
  std::ptrdiff_t numbers = 0;

  template <class Kernel, class Params> void launch(mha::cuda::BlockIndex blocks, mha::cuda::Shared, const Params&) {
    kernels.emplace_back(Kernel::name);
    grids.push_back(blocks.x);
  }
  template <class A> A* parts(std::ptrdiff_t n) {
    numbers += n * static_cast<std::ptrdiff_t>(sizeof(A));
    return nullptr;
  }
};

template <class X = float> struct Eleven {
  X value[11];
  template <class S> S operator()(S s, Index, Index, Index, Index) const { return s + value[3]; }
};

const std::string rows = "attention_backward (rows)", bias = "attention_backward (bias)",
                  parts = "attention_backward (parts)", slots = "attention_backward (numbers of a score)";

/// A bias that repeats this set of axes, and numbers of S.
template <bool Bias, class S>
Notes plan(const S& score, Index queries, Index keys, int repeats, int count, Index shared = 227 * 1024) {
  Tensor<float, 4> q(2, queries, 6, 8), k(2, keys, 3, 8);
  mha::AttendBackwardCall<float, mha::ContiguousKv<float>, mha::Full, S, mha::detail::WantedScoreGradients<Bias, !Bias>>
      call{};
  call.forward.score = score;
  call.forward.q = call.out = call.d_out = q.view();
  call.forward.kv = {k.view(), k.view()};
  call.forward.shape = {2, 6, queries, keys};
  call.forward.kv_heads = 3;
  call.forward.head_dim = call.forward.value_dim = 8;
  float element = 0;
  double sum = 0;
  call.score.slots = &sum;
  call.score.count = count;
  call.score.bias.elements = &element;
  for (int a = 0; a < 4; ++a) call.score.bias.stride[a] = repeats >> a & 1 ? 0 : 1;
  Notes notes;
  mha::cuda::attend_backward(call, mha::cuda::DeviceFacts{132, shared}, notes);
  return notes;
}

TEST(ScoreGradientLaunches, ABiasHasABlockForEachTileAndPartsWhereItSumsMuch) {
  const mha::AdditiveBias<float> added;
  const std::ptrdiff_t of_rows = 4 * 4 * 2 * 6 * 130;
  const Notes whole = plan<true>(added, 130, 200, 0, 0);
  EXPECT_EQ(whole.kernels, (Kernels{rows, bias}));
  EXPECT_EQ(whole.grids[1], 2 * 6 * 3 * 4);
  EXPECT_EQ(whole.numbers, of_rows) << "no memory of its own";
  const Notes batch = plan<true>(added, 130, 200, 1, 0);  // 72 tiles that sum two: 144 blocks
  EXPECT_EQ(batch.kernels, (Kernels{rows, bias, parts}));
  EXPECT_EQ(batch.grids[1], 2 * 6 * 3 * 4);
  EXPECT_EQ(batch.grids[2], (6 * 130 * 200 + 127) / 128);
  EXPECT_EQ(batch.numbers, of_rows + 8 * 2 * 6 * 130 * 200);
  EXPECT_EQ(plan<true>(added, 1300, 20, 13, 0).grids[1], 6 * 2 * 21) << "a part for each tile of pairs";
  EXPECT_EQ(plan<true>(added, 5000, 20, 13, 0).grids[1], 6 * 85) << "at most 512 blocks";
  EXPECT_EQ(plan<true>(added, 1300, 3000, 1, 0).kernels, (Kernels{rows, bias})) << "there are blocks enough";
}

TEST(ScoreGradientLaunches, NumbersAreSummedEightAtATime) {
  const Notes eleven = plan<false>(Eleven<>{}, 130, 200, 15, 11);
  EXPECT_EQ(eleven.kernels, (Kernels{rows, slots, slots, parts}));
  EXPECT_EQ(eleven.grids[1], 2 * 6 * 3);
  EXPECT_EQ(eleven.numbers, 4 * 4 * 2 * 6 * 130 + 8 * 3 * 2 * 6 * 11);
  EXPECT_EQ(plan<false>(Eleven<>{}, 64, 200, 15, 11).kernels, (Kernels{rows, slots, slots})) << "one part";
  EXPECT_EQ(plan<false>(Eleven<>{}, 5000, 200, 15, 11).grids[1], 2 * 6 * 16) << "at most 16 parts";
}

TEST(ScoreGradientLaunches, SaysWhatADeviceLacks) {
  EXPECT_EQ(support::message_of<mha::ShapeError>([] { plan<false>(Eleven<>{}, 64, 64, 15, 11, 40000); }),
            "attention_backward: a block of this device may ask for 40000 bytes of shared memory, the kernel needs " +
                std::to_string(mha::cuda::PairShape<float>::bytes));
  EXPECT_LE(mha::cuda::PairShape<double>::bytes, 100 * 1024) << "two blocks a multiprocessor";
}

}  // namespace
