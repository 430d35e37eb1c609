// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/backward_plan.hpp>
#include <mha/backend/pool.hpp>
#include <mha/call.hpp>

namespace {

using mha::Index;

struct Cut {
  static Index tiles(Index n) { return mha::detail::blocks_of(n, 4); }
  static Index query_pieces(Index n) { return mha::detail::blocks_of(n, 8); }
  static Index key_pieces(Index n) { return mha::detail::blocks_of(n, 5); }
};

/// What every head did, in its order.
struct Log {
  using Piece = std::pair<Index, Index>;
  struct Head {
    std::vector<Index> queries, keys, stored, added, stored_keys;
    std::vector<Piece> pieces;
    int slots = 0;
  };
  std::mutex mutex;
  std::map<std::pair<Index, Index>, Head> heads;
};

using Call = mha::AttendBackwardCall<float, mha::ContiguousKv<float>, mha::Full, mha::NoScore>;

/// A machine that computes nothing.
struct Recorder {
  using Scalar = float;
  struct Memory {
    int* owner;
  };
  struct Scratch {};
  struct Head {
    Log* log;
    Index b, h, queries, keys;

    template <class F> void note(F&& f) const {
      const std::lock_guard lock(log->mutex);
      f(log->heads[{b, h}]);
    }
    Index tiles() const { return Cut::tiles(queries); }
    Index query_pieces() const { return Cut::query_pieces(queries); }
    Index key_pieces() const { return Cut::key_pieces(keys); }
    void prepare_queries(Index t) const {
      note([&](Log::Head& l) { l.queries.push_back(t); });
    }
    void prepare_keys(Index m) const {
      note([&](Log::Head& l) { l.keys.push_back(m); });
    }
    void pieces(Index first, Index end, Index m, Index m_end, const Scratch&) const {
      note([&](Log::Head& l) {
        for (; m < m_end; ++m)
          for (Index n = first; n < end; ++n) l.pieces.push_back({n, m});
      });
    }
    void store_queries(Index t) const {
      note([&](Log::Head& l) { l.stored.push_back(t); });
    }
    void add_keys(Index m, const Memory&) const {
      note([&](Log::Head& l) { l.added.push_back(m); });
    }
    void store_keys(Index m) const {
      note([&](Log::Head& l) { l.stored_keys.push_back(m); });
    }
    double sink() const { return 1 + b; }
    void store_slots() const {
      note([&](Log::Head& l) { ++l.slots; });
    }
  };

  const Call& of;
  Log& log;
  Cut cut = {};

  const Call& call() const { return of; }
  int score_tables() const { return 0; }
  const Cut& tiling() const { return cut; }
  Memory memory(mha::Workspace::Frame& frame) const { return {frame.take<int>(1)}; }
  Scratch scratch(mha::Workspace::Frame&) const { return {}; }
  Head head(const Memory&, Index b, Index h) const {
    return {&log, b, h, of.forward.shape.queries, of.forward.shape.keys};
  }
};

/// Few key heads and many threads are cut into waves, the others are tasks of their own.
TEST(BackwardPlan, EveryPieceRunsOnceAfterThoseThatItsSumsGoOnFrom) {
  for (const int threads : {1, 2, 3, 8})
    for (const Index kv_heads : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, " << kv_heads << " key heads");
      Call call{};
      call.forward.shape.batch = 2;
      call.forward.shape.heads = 2 * kv_heads;
      call.forward.shape.queries = 27;
      call.forward.shape.keys = 33;
      call.forward.kv_heads = kv_heads;
      call.forward.head_dim = call.forward.value_dim = 4096;  // large enough for threads
      std::vector<double> sink(static_cast<std::size_t>(2 * kv_heads), 0.5);
      call.sink = sink.data();
      Log log;
      mha::Workspace workspace;
      mha::detail::run_heads(Recorder{call, log}, workspace, mha::ThreadPool(threads));

      ASSERT_EQ(log.heads.size(), 4u * static_cast<std::size_t>(kv_heads));
      for (const auto& [which, l] : log.heads) {
        const Index h = which.second;
        EXPECT_EQ(l.queries.size(), 7u);
        EXPECT_EQ(l.keys.size(), 7u);
        EXPECT_EQ(l.stored.size(), 7u);
        EXPECT_EQ(l.slots, 1);
        EXPECT_EQ(l.added.size(), h % 2 == 0 ? 7u : 0u);  // the second of a group, to the first
        EXPECT_EQ(l.stored_keys.size(), h % 2 == 0 ? 7u : 0u);
        std::map<Log::Piece, std::size_t> when;
        for (std::size_t i = 0; i < l.pieces.size(); ++i) when[l.pieces[i]] = i;
        EXPECT_EQ(l.pieces.size(), 28u);
        EXPECT_EQ(when.size(), 28u);
        for (const auto& [piece, at] : when) {
          const auto [n, m] = piece;
          if (n > 0) {
            EXPECT_LT((when[{n - 1, m}]), at);
          }
          if (m > 0) {
            EXPECT_LT((when[{n, m - 1}]), at);
          }
        }
      }
      for (const double x : sink) EXPECT_EQ(x, 0.5 + 1 + 2);
    }
}

}  // namespace
