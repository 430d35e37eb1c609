// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/core/workspace.hpp>

#include "scratch.hpp"

namespace {

using mha::Workspace;

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

/// What a call does: takes, and calls something that takes more in a frame of its own.
void round_of_calls(Workspace& w, std::size_t n) {
  auto outer = w.frame();
  outer.take<float>(n);
  for (int i = 0; i < 3; ++i) {
    auto inner = w.frame();
    inner.take<double>(2 * n);
    auto innermost = w.frame();
    innermost.take<char>(100 * n + static_cast<std::size_t>(i));
  }
  outer.take<int>(n);
}

TEST(Workspace, IsEmptyAtFirst) {
  const Workspace w;
  EXPECT_EQ(w.bytes(), 0u);
  EXPECT_EQ(w.allocations(), 0);
}

TEST(Workspace, GivesAlignedMemoryThatDoesNotOverlap) {
  Workspace w;
  auto frame = w.frame();
  char* pieces[50];
  for (std::size_t i = 0; i < 50; ++i) {
    pieces[i] = frame.take<char>(i + 1);
    EXPECT_TRUE(aligned(pieces[i]));
    std::memset(pieces[i], static_cast<int>(i), i + 1);
  }
  for (std::size_t i = 0; i < 50; ++i)
    for (std::size_t j = 0; j <= i; ++j) ASSERT_EQ(pieces[i][j], static_cast<char>(i));
  EXPECT_TRUE(aligned(frame.take<double>(3)));
}

/// Memory that hands out whole pages, as a device does.
struct Pages {
  static constexpr std::size_t alignment = 4096;
  static std::byte* allocate(std::size_t bytes) {
    return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{alignment}));
  }
  static void free(std::byte* p) noexcept { ::operator delete (p, std::align_val_t{alignment}); }
};

TEST(Arena, AlignsAsItsSourceDoes) {
  mha::Arena<Pages> arena(std::size_t{1} << 16);
  auto frame = arena.frame();
  for (std::size_t i = 1; i < 9; ++i)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.take<char>(1000 * i)) % Pages::alignment, 0u);
}

TEST(Workspace, ASecondRoundAllocatesNothing) {
  Workspace w;
  round_of_calls(w, 1000);
  const int allocations = w.allocations();
  const std::size_t bytes = w.bytes();
  EXPECT_GT(allocations, 0);
  for (int i = 0; i < 5; ++i) round_of_calls(w, 1000);
  round_of_calls(w, 10);
  EXPECT_EQ(w.allocations(), allocations);
  EXPECT_EQ(w.bytes(), bytes);
}

TEST(Workspace, ShapesThatAlternateSettleAtTheLargest) {
  Workspace w;
  for (const std::size_t n : {10u, 3000u, 200u}) round_of_calls(w, n);
  const int allocations = w.allocations();
  for (const std::size_t n : {200u, 3000u, 10u, 3000u}) round_of_calls(w, n);
  EXPECT_EQ(w.allocations(), allocations);
}

TEST(Workspace, HoldsNoMoreThanAFewTimesWhatWasInUse) {
  Workspace w;
  for (std::size_t n = 1; n < 2000; n += 100) round_of_calls(w, n);
  const std::size_t in_use = 1901 * (4 + 16 + 100 + 4);
  EXPECT_GE(w.bytes(), in_use - 1901 * 4);
  EXPECT_LE(w.bytes(), 4 * in_use);
}

TEST(Workspace, AFrameGivesBackWhatItTook) {
  Workspace w(1024);
  void *first, *second;
  {
    auto frame = w.frame();
    first = frame.take<char>(64);
  }
  auto outer = w.frame();
  EXPECT_EQ(outer.take<char>(64), first);
  {
    auto inner = w.frame();
    second = inner.take<char>(64);
    EXPECT_NE(second, first);
  }
  EXPECT_EQ(outer.take<char>(64), second);
  EXPECT_EQ(w.allocations(), 1);
}

