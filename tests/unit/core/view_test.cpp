// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/core/view.hpp>

#include "scratch.hpp"

namespace {

using mha::Index;
using mha::TensorView;

using mha::detail::LastingView;

template <class V>
concept HasBatch = requires(V v) {
  v.batch();
};
template <class V>
concept HasHeads = requires(V v) {
  v.heads();
};
template <class V>
concept HasLength = requires(V v) {
  v.length();
};
template <class V, class... I>
concept Indexable = requires(V v, I... i) {
  v(i...);
};
template <class T, class... I>
concept ViewOfExtents = requires(T* p, I... i) {
  mha::view(p, i...);
};

std::vector<int> counted(int n) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

TEST(View, IsRowMajor) {
  auto memory = counted(24);
  const auto v = mha::view(memory.data(), 2, 3, 4);
  static_assert(std::is_same_v<decltype(v), const TensorView<int, 3>>);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) EXPECT_EQ(v(i, j, k), (i * 3 + j) * 4 + k);
  EXPECT_EQ(v.size(), 24);
  v(1, 2, 3) = -1;
  EXPECT_EQ(memory.back(), -1);
}

TEST(View, HasOneToFiveAxes) {
  int memory[2] = {};
  EXPECT_EQ(mha::view(memory, 2).rank, 1);
  EXPECT_EQ(mha::view(memory, 1, 1, 1, 1, 2)(0, 0, 0, 0, 1), 0);
  static_assert(ViewOfExtents<int, int> && ViewOfExtents<int, int, int, int, int, int>);
  static_assert(!ViewOfExtents<int> && !ViewOfExtents<int, int, int, int, int, int, int>);
}

TEST(View, TakesExtentsOfAnyIntegerType) {
  int memory[6] = {};
  const auto v = mha::view(memory, std::size_t{2}, 3L);
  EXPECT_EQ(v.extent[0], 2);
  EXPECT_EQ(v.extent[1], 3);
}

TEST(View, RefusesAnExtentBeyondAnIndex) {
  int memory[1] = {};
  const auto refusal = [&](auto extent) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::view(+memory, 1, extent)); });
  };
  EXPECT_EQ(refusal(std::size_t{1} << 32), "view: an extent is 4294967296, the largest is 2147483647");
  EXPECT_EQ(refusal(2147483648u), "view: an extent is 2147483648, the largest is 2147483647");
  EXPECT_EQ(refusal(-2147483649L), "view: an extent is -2147483649, the largest is 2147483647");
  EXPECT_EQ(refusal(2147483647L), "");
  constexpr TensorView<const int, 1> none = mha::view(static_cast<const int*>(nullptr), std::size_t{3});
  static_assert(none.extent[0] == 3);
}

TEST(View, RefusesAnExtentThatIsNoWholeNumber) {
  int memory[6] = {};
  const auto refusal = [&](auto extent) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::view(+memory, 1, extent)); });
  };
  const std::string whole = ", it must be a whole number, the largest is 2147483647";
  EXPECT_EQ(refusal(2.5), "view: an extent is 2.5" + whole);
  EXPECT_EQ(refusal(4e9f), "view: an extent is 4e+09" + whole);
  EXPECT_EQ(refusal(-2147483648.5), "view: an extent is -2.14748365e+09" + whole);
  EXPECT_EQ(refusal(std::numeric_limits<float>::quiet_NaN()), "view: an extent is nan" + whole);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([] { mha::Tensor<int, 1> t(0.5); }),
            "Tensor: an extent is 0.5" + whole);
  EXPECT_EQ(mha::view(memory, 2.0, 3.f).extent[0], 2);
}

// The strides of the outer axes would not fit, though there is no element.
TEST(View, RefusesExtentsWhoseProductOverflows) {
  constexpr mha::Index most = std::numeric_limits<mha::Index>::max();
  int memory[1] = {};
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::view(+memory, 0, most, most, most, most)); }),
      "view: a tensor is (0, 2147483647, 2147483647, 2147483647, 2147483647), more than 36028797018963967 "
      "elements, an empty axis counted as 1");
  const auto empty = mha::view(+memory, most, 0, 2, 3);
  EXPECT_EQ(empty.size(), 0);
  EXPECT_EQ(empty.stride[0], 6) << "an empty axis counts as 1";
  EXPECT_TRUE(mha::is_contiguous(empty));
}

TEST(View, OfOverflowingExtentsHasNoElementsIfAnAxisIsEmpty) {
  constexpr mha::Index most = std::numeric_limits<mha::Index>::max();
  const TensorView<const int, 4> v{nullptr, {most, most, most, 0}, {}};
  EXPECT_EQ(v.size(), 0);
  EXPECT_FALSE(mha::is_contiguous(TensorView<const int, 5>{nullptr, {most, most, most, most, 1}, {1, 1, 1, 1, 1}}));
}

