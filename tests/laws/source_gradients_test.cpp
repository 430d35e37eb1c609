// SPDX-License-Identifier: Apache-2.0
// The gradients of attention over a source are those of attention over the same rows in tensors.
#include <cstddef>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "eight_bits.hpp"
#include "kv_copies.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
template <class T> using Tensor4 = mha::Tensor<T, 4>;
using Lengths = std::vector<Index>;

template <class B, class S, class Kept = S> struct On {
  using Backend = B;
  using T = S;
  using Stored = Kept;
};
template <class Setup> class SourceGradients : public testing::Test {};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::Cpu, mha::bfloat16>,
                              On<mha::Cpu, float, mha::bfloat16>, On<mha::Cpu, float, mha::half>,
                              On<mha::Cpu, float, mha::scaled_int8>, On<mha::EigenCpu, float, mha::scaled_int8>,
                              On<mha::Systolic<>, mha::bfloat16>, On<mha::EigenCpu, float>, On<mha::EigenCpu, double>,
                              On<mha::Reference, double>, On<mha::Reference, float, mha::bfloat16>>;
TYPED_TEST_SUITE(SourceGradients, Setups);

/// Rows [begin, end) of sequence b.
template <class T> Tensor4<T> cut(const Tensor4<T>& from, Index b, Index begin, Index end) {
  Tensor4<T> to(1, end - begin, from.extent(2), from.extent(3));
  for (Index i = begin; i < end; ++i)
    for (Index h = 0; h < from.extent(2); ++h)
      for (Index d = 0; d < from.extent(3); ++d) to(0, i - begin, h, d) = from(b, i, h, d);
  return to;
}
template <class T> void expect_rows(const Tensor4<T>& all, Index b, Index begin, const Tensor4<T>& rows, bool bits) {
  const Tensor4<T> got = cut(all, b, begin, begin + rows.extent(1));
  if (bits)
    EXPECT_EQ(support::differing(got, rows), 0u) << "sequence " << b << ", rows from " << begin;
  else
    EXPECT_LE(support::relative_error(got, rows), support::gradient_bound<T>) << "sequence " << b;
}

