// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <new>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "message_of.hpp"

namespace {

using mha::Index;
using mha::Reference;

/// Memory of which only so many more tensors can be had.
struct Scarce {
  static constexpr mha::Memory memory = mha::Memory::device;
  static inline int left = 0;
  void require_reachable(const char*, const char*, const void*) const {}
  template <class T, int Rank> struct Tensor : mha::Tensor<T, Rank> {
    Tensor() = default;
    explicit Tensor(Index n) : mha::Tensor<T, Rank>(left-- > 0 ? n : throw std::bad_alloc()) {}
  };
};

/// Memory that is moved and never copied, as a device's is.
struct Unique {
  static constexpr mha::Memory memory = mha::Memory::device;
  template <class T, int Rank> struct Tensor : mha::Tensor<T, Rank> {
    Tensor() = default;
    Tensor(Tensor&&) = default;
    Tensor& operator=(Tensor&&) = default;
  };
};

TEST(AttentionTape, HoldsLevelAndSumOfEveryRow) {
  const support::BackwardCase<double> c("tape", {.queries = 5, .keys = 3});
  mha::AttentionTape<double, Reference> tape;
  EXPECT_FALSE(tape.recorded());
  mha::Tensor<double, 3> lse(2, 4, 5);
  const auto plain = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{});
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{}, mha::record(tape), mha::LogSumExp(lse));
  EXPECT_TRUE(tape.recorded());
  EXPECT_EQ(support::differing(plain, out), 0u);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 5; ++i) {
        const Index row = (b * 4 + h) * 5 + i;
        const double level = tape.level()[row], sum = tape.sum()[row];
        if (i < 2) {  // these see no key
          EXPECT_EQ(level, -HUGE_VAL);
          EXPECT_EQ(sum, 0);
        } else {
          EXPECT_GE(sum, 1);
          EXPECT_NEAR(level + std::log(sum), lse(b, h, i), 1e-13);
        }
      }
}

TEST(AttentionTape, KeepsItsMemoryAndForgetsTheCallBefore) {
  const support::BackwardCase<float> large("large", {.queries = 9}), small("small", {});
  mha::AttentionTape<float, Reference> tape;
  static_cast<void>(mha::attention<Reference>(large.q, large.k, large.v, mha::record(tape)));
  const float* const memory = tape.level();
  static_cast<void>(mha::attention<Reference>(small.q, small.k, small.v, mha::record(tape)));
  EXPECT_EQ(tape.level(), memory);
  const mha::AttentionTape<float, Reference> moved = std::move(tape);
  EXPECT_TRUE(moved.recorded());
  EXPECT_EQ(moved.level(), memory);
}

TEST(AttentionTape, AMovedOneHasRecordedNothing) {
  const support::BackwardCase<float> c("moved", {});
  mha::AttentionTape<float, Reference> tape, assigned;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape));
  const auto expected = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);
  const auto copy = tape;
  mha::AttentionTape<float, Reference> moved = std::move(tape);
  EXPECT_FALSE(tape.recorded());
  EXPECT_THROW(static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape)), mha::ShapeError);
  assigned = std::move(moved);
  EXPECT_FALSE(moved.recorded());
  EXPECT_THROW(static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, moved)), mha::ShapeError);
  for (const auto* const good : {&copy, &std::as_const(assigned)}) {
    const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, *good);
    EXPECT_EQ(support::differing(g.key, expected.key), 0u);
  }
  static_cast<void>(mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape)));  // is as good as a new one
  EXPECT_TRUE(tape.recorded());
  EXPECT_EQ(support::differing(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape).query, expected.query), 0u);
}

// Else memory that gives out would end the program.
TEST(AttentionTape, CopyAssignmentMayThrowAlsoOfWhatHasOne) {
  struct Call {
    mha::AttentionTape<float> tape;
  };
  static_assert(std::is_copy_assignable_v<Call> && !std::is_nothrow_copy_assignable_v<Call>);
  static_assert(std::is_nothrow_move_assignable_v<Call>);
  using Moved = mha::AttentionTape<float, Unique>;
  static_assert(!std::is_copy_constructible_v<Moved> && !std::is_copy_assignable_v<Moved>);
  static_assert(std::is_nothrow_move_assignable_v<Moved>);
}

TEST(AttentionTape, AssignedToItselfKeepsItsCall) {
  const support::BackwardCase<float> c("itself", {});
  mha::AttentionTape<float, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape));
  const auto expected = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);
  auto& same = tape;
  tape = std::move(same);
  tape = same;
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);
  EXPECT_EQ(support::differing(g.key, expected.key), 0u);
}

