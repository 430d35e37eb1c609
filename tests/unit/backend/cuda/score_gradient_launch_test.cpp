// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
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

/// As many numbers as it is told, which it does not have.
struct Counted {
  static constexpr mha::Role role = mha::Role::score;
  std::size_t count = 0;
  std::span<const float> numbers() const { return {static_cast<const float*>(nullptr), count}; }
  template <class S> S operator()(S s, Index, Index, Index, Index) const { return s; }
  template <class G, class S> void accumulate(G, S, S, Index, Index, Index, Index) const {}
};

const std::string rows = "attention_backward (rows)", bias = "attention_backward (bias)",
                  parts = "attention_backward (parts)", slots = "attention_backward (numbers of a score)",
                  own = "attention_backward (a score that accumulates)";

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

/// Of 12 heads: 32 sums of each number in a block, and of a head a block for each tile of queries, up to 16 and 512 in
/// all; less where they would take more than 256 MiB.
TEST(ScoreGradientLaunches, AScoreThatAccumulatesHasSumsOfEachOwnerAndPart) {
  const std::ptrdiff_t of_rows = 4 * 4 * 2 * 6 * 130;
  const Notes few = plan<false>(Counted{100}, 130, 200, 15, 100);
  EXPECT_EQ(few.kernels, (Kernels{rows, own, parts}));
  EXPECT_EQ(few.grids[1], 2 * 6 * 3);
  EXPECT_EQ(few.grids[2], (2 * 6 * 100 + 127) / 128);
  EXPECT_EQ(few.numbers, of_rows + 8 * 100 * 12 * 32 * 3);
  EXPECT_EQ(plan<false>(Counted{100}, 5000, 200, 15, 100).grids[1], 2 * 6 * 16);
  EXPECT_EQ(plan<false>(Counted{0}, 130, 200, 15, 0).kernels, Kernels{rows}) << "no numbers";
  const std::ptrdiff_t all = std::ptrdiff_t{1} << 28, of_one = 8 * 12;  // bytes of a sum for each head
  const auto sums = [&](std::ptrdiff_t n) {
    return (plan<false>(Counted{static_cast<std::size_t>(n)}, 130, 200, 15, static_cast<int>(n)).numbers - of_rows) /
           (n * of_one);
  };
  EXPECT_EQ(sums(all / of_one / 96), 96);
  EXPECT_EQ(sums(all / of_one / 95), 64) << "two parts";
  EXPECT_EQ(sums(all / of_one / 31), 31) << "one part, fewer owners";
  EXPECT_EQ(sums(all / of_one * 2), 1) << "the least";
  const mha::Chain two{Counted{7}, mha::Chain{Eleven<>{}, Counted{100}}};
  const Notes both = plan<false>(two, 130, 200, 15, 118);
  EXPECT_EQ(both.kernels, (Kernels{rows, slots, slots, parts, own, parts, own, parts}));
  EXPECT_EQ(both.numbers, of_rows + 8 * 3 * 12 * 11 + 8 * 100 * 12 * 32 * 3) << "one memory for both";
}

TEST(ScoreGradientLaunches, SaysWhatADeviceLacks) {
  EXPECT_EQ(support::message_of<mha::ShapeError>([] { plan<false>(Eleven<>{}, 64, 64, 15, 11, 40000); }),
            "attention_backward: a block of this device may ask for 40000 bytes of shared memory, the kernel needs " +
                std::to_string(mha::cuda::PairShape<float>::bytes));
  EXPECT_EQ(support::message_of<mha::ShapeError>([] { plan<false>(Counted{1}, 64, 64, 15, 1, 40000); }),
            "attention_backward: a block of this device may ask for 40000 bytes of shared memory, the kernel needs " +
                std::to_string(mha::cuda::PairShape<float>::bytes_of_own));
  EXPECT_LE(mha::cuda::PairShape<double>::bytes, 100 * 1024) << "two blocks a multiprocessor";
  EXPECT_LE(mha::cuda::PairShape<double>::bytes_of_own, 99 * 1024) << "a block of compute capability 12.0";
}

}  // namespace