/// Sequences of these lengths, `queries` rows each, and their keys and values as the source stores them.
template <class Setup> struct Batch {
  using B = typename Setup::Backend;
  using T = typename Setup::T;
  using Stored = typename Setup::Stored;
  static constexpr bool bits = !std::is_same_v<B, mha::EigenCpu>;  // rows are at other places of Eigen's tiles

  Lengths lengths;
  BackwardCase<T> c;
  Tensor4<Stored> k, v;

  Batch(Lengths of, Index queries, Index heads = 4, Index kv_heads = 2, Index dim = 9, Index value_dim = 6)
      : lengths(std::move(of)),
        c("source gradients", {static_cast<Index>(lengths.size()), queries,
                               *std::max_element(lengths.begin(), lengths.end()), heads, kv_heads, dim, value_dim}) {
    const auto stored = [](Tensor4<T>& from) {
      if constexpr (std::is_same_v<Stored, mha::scaled_int8>) {
        return support::in_eight_bits(from);
      } else {
        Tensor4<Stored> to(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
        for (std::size_t i = 0; i < from.size(); ++i) {
          to.data()[i] = static_cast<Stored>(static_cast<mha::Accumulator<T>>(from.data()[i]));
          from.data()[i] = static_cast<T>(static_cast<mha::Accumulator<T>>(to.data()[i]));
        }
        return to;
      }
    };
    k = stored(c.k);
    v = stored(c.v);
  }
  Index queries() const { return c.q.extent(1); }
  /// The numbers of the rows, which of 8 bits have scales before them.
  mha::TensorView<const Stored, 4> keys() const { return support::numbers_of(k); }
  mha::TensorView<const Stored, 4> values() const { return support::numbers_of(v); }

  /// Sequence b, its keys as tensors.
  BackwardCase<T> alone(Index b) const {
    BackwardCase<T> one;
    const Index keys = lengths[static_cast<std::size_t>(b)];
    one.q = cut(c.q, b, 0, queries());
    one.d_out = cut(c.d_out, b, 0, queries());
    one.k = cut(c.k, b, 0, keys);
    one.v = cut(c.v, b, 0, keys);
    return one;
  }

  template <class Kv, class... Extra> auto gradients(const Kv& source, const Extra&... extra) const {
    mha::AttentionTape<T, B> tape;
    const auto out = mha::attention<B>(c.q, source, extra..., mha::record(tape));
    EXPECT_EQ(support::differing(out, mha::attention<B>(c.q, source, extra...)), 0u) << "a tape changes no bit";
    return mha::attention_backward(c.d_out, c.q, source, out, tape, extra...);
  }

  /// Gradients over the source are those of each sequence alone, over tensors, under `alone_too` as well.
  template <class Kv, class Alone, class... Extra>
  void expect_of_tensors(const Kv& source, const Alone& alone_too, const Extra&... extra) const {
    const auto g = gradients(source, extra...);
    const Index batch = static_cast<Index>(lengths.size());
    const bool even = std::all_of(lengths.begin(), lengths.end(), [&](Index n) { return n == lengths[0]; });
    ASSERT_EQ(g.key.extent(0), even ? batch : 1);
    ASSERT_EQ(g.key.extent(1), even ? lengths[0] : std::accumulate(lengths.begin(), lengths.end(), Index{0}));
    Index first = 0;
    for (Index b = 0; b < batch; ++b) {
      const auto expected = alone(b).template gradients<B>(alone_too(b), extra...);
      expect_rows(g.query, b, 0, expected.query, bits);
      expect_rows(g.key, even ? b : 0, even ? 0 : first, expected.key, bits);
      expect_rows(g.value, even ? b : 0, even ? 0 : first, expected.value, bits);
      first += lengths[static_cast<std::size_t>(b)];
    }
  }
  template <class Kv, class... Extra> void expect_of_all(const Kv& source, const Extra&... extra) const {
    expect_of_tensors(
        source, [](Index) { return mha::Full{}; }, extra...);
  }
};

TYPED_TEST(SourceGradients, AreThoseOfTensors) {
  using Stored = typename TypeParam::Stored;
  support::Random random("places");
  for (const Lengths& lengths : {Lengths{40, 40}, Lengths{70, 3, 33}, Lengths{150}}) {
    const Batch<TypeParam> n(lengths, 3);
    const mha::ContiguousKv<Stored> plain{n.keys(), n.values(), {}, n.lengths};
    const support::PagedCopy<Stored> pages(random, n.k.view(), n.v.view(), n.lengths, 16);
    n.expect_of_all(plain);
    n.expect_of_all(pages.source(), mha::Causal{});
    n.expect_of_all(pages.source(), mha::SlidingWindow{.left = 20}, mha::SoftCap{3.});
  }
}

TYPED_TEST(SourceGradients, OfRaggedQueriesTooAreThoseOfTensors) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  using Setup = Batch<TypeParam>;
  const Setup n({50, 21, 9}, 9);
  support::Random random("pages of ragged queries");
  const support::PagedCopy<typename TypeParam::Stored> pages(random, n.k.view(), n.v.view(), n.lengths, 16);
  const std::vector<Index> rows{1, 9, 4}, offsets{0, 1, 10, 14};
  Tensor4<T> q(1, 14, 4, 9), d_out(1, 14, 4, 6);
  std::vector<BackwardCase<T>> alone;
  for (Index b = 0; b < 3; ++b) {
    const auto at = static_cast<std::size_t>(b);
    auto one = n.alone(b);
    one.q = cut(one.q, 0, 0, rows[at]);
    one.d_out = cut(one.d_out, 0, 0, rows[at]);
    for (Index i = 0; i < rows[at]; ++i)
      for (Index h = 0; h < 4; ++h) {
        for (Index d = 0; d < 9; ++d) q(0, offsets[at] + i, h, d) = one.q(0, i, h, d);
        for (Index d = 0; d < 6; ++d) d_out(0, offsets[at] + i, h, d) = one.d_out(0, i, h, d);
      }
    alone.push_back(std::move(one));
  }
  mha::AttentionTape<T, B> tape;
  const mha::Ragged ragged{offsets};
  const auto out = mha::attention<B>(q, pages.source(), ragged, mha::Causal{}, mha::record(tape));
  const auto g = mha::attention_backward(d_out, q, pages.source(), out, tape, ragged, mha::Causal{});
  Index first = 0;
  for (Index b = 0; b < 3; ++b) {
    const auto at = static_cast<std::size_t>(b);
    const auto expected = alone[at].template gradients<B>(mha::Causal{});
    expect_rows(g.query, 0, offsets[at], expected.query, Setup::bits);
    expect_rows(g.key, 0, first, expected.key, Setup::bits);
    expect_rows(g.value, 0, first, expected.value, Setup::bits);
    first += n.lengths[at];
  }
}

