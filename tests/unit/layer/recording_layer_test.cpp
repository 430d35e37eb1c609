// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "trained_scores.hpp"

namespace {

using mha::Index;
using support::BentScore;
using support::inner;
using support::message_of;
using Rows = mha::Tensor<double, 3>;
using Heads = mha::Tensor<double, 4>;

template <class Policy, class... Policies>
using Exact = mha::MultiHeadAttention<double, mha::Reference, Policy, Policies...>;

Rows random_rows(const std::string& stream, Index b, Index l, Index e) {
  Rows x(b, l, e);
  support::Random(stream).fill(x);
  return x;
}
template <class Layer> void draw(Layer& layer, const std::string& stream) {
  support::Random random(stream);
  layer.update([&](auto& p) {
    for (auto& w : p.flat()) w = random.normal() / std::sqrt(layer.config().d_model);
  });
}

/// The derivative of loss() by x, which must be written to take effect, set(x): to the fourth order of the step.
template <class Loss, class Set> void expect_quotient(const Loss& loss, double at, const Set& set, double got) {
  constexpr double step = 0x1p-15;
  const auto difference = [&](double by) {
    set(at + by);
    const double up = loss();
    set(at - by);
    return up - loss();
  };
  const double expected = (8 * difference(step) - difference(2 * step)) / (12 * step);
  set(at);
  ASSERT_NEAR(got, expected, 1e-7 * (1 + std::abs(expected)));
}
template <class Loss> void expect_rows(double* x, const double* dx, std::size_t n, const Loss& loss) {
  for (std::size_t i = 0; i < n; ++i) {
    SCOPED_TRACE(i);
    expect_quotient(
        loss, x[i], [&](double value) { x[i] = value; }, dx[i]);
  }
}
template <class Layer, class Loss>
void expect_parameters(Layer& layer, const mha::LayerGradients<double>& g, const Loss& loss) {
  for (std::size_t i = 0; i < g.flat().size(); ++i) {
    SCOPED_TRACE("parameter " + std::to_string(i));
    expect_quotient(
        loss, layer.parameters().flat()[i], [&](double w) { layer.update([&](auto& p) { p.flat()[i] = w; }); },
        g.flat()[i]);
  }
}

/// Sequences whose first keys and values were made elsewhere, and rows that follow them.
struct Prefixed {
  std::vector<Index> before, rows;
  std::vector<Heads> key, value;  ///< of each sequence (1, n, Hkv, ·)

  Prefixed(const mha::Config& c, std::vector<Index> made_before, std::vector<Index> rows_after)
      : before(std::move(made_before)), rows(std::move(rows_after)) {
    support::Random random("prefix");
    for (const Index n : before) {
      key.emplace_back(1, n, c.num_kv_heads, c.head_dim);
      value.emplace_back(1, n, c.num_kv_heads, c.value_dim);
      random.fill(key.back());
      random.fill(value.back());
    }
  }
  Index longest() const {
    Index most = 0;
    for (std::size_t b = 0; b < rows.size(); ++b) most = std::max(most, before[b] + rows[b]);
    return most;
  }
  /// f(the step of these rows) of a cache that has the others.
  template <class Storage, class Layer, class F>
  void with_step(const Layer& layer, const Storage& storage, F&& f) const {
    auto cache = mha::make_cache(layer, storage, {.sequences = static_cast<Index>(rows.size())});
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const mha::SequenceId id = cache.add();
      if (before[b] == 0) continue;
      auto step = cache.step(id, before[b]);
      step.append(0, key[b], value[b]);
      step.commit();
    }
    auto step = cache.step(cache.ids(), rows);
    f(step[0]);
  }
};

