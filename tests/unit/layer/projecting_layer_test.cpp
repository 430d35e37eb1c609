// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using support::message_of;

constexpr Index E = 12, M = 7;
const mha::Config config{.d_model = E, .num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 3, .kv_model = M};
using Layer = mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<2>, mha::Rotary<>>;

Layer drawn(std::uint64_t seed) {
  Layer layer(config);
  layer.initialize(mha::XavierUniform{.seed = seed});
  return layer;
}

/// Keys and values of one sequence as a program of its own keeps them: a record for each position and head.
struct Records {
  struct Record {
    double key[4], value[3];
  };
  using Scalar = double;
  const std::vector<Record>* records;  // (keys, 2)

  Index batch() const { return 1; }
  Index heads() const { return 2; }
  Index dim() const { return 4; }
  Index value_dim() const { return 3; }
  Index keys(Index) const { return static_cast<Index>(records->size()) / 2; }
  mha::KvRun<double> run(Index, Index g, Index begin, Index end) const {
    const Record& first = (*records)[static_cast<std::size_t>(2 * begin + g)];
    constexpr Index stride = 2 * sizeof(Record) / sizeof(double);
    return {first.key, first.value, stride, stride, end - begin};
  }
};

TEST(ProjectingLayer, AttendsToASourceAsTheFormulasSay) {
  support::Random random("records");
  const mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<2>> layer = [] {
    mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<2>> made(config);
    made.initialize(mha::XavierUniform{.seed = 1});
    return made;
  }();
  constexpr Index queries = 3, keys = 5;
  std::vector<Records::Record> records(2 * keys);
  for (auto& r : records) {
    random.fill(r.key);
    random.fill(r.value);
  }
  Tensor<double, 2> x(queries, E);
  random.fill(x);
  const auto y = layer(x, Records{&records}, mha::Origin{1}, mha::Causal{});  // query i sees keys 0 … i + 1

  const auto w = layer.parameters();
  const auto query = w.query.matrix(), output = w.output.weight;
  for (Index i = 0; i < queries; ++i) {
    double row[E] = {};
    for (Index h = 0; h < 4; ++h) {
      double weight[keys], sum = 0, head[3] = {};
      for (Index k = 0; k < std::min(keys, i + 2); ++k) {
        const auto& record = records[static_cast<std::size_t>(2 * k + h / 2)];
        double logit = 0;
        for (Index d = 0; d < 4; ++d)
          for (Index e = 0; e < E; ++e) logit += x(i, e) * query(e, 4 * h + d) * record.key[d];
        weight[k] = std::exp(logit / 2);
        sum += weight[k];
        for (Index d = 0; d < 3; ++d) head[d] += weight[k] * record.value[d];
      }
      for (Index d = 0; d < 3; ++d)
        for (Index e = 0; e < E; ++e) row[e] += head[d] / sum * output(3 * h + d, e);
    }
    for (Index e = 0; e < E; ++e) EXPECT_NEAR(y(i, e), row[e], 1e-12);
  }
}

/// The rows of a cache are those of KeyValues, whatever the pieces and the axes that they were given in.
TEST(ProjectingLayer, WritesAMemoryToACache) {
  support::Random random("pieces");
  const Layer layer = drawn(2);
  Tensor<double, 3> memory(2, 20, M);
  random.fill(memory);
  const auto expected = layer.project_memory(memory);
  auto cache = mha::make_cache(layer, mha::Paged{.pages = 9, .length = 40, .page = 16}, {.layers = 2, .sequences = 3});
  const std::vector<mha::SequenceId> ids{cache.add(), cache.add()};
  const auto rows = [&](Index b, Index begin, Index count) {
    return mha::view(&std::as_const(memory)(b, begin, 0), count, M);
  };
  const auto expect_rows = [&](const auto& step, Index layers, Index sequence, Index b, Index count) {
    const auto source = step.source(layers);
    ASSERT_EQ(source.keys(sequence), count);
    for (Index p = 0; p < count; ++p)
      for (Index g = 0; g < 2; ++g) {
        const auto run = source.run(sequence, g, p, p + 1);
        for (Index d = 0; d < 4; ++d) EXPECT_EQ(support::bits(run.key[d]), support::bits(expected.key(b, p, g, d)));
        for (Index d = 0; d < 3; ++d) EXPECT_EQ(support::bits(run.value[d]), support::bits(expected.value(b, p, g, d)));
      }
  };
  {
    auto step = cache.step(ids, 20);
    layer.project_memory(memory, step[0]);                           // (B, n, E_kv)
    layer.project_memory(mha::view(memory.data(), 40, M), step[1]);  // (Σn, E_kv)
    for (Index i = 0; i < 2; ++i)
      for (Index b = 0; b < 2; ++b) expect_rows(step, i, b, b, 20);
  }  // without commit() nothing has happened
  EXPECT_EQ(cache.length(ids[0]), 0);
  mha::Workspace workspace;
  const auto give = [&](Index b, Index begin, Index count) {
    auto step = cache.step(ids[static_cast<std::size_t>(b)], count);
    for (Index i = 0; i < 2; ++i) layer.project_memory(rows(b, begin, count), step[i], workspace, mha::Cpu{});
    step.commit();
  };
  give(1, 0, 3);
  give(0, 0, 20);
  give(1, 3, 16);
  give(1, 19, 1);
  const mha::SequenceId beams[] = {ids[1], ids[0], ids[1]};
  const auto step = cache.step(beams, 0);
  expect_rows(step, 0, 0, 1, 20);
  expect_rows(step, 1, 1, 0, 20);
  expect_rows(step, 1, 2, 1, 20);
}