TYPED_TEST(SourceGradients, OfWhatIsDroppedAreZero) {
  const Batch<TypeParam> n({90, 5, 64}, 4);
  for (const Index first : {0, 4}) {
    const support::RingCopy<typename TypeParam::Stored> ring(n.k.view(), n.v.view(), n.lengths, 37, first);
    n.expect_of_tensors(
        ring.source(),
        [&](Index b) { return mha::mask([&ring, b](Index, Index, Index, Index k) { return ring.holds(b, k); }); },
        mha::Causal{});
  }
}

TYPED_TEST(SourceGradients, AreAddedAndLeftOutAsThoseOfTensors) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const Batch<TypeParam> n({33, 12}, 5);
  const mha::ContiguousKv<typename TypeParam::Stored> source{n.keys(), n.values(), {}, n.lengths};
  const auto expected = n.gradients(source, mha::Causal{});
  mha::AttentionTape<T, B> tape;
  const auto out = mha::attention<B>(n.c.q, source, mha::Causal{}, mha::record(tape));
  mha::Workspace workspace;
  mha::Tensor<T, 3> key(45, 2, 9);
  support::poison_all(key);
  mha::Tensor<mha::Accumulator<T>, 3> value(45, 2, 6);
  for (auto& x : value) x = 2;
  mha::attention_backward_into({{}, key, mha::add_to(value)}, n.c.d_out, n.c.q, source, out, tape, mha::Causal{},
                               workspace);
  for (std::size_t i = 0; i < key.size(); ++i)
    ASSERT_EQ(support::bits(key.data()[i]), support::bits(expected.key.data()[i]));
  for (std::size_t i = 0; i < value.size(); ++i)
    ASSERT_NEAR(static_cast<double>(value.data()[i]), 2 + support::to_double(expected.value.data()[i]), 2e-2);
  const int allocations = workspace.allocations();
  mha::attention_backward_into({{}, key, {}}, n.c.d_out, n.c.q, source, out, tape, mha::Causal{}, workspace);
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(SourceGradientErrors, NameTheAxisAndBothValues) {
  using Setup = On<mha::Cpu, float>;
  const Batch<Setup> n({33, 12}, 5);
  const mha::ContiguousKv<float> source{n.k.view(), n.v.view(), {}, n.lengths};
  const Lengths other{33, 13}, offsets{0, 2, 5};
  const mha::ContiguousKv<float> longer{n.k.view(), n.v.view(), {}, other};
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(n.c.q, source, mha::record(tape));
  mha::Tensor<float, 3> right(45, 2, 9), wrong(44, 2, 9);
  const auto refusal = [&](const auto& kv, const mha::AttentionGradientsTo<float>& to, const auto&... extra) {
    return support::message_of<mha::ShapeError>(
        [&] { mha::attention_backward_into(to, n.c.d_out, n.c.q, kv, out, tape, extra...); });
  };
  EXPECT_EQ(refusal(source, {{}, right, {}}), "");
  EXPECT_EQ(refusal(source, {{}, wrong, {}}),
            "attention_backward: k has length 45 but the gradient of k has length 44");
  EXPECT_EQ(refusal(longer, {}),
            "attention_backward: the tape is of a call whose sequence 1 has key length 12 but here it has 13");
  EXPECT_EQ(refusal(source, {}, mha::Ragged{offsets}),
            "attention_backward: a ragged batch has batch 2, expected 1: offsets tell its sequences apart");
  EXPECT_EQ(refusal(source, {}, mha::Ragged{offsets, offsets}),
            "attention_backward: Ragged has 3 key offsets, but the lengths of the keys are the source's own: give the "
            "query offsets alone");
}

}  // namespace
