// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/positions.hpp>
#include <mha/systolic.hpp>

#include "message_of.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Positions;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;
using support::message_of;

constexpr Index E = 16, H = 4, Hkv = 2, D = 4;
const mha::Config config{.d_model = E, .num_heads = H, .num_kv_heads = Hkv};

template <class T> Tensor<T, 2> random_rows(Index rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor<T, 2> x(rows, E);
  std::generate(x.begin(), x.end(), [&] { return static_cast<T>(normal(random)); });
  return x;
}

/// A row sees the rows named after it, and all before `first`.
struct Sees {
  std::vector<std::vector<Index>> rows;
  Index first;
  bool operator()(int, int, int q, int k) const {
    if (q < first || k < first) return k <= q;
    const auto& seen = rows[static_cast<std::size_t>(q - first)];
    return std::find(seen.begin(), seen.end(), k - first) != seen.end();
  }
};

/// The layer by loops in double: row i stands at position[i] and sees the rows of seen[i].
template <class L, class T>
std::vector<double> by_loops(const L& layer, const Tensor<T, 2>& x, const std::vector<Index>& position,
                             const std::vector<std::vector<Index>>& seen) {
  const auto w = layer.parameters();
  const Index n = x.extent(0);
  using Table = std::vector<std::vector<double>>;
  const auto times = [](const std::vector<double>& row, const auto& matrix) {
    std::vector<double> to(static_cast<std::size_t>(matrix.extent[1]));
    for (Index o = 0; o < matrix.extent[1]; ++o)
      for (Index i = 0; i < matrix.extent[0]; ++i)
        to[static_cast<std::size_t>(o)] += row[static_cast<std::size_t>(i)] * double(matrix(i, o));
    return to;
  };
  const auto projected = [&](const std::vector<double>& row, const auto& weights) {
    std::vector<double> to;
    for (Index h = 0; h < weights.head_count(); ++h) {
      const auto head = times(row, weights.head(h));
      to.insert(to.end(), head.begin(), head.end());
    }
    return to;
  };
  const auto turned = [&](std::vector<double> row, Index at) {
    for (std::size_t h = 0; h < row.size(); h += D)
      for (Index i = 0; i < D / 2; ++i) {
        double &u = row[h + static_cast<std::size_t>(i)], &v = row[h + static_cast<std::size_t>(i + D / 2)];
        const double angle = at * std::pow(10000.0, -2.0 * i / D), c = std::cos(angle), s = std::sin(angle);
        const double even = u * c - v * s;
        v = u * s + v * c;
        u = even;
      }
    return row;
  };
  Table q, k, v;
  for (Index i = 0; i < n; ++i) {
    const std::vector<double> row(&x(i, 0), &x(i, 0) + E);
    q.push_back(turned(projected(row, w.query), position[static_cast<std::size_t>(i)]));
    k.push_back(turned(projected(row, w.key), position[static_cast<std::size_t>(i)]));
    v.push_back(projected(row, w.value));
  }
  std::vector<double> y;
  for (Index i = 0; i < n; ++i) {
    std::vector<double> heads(std::size_t{H * D});
    for (Index h = 0; h < H; ++h) {
      const std::size_t own = static_cast<std::size_t>(h * D), shared = static_cast<std::size_t>(h / (H / Hkv) * D);
      double sum = 0;
      for (const Index j : seen[static_cast<std::size_t>(i)]) {
        double logit = 0;
        for (std::size_t d = 0; d < D; ++d)
          logit += q[static_cast<std::size_t>(i)][own + d] * k[static_cast<std::size_t>(j)][shared + d];
        const double weight = std::exp(logit / std::sqrt(double(D)));
        sum += weight;
        for (std::size_t d = 0; d < D; ++d) heads[own + d] += weight * v[static_cast<std::size_t>(j)][shared + d];
      }
      for (std::size_t d = 0; d < D; ++d) heads[own + d] /= sum;
    }
    const auto row = times(heads, w.output.weight);
    y.insert(y.end(), row.begin(), row.end());
  }
  return y;
}

template <class T> double furthest(const T* a, const double* b, Index rows) {
  double d = 0;
  for (Index i = 0; i < rows * E; ++i) d = std::max(d, std::abs(double(a[i]) - b[i]));
  return d;
}

/// A prompt of 21 rows, then a tree of 6: 0 and 1 after the prompt, 2 and 3 after 0, 4 after 1, 5 after 3.
struct Drafts {
  static constexpr Index prompt = 21, nodes = 6;
  std::vector<std::vector<Index>> tree{{0}, {1}, {0, 2}, {0, 3}, {1, 4}, {0, 3, 5}};
  std::vector<Index> position;           ///< of all rows
  std::vector<std::vector<Index>> seen;  ///< of all rows
  std::vector<Index> kept{0, 3, 5};      ///< the branch that is accepted
  Drafts() {
    for (Index i = 0; i < prompt + nodes; ++i) {
      std::vector<Index> rows;
      for (Index j = 0; j <= std::min(i, prompt - 1); ++j) rows.push_back(j);
      if (i >= prompt)
        for (const Index j : tree[static_cast<std::size_t>(i - prompt)]) rows.push_back(prompt + j);
      position.push_back(static_cast<Index>(rows.size()) - 1);
      seen.push_back(rows);
    }
  }
  std::vector<Index> of_nodes() const { return {position.begin() + prompt, position.end()}; }
};

