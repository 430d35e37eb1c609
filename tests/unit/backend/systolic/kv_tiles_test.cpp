// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/kv_tiles.hpp>
#include <mha/core/tensor.hpp>

#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

/// Keys and values in runs of at most five rows, as a paged cache has them; other rows may lie between the pages.
template <class T> struct Paged : mha::ContiguousKv<T> {
  Index between = 0;
  mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const Index gap = begin / 5 * between;
    return mha::ContiguousKv<T>::run(b, g, begin + gap, std::min(end, (begin / 5 + 1) * 5) + gap);
  }
};

/// Values of which so many lie together, 64 by 64.
struct Values {
  Index value_dim, together;
  std::vector<bfloat16> memory;
  mha::Tensor<bool, 1> non_finite;

  Values(Index n, Index dim, Index apart)
      : value_dim(dim),
        together(apart),
        memory(systolic::KvTiles::value_size(n, dim), bfloat16(7.f)),
        non_finite(n / systolic::key_block + 1) {
    std::fill(non_finite.begin(), non_finite.end(), true);
  }

  template <class T> void pack(const mha::detail::AnyKv<T>& source, Index n) {
    std::vector<bfloat16> scratch(systolic::pack_scratch(value_dim));
    for (Index k = 0; k < n; k += systolic::key_block)
      systolic::pack_values(source, 0, 1, k, n, mha::current_isa(), value_dim,
                            {memory.data() + place(k), systolic::KvTiles::value_stride(together), &non_finite(k / 64)},
                            scratch.data());
  }
  bfloat16 at(Index k, Index d) const {
    return memory[static_cast<std::size_t>(place(k / 32 * 32) + d / 16 * systolic::KvTiles::value_stride(together) +
                                           d % 16 * 32 + k % 32)];
  }

 private:
  Index place(Index k) const {
    return k / together * together * systolic::round_up(value_dim, 16) + systolic::KvTiles::value_offset(k % together);
  }
};

/// The value tiles of a source against its numbers.
template <class Source> void expect_values(const Source& source, Index n, Index value_dim) {
  for (const Index together : {64, 128, 256}) {
    SCOPED_TRACE(together);
    Values values(n, value_dim, together);
    values.pack(mha::detail::AnyKv<bfloat16>(source), n);
    std::vector<bool> want(3, false);
    for (Index i = 0; i < n; ++i) {
      const bfloat16* const row = source.run(0, 1, i, i + 1).value;
      for (Index d = 0; d < value_dim; ++d) {
        EXPECT_EQ(values.at(i, d).bits, row[d].bits) << "value " << i << ", " << d;
        if (!std::isfinite(float(row[d]))) want[static_cast<std::size_t>(i / 64)] = true;
      }
    }
    EXPECT_EQ(std::vector<bool>(values.non_finite.begin(), values.non_finite.end()), want);
  }
}

/// Values that are bfloat16 already are read where they are, if they lie in whole tiles.
TEST(KvTiles, TakeValuesFromTheirRows) {
  support::Random random("values in rows");
  const Index n = 150;
  for (const Index value_dim : {16, 23, 48}) {
    mha::Tensor<bfloat16, 4> v(1, n / 5 * 7, 2, value_dim);
    random.fill(v);
    v(0, 14, 1, value_dim - 1) = bfloat16(INFINITY);
    v(0, 149, 1, 0) = bfloat16(NAN);
    const mha::ContiguousKv<bfloat16> source{v.view(), v.view()};
    expect_values(source, n, value_dim);
    expect_values(Paged<bfloat16>{source, 2}, n, value_dim);
  }
}