/// Gradients of a step of a cache against difference quotients: of x, of what was made before, and of the parameters.
template <class Storage, class Layer, class... Extra>
void expect_step(Layer& layer, const Storage& storage, std::vector<Index> before, std::vector<Index> after,
                 bool in_batch, const Extra&... extra) {
  draw(layer, "step");
  Prefixed p(layer.config(), std::move(before), std::move(after));
  const Index sequences = static_cast<Index>(p.rows.size());
  Index all = 0;
  for (const Index n : p.rows) all += n;
  Rows x = in_batch ? random_rows("step x", sequences, p.rows[0], layer.config().d_model)
                    : random_rows("step x", 1, all, layer.config().d_model);
  const Rows dy = [&] {
    Rows like = x;
    support::Random("step dy").fill(like);
    return like;
  }();
  const auto loss = [&] {
    double sum = 0;
    p.with_step(layer, storage, [&](const auto& step) { sum = inner(dy, layer(x, step, extra...)); });
    return sum;
  };
  auto tape = layer.tape();
  p.with_step(layer, storage, [&](const auto& step) {
    Rows plain(x.extent(0), x.extent(1), x.extent(2));
    p.with_step(layer, storage, [&](const auto& other) { plain = layer(x, other, extra...); });
    EXPECT_EQ(support::differing(layer(x, step, tape, extra...), plain), 0u) << "a tape changes no bit";
  });
  // The cache is gone.
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(sequences, p.longest() + 1);
  const Rows dx = layer.backward(dy, tape, g, d);
  auto constant = layer.gradients();
  EXPECT_EQ(support::differing(layer.backward(dy, tape, constant, mha::StopGradient{}), dx), 0u);
  constant.for_each(g, [](auto a, auto b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], b[i]);
  });
  expect_rows(x.data(), dx.data(), x.size(), loss);
  expect_parameters(layer, g, loss);
  for (Index b = 0; b < sequences; ++b)
    for (Index k = 0; k < p.before[static_cast<std::size_t>(b)]; ++k) {
      const auto at = static_cast<std::size_t>(b);
      const Index heads = d.key.extent(2);
      expect_rows(&p.key[at](0, k, 0, 0), &d.key(b, k, 0, 0), static_cast<std::size_t>(heads * d.key.extent(3)), loss);
      expect_rows(&p.value[at](0, k, 0, 0), &d.value(b, k, 0, 0), static_cast<std::size_t>(heads * d.value.extent(3)),
                  loss);
    }
}

const mha::Config sizes{.d_model = 6, .num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3};

TEST(RecordedSteps, OfOneSequence) {
  Exact<mha::GroupedQuery<mha::Dynamic>> layer(sizes);
  expect_step(layer, mha::Contiguous{.length = 16}, {4}, {3}, false, mha::Causal{});
  expect_step(layer, mha::Contiguous{.length = 16}, {0}, {3}, true);
}

TEST(RecordedSteps, OfSequencesOfDifferentLengths) {
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>, mha::QkNorm> layer(sizes);
  expect_step(layer, mha::Paged{.pages = 8, .length = 32, .page = 16}, {5, 0, 17}, {2, 3, 1}, false, mha::Causal{});
  expect_step(layer, mha::Contiguous{.length = 16}, {5, 1}, {2, 2}, true, mha::Causal{});
  expect_step(layer, mha::Contiguous{.length = 16}, {3, 3}, {2, 2}, true, mha::Causal{}, mha::SoftCap{2.});
}

TEST(RecordedSteps, OfRowsAtPositionsOfTheirOwn) {
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>> layer(sizes);
  const std::vector<Index> positions{4, 5, 5};
  const auto tree = mha::mask([](Index, Index, Index q, Index k) { return k < 5 || k == q; });
  expect_step(layer, mha::Contiguous{.length = 16}, {4}, {3}, false, mha::Positions{positions}, tree);
}

TEST(RecordedSteps, OfARingThatHasDroppedSome) {
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>> layer(sizes);
  expect_step(layer, mha::Ring{.left = 3, .rows = 4}, {4, 1}, {4, 2}, false, mha::SlidingWindow{.left = 3});
}

