// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::detail::KeysFrom;

TEST(RecordedKeys, OfAStepOutliveIt) {
  mha::KvCache<mha::Contiguous, float> cache({.heads = 1, .dim = 2, .value_dim = 2}, {.length = 8}, {.sequences = 2});
  const mha::SequenceId first = cache.add();
  cache.add();
  mha::Tensor<float, 3> rows(3, 1, 2);
  auto before = cache.step(first, 3);
  before.append(0, rows, rows);
  before.commit();
  mha::Workspace workspace;
  auto frame = workspace.frame();
  mha::detail::Projected<float> made;
  mha::detail::CallOptions<float> given;
  auto keys = [&] {
    auto step = cache.step(cache.ids(), std::vector<Index>{1, 2});
    const auto part = step[0];
    mha::detail::take_step(part, 1, given);
    return mha::detail::recorded_keys<float>(KeysFrom::cache, made, part, part.source(), given, frame);
  }();
  EXPECT_TRUE(keys.shared);
  EXPECT_EQ(keys.lists.query_offsets, (std::vector<Index>{0, 1, 3}));
  EXPECT_EQ(keys.lists.positions, (std::vector<Index>{3, 0}));
  EXPECT_EQ(keys.lists.key_offsets, (std::vector<Index>{0, 4, 6}));
  EXPECT_EQ(keys.key.extent[1], 6);
  const auto options = keys.options(given);
  EXPECT_EQ(options.origin->positions.data, keys.lists.positions.data());
  EXPECT_EQ(options.ragged->query_offsets.data, keys.lists.query_offsets.data());
  // A tape takes the lists over, and what points at them stays.
  const auto moved = std::move(keys);
  EXPECT_EQ(options.origin->positions.data, moved.lists.positions.data());
  EXPECT_EQ(moved.gathered.offsets.data, moved.lists.key_offsets.data());
}

TEST(RecordedKeys, AreNoneOfAStepThatMayBeReplayed) {
  mha::KvCache<mha::Contiguous, float> cache({.heads = 1, .dim = 2, .value_dim = 2}, {.length = 8});
  const mha::SequenceId id = cache.add();
  const auto step = cache.step(id, 1);
  const auto part = step[0];
  mha::detail::CallOptions<float> planned;
  planned.planned_keys = 8;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  EXPECT_EQ(support::message_of([&] {
              static_cast<void>(mha::detail::recorded_keys<float>(KeysFrom::cache, mha::detail::Projected<float>{},
                                                                  part, part.source(), planned, frame));
            }),
            "layer: a tape records no step of a recordable cache: make the cache without CacheSizes{.recordable = "
            "true}");
}

TEST(RecordedKeys, OfTheCallsOwnRowsAreSharedWithNoOther) {
  mha::Tensor<float, 4> key(1, 3, 2, 4);
  mha::detail::Projected<float> made;
  made.key = made.value = std::as_const(key).view();
  int nothing = 0;
  const auto keys = mha::detail::recorded_keys<float>(KeysFrom::x, made, mha::TensorView<const float, 3>{}, nothing,
                                                      mha::detail::CallOptions<float>{}, nothing);
  EXPECT_FALSE(keys.shared);
  EXPECT_EQ(keys.key.data, key.data());
  EXPECT_EQ(keys.gathered.offsets.data, nullptr);
}

}  // namespace
