// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/tile_tasks.hpp>
#include <mha/core/workspace.hpp>

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using simd::Pass;
constexpr Index chunk = simd::key_chunk;

/// Sequences of so many keys, of which nothing, or the first chunk, is dropped.
struct Call {
  std::vector<Index> lengths;
  struct Source {
    bool some = false;
    bool drops() const { return some; }
    Index held(Index, Index begin, Index end) const { return std::clamp(begin, std::min(chunk, end), end); }
  } kv{};
  Index keys(Index b) const { return lengths[static_cast<std::size_t>(b)]; }
};

struct Tasks {
  mha::Workspace workspace;
  mha::Workspace::Frame frame{workspace};
  simd::TileTasks tasks;

  explicit Tasks(const std::vector<Index>& tiles) : tasks(static_cast<Index>(tiles.size()), frame) {
    tasks.cut([&](Index b) { return tiles[static_cast<std::size_t>(b)]; });
  }
};

struct Seen {
  Index b, tile, chunk;
  bool operator==(const Seen&) const = default;
};
/// Chunk −1 stands for all keys of a tile.
std::vector<Seen> tasks_of(const simd::TileTasks& tasks) {
  std::vector<Seen> all;
  for (std::int64_t i = 0; i < tasks.count(Pass::attend); ++i) {
    const simd::TileTask task = tasks.task(Pass::attend, i);
    all.push_back({task.b, task.tile, task.parts > 0 ? task.chunk : -1});
    if (task.parts > 0) {
      EXPECT_EQ(task.part(task.chunk), i) << "parts come first, in their order";
    }
  }
  return all;
}

TEST(TileTasks, AreWholeTilesAtFirst) {
  const Tasks t({2, 0, 0, 1, 3, 0});
  EXPECT_EQ(t.tasks.tiles(), 6);
  EXPECT_EQ(t.tasks.parts(), 0);
  EXPECT_EQ(t.tasks.count(Pass::merge), 0);
  EXPECT_EQ(tasks_of(t.tasks),
            (std::vector<Seen>{{0, 0, -1}, {0, 1, -1}, {3, 0, -1}, {4, 0, -1}, {4, 1, -1}, {4, 2, -1}}));
  EXPECT_EQ(Tasks({0, 0}).tasks.tiles(), 0);
  EXPECT_EQ(Tasks({}).tasks.count(Pass::attend), 0);
}

TEST(TileTasks, ArePartsOfTheTilesThatAreShared) {
  Tasks t({1, 2, 0, 1, 1});
  const Call call{{5, 2 * chunk + 1, 3 * chunk, chunk, 2 * chunk}};
  t.tasks.share(call, [](Index) { return true; });
  EXPECT_EQ(t.tasks.tiles(), 5);
  EXPECT_EQ(t.tasks.parts(), 8);
  // Sequences 0 and 3 have one chunk each, 2 no tile.
  EXPECT_EQ(tasks_of(t.tasks), (std::vector<Seen>{{1, 0, 2},
                                                  {1, 0, 1},
                                                  {1, 0, 0},
                                                  {1, 1, 2},
                                                  {1, 1, 1},
                                                  {1, 1, 0},
                                                  {4, 0, 1},
                                                  {4, 0, 0},
                                                  {0, 0, -1},
                                                  {3, 0, -1}}));
  ASSERT_EQ(t.tasks.count(Pass::merge), 3);
  const Index b[] = {1, 1, 4}, tile[] = {0, 1, 0}, parts[] = {3, 3, 2}, first[] = {0, 3, 6};
  for (Index i = 0; i < 3; ++i) {
    const simd::TileTask task = t.tasks.task(Pass::merge, i);
    EXPECT_EQ(task.b, b[i]);
    EXPECT_EQ(task.tile, tile[i]);
    EXPECT_EQ(task.parts, parts[i]);
    for (Index n = 0; n < task.parts; ++n) EXPECT_EQ(task.part(n), first[i] + parts[i] - 1 - n);
  }
  t.tasks.share(call, [](Index of) { return of == 4; });
  EXPECT_EQ(t.tasks.parts(), 2) << "shared anew";
  EXPECT_EQ(t.tasks.tiles(), 5);
  t.tasks.cut([](Index) { return 7; });
  EXPECT_EQ(t.tasks.tiles(), 35);
  EXPECT_EQ(t.tasks.parts(), 0);
}

TEST(TileTasks, LeaveOutChunksThatAreDropped) {
  Tasks t({1, 1});
  t.tasks.share(Call{{3 * chunk, 2 * chunk}, {true}}, [](Index) { return true; });
  EXPECT_EQ(tasks_of(t.tasks), (std::vector<Seen>{{0, 0, 1}, {0, 0, 0}, {1, 0, -1}}));
}

/// Whether each sequence is shared by its length.
std::vector<bool> longest_of(const std::vector<Index>& tiles, const std::vector<Index>& lengths, Index workers,
                             Index work_of_first = 1) {
  Tasks t(tiles);
  t.tasks.share_longest(Call{lengths}, workers, [&](Index b) { return b == 0 ? work_of_first : 1; });
  EXPECT_LT(t.tasks.count(Pass::merge), simd::TileTasks::most_longest(workers));
  std::vector<bool> shared(tiles.size());
  for (const Seen& seen : tasks_of(t.tasks)) shared[static_cast<std::size_t>(seen.b)] = seen.chunk >= 0;
  return shared;
}

TEST(TileTasks, ShareTilesOfMoreThanHalfOfAWorkersShare) {
  using Shared = std::vector<bool>;
  constexpr Index c = chunk;
  EXPECT_EQ(longest_of({1, 1, 1}, {2 * c, 4 * c, 2 * c}, 1), (Shared{false, false, false})) << "half of it all";
  EXPECT_EQ(longest_of({1, 1, 1}, {2 * c, 4 * c + 1, 2 * c}, 1), (Shared{false, true, false}));
  EXPECT_EQ(longest_of({1, 1, 1}, {2 * c, 4 * c, 2 * c}, 2), (Shared{false, true, false}));
  EXPECT_EQ(longest_of({1, 1, 1}, {2 * c, 4 * c, 2 * c}, 3), (Shared{true, true, true}));
  EXPECT_EQ(longest_of({1, 2, 1}, {2 * c, 4 * c, 2 * c}, 2), (Shared{false, true, false}));
  EXPECT_EQ(longest_of({1, 4, 1}, {2 * c, 4 * c, 2 * c}, 2), (Shared{false, false, false})) << "of each tile";
  EXPECT_EQ(longest_of({1, 1, 1}, {2 * c, 4 * c, 2 * c}, 2, 6), (Shared{true, false, false})) << "of more work";
  EXPECT_EQ(longest_of({1, 1}, {c, 1}, 2), (Shared{false, false})) << "one chunk";
}

TEST(TileTasks, AreWholeTilesWherePartsWouldBeTooMany) {
  constexpr Index most = std::numeric_limits<Index>::max();
  Tasks t({most / 2, 1});
  const Call two{{2 * chunk, 5 * chunk}};
  t.tasks.share(two, [](Index) { return true; });
  EXPECT_EQ(t.tasks.parts(), 0);
  EXPECT_EQ(t.tasks.tiles(), most / 2 + 1);
  t.tasks.cut([](Index b) { return b == 0 ? most / 2 : 0; });
  t.tasks.share(two, [](Index) { return true; });
  EXPECT_EQ(t.tasks.parts(), most - 1);
  EXPECT_EQ(t.tasks.task(Pass::attend, most - 2).tile, most / 2 - 1);
}

}  // namespace