/// Both branches have a row at position 2, which another row of the same branch attends to.
TEST(RecordedSteps, OfBranchesThatEachHaveSeveral) {
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Causal> layer(sizes);
  draw(layer, "branches");
  Rows x[5];
  for (std::size_t i = 0; i < 5; ++i) x[i] = random_rows("branch " + std::to_string(i), 1, i == 0 ? 2 : 1, 6);
  const Rows dy = random_rows("branch dy", 1, 2, 6), one = random_rows("branch row dy", 1, 1, 6);
  std::vector<decltype(layer.tape())> tapes(5);
  const auto loss = [&] {
    auto cache = mha::make_cache(layer, mha::Paged{.pages = 8, .length = 16, .page = 16}, {.sequences = 3});
    const mha::SequenceId shared = cache.add();
    double sum = 0;
    const auto go_on = [&](mha::SequenceId of, std::size_t i) {
      auto step = cache.step(of, x[i].extent(1));
      sum += inner(i == 0 ? dy : one, layer(x[i], step[0], tapes[i]));
      step.commit();
    };
    go_on(shared, 0);
    for (std::size_t i = 1; i < 5; i += 2) {
      const mha::SequenceId branch = cache.fork(shared);
      go_on(branch, i);
      go_on(branch, i + 1);
    }
    return sum;
  };
  static_cast<void>(loss());
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(1, 4);
  Rows dx[5];
  for (std::size_t i = 5; i-- > 0;) dx[i] = layer.backward(i == 0 ? dy : one, tapes[i], g, d);
  for (const double left : d.key) EXPECT_EQ(left, 0) << "a call has taken it";
  for (std::size_t i = 0; i < 5; ++i) expect_rows(x[i].data(), dx[i].data(), x[i].size(), loss);
  expect_parameters(layer, g, loss);
}

TEST(RecordedMemory, HasTheGradientsOfEveryCallThatAttendsToIt) {
  mha::Config c = sizes;
  c.kv_model = 5;
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>, mha::QkNorm> layer(c);
  draw(layer, "memory");
  Rows memory = random_rows("memory", 2, 4, 5), x = random_rows("first x", 2, 3, 6),
       z = random_rows("other x", 2, 2, 6);
  const Rows dy = random_rows("first dy", 2, 3, 6), dz = random_rows("other dy", 2, 2, 6);
  const std::vector<Index> origins{3, -2};
  const auto loss = [&] {
    const auto projected = layer.project_memory(memory, mha::Origin{origins});
    return inner(dy, layer(x, projected)) + inner(dz, layer(z, projected, mha::Causal{}));
  };
  auto of_memory = layer.memory_tape();
  auto of_x = layer.tape(), of_z = layer.tape();
  const auto projected = layer.project_memory(memory, of_memory, mha::Origin{origins});
  const auto plain = layer.project_memory(memory, mha::Origin{origins});
  EXPECT_EQ(support::differing(projected.key, plain.key), 0u);
  EXPECT_EQ(support::differing(projected.value, plain.value), 0u);
  EXPECT_EQ(support::differing(layer(x, projected, of_x), layer(x, projected)), 0u);
  static_cast<void>(layer(z, projected, of_z, mha::Causal{}));
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(2, 6);
  const Rows dx = layer.backward(dy, of_x, g, d), d_z = layer.backward(dz, of_z, g, d);
  const Rows d_memory = layer.backward(d, of_memory, g);
  auto constant = layer.gradients();
  EXPECT_EQ(support::differing(layer.backward(dy, of_x, constant, mha::StopGradient{}), dx), 0u);
  for (Index i = 0; i < 5; ++i) EXPECT_EQ(constant.key.heads(0, i, 0), 0);
  expect_rows(x.data(), dx.data(), x.size(), loss);
  expect_rows(z.data(), d_z.data(), z.size(), loss);
  expect_rows(memory.data(), d_memory.data(), memory.size(), loss);
  expect_parameters(layer, g, loss);
}

