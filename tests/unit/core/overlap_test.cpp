// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/overlap.hpp>
#include <mha/core/scalar.hpp>

#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::TensorView;
using mha::detail::footprint;
using mha::detail::share_elements;
using View3 = TensorView<double, 3>;

TEST(Overlap, ViewsAreTheSameIfTheyShowTheSameElements) {
  float memory[24] = {};
  const auto a = mha::view(memory, 2, 3, 4);
  EXPECT_TRUE(mha::detail::same_view(a, a));
  EXPECT_FALSE(mha::detail::same_view(a, mha::view(memory, 2, 4, 3)));
  EXPECT_FALSE(mha::detail::same_view(a, mha::view(memory + 1, 2, 3, 4)));
  EXPECT_FALSE(mha::detail::same_view(a, mha::view(memory, 1, 3, 4)));
  EXPECT_FALSE(mha::detail::same_view(a, mha::TensorView<float, 3>{memory, {2, 3, 4}, {4, 8, 1}}));
}

TEST(Overlap, ViewsShareElementsOrInterleave) {
  // Against every pair of elements, for all sizes and strides that are small.
  static double memory[512];
  const std::ptrdiff_t strides[] = {0, 1, 2, -3, 4, 7};
  int interleaved = 0;
  for (const std::ptrdiff_t s0 : strides)
    for (const std::ptrdiff_t s1 : strides)
      for (const std::ptrdiff_t s2 : strides)
        for (int distance = -9; distance < 10; ++distance) {
          const View3 a{memory + 256, {2, 3, 4}, {s0, s1, s2}}, b{memory + 256 + distance, {2, 3, 4}, {s0, s1, s2}};
          bool shared = false;
          for (int i = 0; i < 24; ++i)
            for (int j = 0; j < 24; ++j)
              shared = shared || a.pointer(i / 12, i / 4 % 3, i % 4) == b.pointer(j / 12, j / 4 % 3, j % 4);
          ASSERT_EQ(share_elements(a, b), shared) << s0 << " " << s1 << " " << s2 << " " << distance;
          interleaved += !shared && mha::detail::may_overlap(a, b) ? 1 : 0;
        }
  EXPECT_GT(interleaved, 100);
  EXPECT_TRUE(share_elements(View3{memory, {1, 2, 2}, {0, 4, 1}}, View3{memory + 2, {1, 2, 2}, {0, 3, 1}}));
  EXPECT_FALSE(share_elements(View3{memory, {1, 2, 2}, {0, 4, 1}}, View3{memory + 2, {1, 2, 2}, {9, 4, 1}}));
}

/// The bytes of a view's elements, counted from `from`.
template <class T, int Rank> std::set<std::ptrdiff_t> bytes_of(const TensorView<T, Rank>& v, const char* from) {
  std::set<std::ptrdiff_t> bytes;
  for (std::ptrdiff_t i = 0; i < v.size(); ++i) {
    std::ptrdiff_t rest = i, offset = 0;
    for (int a = Rank - 1; a >= 0; --a) {
      offset += rest % v.extent[a] * v.stride[a];
      rest /= v.extent[a];
    }
    const char* const at = reinterpret_cast<const char*>(v.data) + offset * static_cast<std::ptrdiff_t>(sizeof(T));
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) bytes.insert(at - from + static_cast<std::ptrdiff_t>(byte));
  }
  return bytes;
}

