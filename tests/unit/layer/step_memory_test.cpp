// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/layer/step_memory.hpp>

namespace {

using mha::Index;
using mha::detail::ItemsOn;
using mha::detail::StepMemory;
using mha::detail::StepNumbers;

/// A backend whose memory is the host's all the same.
struct Sender {
  static constexpr mha::Memory memory = mha::Memory::device;
  static inline int sent = 0;
  struct Workspace {
    int of = 0;
    int stream() const { return of; }
  };
  template <class T, int Rank> using Tensor = mha::Tensor<T, Rank>;
  void send(const Index* from, Index n, Index* to, Workspace&) const {
    std::copy_n(from, n, to);
    ++sent;
  }
};

/// Books of pages, as far as a step asks them.
struct Book {
  Index width() const { return 3; }
  Index row(Index slot, Index position) const { return 100 * slot + position; }
  std::span<const Index> pages(Index slot, Index) const { return {&all[3 * slot], 3}; }
  Index all[6] = {5, 6, 7, 8, 9, 10};
};

void describe(StepNumbers& now, const Book& book, Index length, Index rows) {
  now.growths = {{0, length, rows}, {1, 2 * length, 1}};
  now.slots = {0, 1};
  now.reserve_rows(book, static_cast<std::size_t>(rows) + 1);
  now.describe(book);
}
void expect_there(const StepMemory<Sender>& memory, const std::vector<Index>& list) {
  const Index* const there = memory.there(list.data());
  ASSERT_NE(there, nullptr);
  EXPECT_NE(there, list.data());
  EXPECT_TRUE(std::equal(list.begin(), list.end(), there));
}

TEST(StepMemory, HasAllNumbersAtAddressesOfTheirCounts) {
  const Book book;
  Sender backend;
  Sender::Workspace workspace;
  const ItemsOn<Sender> by{backend, workspace};
  StepMemory<Sender> memory(2, 3);
  StepNumbers now(2);
  EXPECT_EQ(memory.there(now.offsets.data()), nullptr);
  const Index* first[5] = {};
  for (const Index length : {10, 20, 41}) {
    SCOPED_TRACE(length);
    const int before = Sender::sent;
    describe(now, book, length, 1);
    memory.send(now, by);
    EXPECT_EQ(Sender::sent, before + 1);
    int i = 0;
    for (const auto* list : {&now.offsets, &now.positions, &now.lengths, &now.table, &now.to_row}) {
      expect_there(memory, *list);
      if (length == 10) first[i] = memory.there(list->data());
      EXPECT_EQ(memory.there(list->data()), first[i++]);
    }
    EXPECT_EQ(memory.there(&book.all[0]), nullptr);
    EXPECT_EQ(memory.there(nullptr), nullptr);

    describe(now, book, length, 70);  // more rows are elsewhere
    memory.send(now, by);
    expect_there(memory, now.to_row);
    EXPECT_NE(memory.there(now.lengths.data()), first[2]);
  }
}

TEST(StepMemory, IsNothingForABackendThatStages) {
  struct Stager {
    struct Workspace {};
  } backend;
  Stager::Workspace workspace;
  StepMemory<Stager> memory(2, 3);
  StepNumbers now(2);
  describe(now, Book{}, 4, 2);
  memory.send(now, ItemsOn<Stager>{backend, workspace});
  EXPECT_EQ(memory.there(now.offsets.data()), nullptr);
}

TEST(StepMemory, AsksWhetherNumbersCanBeSent) {
  struct Recorded : Sender {
    void require_sendable(const Workspace& workspace) const { mha::detail::require(workspace.of != 7, "recorded"); }
  } backend;
  Recorded::Workspace open{1}, recorded{7};
  const StepMemory<Recorded> memory(2, 3);
  const int before = Sender::sent;
  memory.check(ItemsOn<Recorded>{backend, open});
  EXPECT_THROW(memory.check(ItemsOn<Recorded>{backend, recorded}), mha::ShapeError);
  EXPECT_EQ(Sender::sent, before);
  Sender always;  // does not say
  StepMemory<Sender>(2, 3).check(ItemsOn<Sender>{always, recorded});
}

TEST(StepMemory, OrderIsThatOfAStream) {
  EXPECT_TRUE(mha::detail::same_order(Sender::Workspace{3}, Sender::Workspace{3}));
  EXPECT_FALSE(mha::detail::same_order(Sender::Workspace{3}, Sender::Workspace{4}));
  struct None {};
  EXPECT_TRUE(mha::detail::same_order(None{}, None{}));
}

}  // namespace