/// Keys and values of different rows are those of each alone.
TEST(ProjectingLayer, ProjectsKeysAndValuesOfDifferentRows) {
  support::Random random("rows apart");
  mha::Config sizes = config;
  sizes.value_model = 5;
  Layer layer(sizes);
  layer.initialize(mha::XavierUniform{.seed = 6});
  Tensor<double, 3> keys(2, 20, M), values(2, 20, 5);
  random.fill(keys);
  random.fill(values);
  const std::vector<Index> origins{2, 0};
  const auto made = layer.project_memory(keys, values, mha::Origin{origins});
  Layer of_keys = drawn(7);
  of_keys.update([&](auto& p) {
    for (Index g = 0; g < 2; ++g)
      for (Index e = 0; e < M; ++e)
        for (Index d = 0; d < 4; ++d) p.key.heads(g, e, d) = layer.parameters().key.heads(g, e, d);
  });
  const auto expected = of_keys.project_memory(keys, mha::Origin{origins});
  EXPECT_LT(support::largest_difference(made.key, expected.key), 1e-13);
  for (Index b = 0; b < 2; ++b)
    for (Index p = 0; p < 20; ++p)
      for (Index g = 0; g < 2; ++g)
        for (Index d = 0; d < 3; ++d) {
          double sum = 0;
          for (Index e = 0; e < 5; ++e) sum += values(b, p, e) * layer.parameters().value.heads(g, e, d);
          EXPECT_NEAR(made.value(b, p, g, d), sum, 1e-13);
        }

  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 20}, {.sequences = 2});
  const std::vector<mha::SequenceId> ids{cache.add(), cache.add()};
  const auto at_0 = layer.project_memory(keys, values);
  {
    auto step = cache.step(ids, 20);
    layer.project_memory(keys, values, step[0], mha::Cpu{});
    step.commit();
  }
  const auto step = cache.step(ids, 0);
  const auto source = step.source(0);
  for (Index b = 0; b < 2; ++b)
    for (Index p = 0; p < 20; ++p)
      for (Index g = 0; g < 2; ++g) {
        const auto run = source.run(b, g, p, p + 1);
        for (Index d = 0; d < 4; ++d) EXPECT_EQ(support::bits(run.key[d]), support::bits(at_0.key(b, p, g, d)));
        for (Index d = 0; d < 3; ++d) EXPECT_EQ(support::bits(run.value[d]), support::bits(at_0.value(b, p, g, d)));
      }

  const auto refused = [&](const auto& k, const auto& v, const auto&... extra) {
    return message_of<mha::ShapeError>([&] { static_cast<void>(layer.project_memory(k, v, extra...)); });
  };
  const Tensor<double, 3> shorter(2, 19, 5), alone(1, 20, 5);
  const std::vector<Index> offsets{0, 40};
  EXPECT_EQ(refused(keys, shorter), "project_memory: key has length 20 but value has length 19");
  EXPECT_EQ(refused(keys, alone), "project_memory: key has batch 2 but value has batch 1");
  EXPECT_EQ(refused(keys, keys), "project_memory: memory has width 7 but value_model is 5");
  EXPECT_EQ(refused(values, values), "project_memory: memory has width 5 but kv_model is 7");
  EXPECT_EQ(refused(values, keys), "project_memory: key has width 5 but kv_model is 7");
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(layer.project_memory(keys)); }),
            "project_memory: memory has width 7 but value_model is 5");
  EXPECT_NE(refused(keys, values, mha::Ragged{offsets}), "");
}

