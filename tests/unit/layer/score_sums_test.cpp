// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/score_sums.hpp>
#include <mha/mha.hpp>

#include "message_of.hpp"

namespace {

using mha::Index;
using Slopes = mha::AlibiSlopes;
using Both = mha::Chain<mha::RelativeBias, Slopes>;

/// 4 buckets of 2 heads: distances of 0, of 1 to 3, and of −1 to −3.
const mha::RelativeBias bias(std::vector<float>(8, 9.f), {.count = 4, .max_distance = 3});
const Both score{bias, Slopes({9.f, 9.f})};
const auto layout = [](float*) { return mha::LayerGradientViews<float>{}; };

TEST(AddHeadSums, AddsTheSequencesOfEachHead) {
  const std::vector<double> from{1, 2, 3, 10, 20, 30, 100, 200, 300, 1000, 2000, 3000};  // (2, 2, 3)
  std::vector<float> to{.5f, 0, -1, 0, 0, -1};                                           // (2, 3)
  const mha::detail::AddHeadSums<float> items{2, 2, 2, 2, 3, 3, from.data(), to.data()};
  mha::detail::run_serially(items);
  EXPECT_EQ(to, (std::vector<float>{101.5f, 202, -1, 1010, 2020, -1}));
}

TEST(HeadScoreSums, HaveOnePlaceForEachSlotAndDistanceOfAHead) {
  EXPECT_EQ((mha::detail::HeadScoreSums<float, Slopes>(score.second, 2).size()), 2);
  EXPECT_EQ((mha::detail::HeadScoreSums<float, mha::RelativeBias>(bias, 2).size()), 2 * 7);
  EXPECT_EQ((mha::detail::HeadScoreSums<float, Both>(score, 2).size()), 2 + 2 * 7);
}

/// A call whose distances reach from −2 to 1 only, then one that reaches everything; what they add up to by hand.
TEST(HeadScoreSums, AddCallsOfAnyLength) {
  const mha::detail::HeadScoreSums<float, Both> sums(score, 2);
  mha::detail::SummedLayerGradients<float, Both> host(0, layout, score, 2);
  ASSERT_EQ(host.memory().extent[0], sums.size());
  mha::Workspace workspace;
  const mha::Reference backend;
  const mha::detail::ItemsOn<mha::Reference> run{backend, workspace};
  const auto add = [&](Index least, Index count, std::vector<double> by_distance) {  // (1, 2, count)
    const double slots[] = {5, 50};
    mha::detail::TableGradient<float, double> table{by_distance.data() - least, nullptr, {2 * count, count, -1, 1},
                                                    mha::Origins(Index{0}),     least,   count};
    sums.add(mha::detail::ScoreSums<float>{slots, &table, {1, 2, 3, 3}, 1, 1}, host.writable().data(), run);
  };
  add(-2, 4, {1, 2, 4, 8, 10, 20, 40, 80});
  add(-3, 7, {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 7});
  host.received();
  host.received();                                                               // what it has does not count twice
  const std::vector<float> expected{4 + 1, 40, 3 + 3, 30, 0, 0, 8 + 3, 80 + 7};  // (buckets, heads)
  EXPECT_EQ(host.score.first.table(), expected);
  EXPECT_EQ(host.score.second.per_head(), (std::vector<float>{10, 100}));
}

/// Two numbers that a score sums itself.
struct Summed {
  float of[2] = {9, 9};
  std::span<float> numbers() { return of; }
  std::span<const float> numbers() const { return of; }
  template <class S> S operator()(S s, Index, Index, Index, Index) const { return s + of[0]; }
  template <class G, class S> void accumulate(G gradient, S dt, S, Index, Index, Index, Index) const {
    gradient[0] += dt;
  }
};

/// In a call whose own score has three slots, and one that accumulates, behind those of the layer.
TEST(HeadScoreSums, HaveAPlaceForEachNumberOfAScoreThatAccumulates) {
  using Mixed = mha::Chain<Summed, mha::Chain<Slopes, mha::RelativeBias>>;
  const Mixed mixed{{}, {Slopes({9.f, 9.f}), bias}};
  const mha::detail::HeadScoreSums<float, Mixed> sums(mixed, 2);
  EXPECT_EQ(sums.size(), 2 * (1 + 2) + 2 * 7);
  mha::detail::SummedLayerGradients<float, Mixed> host(0, layout, mixed, 2);
  mha::Workspace workspace;
  const mha::Reference backend;
  const double slots[] = {5, -1, -1, -1, 1, 2, -1, 50, -1, -1, -1, 10, 20, -1};  // (1, 2, 7)
  std::vector<double> distances{3, 5, 7, 11, 13, 17};                            // (1, 2, 3)
  const mha::detail::TableGradient<float, double> table{distances.data() + 1,   nullptr, {6, 3, -1, 1},
                                                        mha::Origins(Index{0}), -1,      3};
  for (int call = 0; call < 2; ++call)
    sums.add(mha::detail::ScoreSums<float>{slots, &table, {1, 2, 2, 2}, 7, 4}, host.writable().data(),
             mha::detail::ItemsOn<mha::Reference>{backend, workspace});
  host.received();
  EXPECT_EQ(host.score.first.of[0], 2 * (1 + 10));
  EXPECT_EQ(host.score.first.of[1], 2 * (2 + 20));
  EXPECT_EQ(host.score.second.first.per_head(), (std::vector<float>{10, 100}));
  EXPECT_EQ(host.score.second.second.table(), (std::vector<float>{10, 26, 6, 22, 0, 0, 14, 34}));
}

/// Tables of other reaches lie one behind the other.
TEST(HeadScoreSums, HaveAPlaceForEachTable) {
  using Two = mha::Chain<mha::RelativeBias, mha::RelativeBias>;
  const mha::RelativeBias near(std::vector<float>(4, 9.f), {.count = 2, .max_distance = 2, .bidirectional = false});
  const Two two{near, bias};
  const mha::detail::HeadScoreSums<float, Two> sums(two, 2);
  EXPECT_EQ(sums.size(), 2 * 5 + 2 * 7);
  mha::detail::SummedLayerGradients<float, Two> host(0, layout, two, 2);
  mha::Workspace workspace;
  const mha::Reference backend;
  std::vector<double> of_near{1, 2, 4, 8, 10, 20}, of_bias{3, 5, 7, 11, 13, 17};  // (1, 2, 3) each
  const mha::detail::TableGradient<float, double> tables[] = {
      {of_near.data() + 1, nullptr, {6, 3, -1, 1}, mha::Origins(Index{0}), -1, 3},
      {of_bias.data() + 1, nullptr, {6, 3, -1, 1}, mha::Origins(Index{0}), -1, 3}};
  sums.add(mha::detail::ScoreSums<float>{nullptr, tables, {1, 2, 2, 2}, 0, 0}, host.writable().data(),
           mha::detail::ItemsOn<mha::Reference>{backend, workspace});
  host.received();
  // Without both directions keys behind the query count as its own.
  EXPECT_EQ(host.score.first.table(), (std::vector<float>{2 + 4, 10 + 20, 1, 8}));
  EXPECT_EQ(host.score.second.table(), (std::vector<float>{5, 13, 3, 11, 0, 0, 7, 17}));
}

TEST(SummedLayerGradients, HaveTheirSumsBehindTheParameters) {
  mha::detail::SummedLayerGradients<float, Slopes> host(3, layout, Slopes({1.f, 2.f}), 2);
  EXPECT_EQ(host.sums_at(host.writable().data()).to, host.writable().data() + 3);
  ASSERT_EQ(host.memory().extent[0], 5);
  EXPECT_EQ(host.score.per_head(), (std::vector<float>{0, 0}));
  for (std::size_t i = 0; i < 5; ++i) host.writable()[i] = float(i);
  host.received();
  EXPECT_EQ(host.score.per_head(), (std::vector<float>{3, 4}));
}

TEST(SummedLayerGradients, OfAnotherTableAreRefused) {
  const mha::detail::SummedLayerGradients<float, mha::RelativeBias> host(0, layout, bias, 2);
  mha::detail::require_score_gradients("backward", bias, host.score);
  const mha::RelativeBias wider(std::vector<float>(12, 9.f), {.count = 4, .max_distance = 3});
  EXPECT_EQ(support::message_of([&] { mha::detail::require_score_gradients("backward", wider, host.score); }),
            "backward: the gradients are of other sizes: their score has 8 numbers, expected 12");
}

}  // namespace
