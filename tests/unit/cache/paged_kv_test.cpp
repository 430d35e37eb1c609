// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/paged_kv.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "kv_copies.hpp"
#include "scratch.hpp"

namespace {

using mha::Index;
using mha::PagedKv;
using mha::Tensor;
using mha_test::message_of;

static_assert(mha::KvSource<PagedKv<float>> && !mha::DropsKeys<PagedKv<float>>);
static_assert(std::is_trivially_copyable_v<PagedKv<mha::half>>);

TEST(PagedKv, GivesEveryPositionOfItsPage) {
  support::Random random("pages");
  Tensor<float, 4> k(3, 70, 2, 3), v(3, 70, 2, 5);
  random.fill(k);
  random.fill(v);
  for (const Index page : {16, 32, 64}) {
    const support::PagedCopy<float> pages(random, k.view(), v.view(), {70, 0, 33}, page);
    const PagedKv<float> kv = pages.source();
    EXPECT_EQ(kv.batch(), 3);
    EXPECT_EQ(kv.heads(), 2);
    EXPECT_EQ(kv.dim(), 3);
    EXPECT_EQ(kv.value_dim(), 5);
    for (Index b = 0; b < 3; ++b)
      for (Index begin = 0; begin < kv.keys(b); ++begin) {
        const auto at = kv.in_block(b, begin);
        EXPECT_EQ(at.position, begin % page);
        EXPECT_EQ(kv.key(at.block, at.position, 1, 2), k(b, begin, 1, 2));
        for (Index g = 0; g < 2; ++g) {
          const auto run = kv.run(b, g, begin, kv.keys(b));
          ASSERT_EQ(run.count, std::min(page - begin % page, kv.keys(b) - begin));
          for (Index i = 0; i < run.count; ++i) {
            EXPECT_EQ(run.key[i * run.key_stride + 2], k(b, begin + i, g, 2));
            EXPECT_EQ(run.value[i * run.value_stride + 4], v(b, begin + i, g, 4));
          }
        }
      }
  }
}

TEST(PagedKv, HasRoomForItsTableAndNotMoreThanItsPool) {
  const Tensor<float, 4> pool(5, 16, 1, 1);
  const std::vector<Index> lengths{1, 1}, narrow{0, 1, 2, 3}, wide{0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0};
  const mha::KvRoom room = PagedKv<float>{pool.view(), pool.view(), narrow, lengths}.room();
  EXPECT_EQ(room.keys, 32);
  EXPECT_EQ(room.all, 64);
  EXPECT_EQ(room.together, 16);
  const mha::KvRoom shared = PagedKv<float>{pool.view(), pool.view(), wide, lengths}.room();
  EXPECT_EQ(shared.keys, 80);
  EXPECT_EQ(shared.all, 80);
}

TEST(PagedKv, TakesItsScalarFromThePages) {
  Tensor<float, 4> pool(5, 16, 1, 1);
  const Tensor<float, 4>& constant = pool;
  const std::vector<Index> table{0, 1}, lengths{1, 1};
  static_assert(std::is_same_v<decltype(mha::PagedKv{pool.view(), pool.view(), table, lengths}), PagedKv<float>>);
  static_assert(std::is_same_v<decltype(mha::PagedKv{constant.view(), pool.view(), table, lengths}), PagedKv<float>>);
  EXPECT_EQ((mha::PagedKv{pool.view(), pool.view(), table, lengths}.key.data), pool.data());
}

TEST(PagedKv, RefusesWhatDoesNotFit) {
  const Tensor<float, 4> pool(4, 16, 2, 8), other(4, 16, 2, 8), odd(4, 24, 2, 8), small(4, 8, 2, 8), fewer(3, 16, 2, 8);
  const std::vector<Index> table{0, 3, 1, 2}, outside{0, 3, 4, 2}, below{0, -1, 1, 2}, uneven{0, 3, 1}, lengths{32, 17},
      longer{33, 17}, one_page{32, 16}, far{32, 17};
  const auto refusal = [&](const PagedKv<float>& kv) { return message_of<mha::ShapeError>([&] { kv.check("call"); }); };
  const auto k = pool.view(), v = other.view();
  EXPECT_EQ(refusal({k, v, table, lengths}), "");
  EXPECT_EQ(refusal({odd.view(), odd.view(), table, lengths}),
            "call: PagedKv has pages of 24 rows, expected a power of two from 16 on");
  EXPECT_EQ(refusal({small.view(), small.view(), table, lengths}),
            "call: PagedKv has pages of 8 rows, expected a power of two from 16 on");
  EXPECT_EQ(refusal({k, fewer.view(), table, lengths}),
            "call: key has axis 0 of extent 4 but value has axis 0 of extent 3");
  EXPECT_EQ(refusal({k, v, outside, lengths}), "call: page 0 of sequence 1 of PagedKv is 4, the pool has 4");
  EXPECT_EQ(refusal({k, v, below, lengths}), "call: page 1 of sequence 0 of PagedKv is -1, the pool has 4");
  EXPECT_EQ(refusal({k, v, uneven, lengths}),
            "call: PagedKv's table has 3 entries, which is no multiple of its 2 sequences");
  EXPECT_EQ(refusal({k, v, table, longer}), "call: sequence 0 of PagedKv has length 33, expected 0 to 32");
  const mha::Borrowed<Index> on_device(lengths.data(), 2, mha::Memory::device);
  EXPECT_EQ(refusal({k, v, table, on_device}),
            "call: the lengths of PagedKv are in device memory, they are read and checked on the host");
  // What no length reaches is not looked at.
  const std::vector<Index> unused{0, 3, 1, 99}, short_lengths{32, 16};
  EXPECT_EQ(refusal({k, v, unused, short_lengths}), "");
}

// One page of many, of the last sequence: the others' rows are not written either.
template <class B> void refuse_pages_outside_the_pool() {
  support::Random random("a page outside");
  Tensor<float, 4> pool(4, 16, 2, 8), q(2, 1, 4, 8), out(2, 1, 4, 8);
  Tensor<float, 3> log_sum_exp(2, 4, 1);
  random.fill(pool);
  random.fill(q);
  support::poison_all(out);
  support::poison_all(log_sum_exp);
  const auto pool_before = pool;
  const auto out_before = out;
  const auto lse_before = log_sum_exp;
  const std::vector<Index> lengths{32, 17};
  for (const Index page : {4, -1, 2147483647}) {
    const std::vector<Index> table{0, 3, 1, page};
    const PagedKv<float> kv{pool.view(), pool.view(), table, lengths};
    const std::string sentence = "page 1 of sequence 1 of PagedKv is " + std::to_string(page) + ", the pool has 4";
    EXPECT_EQ(message_of<mha::ShapeError>(
                  [&] { mha::attention_into<B>(out, q, kv, mha::Causal{}, mha::LogSumExp(log_sum_exp)); }),
              "attention: " + sentence);
    EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention_weights<B>(q, kv)); }),
              "attention_weights: " + sentence);
    EXPECT_EQ(support::differing(out, out_before), 0u);
    EXPECT_EQ(support::differing(log_sum_exp, lse_before), 0u);
    EXPECT_EQ(support::differing(pool, pool_before), 0u);
  }
}

TEST(PagedKv, CallsRefusePagesOutsideThePoolBeforeTheyWrite) {
  refuse_pages_outside_the_pool<mha::Cpu>();
  refuse_pages_outside_the_pool<mha::Reference>();
  refuse_pages_outside_the_pool<mha::Systolic<>>();
}

}  // namespace