/// Whole blocks of keys that are bfloat16 already are read where they are, if their rows are whole cache lines and near
/// each other; others are copied.
TEST(KvTiles, FindKeysInTheirPlace) {
  support::Random random("keys in place");
  const Index n = 150;
  struct Layout {
    Index heads, head_dim, offset, between;
    bool in_place;
  };
  for (const Layout& at : {Layout{1, 64, 0, 0, true},
                           {2, 128, 0, 0, true},
                           {1, 32, 0, 0, true},
                           {1, 64, 8, 0, false},
                           {3, 128, 0, 0, false},
                           {1, 48, 0, 0, false},
                           {4, 40, 0, 0, false},  // another head behind it, and no zeros
                           {1, 64, 0, 2, false}}) {
    SCOPED_TRACE(at.head_dim);
    const std::ptrdiff_t stride = std::ptrdiff_t{at.heads} * at.head_dim;
    mha::Tensor<bfloat16, 1> storage(static_cast<Index>(n / 5 * 7 * stride + at.offset));
    random.fill(storage);
    const mha::TensorView<const bfloat16, 4> k{
        storage.data() + at.offset, {1, n / 5 * 7, at.heads, at.head_dim}, {0, stride, at.head_dim, 1}};
    const Paged<bfloat16> source{{k, k}, at.between};
    const mha::ContiguousKv<bfloat16>& all = source;
    const bool paged = at.between != 0;
    mha::Tensor<bfloat16, 1> keys(static_cast<Index>(systolic::KvTiles::key_size(n, at.head_dim)));
    std::vector<systolic::KeyRows> key_rows(3);
    const auto find = [&](const mha::detail::AnyKv<bfloat16>& any) {
      systolic::KeysInPlace<bfloat16> in_place(any, 0, 0, n, at.head_dim);
      for (Index first = 0; first < n; first += systolic::key_block) {
        systolic::KeyRows& rows = key_rows[static_cast<std::size_t>(first / systolic::key_block)];
        rows = in_place.at(first);
        if (rows.exist()) continue;
        const Index width = systolic::round_up(at.head_dim, systolic::tile_depth);
        bfloat16* const to = keys.data() + std::ptrdiff_t{first} * width;
        systolic::pack_keys(any, 0, 0, first, n, mha::current_isa(), at.head_dim, to);
        rows = {to, width};
      }
    };
    if (paged)
      find(mha::detail::AnyKv<bfloat16>(source));
    else
      find(mha::detail::AnyKv<bfloat16>(all));
    for (Index i = 0; i < n; ++i) {
      const systolic::KeyRows& rows = key_rows[static_cast<std::size_t>(i / 64)];
      const bfloat16* const row = paged ? source.run(0, 0, i, i + 1).key : k.pointer(0, i, 0, 0);
      EXPECT_EQ(rows.tile[i % 64 / 16] + i % 16 * rows.stride == row, at.in_place && i < 128) << "key " << i;
      for (Index d = 0; d < at.head_dim; ++d)
        EXPECT_EQ(rows.tile[i % 64 / 16][i % 16 * rows.stride + d].bits, row[d].bits);
    }
  }
}

TEST(KeyRows, AreNearUntilTheyTakeMoreThanAMebibyte) {
  alignas(64) const bfloat16 row[32] = {};
  EXPECT_TRUE((systolic::KeyRows{row, 256}.near(2048, 64)));
  EXPECT_FALSE((systolic::KeyRows{row, 256}.near(2049, 64)));
  EXPECT_TRUE((systolic::KeyRows{row, 256}.near(1 << 20, 256))) << "side by side";
  EXPECT_TRUE((systolic::KeyRows{row, 288}.near(64, 288))) << "too";
  EXPECT_FALSE((systolic::KeyRows{row, 288}.near(64, 64)));
  EXPECT_FALSE((systolic::KeyRows{row, 80}.near(64, 64)));
  EXPECT_FALSE((systolic::KeyRows{row + 8, 64}.near(64, 64)));
}

TEST(KvTiles, HoldEveryNumberAndZerosBeyond) {
  support::Random random("kv tiles");
  const Index n = 300, head_dim = 40, value_dim = 23;
  mha::Tensor<float, 4> k(1, n, 2, head_dim), v(1, n, 2, value_dim);
  random.fill(k);
  random.fill(v);
  v(0, 130, 1, 22) = INFINITY;
  v(0, 70, 0, 0) = NAN;  // of the other head
  const Paged<float> source{{k.view(), v.view()}};

  std::vector<bfloat16> keys(systolic::KvTiles::key_size(n, head_dim), bfloat16(7.f));
  for (Index first = 0; first < n; first += systolic::key_block)
    systolic::pack_keys(mha::detail::AnyKv<float>(source), 0, 1, first, n, mha::current_isa(), head_dim,
                        keys.data() + first * 64);
  Values values(n, value_dim, systolic::value_block);
  values.pack(mha::detail::AnyKv<float>(source), n);

  ASSERT_EQ(keys.size(), 512u * 64u);
  ASSERT_EQ(values.memory.size(), 512u * 32u);
  for (Index i = 0; i < 320; ++i) {  // whole key blocks
    for (Index d = 0; d < 64; ++d) {
      const float want = i < n && d < head_dim ? k(0, i, 1, d) : 0.f;
      EXPECT_EQ(keys[static_cast<std::size_t>(i * 64 + d)].bits, bfloat16(want).bits) << "key " << i << ", " << d;
    }
    for (Index d = 0; d < 32; ++d) {
      const float want = i < n && d < value_dim ? v(0, i, 1, d) : 0.f;
      EXPECT_EQ(values.at(i, d).bits, bfloat16(want).bits) << "value " << i << ", " << d;
    }
  }
  EXPECT_EQ(std::vector<bool>(values.non_finite.begin(), values.non_finite.end()),
            (std::vector<bool>{false, false, true, false, false}));
}

}  // namespace