TEST(RecordedMemory, OfSequencesOfDifferentLengths) {
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>, mha::QkNorm> layer(sizes);
  draw(layer, "ragged memory");
  Rows memory = random_rows("ragged memory", 1, 7, 6), x = random_rows("ragged x", 1, 5, 6);
  const Rows dy = random_rows("ragged dy", 1, 5, 6);
  const std::vector<Index> of_x{0, 2, 2, 5}, of_memory{0, 4, 6, 7};
  const auto loss = [&] {
    return inner(dy, layer(x, layer.project_memory(memory, mha::Ragged{of_memory}), mha::Ragged{of_x}));
  };
  auto tape = layer.tape();
  auto memory_tape = layer.memory_tape();
  const auto projected = layer.project_memory(memory, memory_tape, mha::Ragged{of_memory});
  static_cast<void>(layer(x, projected, tape, mha::Ragged{of_x}));
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(3, 4);
  const Rows dx = layer.backward(dy, tape, g, d);
  Rows d_memory = random_rows("what is there", 1, 7, 6);
  const Rows there = d_memory;
  layer.backward(d, memory_tape, g, mha::add_to(d_memory));
  for (std::size_t i = 0; i < d_memory.size(); ++i) d_memory.data()[i] -= there.data()[i];
  expect_rows(x.data(), dx.data(), x.size(), loss);
  expect_rows(memory.data(), d_memory.data(), memory.size(), loss);
  expect_parameters(layer, g, loss);
}

TEST(RecordedMemory, OfKeysAndValuesOfDifferentRows) {
  mha::Config c = sizes;
  c.kv_model = 5;
  c.value_model = 4;
  Exact<mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>, mha::QkNorm> layer(c);
  draw(layer, "rows apart");
  Rows keys = random_rows("keys apart", 2, 4, 5), values = random_rows("values apart", 2, 4, 4);
  const Rows x = random_rows("x of rows apart", 2, 3, 6), dy = random_rows("dy of rows apart", 2, 3, 6);
  const std::vector<Index> origins{3, -2};
  const auto loss = [&] { return inner(dy, layer(x, layer.project_memory(keys, values, mha::Origin{origins}))); };
  auto of_memory = layer.memory_tape();
  auto tape = layer.tape();
  const auto projected = layer.project_memory(keys, values, of_memory, mha::Origin{origins});
  const auto plain = layer.project_memory(keys, values, mha::Origin{origins});
  EXPECT_EQ(support::differing(projected.key, plain.key), 0u);
  EXPECT_EQ(support::differing(projected.value, plain.value), 0u);
  static_cast<void>(layer(x, projected, tape));
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(2, 4);
  static_cast<void>(layer.backward(dy, tape, g, d));
  Rows d_keys(2, 4, 5), d_values = random_rows("what is at the values", 2, 4, 4);
  const Rows there = d_values;
  layer.backward(d, of_memory, g, mha::memory_into(d_keys, mha::add_to(d_values)));
  for (std::size_t i = 0; i < d_values.size(); ++i) d_values.data()[i] -= there.data()[i];
  expect_rows(keys.data(), d_keys.data(), keys.size(), loss);
  expect_rows(values.data(), d_values.data(), values.size(), loss);
  expect_parameters(layer, g, loss);

  static_cast<void>(layer.project_memory(keys, values, of_memory));
  const auto refusal = [&](auto&&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(d, of_memory, extra...)); });
  };
  const std::string one =
      "backward: the project_memory() on the tape had keys and values of different rows: give "
      "mha::memory_into(d_keys, d_values) for their gradients";
  EXPECT_EQ(refusal(), one);
  EXPECT_EQ(refusal(mha::into(d_keys)), one);
  EXPECT_EQ(refusal(mha::memory_into(d_keys)), one);
  EXPECT_EQ(refusal(mha::memory_into(d_keys, d_keys)), "backward: d_values has width 5, expected 4");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, values)), "backward: d_values overlaps the memory");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, mha::view(d_keys.data(), 2, 4, 4))), "backward: d_keys overlaps d_values");
}

