// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/pair_table.hpp>

#include "scratch.hpp"

namespace {

using mha::detail::as_pair_table;
using mha::detail::broadcast_to_call;

constexpr mha::CallShape call{.batch = 2, .heads = 3, .queries = 4, .keys = 5};

std::vector<int> counted(int n) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

TEST(AsPairTable, PutsAbsentAxesInFront) {
  auto memory = counted(120);
  const auto two = as_pair_table(mha::view(memory.data(), 4, 5));
  const auto three = as_pair_table(mha::view(memory.data(), 3, 4, 5));
  const auto four = as_pair_table(mha::view(memory.data(), 2, 3, 4, 5));
  static_assert(std::is_same_v<decltype(two), const mha::TensorView<const int, 4>>);
  for (int axis = 0; axis < 4; ++axis) {
    const int full[4] = {2, 3, 4, 5};
    EXPECT_EQ(two.extent[axis], axis < 2 ? 1 : full[axis]);
    EXPECT_EQ(three.extent[axis], axis < 1 ? 1 : full[axis]);
    EXPECT_EQ(four.extent[axis], full[axis]);
  }
  EXPECT_EQ(two(0, 0, 3, 4), 19);
  EXPECT_EQ(three(0, 2, 3, 4), 59);
  EXPECT_EQ(four(1, 2, 3, 4), 119);
}

TEST(BroadcastToCall, RepeatsAxesOfExtentOneAndNoOthers) {
  for (int ones = 0; ones < 16; ++ones) {
    const int e[4] = {ones & 1 ? 1 : 2, ones & 2 ? 1 : 3, ones & 4 ? 1 : 4, ones & 8 ? 1 : 5};
    auto memory = counted(e[0] * e[1] * e[2] * e[3]);
    const mha::TensorView<const int, 4> table = mha::view(memory.data(), e[0], e[1], e[2], e[3]);
    const auto wide = broadcast_to_call(table, call, "Table");
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 3; ++h)
        for (int q = 0; q < 4; ++q)
          for (int k = 0; k < 5; ++k) {
            const int at = ((b % e[0] * e[1] + h % e[1]) * e[2] + q % e[2]) * e[3] + k % e[3];
            EXPECT_EQ(wide(b, h, q, k), at) << ones;
          }
  }
}

TEST(BroadcastToCall, NamesThePolicyTheAxisAndBothValues) {
  const auto message = [](int b, int h, int q, int k) {
    auto memory = counted(b * h * q * k);
    const mha::TensorView<const int, 4> table = mha::view(memory.data(), b, h, q, k);
    return mha_test::message_of<mha::ShapeError>([&] { broadcast_to_call(table, call, "Table"); });
  };
  EXPECT_EQ(message(3, 3, 4, 5), "Table: the table has 3 sequences but the call has 2");
  EXPECT_EQ(message(2, 6, 4, 5), "Table: the table has 6 heads but the call has 3");
  EXPECT_EQ(message(2, 3, 2, 5), "Table: the table has 2 queries but the call has 4");
  EXPECT_EQ(message(2, 3, 4, 6), "Table: the table has 6 keys but the call has 5");
  EXPECT_EQ(message(2, 3, 4, 5), "");
}

TEST(BroadcastToCall, SaysHowAnAxisOfSequencesIsGiven) {
  auto memory = counted(2 * 4 * 5), many = counted(6 * 4 * 5);
  const auto message = [&](const auto& table, const mha::CallShape& shape) {
    return mha_test::message_of<mha::ShapeError>([&] { broadcast_to_call(as_pair_table(table), shape, "Table"); });
  };
  EXPECT_EQ(
      message(mha::view(memory.data(), 2, 4, 5), call),
      "Table: the table has 2 heads but the call has 3: three axes are (H, Lq, Lk), a table for each sequence has "
      "four, (B, 1, Lq, Lk)");
  EXPECT_EQ(message(mha::view(memory.data(), 2, 5), call),
            "Table: the table has 2 queries but the call has 4: two axes are (Lq, Lk), a row of keys for each sequence "
            "has four, (B, 1, 1, Lk)");
  EXPECT_EQ(
      message(mha::view(many.data(), 6, 4, 5), call),
      "Table: the table has 6 heads but the call has 3: three axes are (H, Lq, Lk), a table (B * H, Lq, Lk) is the "
      "view mha::view(p, B, H, Lq, Lk)");
  EXPECT_EQ(message(mha::view(many.data(), 3, 2, 4, 5), call), "Table: the table has 3 sequences but the call has 2");
  EXPECT_EQ(message(mha::view(memory.data(), 1, 4, 5), call), "");
  EXPECT_EQ(message(mha::view(memory.data(), 4, 4, 2), call), "Table: the table has 4 heads but the call has 3");
}

TEST(MovedTable, HasItsElementsWhateverTheStrides) {
  const auto memory = counted(120);
  auto table = as_pair_table(mha::view(memory.data(), 2, 3, 4, 5));
  for (int turned = 0; turned < 16; ++turned) {
    auto v = table;
    for (int a = 0; a < 4; ++a)
      if ((turned >> a & 1) != 0) {
        v.data += (v.extent[a] - 1) * v.stride[a];
        v.stride[a] = -v.stride[a];
      }
    std::vector<int> copy;
    mha::Memory where = mha::Memory::host;
    const auto moved = mha::detail::moved_table(v, where, [&](const mha::BorrowedTable<int>& all) {
      EXPECT_EQ(all.data, memory.data());
      EXPECT_EQ(all.size, 120);
      copy.assign(all.data, all.data + all.size);
      return mha::BorrowedTable<int>{copy.data(), all.size, mha::Memory::device};
    });
    EXPECT_EQ(where, mha::Memory::device);
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 3; ++h)
        for (int q = 0; q < 4; ++q)
          for (int k = 0; k < 5; ++k) ASSERT_EQ(moved(b, h, q, k), v(b, h, q, k)) << turned;
    EXPECT_GE(&moved(0, 0, 0, 0), copy.data());
    EXPECT_LT(&moved(0, 0, 0, 0), copy.data() + 120);
  }
}

TEST(BroadcastToCall, WantsMemory) {
  const mha::TensorView<const float, 4> none{nullptr, {1, 1, 4, 5}, {20, 20, 5, 1}};
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { broadcast_to_call(none, call, "Table"); }),
            "Table: the table has 20 elements but its data is null");
}

}  // namespace
