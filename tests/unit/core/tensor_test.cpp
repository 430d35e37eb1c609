// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>

#include "scratch.hpp"

namespace {

using mha::Tensor;

template <class T>
concept HasViewMember = requires(T&& t) {
  std::forward<T>(t).view();
};
template <class T, class... I>
concept MadeFrom = std::is_constructible_v<T, I...>;

/// Counts its live objects; the copy after `fuse` more constructions throws.
struct Counted {
  static inline int live = 0, fuse = -1;
  int value = 0;
  Counted() { born(); }
  Counted(const Counted& other) : value(other.value) { born(); }
  Counted& operator=(const Counted&) = default;
  ~Counted() { --live; }

 private:
  static void born() {
    if (fuse == 0) throw std::runtime_error("fuse");
    if (fuse > 0) --fuse;
    ++live;
  }
};

TEST(Tensor, IsZeroRowMajorAndAligned) {
  for (int n = 1; n < 40; ++n) {
    Tensor<float, 2> t(n, 3);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data()) % 64, 0u);
    EXPECT_EQ(t.size(), static_cast<std::size_t>(3 * n));
    EXPECT_TRUE(std::all_of(t.begin(), t.end(), [](float x) { return x == 0; }));
  }
  Tensor<int, 3> t(2, 3, 4);
  t(1, 2, 3) = 7;
  EXPECT_EQ(t.data()[23], 7);
  EXPECT_EQ(t.end() - t.begin(), 24);
  EXPECT_EQ(t.extent(0), 2);
  EXPECT_EQ(t.extent(2), 4);
  EXPECT_EQ(&t.view()(1, 0, 0), t.data() + 12);
}

TEST(Tensor, IsConstantWhenItIsConst) {
  const Tensor<float, 1> t(3);
  static_assert(std::is_same_v<decltype(t(0)), const float&> && std::is_same_v<decltype(t.data()), const float*>);
  static_assert(std::is_same_v<decltype(t.view()), mha::TensorView<const float, 1>>);
  static_assert(std::is_same_v<decltype(t.begin()), const float*>);
  EXPECT_EQ(t.end() - t.begin(), 3);
}

TEST(Tensor, TakesExactlyItsRankOfExtents) {
  static_assert(MadeFrom<Tensor<float, 2>, int, int> && MadeFrom<Tensor<float, 2>, std::size_t, long>);
  static_assert(!MadeFrom<Tensor<float, 2>, int> && !MadeFrom<Tensor<float, 2>, int, int, int>);
  static_assert(!std::is_convertible_v<int, Tensor<float, 1>>, "a number is no tensor");
}

TEST(Tensor, CopiesItsElements) {
  Tensor<int, 2> a(2, 2);
  a(1, 1) = 5;
  Tensor<int, 2> b = a;
  b(0, 0) = 1;
  EXPECT_EQ(a(0, 0), 0);
  EXPECT_EQ(b(1, 1), 5);
  EXPECT_NE(a.data(), b.data());
  Tensor<int, 2> c(1, 7);
  c = b;
  EXPECT_EQ(c.extent(0), 2);
  EXPECT_EQ(c.extent(1), 2);
  EXPECT_EQ(c(1, 1), 5);
  const auto& same = c;
  c = same;
  EXPECT_EQ(c(1, 1), 5);
}

TEST(Tensor, MovesItsMemoryAndLeavesNothing) {
  static_assert(std::is_nothrow_move_constructible_v<Tensor<int, 2>>);
  static_assert(std::is_nothrow_move_assignable_v<Tensor<int, 2>>);
  // Or what owns one would end the program where memory is short.
  struct Owner {
    Tensor<int, 2> tensor;
  };
  static_assert(!std::is_nothrow_copy_assignable_v<Tensor<int, 2>> && !std::is_nothrow_copy_assignable_v<Owner>);
  Tensor<int, 2> a(2, 3);
  a(1, 2) = 5;
  const int* const memory = a.data();
  Tensor<int, 2> b = std::move(a);
  EXPECT_EQ(b.data(), memory);
  EXPECT_EQ(b(1, 2), 5);
  EXPECT_EQ(a.size(), 0u);  // NOLINT: what a moved-from tensor is, is promised
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.view().data, nullptr);
  Tensor<int, 2> c(4, 4);
  c = std::move(b);
  EXPECT_EQ(c.data(), memory);
  EXPECT_EQ(b.extent(0), 0);  // NOLINT
  a = c;                      // and it can be used again
  EXPECT_EQ(a(1, 2), 5);
}