/// A memory whose rows are both has one gradient or two.
TEST(RecordedMemory, OfKeysAndValuesOfTheSameRows) {
  Exact<mha::GroupedQuery<mha::Dynamic>> layer(sizes);
  draw(layer, "same rows");
  const Rows memory = random_rows("same rows memory", 1, 4, 6);
  auto tape = layer.memory_tape();
  static_cast<void>(layer.project_memory(memory, tape));
  auto d = layer.key_value_gradients(1, 4);
  support::Random random("same rows d");
  random.fill(d.key);
  random.fill(d.value);
  Rows d_memory(1, 4, 6), d_keys(1, 4, 6), d_values(1, 4, 6), sum(1, 4, 6);
  layer.backward(d, tape, mha::memory_into(d_memory));
  EXPECT_EQ(support::differing(layer.backward(d, tape), d_memory), 0u);
  layer.backward(d, tape, mha::memory_into(d_keys, d_values));
  layer.backward(d, tape, mha::memory_into(sum, mha::add_to(sum)));
  for (std::size_t i = 0; i < d_memory.size(); ++i) {
    EXPECT_NEAR(d_memory.data()[i], d_keys.data()[i] + d_values.data()[i], 1e-12);
    EXPECT_NEAR(d_memory.data()[i], sum.data()[i], 1e-12);
  }
}

/// A position that turns nothing any more.
struct Refusing {
  static constexpr mha::Role role = mha::Role::position;
  template <class T> void apply(const mha::TensorView<T, 4>&, const mha::Origins&) const {
    throw std::runtime_error("no more");
  }
  template <class T> void apply_back(const mha::TensorView<T, 4>&, const mha::Origins&) const {}
};
TEST(RecordedMemory, IsNotRecordedWhereAPolicyThrew) {
  Exact<mha::GroupedQuery<mha::Dynamic>, Refusing> layer(sizes);
  draw(layer, "refusing");
  const Rows memory = random_rows("refusing memory", 1, 4, 6);
  auto tape = layer.memory_tape();
  EXPECT_THROW(static_cast<void>(layer.project_memory(memory, tape)), std::runtime_error);
  EXPECT_FALSE(tape.recorded());
}