TEST(AttentionTape, HasMemoryForAllItsRowsAfterAFailedAllocation) {
  const mha::Tensor<float, 4> q(1, 3, 2, 4);
  mha::AttendCall<float, mha::ContiguousKv<float>, mha::Full, mha::NoScore> call{};
  call.q = q.view();
  for (int before = 0; before < 2; ++before) {
    mha::AttentionTape<float, Scarce> tape;
    Scarce::left = before;
    EXPECT_THROW(tape.begin(Scarce{}, "attention", call), std::bad_alloc);
    Scarce::left = 2;
    const auto rows = tape.begin(Scarce{}, "attention", call);
    EXPECT_NE(rows.level, nullptr);
    EXPECT_NE(rows.sum, nullptr);
    EXPECT_FALSE(tape.recorded());
  }
}

TEST(AttentionTape, KeepsItsCallWhereAnotherHasTooManyRows) {
  const support::BackwardCase<float> c("kept", {});
  mha::AttentionTape<float, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape));
  const auto expected = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);
  const float one = 1;
  mha::AttendCall<float, mha::ContiguousKv<float>, mha::Full, mha::NoScore> call{};
  call.q = {&one, {1 << 20, 1 << 10, 2, 1}, {0, 0, 0, 1}};
  EXPECT_EQ(support::message_of([&] { tape.begin(Reference{}, "attention", call); }),
            "attention: the call has 2147483648 rows of heads, the limit of a tape is 2147483647");
  EXPECT_TRUE(tape.recorded());
  EXPECT_EQ(support::differing(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape).query, expected.query), 0u);
}

TEST(AttentionTape, TellsCallsApartByTheLengthsAndOriginsOfAllSequences) {
  const support::BackwardCase<double> c("told apart", {.batch = 1, .queries = 6, .keys = 6});
  const std::vector<Index> offsets{0, 2, 6}, other{0, 4, 6}, origins{1, 4}, moved{4, 1};
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::Ragged{offsets}, mha::Origin{origins}, mha::Causal{},
                                             mha::record(tape));
  const auto refuses = [&](const mha::Ragged& ragged, const mha::Origin& origin, const char* message) {
    try {
      static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, ragged, origin, mha::Causal{}));
      EXPECT_STREQ("no error", message);
    } catch (const mha::ShapeError& e) {
      EXPECT_STREQ(e.what(), message);
    }
  };
  refuses(mha::Ragged{other}, mha::Origin{origins},
          "attention_backward: the tape is of a call whose sequence 0 has query length 2 but here it has 4");
  refuses(mha::Ragged{offsets, other}, mha::Origin{origins},
          "attention_backward: the tape is of a call whose sequence 0 has key length 2 but here it has 4");
  refuses(mha::Ragged{offsets}, mha::Origin{moved},
          "attention_backward: the tape is of a call whose sequence 0 has Origin 1 but here it has 4");
  refuses(mha::Ragged{offsets}, mha::Origin{1},
          "attention_backward: the tape is of a call whose sequence 1 has Origin 4 but here it has 1");
  refuses(mha::Ragged{offsets}, mha::Origin{origins}, "no error");
  refuses(mha::Ragged{offsets, offsets}, mha::Origin{origins}, "no error");
}

TEST(AttentionTape, TellsCallsApartByTheirDropout) {
  const support::BackwardCase<double> c("dropout", {.batch = 1, .queries = 6, .keys = 6});
  const mha::Dropout some{.p = 0.25f}, other{.p = 0.5f};
  const auto refuses = [&](const auto& was, const auto& is) -> std::string {
    mha::AttentionTape<double, Reference> tape;
    const auto out = std::apply(
        [&](const auto&... e) { return mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape), e...); }, was);
    try {
      static_cast<void>(std::apply(
          [&](const auto&... e) { return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, e...); }, is));
    } catch (const mha::ShapeError& e) {
      return e.what();
    }
    return "";
  };
  const std::tuple<> none;
  const std::tuple with{some, mha::DropoutSeed{7, 2}};
  const char* const another = "attention_backward: the tape is of a call with another Dropout or DropoutSeed";
  EXPECT_EQ(refuses(with, std::tuple{some, mha::DropoutSeed{7, 3}}), another);
  EXPECT_EQ(refuses(with, std::tuple{some, mha::DropoutSeed{8, 2}}), another);
  EXPECT_EQ(refuses(with, std::tuple{other, mha::DropoutSeed{7, 2}}), another);
  EXPECT_EQ(refuses(with, std::tuple{some}), another);
  EXPECT_EQ(refuses(with, none), another);
  EXPECT_EQ(refuses(none, with),
            "attention_backward: the tape is of a call with no Dropout, or without its DropoutSeed");
  EXPECT_EQ(refuses(with, with), "");
  EXPECT_EQ(refuses(std::tuple{some}, none), "");
  EXPECT_EQ(refuses(std::tuple{mha::Dropout{.p = 0.f}, mha::DropoutSeed{1}}, none), "");
}

}  // namespace