/// A step of the tree, its branch kept, and a row after it, against the loops.
template <class T, class B, class Storage> void steps_a_tree(const Storage& storage, double tolerance) {
  using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<Hkv>, mha::Causal, mha::Rotary<>>;
  Layer layer(config);
  layer.initialize(mha::XavierUniform{.seed = 3});
  const Drafts drafts;
  const auto x = random_rows<T>(Drafts::prompt + Drafts::nodes + 1, 4);
  auto cache = mha::make_cache(layer, storage, {.sequences = 2});
  const SequenceId id = cache.add();
  const auto part = [&](Index begin, Index end) { return mha::view(&x(begin, 0), end - begin, E); };
  static_cast<void>(layer.prefill(part(0, Drafts::prompt), cache));
  const auto of_nodes = drafts.of_nodes();
  {
    auto step = cache.step(id, Drafts::nodes);
    const Tensor<T, 2> y = layer(part(Drafts::prompt, Drafts::prompt + Drafts::nodes), step[0], Positions{of_nodes},
                                 Sees{drafts.tree, Drafts::prompt});
    Tensor<T, 2> read(Drafts::prompt + Drafts::nodes, E);
    std::copy_n(x.data(), read.size(), read.data());
    const auto expected = by_loops(layer, read, drafts.position, drafts.seen);
    EXPECT_LT(furthest(y.data(), &expected[std::size_t{Drafts::prompt * E}], Drafts::nodes), tolerance);
    step.commit(drafts.kept);
  }
  const Index length = Drafts::prompt + static_cast<Index>(drafts.kept.size());
  ASSERT_EQ(cache.length(id), length);
  Tensor<T, 2> text(length + 1, E);
  std::copy_n(x.data(), Drafts::prompt * E, text.data());
  for (Index i = 0; i < length - Drafts::prompt; ++i)
    std::copy_n(&x(Drafts::prompt + drafts.kept[static_cast<std::size_t>(i)], 0), E, &text(Drafts::prompt + i, 0));
  std::copy_n(&x(Drafts::prompt + Drafts::nodes, 0), E, &text(length, 0));
  std::vector<Index> in_order;
  std::vector<std::vector<Index>> before;
  for (Index i = 0; i <= length; ++i) {
    in_order.push_back(i);
    before.push_back(in_order);
  }
  const auto expected = by_loops(layer, text, in_order, before);
  const auto next = layer.step(mha::view(&text(length, 0), 1, E), cache);
  EXPECT_LT(furthest(next.data(), &expected[static_cast<std::size_t>(length * E)], 1), tolerance);

  // The same sequence without drafts has the same rows stored, bit for bit: they are one layer's, made of x alone.
  const SequenceId straight = cache.add();
  const auto append = [&](Index begin, Index end) {
    auto step = cache.step(straight, end - begin);
    const Tensor<T, 2> y = layer(mha::view(&text(begin, 0), end - begin, E), step[0]);
    step.commit();
    return y;
  };
  static_cast<void>(append(0, length));
  EXPECT_TRUE(std::ranges::equal(append(length, length + 1), next));
  EXPECT_EQ(cache.save(id), cache.save(straight));
}

TEST(Positions, ATreeOfDraftsIsTheLoopsAndItsBranchIsKept) {
  steps_a_tree<double, mha::Cpu>(Contiguous{.length = 64}, 1e-12);
  steps_a_tree<float, mha::Cpu>(Paged{.pages = 8, .length = 64, .page = 16}, 1e-5);
  steps_a_tree<float, mha::Cpu>(Ring{.left = 40, .rows = 32}, 1e-5);
  steps_a_tree<double, mha::Reference>(Paged{.pages = 8, .length = 64, .page = 16}, 1e-12);
  steps_a_tree<float, mha::EigenCpu>(Contiguous{.length = 64}, 1e-5);
  steps_a_tree<float, mha::Systolic<>>(Contiguous{.length = 64}, 0.1);
  steps_a_tree<float, mha::Systolic<>>(Paged{.pages = 8, .length = 64, .page = 16}, 0.1);
}

using Layer = mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<Hkv>, mha::Causal, mha::Rotary<>>;

Layer drawn() {
  Layer layer(config);
  layer.initialize(mha::XavierUniform{.seed = 3});
  return layer;
}