TEST(Tensor, WithoutElementsHasNoMemory) {
  const Tensor<float, 2> none, empty(0, 5);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(empty.extent(1), 5);
  EXPECT_EQ(empty.begin(), empty.end());
  const Tensor<float, 2> copy = empty;
  EXPECT_EQ(copy.extent(1), 5);
}

TEST(Tensor, RefusesANegativeExtent) {
  const auto message = [](auto... extents) {
    return mha_test::message_of<mha::ShapeError>([&] { Tensor<float, sizeof...(extents)>{extents...}; });
  };
  EXPECT_EQ(message(2, -3), "Tensor: extent -3 on axis 1");
  EXPECT_EQ(message(-1), "Tensor: extent -1 on axis 0");
  EXPECT_EQ(message(-2, -2), "Tensor: extent -2 on axis 0") << "their product is positive";
}

TEST(Tensor, RefusesAnExtentBeyondAnIndex) {
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([] { Tensor<float, 2>(std::size_t{1} << 32, 1); }),
            "Tensor: an extent is 4294967296, the largest is 2147483647");
}

TEST(Tensor, RefusesMoreElementsThanMemoryCanHold) {
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([] { Tensor<double, 3>(1 << 20, 1 << 20, 1 << 20); }),
      "Tensor: a tensor is (1048576, 1048576, 1048576), more than 36028797018963967 elements, an empty axis counted "
      "as 1");
  // 2^64 elements must not wrap around to none.
  EXPECT_THROW((Tensor<float, 4>(1 << 16, 1 << 16, 1 << 16, 1 << 16)), mha::ShapeError);
  EXPECT_THROW((Tensor<float, 5>(0, 1 << 16, 1 << 16, 1 << 16, 1 << 16)), mha::ShapeError) << "a stride of 2^64";
}

TEST(Tensor, OwnsObjectsOfAnyType) {
  Counted::fuse = -1;
  {
    Tensor<Counted, 2> a(2, 3);
    EXPECT_EQ(Counted::live, 6);
    a(0, 1).value = 4;
    const Tensor<Counted, 2> b = a;
    EXPECT_EQ(Counted::live, 12);
    EXPECT_EQ(b(0, 1).value, 4);
    a = Tensor<Counted, 2>();
    EXPECT_EQ(Counted::live, 6);
    EXPECT_THROW((Counted::fuse = 3, Tensor<Counted, 2>(2, 3)), std::runtime_error);
    Counted::fuse = -1;
    EXPECT_EQ(Counted::live, 6) << "what was built before the failure is gone again";
  }
  EXPECT_EQ(Counted::live, 0);
  Tensor<std::string, 1> words(2);
  words(1) = "a text that is too long to be stored in place";
  const Tensor<std::string, 1> same_words = words;
  EXPECT_EQ(same_words(1), words(1));
}

TEST(Tensor, ATemporaryHasNoView) {
  static_assert(HasViewMember<Tensor<float, 2>&> && HasViewMember<const Tensor<float, 2>&>);
  static_assert(!HasViewMember<Tensor<float, 2>> && !HasViewMember<const Tensor<float, 2>>);
}

}  // namespace

/// A viewable type that makes results of its own kind.
struct Row {
  float values[4] = {};
};
template <> struct mha::ViewTraits<Row> {
  using Scalar = float;
  static constexpr int rank = 1;
  static TensorView<float, 1> view(Row& r) { return mha::view(r.values, 4); }
  static Row make(Index) { return {}; }
};

namespace {

TEST(ResultOf, IsATensorUnlessTheTraitsMakeTheirOwn) {
  const auto t = mha::detail::ResultOf<mha::TensorView<const double, 3>>::make(2, 3, 4);
  static_assert(std::is_same_v<decltype(t), const Tensor<double, 3>>);
  EXPECT_EQ(t.extent(1), 3);
  static_assert(std::is_same_v<decltype(mha::detail::ResultOf<Row>::make(4)), Row>);
}

}  // namespace