TEST(RecordedMemory, AllocatesNothingTheSecondTime) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::QkNorm>;
  Layer layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 3> memory(2, 9, 8), x(2, 3, 8), dy(2, 3, 8), y(2, 3, 8), dx(2, 3, 8), d_memory(2, 9, 8),
      values(2, 9, 8), d_values(2, 9, 8);
  for (auto* rows : {&memory, &values, &x, &dy}) support::Random("allocations").fill(*rows);
  auto tape = layer.tape();
  auto memory_tape = layer.memory_tape();
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(2, 9);
  mha::Workspace workspace;
  const auto turn = [&] {
    const auto projected = layer.project_memory(memory, memory_tape, workspace);
    layer(x, projected, tape, mha::into(y), workspace);
    layer.backward(dy, tape, g, d, mha::into(dx), workspace);
    layer.backward(d, memory_tape, g, mha::into(d_memory), workspace);
    static_cast<void>(layer.project_memory(memory, values, memory_tape, workspace));
    layer.backward(d, memory_tape, g, mha::memory_into(d_memory, d_values), workspace);
    layer(x, memory, values, tape, mha::into(y), workspace);
    layer.backward(dy, tape, g, mha::into(dx), mha::memory_into(d_memory, mha::add_to(d_values)), workspace);
    d.clear();
  };
  turn();
  const int allocations = workspace.allocations();
  turn();
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(RecordedSteps, RefuseWhatDoesNotFitAndChangeNothing) {
  using Layer = Exact<mha::GroupedQuery<mha::Dynamic>>;
  Layer layer(sizes);
  draw(layer, "refusals");
  const Rows x = random_rows("refused x", 1, 3, 6), dy = random_rows("refused dy", 1, 3, 6);
  auto tape = layer.tape();
  Prefixed p(layer.config(), {4}, {3});
  p.with_step(layer, mha::Contiguous{.length = 8}, [&](const auto& step) { static_cast<void>(layer(x, step, tape)); });
  auto g = layer.gradients();
  auto right = layer.key_value_gradients(1, 7), more = layer.key_value_gradients(2, 7),
       shorter = layer.key_value_gradients(1, 6);
  mha::Config other = sizes;
  other.num_kv_heads = 4;
  Layer of_other(other);
  auto heads = of_other.key_value_gradients(1, 7);
  const auto refusal = [&](auto&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(dy, tape, g, extra...)); });
  };
  EXPECT_EQ(
      refusal(),
      "backward: the call on the tape shares keys and values with other calls: give the KeyValueGradients that go "
      "from call to call, layer.key_value_gradients(…), or mha::StopGradient{}, with which none do");
  auto none = layer.key_value_gradients(1, 0);
  EXPECT_EQ(refusal(none),
            "backward: the KeyValueGradients' key has 0 positions, but the longest sequence of the call on the tape "
            "has 7");
  EXPECT_EQ(refusal(more), "backward: the call on the tape has batch 1 but the KeyValueGradients' key has batch 2");
  EXPECT_EQ(refusal(shorter),
            "backward: the KeyValueGradients' key has 6 positions, but the longest sequence of the call on the tape "
            "has 7");
  EXPECT_EQ(refusal(heads), "backward: the call on the tape has 2 heads but the KeyValueGradients' key has 4");
  for (const double w : g.flat()) ASSERT_EQ(w, 0);
  for (const double w : right.key) ASSERT_EQ(w, 0);
  EXPECT_EQ(refusal(right), "");

  auto own = layer.tape();
  static_cast<void>(layer(x, own));
  const auto refused_of_own = [&](auto&&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(dy, own, g, extra...)); });
  };
  EXPECT_EQ(refused_of_own(right),
            "backward: KeyValueGradients are given, but the call on the tape made its keys and values itself");
  EXPECT_EQ(refused_of_own(mha::StopGradient{}),
            "backward: StopGradient is given, but the call on the tape made its keys and values itself");

  Rows d_memory(1, 3, 6);
  auto projected = layer.project_memory(x);
  mha::Tensor<double, 4> bias(1, 1, 3, 3);
  static_cast<void>(layer(x, projected, own, mha::AdditiveBias{bias}));
  EXPECT_EQ(refused_of_own(right, mha::BiasGradient(mha::view(right.key.data(), 1, 1, 3, 3))),
            "backward: the BiasGradient overlaps the KeyValueGradients' key");
  EXPECT_EQ(refused_of_own(right, mha::into(mha::view(right.value.data(), 1, 3, 6))),
            "backward: the KeyValueGradients' value overlaps dx");
  EXPECT_EQ(refused_of_own(mha::StopGradient{}, mha::BiasGradient(mha::view(projected.key.data(), 1, 1, 3, 3))),
            "backward: the BiasGradient overlaps the keys");
  EXPECT_EQ(refused_of_own(mha::StopGradient{}, mha::into(mha::view(projected.value.data(), 1, 3, 6))),
            "backward: dx overlaps the values");
  static_cast<void>(layer(x, projected, own));
  EXPECT_EQ(refused_of_own(mha::memory_into(d_memory)),
            "backward: memory_into() is given, but the call on the tape had no memory of rows: keys and values of "
            "project_memory() have KeyValueGradients");
  const Rows batch = random_rows("refused batch", 2, 3, 6);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(batch, projected, own)); }),
            "layer: x has batch 2 but key has batch 1");

  auto cache =
      mha::make_cache(mha::MultiHeadAttention<double>({.d_model = 6, .num_heads = 2}), mha::Contiguous{.length = 8});
  const mha::SequenceId id = cache.add();
  mha::MultiHeadAttention<double> on_cpu({.d_model = 6, .num_heads = 2});
  on_cpu.initialize(mha::XavierUniform{.seed = 1});
  auto cpu_tape = on_cpu.tape();
  auto step = cache.step(id, 2);
  EXPECT_EQ(message_of([&] { static_cast<void>(on_cpu(x, step[0], cpu_tape)); }),
            "layer: x has 3 rows, but the step has 2");
  EXPECT_FALSE(cpu_tape.recorded());
}