TEST(RequireData, ChecksSizesAndStrides) {
  const int one = 1;
  const auto refusal = [&](const TensorView<const int, 2>& v) {
    return mha_test::message_of<mha::ShapeError>([&] { mha::detail::require_data("call", "x", v); });
  };
  constexpr mha::Index most = std::numeric_limits<mha::Index>::max();
  constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max();
  EXPECT_EQ(refusal({&one, {1 << 27, 1 << 27}, {0, 0}}), "");
  EXPECT_EQ(refusal({&one, {most, most}, {0, 0}}),
            "call: x is (2147483647, 2147483647), more than 36028797018963967 elements, an empty axis counted as 1");
  EXPECT_EQ(refusal({&one, {2, -1}, {0, 0}}), "call: x has extent -1 on axis 1");
  EXPECT_EQ(refusal({nullptr, {2, 3}, {3, 1}}), "call: x has 6 elements but its data is null");
  EXPECT_EQ(refusal({nullptr, {0, 3}, {3, 1}}), "");
  EXPECT_EQ(refusal({&one, {1, 1}, {far, -far - 1}}), "");
  for (const std::ptrdiff_t stride : {far, far / 4 + 1, -far - 1})
    EXPECT_EQ(refusal({&one, {1, 2}, {0, stride}}), "call: x has stride " + std::to_string(stride) +
                                                        " on axis 1 of extent 2, which leads out of the address "
                                                        "space");
  EXPECT_NE(refusal({&one, {2, 2}, {far / 5, far / 5}}), "") << "each fits alone";
  const char byte = 1;  // the farthest that fits: with its own byte as many as a std::ptrdiff_t counts
  for (const std::ptrdiff_t stride : {far - 1, far})
    EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] {
                mha::detail::require_data("call", "x", TensorView<const char, 1>{&byte, {2}, {stride}});
              }).empty(),
              stride == far - 1);
}

TEST(View, NamesItsAxes) {
  int memory[1] = {};
  const auto four = mha::view(memory, 2, 3, 5, 7);
  EXPECT_EQ(four.batch(), 2);
  EXPECT_EQ(four.length(), 3);
  EXPECT_EQ(four.heads(), 5);
  EXPECT_EQ(four.dim(), 7);
  const auto three = mha::view(memory, 2, 3, 5);
  EXPECT_EQ(three.batch(), 2);
  EXPECT_EQ(three.length(), 3);
  EXPECT_EQ(three.dim(), 5);
  const auto two = mha::view(memory, 2, 3);
  EXPECT_EQ(two.length(), 2);
  EXPECT_EQ(two.dim(), 3);
  static_assert(HasBatch<TensorView<int, 3>> && !HasBatch<TensorView<int, 2>> && !HasHeads<TensorView<int, 3>>);
  static_assert(HasLength<TensorView<int, 2>> && !HasLength<TensorView<int, 1>> && !HasLength<TensorView<int, 5>>);
}

TEST(View, TakesExactlyItsRankOfIndices) {
  using V = TensorView<int, 3>;
  static_assert(Indexable<V, int, int, int> && !Indexable<V, int, int> && !Indexable<V, int, int, int, int>);
}

TEST(View, SizesAndStridesGoBeyondThirtyTwoBits) {
  char origin = 0;
  const auto v = mha::view(&origin, 1 << 16, 1 << 16, 4);
  EXPECT_EQ(v.size(), std::ptrdiff_t{1} << 34);
  EXPECT_EQ(v.stride[0], std::ptrdiff_t{1} << 18);
}

TEST(ViewBlhd, AndBhldOfTheSameNumbersAgreeElementByElement) {
  constexpr Index B = 2, L = 3, H = 4, D = 5;
  std::vector<int> blhd(B * L * H * D), bhld(B * L * H * D);
  const auto value = [](Index b, Index l, Index h, Index d) { return ((b * 10 + l) * 10 + h) * 10 + d; };
  for (Index b = 0; b < B; ++b)
    for (Index l = 0; l < L; ++l)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) {
          blhd[static_cast<std::size_t>(((b * L + l) * H + h) * D + d)] = value(b, l, h, d);
          bhld[static_cast<std::size_t>(((b * H + h) * L + l) * D + d)] = value(b, l, h, d);
        }
  const auto rows = mha::view_blhd(blhd.data(), B, L, H, D);
  const auto heads = mha::view_bhld(bhld.data(), B, H, L, D);
  static_assert(std::is_same_v<decltype(rows), decltype(heads)>);
  for (int axis = 0; axis < 4; ++axis) EXPECT_EQ(rows.extent[axis], heads.extent[axis]);
  for (Index b = 0; b < B; ++b)
    for (Index l = 0; l < L; ++l)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) {
          EXPECT_EQ(rows(b, l, h, d), value(b, l, h, d));
          EXPECT_EQ(heads(b, l, h, d), value(b, l, h, d));
        }
}

