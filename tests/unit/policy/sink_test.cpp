// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/sink.hpp>

#include "scratch.hpp"

namespace {

using mha::Sink;

TEST(SinkPolicy, IsRecognisedByItsRole) {
  static_assert(mha::SinkPolicy<mha::NoSink> && mha::SinkPolicy<const Sink&> && !mha::SinkPolicy<float>);
  static_assert(!mha::Borrows<Sink>, "a layer may own it");
}

TEST(SinkPolicy, NoSinkHasNoLogits) { EXPECT_EQ(mha::NoSink{}.logits(5).size, 0); }

TEST(Sink, HandsOutItsLogitsAndSharesThemWithCopies) {
  std::optional<Sink> first;
  first.emplace(std::vector<float>{0.5f, -2, 7});
  const Sink copy = *first;
  const auto logits = first->logits(3);
  EXPECT_EQ(copy.logits(3).data, logits.data);
  first.reset();
  ASSERT_EQ(copy.logits(3).size, 3);
  EXPECT_EQ(copy.logits(3)[1], -2);
}

std::string refusal(std::vector<float> logits, int heads) {
  return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Sink(std::move(logits)).logits(heads)); });
}

TEST(Sink, WantsOneLogitPerHead) {
  EXPECT_EQ(refusal({1, 2, 3}, 3), "");
  EXPECT_EQ(refusal({1, 2, 3}, 4), "Sink: 3 logits for 4 heads");
  EXPECT_EQ(refusal({}, 1), "Sink: 0 logits for 1 heads");
}

TEST(Sink, WantsLogitsBelowInfinity) {
  EXPECT_EQ(refusal({0, -INFINITY}, 2), "");
  EXPECT_EQ(refusal({0, INFINITY}, 2), "Sink: the logit of head 1 is inf, it must be below infinity");
  EXPECT_EQ(refusal({std::numeric_limits<float>::quiet_NaN()}, 1),
            "Sink: the logit of head 0 is nan, it must be below infinity");
  EXPECT_EQ(refusal({std::numeric_limits<float>::max()}, 1), "");
}

}  // namespace
