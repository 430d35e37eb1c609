// SPDX-License-Identifier: Apache-2.0
#include <concepts>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/kv_source.hpp>
#include <mha/core/check.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>

#include "message_of.hpp"

namespace {

using mha::ContiguousKv;
using mha::Index;
using mha::KvRun;
using mha::TensorView;

float key_of(int b, int k, int g, int d) { return static_cast<float>(((b * 10 + k) * 10 + g) * 10 + d); }
float value_of(int b, int k, int g, int d) { return -key_of(b, k, g, d) - 1; }

/// Every range of every sequence and head: the run has the rows, in their own memory.
template <class Kv> void expect_runs(const Kv& kv, int batch, int keys, int heads, int dim, int value_dim) {
  for (int b = 0; b < batch; ++b)
    for (int g = 0; g < heads; ++g)
      for (int begin = 0; begin < keys; ++begin)
        for (int end = begin + 1; end <= keys; ++end) {
          const auto run = kv.run(b, g, begin, end);
          ASSERT_EQ(run.count, end - begin);
          for (int i = 0; i < run.count; ++i) {
            for (int d = 0; d < dim; ++d) ASSERT_EQ(run.key[i * run.key_stride + d], key_of(b, begin + i, g, d));
            for (int d = 0; d < value_dim; ++d)
              ASSERT_EQ(run.value[i * run.value_stride + d], value_of(b, begin + i, g, d));
          }
        }
}

constexpr int B = 2, L = 5, G = 3, D = 4, Dv = 2;

void fill(const TensorView<float, 4>& key, const TensorView<float, 4>& value) {
  for (int b = 0; b < B; ++b)
    for (int k = 0; k < L; ++k)
      for (int g = 0; g < G; ++g) {
        for (int d = 0; d < D; ++d) key(b, k, g, d) = key_of(b, k, g, d);
        for (int d = 0; d < Dv; ++d) value(b, k, g, d) = value_of(b, k, g, d);
      }
}

TEST(ContiguousKv, GivesAnyRangeInOneRun) {
  std::vector<float> key(B * L * G * D), value(B * L * G * Dv);
  const auto blhd = mha::view_blhd(key.data(), B, L, G, D);
  const auto blhd_value = mha::view_blhd(value.data(), B, L, G, Dv);
  fill(blhd, blhd_value);
  expect_runs(ContiguousKv<float>{blhd, blhd_value}, B, L, G, D, Dv);
  const auto bhld = mha::view_bhld(key.data(), B, G, L, D);
  const auto bhld_value = mha::view_bhld(value.data(), B, G, L, Dv);
  fill(bhld, bhld_value);
  expect_runs(ContiguousKv<float>{bhld, bhld_value}, B, L, G, D, Dv);
}

TEST(ContiguousKv, ReadsValuesInsideTheKeysMemory) {
  mha::Tensor<float, 4> both(B, L, G, D + Dv);
  const auto v = both.view();
  const TensorView<float, 4> key{v.data, {B, L, G, D}, {v.stride[0], v.stride[1], v.stride[2], 1}};
  const TensorView<float, 4> value{v.data + D, {B, L, G, Dv}, {v.stride[0], v.stride[1], v.stride[2], 1}};
  fill(key, value);
  expect_runs(ContiguousKv<float>{key, value}, B, L, G, D, Dv);
}

TEST(ContiguousKv, TakesItsScalarFromTheRows) {
  mha::Tensor<float, 4> rows(B, L, G, D);
  const mha::Tensor<float, 4>& constant = rows;
  const std::vector<Index> lengths(B, 1);
  static_assert(std::is_same_v<decltype(mha::ContiguousKv{rows.view(), rows.view()}), ContiguousKv<float>>);
  static_assert(
      std::is_same_v<decltype(mha::ContiguousKv{constant.view(), rows.view(), {}, lengths}), ContiguousKv<float>>);
  EXPECT_EQ((mha::ContiguousKv{rows.view(), rows.view(), {}, lengths}.keys(0)), 1);
}

TEST(ContiguousKv, CutsPackedRowsByOffsets) {
  const Index offsets[4] = {0, 3, 3, 7};
  mha::Tensor<float, 4> key(1, 7, G, D), value(1, 7, G, Dv);
  for (int row = 0; row < 7; ++row)
    for (int g = 0; g < G; ++g) {
      const int b = row < 3 ? 0 : 2, k = row < 3 ? row : row - 3;
      for (int d = 0; d < D; ++d) key(0, row, g, d) = key_of(b, k, g, d);
      for (int d = 0; d < Dv; ++d) value(0, row, g, d) = value_of(b, k, g, d);
    }
  const ContiguousKv<float> kv{key.view(), value.view(), {offsets, 4}};
  for (const int b : {0, 2})
    for (int g = 0; g < G; ++g)
      for (int begin = 0; begin < offsets[b + 1] - offsets[b]; ++begin) {
        const auto run = kv.run(b, g, begin, begin + 1);
        EXPECT_EQ(run.key[D - 1], key_of(b, begin, g, D - 1));
        EXPECT_EQ(run.value[Dv - 1], value_of(b, begin, g, Dv - 1));
      }
  EXPECT_EQ(kv.run(2, 0, 1, 4).count, 3);
  EXPECT_EQ(support::message_of<mha::ShapeError>([&] { kv.check("call"); }), "");
}

TEST(ContiguousKv, RefusesOffsetsThatDoNotCutItsRows) {
  const mha::Tensor<float, 4> one(1, 7, G, D), two(2, 7, G, D);
  const auto refusal = [](const mha::Tensor<float, 4>& rows, const std::vector<Index>& offsets) {
    return support::message_of<mha::ShapeError>([&] {
      ContiguousKv<float>{rows.view(), rows.view(), offsets}.check("call");
    });
  };
  EXPECT_EQ(refusal(one, {0, 3, 7}), "");
  EXPECT_EQ(refusal(two, {0, 3, 7}), "call: ContiguousKv has offsets and batch 2, expected 1");
  EXPECT_NE(refusal(one, {0, 3, 8}), "");
  EXPECT_NE(refusal(one, {0, 5, 3, 7}), "");
  EXPECT_NE(refusal(one, {1, 7}), "");
  const std::vector<Index> offsets{0, 3, 7}, fits{3, 2}, beyond{4, 2};
  const auto of = [&](const std::vector<Index>& lengths) {
    return support::message_of<mha::ShapeError>([&] {
      ContiguousKv<float>{one.view(), one.view(), offsets, lengths}.check("call");
    });
  };
  EXPECT_EQ(of(fits), "");
  EXPECT_EQ(of(beyond), "call: sequence 0 of ContiguousKv has length 4, expected 0 to 3");
}

/// Rows in pages of two that need not follow each other: what a cache will be.
struct Paged {
  using Scalar = float;
  std::vector<mha::Tensor<float, 2>> pages;  // (2, D + Dv) each
  Index batch() const { return 1; }
  Index heads() const { return 1; }
  Index dim() const { return D; }
  Index value_dim() const { return Dv; }
  Index keys(Index) const { return static_cast<Index>(2 * pages.size()); }
  KvRun<float> run(Index, Index, Index begin, Index end) const {
    const auto& page = pages[static_cast<std::size_t>(begin / 2)];
    const float* const row = page.data() + begin % 2 * (D + Dv);
    const Index left = 2 - begin % 2;
    return {row, row + D, D + Dv, D + Dv, end - begin < left ? end - begin : left};
  }
};

TEST(KvSource, OffsetsTellTheLongestAndTheShortestSequence) {
  const std::vector<Index> several{0, 0, 7, 9, 9, 12}, none{0, 0, 0};
  EXPECT_EQ(mha::detail::longest(several), 7);
  EXPECT_EQ(mha::detail::shortest(several), 2) << "of those that have rows";
  EXPECT_EQ(mha::detail::longest(none), 0);
  EXPECT_EQ(mha::detail::shortest(none), 0);
}

TEST(KvSource, MayGiveARangeInSeveralRuns) {
  static_assert(mha::KvSource<Paged>);
  Paged kv;
  for (int k = 0; k < 6; k += 2) {
    mha::Tensor<float, 2> page(2, D + Dv);
    for (int i = 0; i < 2; ++i) {
      for (int d = 0; d < D; ++d) page(i, d) = key_of(0, k + i, 0, d);
      for (int d = 0; d < Dv; ++d) page(i, D + d) = value_of(0, k + i, 0, d);
    }
    kv.pages.push_back(page);
  }
  int at = 1;
  while (at < 6) {
    const auto run = kv.run(0, 0, at, 6);
    ASSERT_GE(run.count, 1);
    for (int i = 0; i < run.count; ++i) EXPECT_EQ(run.value[i * run.value_stride], value_of(0, at + i, 0, 0));
    at += run.count;
  }
  EXPECT_EQ(at, 6);
}

TEST(ContiguousKv, IsATriviallyCopyableSource) {
  static_assert(mha::KvSource<ContiguousKv<float>> && mha::KvSource<ContiguousKv<mha::bfloat16>>);
  static_assert(std::is_trivially_copyable_v<ContiguousKv<double>> &&
                std::same_as<ContiguousKv<double>::Scalar, double>);
}

}  // namespace
