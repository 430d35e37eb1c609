// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/policy/heads.hpp>
#include <mha/policy/mask/positional.hpp>

namespace {

using mha::GroupedQuery;

TEST(MultiHead, HasAKeyHeadForEveryQueryHead) {
  for (int h = 1; h < 40; ++h) EXPECT_EQ(mha::MultiHead::kv_heads(h), h);
}

TEST(MultiQuery, HasOneKeyHead) {
  for (int h = 1; h < 40; ++h) EXPECT_EQ(mha::MultiQuery::kv_heads(h), 1);
}

TEST(GroupedQuery, HasTheNumberItSays) {
  EXPECT_EQ(GroupedQuery<1>::kv_heads(8), 1);
  EXPECT_EQ(GroupedQuery<4>::kv_heads(8), 4);
  EXPECT_EQ(GroupedQuery<mha::Dynamic>::kv_heads(8), mha::Dynamic) << "the configuration says";
}

/// A user's own rule.
struct Halved {
  static constexpr mha::Role role = mha::Role::heads;
  static constexpr mha::Index kv_heads(mha::Index h) { return h / 2; }
};
struct NoRule {
  static constexpr mha::Role role = mha::Role::heads;
};

TEST(Heads, AreRecognisedByRoleAndRule) {
  static_assert(mha::Heads<mha::MultiHead> && mha::Heads<mha::MultiQuery> && mha::Heads<GroupedQuery<2>>);
  static_assert(mha::Heads<const GroupedQuery<mha::Dynamic>&> && mha::Heads<Halved>);
  static_assert(!mha::Heads<NoRule> && !mha::Heads<mha::Causal> && !mha::Heads<int>);
}

}  // namespace