TEST(ViewBlhd, AndBhldRefuseAnExtentBeyondAnIndex) {
  const std::size_t wide = (std::size_t{1} << 32) + 2;
  int memory[2] = {};
  const char* const refusal = "view: an extent is 4294967298, the largest is 2147483647";
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::view_blhd(memory, wide, 1, 1, 1)); }),
            refusal);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(mha::view_bhld(memory, 1, 1, wide, 1)); }),
            refusal);
  EXPECT_EQ(mha::view_bhld(memory, std::size_t{1}, 1u, 2L, 1).length(), 2);
}

TEST(Transposed, SwapsTheAxesAndCopiesNothing) {
  auto memory = counted(6);
  const auto v = mha::view(memory.data(), 2, 3);
  const auto t = mha::transposed(v);
  EXPECT_EQ(t.extent[0], 3);
  EXPECT_EQ(t.extent[1], 2);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j) EXPECT_EQ(&t(j, i), &v(i, j));
  EXPECT_EQ(&mha::transposed(t)(1, 2), &v(1, 2));
}

TEST(IsContiguous, TellsRowMajorFromOtherStrides) {
  int memory[24] = {};
  EXPECT_TRUE(mha::is_contiguous(mha::view(memory, 2, 3, 4)));
  EXPECT_FALSE(mha::is_contiguous(mha::transposed(mha::view(memory, 4, 6))));
  EXPECT_TRUE(mha::is_contiguous(mha::transposed(mha::view(memory, 1, 6)))) << "an axis of extent 1 has no stride";
  EXPECT_FALSE(mha::is_contiguous(mha::view_bhld(memory, 1, 2, 3, 4)));
  EXPECT_TRUE(mha::is_contiguous(mha::view_bhld(memory, 2, 1, 3, 4)));
  EXPECT_FALSE(mha::is_contiguous(TensorView<int, 2>{memory, {2, 3}, {4, 1}})) << "rows with a gap between them";
}

TEST(ConstConversion, GoesFromWritableToReadOnlyOnly) {
  static_assert(std::is_convertible_v<TensorView<float, 4>, TensorView<const float, 4>>);
  static_assert(!std::is_convertible_v<TensorView<const float, 4>, TensorView<float, 4>>);
  static_assert(!std::is_convertible_v<TensorView<float, 4>, TensorView<const float, 3>>);
  static_assert(!std::is_convertible_v<TensorView<float, 4>, TensorView<const double, 4>>);
  auto memory = counted(24);
  const auto v = mha::view_bhld(memory.data(), 2, 3, 2, 2);
  const TensorView<const int, 4> c = v;
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(c.extent[axis], v.extent[axis]);
    EXPECT_EQ(c.stride[axis], v.stride[axis]);
  }
  EXPECT_EQ(c.data, v.data);
}

TEST(View, IsATriviallyCopyableValueThatIsEmptyAtFirst) {
  static_assert(std::is_trivially_copyable_v<TensorView<float, 4>> && std::is_aggregate_v<TensorView<float, 4>>);
  constexpr TensorView<float, 2> none;
  static_assert(none.data == nullptr && none.size() == 0);
}

TEST(View, OfANamedOwnerFollowsItsConstness) {
  mha::Tensor<float, 2> t(2, 3);
  const auto& c = t;
  static_assert(std::is_same_v<decltype(mha::view(t)), TensorView<float, 2>>);
  static_assert(std::is_same_v<decltype(mha::view(c)), TensorView<const float, 2>>);
  EXPECT_EQ(mha::view(t).data, t.data());
  auto v = mha::view(t);
  EXPECT_EQ(mha::view(v).data, t.data());
}

TEST(View, RefusesATemporaryOwner) {
  static_assert(LastingView<mha::Tensor<float, 2>&> && LastingView<const mha::Tensor<float, 2>&>);
  static_assert(!LastingView<mha::Tensor<float, 2>> && !LastingView<const mha::Tensor<float, 2>>);
  // A view owns nothing: a temporary one is as good as a named one.
  static_assert(LastingView<TensorView<float, 2>> && LastingView<TensorView<const float, 4>&>);
  static_assert(!LastingView<std::vector<float>&>, "a vector has no shape");
}

