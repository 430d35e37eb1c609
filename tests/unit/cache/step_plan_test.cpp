// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/step_plan.hpp>

#include "message_of.hpp"

namespace {

using mha::Index;
using mha::SequenceId;
using mha::detail::SequenceBook;
using mha::detail::StepPlan;
using support::message_of;

constexpr Index limit = 40;

/// Three sequences of lengths 5, 0 and 40.
struct Three {
  SequenceBook book{4};
  SequenceId a = of_length(5), b = of_length(0), full = of_length(limit);

  SequenceId of_length(Index length) {
    const SequenceId id = book.add("add");
    book.set_length(book.slot("add", id), length);
    return id;
  }
};

TEST(StepPlan, HasTheGrowthsOfSequencesInTheirOrder) {
  const Three three;
  StepPlan plan(4);
  const SequenceId who[] = {three.b, three.a};
  const Index rows[] = {40, 3};
  for (int again = 0; again < 2; ++again) {
    const auto growths = plan.growths("step", three.book, who, rows, limit);
    ASSERT_EQ(growths.size(), 2u);
    EXPECT_EQ(growths[0].slot, three.book.slot("slot", three.b));
    EXPECT_EQ(growths[0].length, 0);
    EXPECT_EQ(growths[0].rows, 40);
    EXPECT_EQ(growths[1].slot, three.book.slot("slot", three.a));
    EXPECT_EQ(growths[1].length, 5);
    EXPECT_EQ(growths[1].rows, 3);
    const auto slots = plan.slots("reorder", three.book, who);
    ASSERT_EQ(slots.size(), 2u);
    EXPECT_EQ(slots[0], growths[0].slot);
    EXPECT_EQ(slots[1], growths[1].slot);
  }
  EXPECT_TRUE(plan.growths("step", three.book, {}, {}, limit).empty());
}

TEST(StepPlan, HasAsManyRowsForEach) {
  const Three three;
  StepPlan plan(4);
  const auto growths = plan.growths("step", three.book, std::array{three.b, three.a}, 7, limit);
  ASSERT_EQ(growths.size(), 2u);
  EXPECT_EQ(growths[0].rows, 7);
  EXPECT_EQ(growths[1].rows, 7);
  EXPECT_TRUE(plan.growths("step", three.book, {}, 7, limit).empty());
}

TEST(StepPlan, NamesASequenceAgainWhereNothingIsAdded) {
  const Three three;
  StepPlan plan(4);
  const auto a = three.a, b = three.b;
  const auto growths = plan.growths("step", three.book, std::array{a, b, a, a}, 0, limit);
  ASSERT_EQ(growths.size(), 4u);
  for (const std::size_t i : {0u, 2u, 3u}) {
    EXPECT_EQ(growths[i].slot, three.book.slot("slot", a));
    EXPECT_EQ(growths[i].length, 5);
  }
  const auto refused = [&](const std::vector<SequenceId>& who, const std::vector<Index>& rows) {
    return message_of([&] { static_cast<void>(plan.growths("ask", three.book, who, rows, limit)); });
  };
  EXPECT_EQ(refused({a, b, a}, {0, 1, 0}), "ask: sequences 0 and 2 are the same one");
  EXPECT_EQ(refused({a, a}, {0, 1}), "ask: sequences 0 and 1 are the same one");
  EXPECT_EQ(refused({a, a, a, a, b}, {0, 0, 0, 0, 0}),
            "ask: 5 sequences are named, the cache has memory for 4: make it with CacheSizes{.sequences = more}");
}

TEST(StepPlan, HasASourceForEachBeam) {
  const auto refused = [](std::size_t beams, const std::vector<Index>& from) {
    return message_of([&] { static_cast<void>(StepPlan::sources(beams, from)); });
  };
  const Index from[] = {1, 1, 0};
  EXPECT_EQ(StepPlan::sources(3, from).data(), from);
  EXPECT_EQ(refused(2, {0}), "reorder: beams has size 2 but from has size 1");
  EXPECT_EQ(refused(2, {0, 2}), "reorder: source 2 is outside [0, 2), the number of beams");
  EXPECT_EQ(refused(2, {-1, 0}), "reorder: source -1 is outside [0, 2), the number of beams");
}

TEST(StepPlan, NamesWhatItRefuses) {
  const Three three;
  StepPlan plan(4);
  const auto refused = [&](const std::vector<SequenceId>& who, const std::vector<Index>& rows) {
    return message_of([&] { static_cast<void>(plan.growths("ask", three.book, who, rows, limit)); });
  };
  const auto a = three.a, b = three.b, full = three.full;
  EXPECT_EQ(refused({a, b}, {1}), "ask: sequences has size 2 but rows has size 1");
  EXPECT_EQ(refused({a, b, a}, {1, 1, 1}), "ask: sequences 0 and 2 are the same one");
  EXPECT_EQ(refused({a, SequenceId{}}, {1, 1}), "ask: sequence 1 is an empty SequenceId: add() and fork() return one");
  EXPECT_EQ(refused({a, b}, {1, -1}), "ask: sequence 1 has -1 rows, the least is 0");
  EXPECT_EQ(refused({b, full}, {1, 1}),
            "ask: sequence 1 of length 40 and 1 rows more would be longer than the cache's 40");
  EXPECT_EQ(refused({a}, {std::numeric_limits<Index>::max()}),
            "ask: sequence 0 of length 5 and 2147483647 rows more would be longer than the cache's 40");
  const SequenceId who[] = {b, a};
  const Index many[] = {mha::detail::longest_axis, 1};
  EXPECT_EQ(
      message_of([&] { static_cast<void>(plan.growths("ask", three.book, who, many, mha::detail::longest_axis)); }),
      "ask: 1073741824 rows, the limit is 1073741823");
  EXPECT_EQ(refused({a, b}, {1, 1}), "") << "a refusal leaves nothing behind";
}

}  // namespace