TEST(Positions, AreThoseOfTheRowsOfABatchAndOfARaggedOne) {
  const Layer layer = drawn();
  const auto rows = random_rows<double>(8, 5);
  const std::vector<Index> position{0, 1, 1, 5, 7, 3, 2, 2}, order{0, 1, 2, 3};
  const std::vector<std::vector<Index>> seen{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}};
  std::vector<double> expected;
  for (const Index begin : {0, 4}) {
    Tensor<double, 2> x(4, E);
    std::copy_n(&rows(begin, 0), x.size(), x.data());
    const auto y = by_loops(layer, x, {position.begin() + begin, position.begin() + begin + 4}, seen);
    expected.insert(expected.end(), y.begin(), y.end());
  }
  const Tensor<double, 3> y = layer(mha::view(rows.data(), 2, 4, E), Positions{position});
  EXPECT_LT(furthest(y.data(), expected.data(), 8), 1e-12);
  const Index offsets[] = {0, 4, 8};
  const Tensor<double, 2> ragged = layer(rows, Positions{position}, mha::Ragged{offsets});
  EXPECT_TRUE(std::ranges::equal(ragged, y));
  const auto weights = layer.attention_weights(rows, Positions{position}, mha::Ragged{offsets});
  const auto in_order = layer.attention_weights(rows, mha::Ragged{offsets});
  EXPECT_FALSE(std::ranges::equal(weights, in_order));
  // Without gaps they are where rows stand anyway.
  EXPECT_TRUE(
      std::ranges::equal(layer(mha::view(rows.data(), 4, E), Positions{order}), layer(mha::view(rows.data(), 4, E))));
}

TEST(Positions, OfCrossAttentionAreTheQueries) {
  const Layer layer = drawn();
  const auto x = random_rows<double>(3, 6), memory = random_rows<double>(9, 7);
  const std::vector<Index> position{6, 7, 8}, apart{8, 6, 7};
  const auto expected = layer(x, memory);  // the last query is at the last key
  EXPECT_TRUE(std::ranges::equal(layer(x, memory, Positions{position}), expected));
  EXPECT_TRUE(std::ranges::equal(layer(x, layer.project_memory(memory), Positions{position}), expected));
  EXPECT_FALSE(std::ranges::equal(layer(x, memory, Positions{apart}), expected));
}

/// Adds a row's position to its numbers.
struct Added {
  static constexpr auto role = mha::Role::position;
  template <class T> void apply(const mha::TensorView<T, 4>& x, const mha::Origins& first) const {
    for (Index b = 0; b < x.extent[0]; ++b)
      for (Index l = 0; l < x.extent[1]; ++l)
        for (Index h = 0; h < x.extent[2]; ++h) x(b, l, h, 0) += T(first[b] + l);
  }
};

TEST(Positions, ReachAPolicyOfTheUsers) {
  mha::MultiHeadAttention<double, mha::Cpu, Added> layer({.d_model = E, .num_heads = H});
  layer.initialize(mha::XavierUniform{.seed = 8});
  const auto rows = random_rows<double>(4, 9);
  Tensor<double, 2> swapped(4, E);
  for (const Index i : {0, 1, 2, 3}) std::copy_n(&rows(3 - i, 0), E, &swapped(i, 0));
  const std::vector<Index> position{3, 2, 1, 0}, twice{3, 2, 1, 0, 0, 1, 2, 3};
  Tensor<double, 3> both(2, 4, E);
  std::copy_n(rows.data(), rows.size(), both.data());
  std::copy_n(swapped.data(), rows.size(), both.data() + rows.size());
  const auto expected = layer(swapped), y = layer(rows, Positions{position});
  const Tensor<double, 3> of_both = layer(both, Positions{twice});
  for (Index i = 0; i < 4; ++i)
    for (Index e = 0; e < E; ++e) {
      EXPECT_NEAR(y(i, e), expected(3 - i, e), 1e-13);
      EXPECT_NEAR(of_both(0, i, e), expected(3 - i, e), 1e-13);
      EXPECT_NEAR(of_both(1, i, e), expected(i, e), 1e-13);
    }
}

TEST(Positions, AreOnePerRow) {
  const Layer layer = drawn();
  const auto x = random_rows<double>(4, 5);
  const auto sentence = [&](const Positions& positions) {
    return message_of([&] { static_cast<void>(layer(x, positions)); });
  };
  const std::vector<Index> three{0, 1, 2};
  std::vector<Index> four{0, 1, 1, 2};
  EXPECT_EQ(sentence(Positions{three}), "layer: Positions has 3 numbers, but x has 4 rows");
  EXPECT_EQ(sentence(Positions{{nullptr, 4}}), "layer: the data of Positions' 4 numbers is null");
  EXPECT_EQ(sentence(Positions{{four.data(), 4, mha::Memory::device}}),
            "layer: Positions are in device memory, they are read and checked on the host");
  four[2] = std::numeric_limits<Index>::max();
  EXPECT_EQ(sentence(Positions{four}),
            "layer: Positions puts row 2 at 2147483647, the limits are -1073741823 and 1073741822");
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 2});
  const SequenceId a = cache.add(), b = cache.add();
  auto step = cache.step({a, b}, {3, 1});
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, step[0], Positions{three})); }),
            "layer: Positions has 3 numbers, but x has 4 rows");
  static_cast<void>(layer(x, step[0]));  // the layer had not written
  step.commit();
  static_cast<void>(layer.step(x, cache, Positions{std::span<const Index>(std::vector<Index>{3, 3, 1, 2})}));
  EXPECT_EQ(cache.length(a), 5);
}

}  // namespace