TEST(ProjectingLayer, AllocatesNothingInTheSteadyState) {
  support::Random random("steady");
  const Layer layer = drawn(3);
  Tensor<double, 2> memory(20, M), values(20, M), x(2, E), y(2, E);
  random.fill(memory);
  random.fill(values);
  random.fill(x);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 20}, {.sequences = 2});
  mha::Workspace workspace;
  int allocations = 0;
  for (int time = 0; time < 3; ++time) {
    const mha::SequenceId id = cache.add();
    auto step = cache.step(id, 20);
    layer.project_memory(memory, step[0], workspace);
    step.commit();
    layer(x, cache.step(id, 0).source(0), mha::into(y), workspace);
    cache.remove(id);
    const mha::SequenceId other = cache.add();
    {
      auto of_two = cache.step(other, 20);
      layer.project_memory(memory, values, of_two[0], workspace);
    }
    cache.remove(other);
    if (time == 0) allocations = workspace.allocations();
  }
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(ProjectingLayer, RefusesWhatDoesNotFitTheCache) {
  Layer layer = drawn(4);
  const Tensor<double, 2> memory(6, M), wide(6, M + 1);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 20}, {.sequences = 2});
  mha::KvCache<mha::Contiguous, double> other({.heads = 1, .dim = 4, .value_dim = 3}, {.length = 20});
  const mha::SequenceId a = cache.add(), b = cache.add(), c = other.add();
  const auto refused = [&](auto&& step, const auto& rows) {
    return message_of<mha::ShapeError>([&] { layer.project_memory(rows, step[0]); });
  };
  EXPECT_EQ(refused(cache.step(a, 6), wide), "project_memory: memory has width 8 but kv_model is 7");
  EXPECT_EQ(refused(cache.step(a, 5), memory), "project_memory: memory has 6 rows, but the step has 5");
  EXPECT_EQ(refused(cache.step({a, b}, {3, 2}), memory), "project_memory: memory has 6 rows, but the step has 5");
  EXPECT_EQ(refused(other.step(c, 6), memory), "project_memory: the layer has 2 key/value heads but the cache has 1");
  const Layer empty(config);
  EXPECT_NE(message_of<mha::ShapeError>([&] { empty.project_memory(memory, cache.step(a, 6)[0]); }), "");
  {
    auto step = cache.step(a, 6);
    layer.project_memory(memory, step[0]);
    EXPECT_EQ(message_of<mha::ShapeError>([&] { layer.project_memory(memory, step[0]); }),
              "project_memory: layer 0 of the cache was written in this step already");
    step.commit();
  }
  layer.update([](auto& p) { p.key.matrix()(0, 0) += 1; });
  EXPECT_EQ(refused(cache.step(a, 6), memory),
            "project_memory: sequence 0 has keys and values of layer 0 that were projected with other weights than the "
            "layer has now: truncate it to 0, or add() a new one");
  EXPECT_EQ(refused(cache.step(b, 6), memory), "");
}

TEST(ProjectingLayer, RefusesASourceThatDoesNotFit) {
  const Layer layer = drawn(5);
  const Tensor<double, 3> x(2, 3, E);
  const Tensor<double, 2> rows(6, E);
  const Tensor<double, 4> key(2, 9, 2, 4), value(2, 9, 2, 3), three(3, 9, 2, 4), of_three(3, 9, 2, 3);
  const Tensor<double, 4> heads(2, 9, 4, 4), of_heads(2, 9, 4, 3), wide(2, 9, 2, 5);
  const std::vector<Index> offsets{0, 2, 6}, lengths{9, 10};
  const auto refused = [&](const auto& queries, const mha::ContiguousKv<double>& source, const auto&... extra) {
    return message_of<mha::ShapeError>([&] { static_cast<void>(layer(queries, source, extra...)); });
  };
  EXPECT_EQ(refused(x, {key.view(), value.view()}), "");
  EXPECT_EQ(refused(rows, {key.view(), value.view()}, mha::Ragged{offsets}), "");
  EXPECT_EQ(refused(rows, {key.view(), value.view()}), "layer: x has batch 1 but the source has batch 2");
  EXPECT_EQ(refused(x, {three.view(), of_three.view()}), "layer: x has batch 2 but the source has batch 3");
  EXPECT_EQ(refused(x, {heads.view(), of_heads.view()}), "layer: the source has 4 key/value heads but the layer has 2");
  EXPECT_EQ(refused(x, {wide.view(), value.view()}), "layer: the source has head size 5 but the layer has head size 4");
  EXPECT_EQ(refused(x, {key.view(), key.view()}),
            "layer: the source has value head size 4 but the layer has value head size 3");
  EXPECT_EQ(refused(x, {key.view(), value.view(), {}, lengths}),
            "layer: sequence 1 of ContiguousKv has length 10, expected 0 to 9");
  EXPECT_EQ(refused(rows, {key.view(), value.view()}, mha::Ragged{offsets, offsets}),
            "layer: Ragged has 3 key offsets, but the lengths of the keys are the source's own: give the query offsets "
            "alone");
  EXPECT_EQ(message_of<mha::ShapeError>([&] {
              static_cast<void>(layer.attention_weights(x, mha::ContiguousKv<double>{three.view(), of_three.view()}));
            }),
            "layer: x has batch 2 but the source has batch 3");
}

}  // namespace
