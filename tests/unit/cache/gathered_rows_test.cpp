// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/gathered_rows.hpp>
#include <mha/core/workspace.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "kv_copies.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using Lengths = std::vector<Index>;
namespace detail = mha::detail;

struct Rows {
  mha::Tensor<float, 4> key{3, 40, 2, 5}, value{3, 40, 2, 7};
  Rows() {
    support::Random random("gathered rows");
    random.fill(key);
    random.fill(value);
  }
};

TEST(GatheredAxes, FollowTheLengthsAndTheCall) {
  const Rows rows;
  const auto axes = [&](const Lengths& lengths, bool ragged) {
    return detail::gathered_axes("test", mha::ContiguousKv<float>{rows.key.view(), rows.value.view(), {}, lengths},
                                 ragged);
  };
  const auto even = axes({40, 40, 40}, false), ragged = axes({40, 40, 40}, true), uneven = axes({40, 0, 3}, false);
  EXPECT_EQ(even.batch, 3);
  EXPECT_EQ(even.length, 40);
  EXPECT_FALSE(even.side_by_side);
  EXPECT_EQ(ragged.batch, 1);
  EXPECT_EQ(ragged.length, 120);
  EXPECT_TRUE(ragged.side_by_side);
  EXPECT_EQ(uneven.batch, 1);
  EXPECT_EQ(uneven.length, 43);
  EXPECT_TRUE(uneven.side_by_side);
}

/// Sequences that are longer together than an axis may be.
struct Endless {
  using Scalar = float;
  Index batch() const { return 3; }
  Index heads() const { return 1; }
  Index dim() const { return 1; }
  Index value_dim() const { return 1; }
  Index keys(Index) const { return detail::longest_axis; }
  mha::KvRun<float> run(Index, Index, Index, Index) const { return {nullptr, nullptr, 0, 0, 0}; }
};
TEST(GatheredAxes, RefuseMoreKeysThanAnAxisHas) {
  const std::int64_t longest = detail::longest_axis;
  EXPECT_EQ(support::message_of([] { static_cast<void>(detail::gathered_axes("test", Endless{}, false)); }),
            "test: the first 2 sequences of the source have " + std::to_string(2 * longest) +
                " keys together, the limit is " + std::to_string(longest));
}

/// All elements and the runs of items over any part of the rows.
template <class Source>
void expect_gathered(const Source& source, const support::RingCopy<float>* ring, const Rows& rows) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const auto axes = detail::gathered_axes("test", source, false);
  auto to = detail::gathered_rows<float>("test", source, axes, frame);
  std::vector<Index> offsets(4);
  detail::list_key_offsets(source, offsets.data());
  if (axes.side_by_side) to.offsets = mha::Borrowed<Index>(offsets);
  mha::CallShape shape{3, 2, 1, 40};
  const auto items = detail::gather_items(source, shape, to);
  const auto poison = [&] {
    for (auto* view : {&to.key, &to.value})
      for (std::ptrdiff_t i = 0; i < view->size(); ++i) view->data[i] = -1;
  };
  const auto expect = [&] {
    for (Index b = 0; b < 3; ++b)
      for (Index k = 0; k < source.keys(b); ++k)
        for (Index g = 0; g < 2; ++g) {
          const bool there = ring == nullptr || ring->holds(b, k);
          const Index in = axes.side_by_side ? 0 : b, at = axes.side_by_side ? offsets[std::size_t(b)] + k : k;
          for (Index d = 0; d < 5; ++d) ASSERT_EQ(to.key(in, at, g, d), there ? rows.key(b, k, g, d) : 0);
          for (Index d = 0; d < 7; ++d) ASSERT_EQ(to.value(in, at, g, d), there ? rows.value(b, k, g, d) : 0);
        }
  };
  poison();
  detail::run_serially(items);
  expect();
  poison();
  for (std::ptrdiff_t row = 0; row < items.rows; ++row)
    for (Index column = 0; column < items.columns; ++column) items(row, column);
  expect();
}

TEST(GatherItems, WriteEveryRowOnceWhereverItIsKept) {
  const Rows rows;
  support::Random random("pages");
  for (const Lengths& lengths : {Lengths{40, 40, 40}, Lengths{17, 0, 40}}) {
    const support::PagedCopy<float> pages(random, rows.key.view(), rows.value.view(), lengths, 16);
    expect_gathered(pages.source(), nullptr, rows);
    const support::RingCopy<float> ring(rows.key.view(), rows.value.view(), lengths, 12, 3);
    expect_gathered(ring.source(), &ring, rows);
  }
}

// Of pages and rings, in float and in half; a position that is gone is 0.
template <class T> void expect_numbers_of_eight_bits() {
  Rows rows;
  const auto key = support::in_eight_bits(rows.key), value = support::in_eight_bits(rows.value);
  const Lengths lengths{40, 12, 33};
  const support::RingCopy<mha::scaled_int8> ring(key.view(), value.view(), lengths, 12, 3);
  const auto source = ring.source();
  mha::Workspace workspace;
  auto frame = workspace.frame();
  auto to = detail::gathered_rows<T>("test", source, detail::gathered_axes("test", source, false), frame);
  std::vector<Index> offsets(4);
  detail::list_key_offsets(source, offsets.data());
  to.offsets = mha::Borrowed<Index>(offsets);
  const auto items = detail::gather_items(source, mha::CallShape{3, 2, 1, 40}, to);
  for (const bool at_once : {false, true}) {
    if (at_once)
      detail::run_serially(items);
    else
      for (std::ptrdiff_t row = 0; row < items.rows; ++row)
        for (Index column = 0; column < items.columns; ++column) items(row, column);
    for (Index b = 0; b < 3; ++b)
      for (Index k = 0; k < source.keys(b); ++k)
        for (Index g = 0; g < 2; ++g) {
          const Index at = offsets[std::size_t(b)] + k;
          const bool there = ring.holds(b, k);
          for (Index d = 0; d < 5; ++d)
            ASSERT_EQ(support::bits(to.key(0, at, g, d)), support::bits(there ? T(rows.key(b, k, g, d)) : T(0.0f)));
          for (Index d = 0; d < 7; ++d)
            ASSERT_EQ(support::bits(to.value(0, at, g, d)), support::bits(there ? T(rows.value(b, k, g, d)) : T(0.0f)));
        }
    for (auto* view : {&to.key, &to.value}) std::fill_n(view->data, view->size(), support::poison<T>());
  }
}
TEST(GatherItems, ReadRowsInEightBits) {
  expect_numbers_of_eight_bits<float>();
  expect_numbers_of_eight_bits<mha::half>();
}

}  // namespace