TEST(Workspace, GrowthInANestedFrameMovesNothing) {
  Workspace w;
  auto outer = w.frame();
  int* const kept = outer.take<int>(16);
  for (int i = 0; i < 16; ++i) kept[i] = i;
  for (std::size_t n : {1000u, 100000u, 1000000u}) {
    auto inner = w.frame();
    int* const more = inner.take<int>(n);
    std::memset(more, 0xff, n * sizeof(int));
    int* const again = inner.take<int>(n);
    std::memset(again, 0xff, n * sizeof(int));
    EXPECT_EQ(more[n - 1], -1);
  }
  int* const after = outer.take<int>(16);
  std::memset(after, 0xff, 16 * sizeof(int));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(kept[i], i);
}

TEST(Workspace, GrowthInANestedFrameIsGivenBackWithIt) {
  Workspace w(1024);
  auto outer = w.frame();
  char* const first = outer.take<char>(64);
  {
    auto inner = w.frame();
    inner.take<char>(100000);
    EXPECT_GT(w.bytes(), 100000u);
  }
  EXPECT_EQ(w.bytes(), 1024u);
  EXPECT_EQ(outer.take<char>(64), first + 64);
}

TEST(Workspace, AnEmptyOuterFrameLetsTheInnerGrow) {
  Workspace w;
  const auto outer = w.frame();
  for (std::size_t n = 1; n < 100000; n *= 3) {
    auto inner = w.frame();
    std::memset(inner.take<char>(n), 1, n);
  }
  const int allocations = w.allocations();
  auto inner = w.frame();
  inner.take<char>(50000);
  EXPECT_EQ(w.allocations(), allocations);
}

TEST(Workspace, NothingCanBeTaken) {
  Workspace w;
  {
    auto frame = w.frame();
    EXPECT_TRUE(aligned(frame.take<double>(0)));
    frame.take<float>(100)[99] = 1;
  }
  const int allocations = w.allocations();
  auto frame = w.frame();
  frame.take<double>(0);
  frame.take<float>(100)[99] = 1;
  EXPECT_EQ(w.allocations(), allocations);
}

TEST(Workspace, ReservesOnce) {
  Workspace w(10000);
  EXPECT_GE(w.bytes(), 10000u);
  EXPECT_EQ(w.allocations(), 1);
  w.reserve(5000);
  EXPECT_EQ(w.allocations(), 1) << "it holds more already";
  EXPECT_GE(w.bytes(), 10000u);
  {
    auto frame = w.frame();
    frame.take<char>(9984);
  }
  EXPECT_EQ(w.allocations(), 1);
  w.reserve(20000);
  EXPECT_EQ(w.allocations(), 2);
  EXPECT_GE(w.bytes(), 20000u);
  EXPECT_EQ(Workspace(0).allocations(), 0);
}

TEST(Workspace, MovesAndIsNotCopied) {
  static_assert(!std::is_copy_constructible_v<Workspace> && std::is_nothrow_move_constructible_v<Workspace>);
  static_assert(!std::is_copy_constructible_v<Workspace::Frame>);
  Workspace a(4096);
  Workspace b = std::move(a);
  {
    auto frame = b.frame();
    frame.take<char>(4096);
  }
  EXPECT_EQ(b.allocations(), 1);
  auto frame = a.frame();  // NOLINT: a moved-from workspace is an empty one
  std::memset(frame.take<char>(100), 1, 100);
  EXPECT_GE(a.bytes(), 100u);
}

TEST(Workspace, RefusesMoreBytesThanThereAreAddresses) {
  Workspace w;
  auto frame = w.frame();
  for (const std::size_t n : {std::size_t{1} << 61, std::size_t{1} << 62, static_cast<std::size_t>(-1)})
    EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { frame.take<double>(n); }),
              "workspace: " + std::to_string(n) + " elements of 8 bytes are wanted, the limit is 1152921504606846967");
  EXPECT_EQ(w.allocations(), 0);
  EXPECT_TRUE(aligned(frame.take<double>(3)));
}

}  // namespace