TEST(RecordedSteps, KeyValueGradientsOverlapNoGradientOfAScore) {
  using Layer = Exact<mha::GroupedQuery<mha::Dynamic>>;
  Layer layer(sizes);
  draw(layer, "overlaps");
  const Rows x = random_rows("overlap x", 1, 3, 6), dy = random_rows("overlap dy", 1, 3, 6);
  mha::Tensor<double, 2> bias(3, 7), d_bias(3, 7);
  support::Random("overlap bias").fill(bias);
  auto tape = layer.tape();
  Prefixed p(layer.config(), {4}, {3});
  p.with_step(layer, mha::Contiguous{.length = 8}, [&](const auto& step) {
    static_cast<void>(layer(x, step, tape, mha::AdditiveBias(bias), BentScore<double>{0.5, 0.25}));
  });
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(1, 7);
  const auto refusal = [&](auto&&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(dy, tape, g, d, extra...)); });
  };
  EXPECT_EQ(refusal(mha::BiasGradient(mha::view(d.key.data(), 3, 7))),
            "backward: the BiasGradient overlaps the KeyValueGradients' key");
  EXPECT_EQ(refusal(mha::BiasGradient(mha::view(d.value.data(), 3, 7))),
            "backward: the BiasGradient overlaps the KeyValueGradients' value");
  EXPECT_EQ(refusal(mha::ScoreGradient(*reinterpret_cast<BentScore<double>*>(d.value.data()))),
            "backward: the ScoreGradient overlaps the KeyValueGradients' value");
  for (const double w : g.flat()) ASSERT_EQ(w, 0);
  EXPECT_EQ(refusal(mha::BiasGradient(d_bias)), "");
}

TEST(RecordedMemory, RefusesWhatDoesNotFitAndChangesNothing) {
  using Layer = Exact<mha::GroupedQuery<mha::Dynamic>>;
  Layer layer(sizes);
  draw(layer, "memory refusals");
  Rows memory = random_rows("refused memory", 1, 4, 6);
  auto tape = layer.memory_tape();
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(1, 4), shorter = layer.key_value_gradients(1, 3);
  const auto refusal = [&](const auto& of, auto&&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(of, tape, g, extra...)); });
  };
  EXPECT_EQ(refusal(d), "backward: nothing was recorded on the tape: call project_memory(memory, tape) first");
  static_cast<void>(layer.project_memory(memory, tape));
  EXPECT_EQ(refusal(shorter),
            "backward: the KeyValueGradients' key has 3 positions, but the longest sequence of the memory has 4");
  Rows wrong(1, 5, 6);
  auto none = layer.key_value_gradients(1, 0);
  EXPECT_EQ(refusal(none),
            "backward: the KeyValueGradients' key has 0 positions, but the longest sequence of the memory has 4");
  EXPECT_EQ(refusal(d, mha::into(wrong)), "backward: memory has length 4 but d_memory has length 5");
  EXPECT_EQ(refusal(d, mha::into(memory)), "backward: d_memory overlaps the memory");
  EXPECT_EQ(refusal(d, mha::into(mha::view(d.value.data(), 1, 4, 6))),
            "backward: d_memory overlaps the KeyValueGradients' value");
  EXPECT_EQ(refusal(d), "");
  layer.update([](auto& p) { p.flat()[0] += 1; });
  EXPECT_EQ(
      refusal(d),
      "backward: the tape was recorded with other weights: by another layer, or before this one's weights changed");
}

}  // namespace
