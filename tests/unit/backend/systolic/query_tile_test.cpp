// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/query_tile.hpp>
#include <mha/backend/systolic/tile_product.hpp>
#include <mha/call.hpp>
#include <mha/core/tensor.hpp>

#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::Index;

/// One tile of three queries against 70 keys, without the driver. The first 64 keys lie side by side, or 16 by 16 in
/// the given order.
void attend_block_by_block(const std::vector<Index>& order) {
  support::Random random("query tile");
  const Index n = 70, count = 3, dim = 8;
  mha::Tensor<float, 4> q(1, count, 1, dim), k(1, n, 1, dim), v(1, n, 1, dim), out(1, count, 1, dim);
  for (auto* t : {&q, &k, &v})
    for (float& x : *t) x = float(mha::bfloat16(static_cast<float>(random.normal())));
  mha::Tensor<float, 3> lse(1, 1, count);

  mha::Workspace workspace;
  auto frame = workspace.frame();
  using Call = mha::AttendCall<float, mha::ContiguousKv<float>, mha::Causal, mha::NoScore>;
  Call call{};
  call.q = q.view();
  call.kv = {k.view(), v.view()};
  call.out = out.view();
  call.log_sum_exp = lse.view();
  call.shape.batch = call.shape.heads = call.kv_heads = 1;
  call.shape.queries = count;
  call.shape.keys = n;
  call.shape.origin = n - count;
  call.head_dim = call.value_dim = dim;
  call.scale = 0.5f;

  const auto kernels = systolic::kernels_of(systolic::emulated_unit(mha::SumOrder::chained), mha::current_isa());
  auto* const values = frame.take<mha::bfloat16>(2 * systolic::KvTiles::value_size(n, dim));
  mha::detail::ValueTiles value_tiles[2];
  auto* const keys = frame.take<mha::bfloat16>(systolic::KvTiles::key_size(n, dim));
  auto* const elsewhere = frame.take<mha::bfloat16>(systolic::KvTiles::key_size(n, dim));
  auto* const key_rows = frame.take<systolic::KeyRows>(8);
  const systolic::KvTiles tiles{value_tiles, key_rows, dim, dim};
  auto* const scratch = frame.take<mha::bfloat16>(systolic::pack_scratch(dim));
  const mha::detail::AnyKv<float> source(call.kv);
  for (Index first = 0; first < n; first += systolic::key_block) {
    constexpr std::ptrdiff_t width = systolic::tile_depth;
    key_rows[first / systolic::key_block] = {keys + first * width, width};
    systolic::pack_keys(source, 0, 0, first, n, kernels.level, dim, keys + first * width);
    for (std::size_t t = 0; first == 0 && t < order.size(); ++t) {
      const mha::bfloat16* const rows = keys + static_cast<std::ptrdiff_t>(t) * 16 * width;
      key_rows[0].tile[t] = std::copy_n(rows, 16 * width, elsewhere + order[t] * 16 * width) - 16 * width;
    }
    // The second 64 values far behind the first, with another distance between tiles.
    auto& at = value_tiles[first / systolic::key_block];
    mha::bfloat16* const to = values + (first > 0 ? systolic::KvTiles::value_size(n, dim) : 0);
    at = {to, systolic::KvTiles::value_stride(first > 0 ? 64 : 128), false};
    systolic::pack_values(source, 0, 0, first, n, kernels.level, dim, {to, at.stride, &at.non_finite}, scratch);
  }
  const systolic::BlockScratch block(frame, kernels.product.lanes, dim, dim);
  const systolic::TileState state(frame, kernels.product.lanes, dim, dim);
  std::fill_n(state.part.out, systolic::tile_side * kernels.product.lanes, NAN);  // the first product sets it
  const auto any = systolic::any_call(call, kernels.level);
  systolic::QueryTile<float> tile(any, kernels, tiles, block, state, {0, 0, 1, 0, count, n - count});
  EXPECT_EQ(tile.keys(), n);
  tile.attend(0, 0);
  tile.finish();

  for (Index i = 0; i < count; ++i) {
    double sum = 0, value[8] = {}, size[8] = {};
    for (Index j = 0; j <= n - count + i; ++j) {
      double dot = 0;
      for (Index d = 0; d < dim; ++d) dot += double(q(0, i, 0, d)) * double(k(0, j, 0, d));
      const double w = std::exp(0.5 * dot);
      sum += w;
      for (Index d = 0; d < dim; ++d) value[d] += w * double(v(0, j, 0, d));
      for (Index d = 0; d < dim; ++d) size[d] += w * std::abs(double(v(0, j, 0, d)));
    }
    EXPECT_NEAR(double(lse(0, 0, i)), std::log(sum), 0x1p-6);
    for (Index d = 0; d < dim; ++d) EXPECT_NEAR(double(out(0, i, 0, d)), value[d] / sum, 0x1p-6 * size[d] / sum);
  }
}

TEST(QueryTile, AttendsBlockByBlock) { attend_block_by_block({}); }

TEST(QueryTile, AttendsToKeysThatLieInTilesOfSixteen) {
  attend_block_by_block({2, 0, 3, 1});
  attend_block_by_block({3, 2, 0, 1});
  attend_block_by_block({0, 2, 4, 7});
}

}  // namespace