TEST(Viewable, AsksForTheNumberOfAxes) {
  static_assert(mha::Viewable<TensorView<float, 3>> && mha::Viewable<const mha::Tensor<double, 1>&>);
  static_assert(mha::ViewableOfRank<TensorView<float, 3>, 2, 3> && !mha::ViewableOfRank<TensorView<float, 4>, 2, 3>);
  static_assert(!mha::Viewable<int> && !mha::Viewable<std::vector<int>> && !mha::ViewableOfRank<int*, 1>);
  static_assert(std::is_same_v<mha::ScalarOf<TensorView<const float, 3>>, float>);
  static_assert(std::is_same_v<mha::ScalarOf<const mha::Tensor<double, 3>&>, double>);
}

}  // namespace

/// A user's own container, made viewable as view.hpp says.
struct Grid {
  std::array<std::int16_t, 6> cells;
};
template <> struct mha::ViewTraits<Grid> {
  using Scalar = std::int16_t;
  static constexpr int rank = 2;
  static TensorView<std::int16_t, 2> view(Grid& g) { return mha::view(g.cells.data(), 2, 3); }
  static TensorView<const std::int16_t, 2> view(const Grid& g) { return mha::view(g.cells.data(), 2, 3); }
};

namespace {

TEST(ViewTraits, MakeAUsersTypeViewable) {
  const Grid g{{0, 1, 2, 10, 11, 12}};
  EXPECT_EQ(mha::view(g)(1, 2), 12);
  static_assert(mha::ViewableOfRank<Grid, 2> && LastingView<Grid&> && !LastingView<Grid>);
}

TEST(MayOverlap, AsksWhetherAddressesMeet) {
  float memory[40] = {};
  const auto overlap = [](const auto& a, const auto& b) {
    EXPECT_EQ(mha::detail::may_overlap(a, b), mha::detail::may_overlap(b, a));
    return mha::detail::may_overlap(a, b);
  };
  const auto first = mha::view(memory, 2, 5), second = mha::view(memory + 10, 2, 5);
  EXPECT_TRUE(overlap(first, first));
  EXPECT_FALSE(overlap(first, second));
  EXPECT_TRUE(overlap(first, mha::view(memory + 9, 1, 5)));
  EXPECT_TRUE(overlap(first, mha::TensorView<const float, 3>{memory + 19, {1, 2, 3}, {0, -8, -1}}));
  EXPECT_FALSE(overlap(first, mha::TensorView<const float, 3>{memory + 20, {1, 2, 3}, {0, -8, -1}}));
  EXPECT_FALSE(overlap(first, mha::TensorView<float, 2>{memory, {0, 5}, {5, 1}}));
}

TEST(WithHeads, OneHeadAndOneSequenceAreFourAxes) {
  float numbers[24] = {};
  const auto head = mha::detail::with_heads(mha::view(numbers, 4, 6));
  EXPECT_EQ(head.batch(), 1);
  EXPECT_EQ(head.length(), 4);
  EXPECT_EQ(head.heads(), 1);
  EXPECT_EQ(head.dim(), 6);
  EXPECT_EQ(&head(0, 3, 0, 5), numbers + 23);
  const auto sequence = mha::detail::with_heads(mha::view(numbers, 4, 2, 3));
  EXPECT_EQ(sequence.batch(), 1);
  EXPECT_EQ(sequence.length(), 4);
  EXPECT_EQ(sequence.heads(), 2);
  EXPECT_EQ(&sequence(0, 2, 1, 0), numbers + 15);
  const auto batch = mha::detail::with_heads(mha::view(numbers, 2, 3, 2, 2));
  EXPECT_EQ(&batch(1, 2, 1, 1), numbers + 23);
}

TEST(WithHeads, NoStrideOfASingleRowLeadsOutOfTheAddressSpace) {
  constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max();
  float number = 0;
  const auto head = mha::detail::with_heads(mha::TensorView<float, 2>{&number, {1, 1}, {far, -far - 1}});
  for (const std::ptrdiff_t stride : head.stride) EXPECT_EQ(stride, 0);
  const auto batch = mha::detail::with_heads(mha::TensorView<float, 4>{&number, {1, 2, 1, 1}, {far, far, 1 << 20, 5}});
  EXPECT_EQ(batch.stride[0], 0);
  EXPECT_EQ(batch.stride[1], far) << "it is to be refused";
  EXPECT_EQ(batch.stride[2], 1 << 20);
  EXPECT_EQ(batch.stride[3], 5);
}

}  // namespace
