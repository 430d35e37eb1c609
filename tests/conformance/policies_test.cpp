// SPDX-License-Identifier: Apache-2.0
// Positions, norms, gates, sinks and biases in a layer, alone and in ragged batches, against the layer on the reference
// in double, and every layer sequence by sequence.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "layers.hpp"

namespace {

using namespace conformance;

template <class Setup> class PolicyConformance : public testing::Test {
 public:
  /// Ragged rows on the backend against each sequence on its own on the reference, and the longest of them read in
  /// pieces through caches.
  template <class... P> static void check(const char* name, const Config& config, const P&... policies) {
    using T = typename Setup::T;
    SCOPED_TRACE(name);
    Random random(name);
    mha::MultiHeadAttention<T, typename Setup::Backend, P...> layer(config, policies...);
    mha::MultiHeadAttention<double, mha::Reference, P...> oracle(config, policies...);
    same_weights(layer, oracle, random);
    const std::vector<Index> offsets = {0, 17, 17, 18, 18 + 49};
    mha::Tensor<T, 2> x(offsets.back(), config.d_model);
    random.fill(x);
    const mha::Tensor<T, 2> ragged = layer(x, mha::Ragged{offsets});
    for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
      const Index first = offsets[b], end = offsets[b + 1];
      if (first == end) continue;
      SCOPED_TRACE("sequence " + std::to_string(b));
      const auto alone = oracle(exact(rows_of(x, first, end)));
      expect_close(rows_of(ragged, first, end), alone, tolerance<T>());
      expect_close(layer(rows_of(x, first, end)), alone, tolerance<T>());
    }
    const mha::SlidingWindow window{.left = 20};
    const mha::Tensor<T, 2> text = rows_of(x, offsets[3], offsets[4]);
    const auto whole = oracle(exact(text), window);
    expect_close(read_in_pieces(layer, text, mha::Paged{.pages = 4, .length = 49, .page = 16}, window, random), whole,
                 tolerance<T>());
    expect_close(read_in_pieces(layer, text, mha::Ring{.left = 20, .rows = 9, .first = 2}, window, random), whole,
                 tolerance<T>());
  }
};
TYPED_TEST_SUITE(PolicyConformance, LayerSetups);

std::vector<float> some_floats(const char* stream, std::size_t n) {
  Random random(stream);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(random.normal());
  return values;
}

TYPED_TEST(PolicyConformance, LayersAgreeWithTheDoubleReferenceSequenceBySequence) {
  const Config plain{.d_model = 24, .num_heads = 4, .bias = true};
  const Config grouped{.d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 8, .value_dim = 5};
  TestFixture::check("halves", plain, mha::Causal{}, mha::Rotary<mha::Halves>{});
  TestFixture::check("interleaved, partial, linear", plain, mha::Alibi{}, mha::GatedHeads{},
                     mha::Rotary<mha::Interleaved, mha::LinearScaling>{.dims = 4, .scaling = {.factor = 4}});
  TestFixture::check("halves, partial, ntk", grouped, mha::GroupedQuery<2>{}, mha::QkNorm{},
                     mha::RelativeBias(some_floats("table", 8 * 6), {.count = 8, .max_distance = 20}),
                     mha::Rotary<mha::Halves, mha::NtkScaling>{.dims = 6, .scaling = {.factor = 3}});
  TestFixture::check(
      "interleaved, llama 3", grouped, mha::GroupedQuery<2>{}, mha::QkNorm{.eps = 1e-3}, mha::NoOutput{},
      mha::Sink(some_floats("sink", 6)), mha::SlidingWindow{.left = 9, .right = 3},
      mha::Rotary<mha::Interleaved, mha::Llama3Scaling>{.base = 500, .scaling = {.original_length = 64}});
  std::vector<std::uint8_t> map(7 * 7, 1);
  for (std::size_t i = 0; i < map.size(); i += 3) map[i] = 0;
  TestFixture::check(
      "block map, gates", plain, mha::BlockSparse({.block = 8, .query_blocks = 7, .key_blocks = 7}, map),
      mha::GatedHeads{}, mha::QkNorm{.zero_centered = true},
      mha::Rotary<mha::Halves, mha::LongRopeScaling>{.scaling = {.factors = {1, 1.5, 4}, .attention_factor = 1.25}});
}

