// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/core/tensor.hpp>
#include <mha/merge.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using Tensor4 = mha::Tensor<double, 4>;
constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor4 random_tensor(const char* stream, int b, int l, int h, int d) {
  support::Random random(stream);
  Tensor4 t(b, l, h, d);
  random.fill(t);
  return t;
}

TEST(Merge, OfTwoKeyRangesIsTheWhole) {
  const Tensor4 q = random_tensor("q", 2, 4, 2, 3), k = random_tensor("k", 2, 9, 2, 3),
                v = random_tensor("v", 2, 9, 2, 5);
  mha::Tensor<double, 3> lse(2, 2, 4), left_lse(2, 2, 4), right_lse(2, 2, 4);
  const Tensor4 whole = mha::attention<mha::Reference>(q, k, v, mha::LogSumExp{lse});
  const auto range = [](const Tensor4& t, int begin, int end) {
    auto part = t.view();
    part.data += begin * part.stride[1];
    part.extent[1] = end - begin;
    return part;
  };
  for (const int split : {0, 1, 5, 9}) {
    Tensor4 left = mha::attention<mha::Reference>(q, range(k, 0, split), range(v, 0, split), mha::LogSumExp{left_lse});
    const Tensor4 right =
        mha::attention<mha::Reference>(q, range(k, split, 9), range(v, split, 9), mha::LogSumExp{right_lse});
    mha::merge(left, left_lse, right, right_lse);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(left.data()[i], whole.data()[i], 1e-13) << split;
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(left_lse.data()[i], lse.data()[i], 1e-13) << split;
  }
}

TEST(Merge, AnEmptyPartChangesNothingWhateverItsMemoryHolds) {
  Tensor4 out(1, 2, 1, 1), other(1, 2, 1, 1);
  mha::Tensor<double, 3> lse(1, 1, 2), other_lse(1, 1, 2);
  out(0, 0, 0, 0) = 3;
  other(0, 0, 0, 0) = infinity;
  lse(0, 0, 0) = 1.5;
  other_lse(0, 0, 0) = -infinity;
  out(0, 1, 0, 0) = std::nan("");
  other(0, 1, 0, 0) = std::nan("");
  lse(0, 0, 1) = other_lse(0, 0, 1) = -infinity;
  mha::merge(out, lse, other, other_lse);
  EXPECT_EQ(out(0, 0, 0, 0), 3);
  EXPECT_EQ(lse(0, 0, 0), 1.5);
  EXPECT_EQ(out(0, 1, 0, 0), 0);
  EXPECT_EQ(lse(0, 0, 1), -infinity);
}

// Every error leaves the outputs alone.
class MergeErrors : public testing::Test {
 protected:
  MergeErrors() {
    support::poison_all(out);
    support::poison_all(lse);
  }

  Tensor4 out{2, 3, 4, 6};
  mha::Tensor<double, 3> lse{2, 4, 3};
  const Tensor4 other{2, 3, 4, 6};
  const mha::Tensor<double, 3> other_lse{2, 4, 3};
};

TEST_F(MergeErrors, NameTheAxisAndBothValues) {
  const auto merged = [&](const Tensor4& other_, const mha::Tensor<double, 3>& other_lse_) {
    const Tensor4 before = out;
    const mha::Tensor<double, 3> lse_before = lse;
    const auto message = support::message_of([&] { mha::merge(out, lse, other_, other_lse_); });
    EXPECT_EQ(support::differing(out, before), 0U);
    EXPECT_EQ(support::differing(lse, lse_before), 0U);
    return message;
  };
  EXPECT_EQ(merged(Tensor4(1, 3, 4, 6), other_lse), "merge: out has batch 2 but the other out has batch 1");
  EXPECT_EQ(merged(Tensor4(2, 5, 4, 6), other_lse), "merge: out has length 3 but the other out has length 5");
  EXPECT_EQ(merged(Tensor4(2, 3, 2, 6), other_lse), "merge: out has 4 heads but the other out has 2");
  EXPECT_EQ(merged(Tensor4(2, 3, 4, 8), other_lse), "merge: out has head size 6 but the other out has head size 8");
  EXPECT_EQ(merged(other, mha::Tensor<double, 3>(2, 3, 4)), "merge: out has 4 heads but the other log-sum-exp has 3");
  EXPECT_EQ(merged(other, mha::Tensor<double, 3>(2, 4, 2)),
            "merge: out has length 3 but the other log-sum-exp has length 2");
  lse = mha::Tensor<double, 3>(3, 4, 3);
  EXPECT_EQ(merged(other, other_lse), "merge: out has batch 2 but log-sum-exp has batch 3");
}

TEST_F(MergeErrors, OfArraysThatOverlap) {
  const Tensor4 before = out;
  const mha::Tensor<double, 3> lse_before = lse;
  EXPECT_EQ(support::message_of([&] { mha::merge(support::repeated(out.view(), 2), lse, other, other_lse); }),
            support::overlaps_itself("merge: out", "heads", 4));
  EXPECT_EQ(support::message_of([&] { mha::merge(out, support::repeated(lse.view(), 2), other, other_lse); }),
            support::overlaps_itself("merge: log-sum-exp", "length", 3));
  // Rows of a result that is merged with the rows before them would be merged with what was just written.
  const auto shifted = mha::view(out.data() + 1, 2, 3, 4, 5), first = mha::view(out.data(), 2, 3, 4, 5);
  EXPECT_EQ(support::message_of([&] { mha::merge(shifted, lse, first, other_lse); }),
            "merge: out overlaps the other out, expected separate memory");
  EXPECT_EQ(support::message_of([&] { mha::merge(out, lse, other, mha::view(out.data(), 2, 4, 3)); }),
            "merge: out overlaps the other log-sum-exp, expected separate memory");
  EXPECT_EQ(support::message_of([&] { mha::merge(out, mha::view(out.data(), 2, 4, 3), other, other_lse); }),
            "merge: out overlaps log-sum-exp, expected separate memory");
  EXPECT_EQ(support::message_of([&] { mha::merge(out, lse, other, lse); }),
            "merge: log-sum-exp overlaps the other log-sum-exp, expected separate memory");
  EXPECT_EQ(support::differing(out, before), 0U);
  EXPECT_EQ(support::differing(lse, lse_before), 0U);
}

}  // namespace
