// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/layer/key_value_gradients.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using Heads = mha::Tensor<float, 4>;
using Gradients = mha::KeyValueGradients<float, mha::Reference>;

TEST(KeyValueGradients, AreZeroAtFirstAndAfterClear) {
  Gradients d(mha::Reference{}, 2, 5, 3, 4, 6);
  EXPECT_EQ(d.key.extent(1), 5);
  EXPECT_EQ(d.value.extent(3), 6);
  const auto expect_zero = [&] {
    for (const float x : d.key) ASSERT_EQ(x, 0);
    for (const float x : d.value) ASSERT_EQ(x, 0);
  };
  expect_zero();
  const auto fill = [&] {
    support::Random random("key value gradients");
    random.fill(d.key);
    random.fill(d.value);
  };
  fill();
  d.clear();
  expect_zero();
  fill();
  mha::Workspace workspace;
  d.clear(workspace);
  expect_zero();
}

Heads filled(const char* stream, Index b, Index l, Index d) {
  Heads x(b, l, 2, d);
  support::Random(stream).fill(x);
  return x;
}

/// Two sequences of 5 and 3 keys, of which the last 2 and 3 are the call's own.
struct Call {
  const std::vector<Index> keys{0, 5, 8}, rows{0, 2, 5}, positions{3, 0};
  const Heads all_key = filled("all keys", 1, 8, 3), all_value = filled("all values", 1, 8, 4);
  Heads key{1, 5, 2, 3}, value{1, 5, 2, 4};
  mha::Tensor<float, 4> later_key = filled("later keys", 2, 6, 3), later_value = filled("later values", 2, 6, 4);

  void run(bool adds) {
    support::poison_all(key);
    support::poison_all(value);
    const mha::RowPositions queries{mha::Origins(positions.data()), rows.data(), 2, 3},
        of_keys{mha::Origins(Index{0}), keys.data(), 2, 5};
    const mha::TensorView<float, 4> none{};
    mha::detail::run_serially(mha::detail::KeyGradientItems<float>(all_key.view(), all_value.view(), key.view(),
                                                                   value.view(), adds ? later_key.view() : none,
                                                                   adds ? later_value.view() : none, queries, of_keys));
  }
};

TEST(KeyGradientItems, TakeTheRowsOfTheCallAndLeaveTheOthers) {
  Call c;
  const Heads before = c.later_key;
  c.run(true);
  for (Index g = 0; g < 2; ++g)
    for (Index d = 0; d < 3; ++d) {
      for (Index i = 0; i < 2; ++i) EXPECT_EQ(c.key(0, i, g, d), c.all_key(0, 3 + i, g, d) + before(0, 3 + i, g, d));
      for (Index i = 0; i < 3; ++i) EXPECT_EQ(c.key(0, 2 + i, g, d), c.all_key(0, 5 + i, g, d) + before(1, i, g, d));
      for (Index k = 0; k < 6; ++k) {
        const float left = k < 3 ? before(0, k, g, d) + c.all_key(0, k, g, d) : k < 5 ? 0 : before(0, k, g, d);
        EXPECT_EQ(c.later_key(0, k, g, d), left) << k;
        EXPECT_EQ(c.later_key(1, k, g, d), k < 3 ? 0 : before(1, k, g, d)) << k;
      }
    }
}

TEST(KeyGradientItems, StopWhereNothingIsAdded) {
  Call c;
  const Heads before = c.later_value;
  c.run(false);
  EXPECT_EQ(support::differing(c.later_value, before), 0u);
  for (Index g = 0; g < 2; ++g)
    for (Index d = 0; d < 4; ++d)
      for (Index i = 0; i < 5; ++i) EXPECT_EQ(c.value(0, i, g, d), c.all_value(0, 3 + i, g, d));
}

}  // namespace