TYPED_TEST(PolicyConformance, PrefixesAndDocumentsOfACallAgreeWithTheDoubleReference) {
  using T = typename TypeParam::T;
  const Config config{.d_model = 24, .num_heads = 4};
  using Turned = mha::Rotary<mha::Halves>;
  mha::MultiHeadAttention<T, typename TypeParam::Backend, Turned> layer(config);
  mha::MultiHeadAttention<double, mha::Reference, Turned> oracle(config);
  Random random("call");
  same_weights(layer, oracle, random);
  const auto x = random_rows<T>(2, 37, 24, random);
  const std::vector<Index> lengths = {11, 30};
  std::vector<Index> ids(2 * 37);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Index>(i % 37 / (i < 37 ? 10 : 23));
  expect_close(layer(x, mha::Prefix{lengths}), oracle(exact(x), mha::Prefix{lengths}), tolerance<T>());
  expect_close(layer(x, mha::Document{ids}, mha::Causal{}), oracle(exact(x), mha::Document{ids}, mha::Causal{}),
               tolerance<T>());
}

// Positions of queries that continue what was projected before: the memory's keys stand at 0 … Lk − 1.
TYPED_TEST(PolicyConformance, ProjectedMemoryAgreesWithTheDoubleReference) {
  using T = typename TypeParam::T;
  const Config config{.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .kv_model = 31, .bias = true};
  using Turned = mha::Rotary<mha::Interleaved>;
  mha::MultiHeadAttention<T, typename TypeParam::Backend, mha::GroupedQuery<2>, mha::QkNorm, Turned> layer(config);
  mha::MultiHeadAttention<double, mha::Reference, mha::GroupedQuery<2>, mha::QkNorm, Turned> oracle(config);
  Random random("memory");
  same_weights(layer, oracle, random);
  const auto x = random_rows<T>(2, 9, 24, random), memory = random_rows<T>(2, 41, 31, random);
  const auto made = layer.project_memory(memory);
  expect_close(layer(x, made), oracle(exact(x), exact(memory)), tolerance<T>());
  expect_close(layer(x, made, mha::Origin{3}), oracle(exact(x), exact(memory), mha::Origin{3}), tolerance<T>());
}

TYPED_TEST(PolicyConformance, MergedKeyRangesAgreeWithTheDoubleReference) {
  using T = typename TypeParam::T;
  using A = mha::Accumulator<T>;
  using B = typename TypeParam::Backend;
  constexpr Index batch = 2, queries = 13, keys = 150, heads = 4, kv_heads = 2, dim = 8, value_dim = 5, cut = 57;
  Random random("merge");
  mha::Tensor<T, 4> q(batch, queries, heads, dim), k(batch, keys, kv_heads, dim), v(batch, keys, kv_heads, value_dim);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  const auto part = [](const mha::Tensor<T, 4>& t, Index first, Index end) {
    mha::TensorView<const T, 4> rows = t.view();
    rows.data += first * rows.stride[1];
    rows.extent[1] = end - first;
    return rows;
  };
  struct Part {
    mha::Tensor<T, 4> out{batch, queries, heads, value_dim};
    mha::Tensor<A, 3> log_sum_exp{batch, heads, queries};
  };
  Part whole, right;
  // Of all 150 keys the queries are the last: they stand at 137 … 149, in the second part at 80 … 92.
  mha::attention_into<B>(whole.out, q, part(k, 0, cut), part(v, 0, cut), mha::Causal{}, mha::Origin{keys - queries},
                         mha::LogSumExp(whole.log_sum_exp));
  mha::attention_into<B>(right.out, q, part(k, cut, keys), part(v, cut, keys), mha::Causal{},
                         mha::Origin{keys - queries - cut}, mha::LogSumExp(right.log_sum_exp));
  mha::merge(whole.out, whole.log_sum_exp, right.out, right.log_sum_exp);

  mha::Tensor<double, 4> expected(batch, queries, heads, value_dim);
  mha::Tensor<double, 3> expected_lse(batch, heads, queries);
  mha::attention_into<mha::Reference>(expected, exact(q), exact(k), exact(v), mha::Causal{},
                                      mha::LogSumExp(expected_lse));
  expect_close(whole.out, expected, tolerance<T>());
  expect_close(whole.log_sum_exp, expected_lse, tolerance<T>());
}

}  // namespace
