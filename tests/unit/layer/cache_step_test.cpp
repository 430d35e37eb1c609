// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/cache_step.hpp>
#include <mha/layer/kv_cache.hpp>

#include "cache_picture.hpp"
#include "message_of.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::detail::Growth;

std::string refusal(Index batch, Index length, const std::vector<Growth>& growths) {
  Index rows = 0;
  for (const Growth& g : growths) rows += g.rows;
  try {
    mha::detail::require_step_rows("layer", "x", batch, length, growths, rows);
  } catch (const mha::ShapeError& e) {
    return e.what();
  }
  return "";
}

TEST(CacheStep, RowsAreTheStepsOwn) {
  EXPECT_EQ(refusal(1, 5, {{0, 7, 2}, {1, 0, 3}}), "");
  EXPECT_EQ(refusal(2, 2, {{0, 7, 2}, {1, 0, 2}}), "");
  EXPECT_EQ(refusal(1, 4, {{0, 7, 2}, {1, 0, 3}}), "layer: x has 4 rows, but the step has 5");
  EXPECT_EQ(refusal(3, 2, {{0, 7, 2}, {1, 0, 2}}), "layer: x has batch 3, but the step has 2 sequences");
  EXPECT_EQ(refusal(2, 2, {{0, 7, 2}, {1, 0, 3}}), "layer: x has 2 rows a sequence, but the step has 3 for sequence 1");
}

TEST(CacheStep, TellsWhereTheRowsOfEachSequenceAre) {
  mha::KvCache<mha::Contiguous, float> cache({1, 2, 2}, mha::Contiguous{.length = 9}, {.sequences = 3});
  for (int i = 0; i < 3; ++i) cache.add();
  const Index rows[] = {2, 0, 4};
  const auto step = cache.step(cache.ids(), rows);
  const auto offsets = step.offsets();
  EXPECT_EQ(std::vector<Index>(offsets.begin(), offsets.end()), (std::vector<Index>{0, 2, 2, 6}));
  EXPECT_EQ(step[0].rows(), 6);
  EXPECT_EQ(step[0].sequences(), 3);
}

template <class Cache> void append_numbered(Cache& cache, const mha::CacheStep<Cache>& step) {
  for (Index layer = 0; layer < cache.layers(); ++layer) {
    const Index rows = step[layer].rows();
    Tensor<float, 3> key(rows, 1, 2), value(rows, 1, 2);
    for (Index i = 0; i < rows; ++i) key(i, 0, 0) = value(i, 0, 1) = float(100 * layer + i);
    step.append(layer, key, value);
  }
}

// Two sequences, one with rows before: what stays of a step is what a step of these rows alone would have left.
template <class Storage> void keeps_rows(const Storage& storage) {
  using Cache = mha::KvCache<Storage, float>;
  Cache cache({1, 2, 2}, storage, {.layers = 2, .sequences = 3});
  const auto a = cache.add(), b = cache.add();
  {
    auto step = cache.step({a, b}, {14, 0});
    append_numbered(cache, step);
    step.commit();
  }
  const std::string before = support::picture(cache);
  const auto refused = [&](const std::vector<Index>& rows) {
    auto step = cache.step({a, b}, {6, 3});
    append_numbered(cache, step);
    return support::message_of([&] { step.commit(rows); });
  };
  EXPECT_EQ(refused({0, 9}), "commit: row 9 is outside [0, 9), the rows of the step");
  EXPECT_EQ(refused({-1}), "commit: row -1 is outside [0, 9), the rows of the step");
  EXPECT_EQ(refused({2, 1}), "commit: row 1 is named after row 2, expected ascending rows");
  EXPECT_EQ(refused({2, 2}), "commit: row 2 is named after row 2, expected ascending rows");
  {
    auto step = cache.step({a, b}, {6, 3});
    EXPECT_EQ(support::message_of([&] { step.commit({0}); }),
              "commit: layer 0 of the cache has not written its keys and values");
  }
  EXPECT_EQ(support::picture(cache), before);

  // The first 3 rows of a forked cache's step are rows 1, 2 and 5 of a, then row 7 of b.
  auto step = cache.step({a, b}, {6, 3});
  append_numbered(cache, step);
  step.commit({1, 2, 5, 7});
  EXPECT_EQ(support::message_of([&] { step.commit({0}); }), "commit: the step was committed");
  EXPECT_EQ(cache.length(a), 17);
  EXPECT_EQ(cache.length(b), 1);
  Cache straight({1, 2, 2}, storage, {.layers = 2, .sequences = 3});
  const auto c = straight.add(), d = straight.add();
  {
    auto prompt = straight.step({c, d}, {14, 0});
    append_numbered(straight, prompt);
    prompt.commit();
  }
  {
    auto rest = straight.step({c, d}, {3, 1});
    for (Index layer = 0; layer < 2; ++layer) {
      Tensor<float, 3> key(4, 1, 2), value(4, 1, 2);
      Index i = 0;
      for (const Index row : {1, 2, 5, 7}) key(i, 0, 0) = value(i, 0, 1) = float(100 * layer + row), ++i;
      rest.append(layer, key, value);
    }
    rest.commit();
  }
  EXPECT_EQ(support::picture(cache), support::picture(straight));

  {
    auto none = cache.step({a, b}, {6, 3});
    append_numbered(cache, none);
    none.commit({});
  }
  EXPECT_EQ(support::picture(cache), support::picture(straight));
}

TEST(CacheStep, KeepsSomeOfItsRows) {
  keeps_rows(mha::Contiguous{.length = 32});
  keeps_rows(mha::Paged{.pages = 6, .length = 32, .page = 16});
  keeps_rows(mha::Ring{.left = 5, .rows = 14, .first = 2});
}

// A fork and what it was forked from share a page that is begun: what either keeps of a step is not the other's.
TEST(CacheStep, KeptRowsOfAForkAreItsOwn) {
  mha::KvCache<mha::Paged, float> cache({1, 2, 2}, {.pages = 8, .length = 64, .page = 16},
                                        {.layers = 2, .sequences = 2});
  const auto a = cache.add();
  {
    auto step = cache.step(a, 21);
    append_numbered(cache, step);
    step.commit();
  }
  const auto b = cache.fork(a);
  const auto before = cache.save(a);
  const auto keep = [&](const std::vector<Index>& rows) {
    auto step = cache.step({a, b}, {13, 14});
    append_numbered(cache, step);
    step.commit(rows);
  };
  keep({14, 20, 26});
  EXPECT_EQ(cache.save(a), before);
  EXPECT_EQ(cache.length(b), 24);
  const auto of_b = cache.save(b);
  keep({0, 2, 3, 12});
  EXPECT_EQ(cache.save(b), of_b);
  EXPECT_EQ(cache.length(a), 25);
  EXPECT_NE(cache.save(a), before);
  keep({});
  EXPECT_EQ(cache.save(b), of_b);
  EXPECT_EQ(cache.free_pages(), 8 - 3);  // the first page is shared
  cache.truncate(a, 21);
  EXPECT_EQ(cache.save(a), before);
  cache.remove(a);
  cache.remove(b);
  EXPECT_EQ(cache.free_pages(), 8);
}

}  // namespace