TEST(Overlap, IsExactForViewsOfAnyShapesStridesAndScalars) {
  alignas(8) static char memory[8192];
  support::Random random("overlap");
  const auto number = [&](int low, int high) { return low + random.below(high - low + 1); };
  const auto shape = [&](auto& v) {
    v.data = reinterpret_cast<decltype(v.data)>(memory + 4096 + 8 * number(-6, 6)) + number(0, 3);
    for (int a = 0; a < v.rank; ++a) {
      v.extent[a] = number(random.chance(0.03) ? 0 : 1, 4);
      v.stride[a] = number(-1, 9) * (random.chance(0.4) ? 5 : 1);
    }
  };
  int shared = 0, interleaved = 0;
  const auto check = [&](auto a, auto b) {
    shape(a);
    shape(b);
    if (random.chance(0.5))
      for (int axis = 0; axis < std::min(a.rank, b.rank); ++axis) b.stride[axis] = a.stride[axis];
    const auto of_a = bytes_of(a, memory), of_b = bytes_of(b, memory);
    bool expected = false;
    for (const auto byte : of_a) expected = expected || of_b.count(byte) > 0;
    EXPECT_EQ(share_elements(a, b), expected);
    EXPECT_EQ(share_elements(b, a), expected);
    shared += expected ? 1 : 0;
    interleaved += !expected && mha::detail::may_overlap(a, b) ? 1 : 0;
  };
  for (int turn = 0; turn < 1500 && !HasFailure(); ++turn) {
    check(TensorView<float, 3>{}, TensorView<const float, 3>{});
    check(TensorView<double, 2>{}, TensorView<const float, 4>{});
    check(TensorView<mha::bfloat16, 4>{}, TensorView<float, 2>{});
    check(TensorView<char, 3>{}, TensorView<const mha::bfloat16, 2>{});
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(interleaved, 100);
}

TEST(Overlap, PartsOfOneMatrixAreApart) {
  // Queries, keys and values side by side in every row; other numbers of heads and head sizes.
  static float memory[8 * 3 * 100];
  const std::ptrdiff_t row = 100, sequence = 8 * row;
  const TensorView<float, 4> q{memory, {3, 8, 6, 8}, {sequence, row, 8, 1}},
      k{memory + 48, {3, 8, 2, 8}, {sequence, row, 8, 1}}, v{memory + 64, {3, 8, 2, 18}, {sequence, row, 18, 1}},
      late{memory + 5 * row + 40, {3, 3, 2, 8}, {sequence, row, 8, 1}};
  EXPECT_FALSE(share_elements(q, k));
  EXPECT_FALSE(share_elements(k, v));
  EXPECT_FALSE(share_elements(q, v));
  EXPECT_TRUE(share_elements(q, late));  // its last head, and the first of the keys
  EXPECT_TRUE(share_elements(k, late));
  EXPECT_FALSE(share_elements(v, late));
  EXPECT_TRUE(share_elements(v, TensorView<float, 2>{memory + 99, {8, 1}, {row, 1}}));
}

TEST(Overlap, AnEndlessSearchSaysYes) {
  // Strides of many factors: thousands of ways to come near, none of which meets.
  using View5 = TensorView<char, 5>;
  static char memory[1];
  const View5 a{memory, {99, 99, 99, 99, 99}, {30, 42, 66, 78, 102}},
      b{memory + 1, {99, 99, 99, 99, 99}, {114, 138, 174, 186, 222}};  // all even, an odd distance
  EXPECT_TRUE(share_elements(a, b));
}

TEST(Overlap, NothingMeetsAnEmptyArray) {
  float x[4] = {};
  const auto all = mha::view(x, 4);
  EXPECT_FALSE(share_elements(all, TensorView<float, 2>{x, {0, 4}, {4, 1}}));
  EXPECT_FALSE(share_elements(all, TensorView<float, 2>{}));
  EXPECT_TRUE(mha::detail::share_bytes(footprint(all), footprint(x + 3, 1)));
  EXPECT_FALSE(mha::detail::share_bytes(footprint(all), footprint(x + 3, 0)));
  EXPECT_FALSE(mha::detail::share_bytes(footprint(all), footprint(x + 4, 1)));
}

TEST(Overlap, OfAViewWithItselfIsFoundAsAddressesSay) {
  support::Random random("overlap of itself");
  static float memory[400];
  int overlaps = 0, nested = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    TensorView<float, 3> v{memory + 200, {}, {}};
    for (int a = 0; a < 3; ++a) v.extent[a] = random.below(5), v.stride[a] = random.below(19) - 6;
    std::vector<const float*> at;
    for (Index i = 0; i < v.extent[0]; ++i)
      for (Index j = 0; j < v.extent[1]; ++j)
        for (Index k = 0; k < v.extent[2]; ++k) at.push_back(&v(i, j, k));
    std::sort(at.begin(), at.end());
    const bool expected = std::adjacent_find(at.begin(), at.end()) != at.end();
    overlaps += expected ? 1 : 0;
    nested += mha::detail::axes_nest(v) ? 1 : 0;
    EXPECT_FALSE(expected && mha::detail::axes_nest(v) && !at.empty());
    const int axis = mha::detail::self_overlapping_axis(v);
    EXPECT_EQ(axis < 3, expected) << v.stride[0] << ' ' << v.stride[1] << ' ' << v.stride[2];
    if (axis < 3) {
      EXPECT_GT(v.extent[axis], 1);
    }
  }
  EXPECT_GT(overlaps, 200);
  EXPECT_LT(overlaps, 1800);
  EXPECT_GT(nested, 200);
  EXPECT_EQ(mha::detail::self_overlapping_axis(TensorView<float, 2>{memory, {1, 4}, {0, 1}}), 2);
  EXPECT_EQ(mha::detail::self_overlapping_axis(TensorView<float, 2>{memory, {3, 4}, {4, 0}}), 1);
}

TEST(Overlap, OfAnArrayWithItselfNamesTheAxis) {
  float x[12] = {};
  const auto message = [](const TensorView<float, 3>& v) {
    return support::message_of(
        [&] { mha::detail::require_own_memory("call", "the result", v, mha::detail::axes_of_rows); });
  };
  EXPECT_EQ(message({x, {2, 3, 2}, {6, 2, 1}}), "");
  EXPECT_EQ(message({x, {2, 3, 2}, {1, 4, 2}}), "") << "batches interleaved";
  EXPECT_EQ(message({x, {2, 3, 2}, {6, 1, 1}}),
            "call: the result overlaps itself: its axis length has 3 elements and stride 1, expected memory of its own "
            "for each element");
  EXPECT_EQ(message({x, {0, 3, 2}, {6, 0, 0}}), "") << "without elements";
}

TEST(Overlap, NamesTheTwoArrays) {
  float x[8] = {};
  using mha::detail::NamedArray;
  const auto message = [&](std::ptrdiff_t first, std::ptrdiff_t second, std::ptrdiff_t read) {
    return support::message_of([&] {
      const std::array<NamedArray, 2> written{{{"dq", footprint(x + first, 2)}, {"dk", footprint(x + second, 2)}}};
      const std::array<NamedArray, 1> of{{{"k", footprint(x + read, 2)}}};
      mha::detail::require_apart("backward", written, of);
    });
  };
  EXPECT_EQ(message(0, 2, 4), "");
  EXPECT_EQ(message(0, 1, 4), "backward: dq overlaps dk, expected separate memory");
  EXPECT_EQ(message(0, 4, 3), "backward: dk overlaps k, expected separate memory");
  EXPECT_EQ(message(2, 6, 3), "backward: dq overlaps k, expected separate memory");
}

}  // namespace
