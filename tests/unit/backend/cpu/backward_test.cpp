// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "gradient_oracles.hpp"
#include "one_head.hpp"
#include "random.hpp"

namespace {

using mha::Index;
namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;
using support::BackwardCase;
using support::BackwardSizes;
using One = mha::CpuWith<mha::Serial>;

struct Bent {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return mha::tanh(s * 0.5f) * (1 + 0.25f * static_cast<float>(h) + 0.125f * static_cast<float>(b)) -
           0.1f * static_cast<float>(mha::abs(q - k));
  }
};

/// Norm-wise errors that the scalar's rounding explains; of 16-bit results most is the rounding of the result itself.
template <class T> constexpr double bound = 5e-3;
template <> constexpr double bound<mha::bfloat16> = 3e-2;
template <> constexpr double bound<float> = 5e-6;
template <> constexpr double bound<double> = 1e-13;

class CpuBackward : public testing::Test {
 protected:
  void TearDown() override { mha::force_isa(level_); }

 private:
  mha::IsaLevel level_ = mha::current_isa();
};

/// Gradients of the case within the scalar's bound of the expected ones.
template <class T, class G, class Expected>
void expect_near(const BackwardCase<T>& c, const G& g, const Expected& expected) {
  // A query that sees one key has the gradient 0, the difference of two sums, one of which is of rounded outputs.
  const double least = (sizeof(T) == 2 ? 0.3 : 0.1) * std::sqrt(support::inner(c.d_out, c.d_out));
  EXPECT_LT(support::relative_error(g.query, expected.query, least), bound<T>);
  EXPECT_LT(support::relative_error(g.key, expected.key, least), bound<T>);
  EXPECT_LT(support::relative_error(g.value, expected.value, least), bound<T>);
  if (expected.sink.size() > 0) {
    EXPECT_LT(support::relative_error(g.sink, expected.sink, 1), bound<T>);  // sums of weights of one key
  }
}
template <class T, class... Extra>
void expect_right(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  SCOPED_TRACE(name);
  const BackwardCase<T> c(name, n);
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  expect_near(c, c.template gradients<One>(extra...), expected);
}
/// The same at every level, beside one reference.
template <class T, class... Extra>
void expect_right_at_every_level(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  SCOPED_TRACE(name);
  const BackwardCase<T> c(name, n);
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    SCOPED_TRACE(mha::to_string(mha::current_isa()));
    expect_near(c, c.template gradients<One>(extra...), expected);
  }
}

template <class T> void expect_right_everywhere() {
  support::Random random("sizes");
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    SCOPED_TRACE(mha::to_string(mha::current_isa()));
    const auto sizes = [&] {
      const int kv_heads = 1 + random.below(3);
      return BackwardSizes{1 + random.below(2),
                           1 + random.below(100),
                           1 + random.below(210),
                           kv_heads * (1 + random.below(2)),
                           kv_heads,
                           1 + random.below(40),
                           1 + random.below(40)};
    };
    const auto n = sizes();
    expect_right<T>("full", n);
    expect_right<T>("causal", sizes(), mha::Causal{});
    expect_right<T>("more queries than keys", {1, 201, 97, 2, 1, 16, 32}, mha::Causal{});
    const auto windowed = sizes();
    expect_right<T>("window", windowed, mha::SlidingWindow{.left = 20, .right = 3},
                    mha::Scale{1.5 / std::sqrt(windowed.head_dim)});
    expect_right<T>("mask of a user", sizes(),
                    mha::mask([](auto, auto h, auto q, auto k) { return (q * k + h) % 3 != 0; }));
    expect_right<T>("soft cap", sizes(), mha::SoftCap{0.7f}, mha::Causal{});
    expect_right<T>("alibi", sizes(), mha::Alibi{});
    expect_right<T>("functor", sizes(), Bent{}, mha::Origin{5});
    const auto m = sizes();
    mha::Tensor<float, 4> bias(m.batch, m.heads, m.queries, m.keys);
    support::Random("bias").fill(bias);
    for (float& x : bias)
      if (x > 1) x = -std::numeric_limits<float>::infinity();
    expect_right<T>("bias", m, Bent{}, mha::AdditiveBias{bias});
    std::vector<float> sinks(static_cast<std::size_t>(m.heads));
    for (float& x : sinks) x = static_cast<float>(random.normal());
    expect_right<T>("sink", m, mha::Sink(sinks), mha::Causal{});
    const mha::Dropout dropout{.p = 0.3f};
    expect_right<T>("dropout", sizes(), dropout, mha::DropoutSeed{support::seed()});
    expect_right<T>("dropout, window, soft cap", sizes(), mha::SlidingWindow{.left = 150, .right = 3}, dropout,
                    mha::SoftCap{3.f}, mha::DropoutSeed{support::seed(), 1});
    expect_right<T>("dropout, sink", m, mha::Sink(sinks), mha::Causal{}, dropout, mha::DropoutSeed{support::seed(), 2});
    expect_right<T>("one query", {2, 1, 200, 4, 2, 24, 8}, mha::Causal{});
    expect_right<T>("long", {1, 310, 330, 1, 1, 8, 8}, mha::Causal{});
  }
}

TEST_F(CpuBackward, EqualsTheReferenceInFloat) { expect_right_everywhere<float>(); }
TEST_F(CpuBackward, EqualsTheReferenceInDouble) { expect_right_everywhere<double>(); }
TEST_F(CpuBackward, EqualsTheReferenceInBfloat16) { expect_right_everywhere<mha::bfloat16>(); }
TEST_F(CpuBackward, EqualsTheReferenceInHalf) { expect_right_everywhere<mha::half>(); }

template <class T> void expect_right_at_head_sizes_of_models() {
  // Two blocks of keys, and tiles of queries of which the last is not full.
  const auto expect = [](int head_dim, int value_dim) {
    const BackwardSizes n{1, 53, 101, 4, 2, head_dim, value_dim};
    const std::string sizes = std::to_string(head_dim) + " and " + std::to_string(value_dim);
    expect_right_at_every_level<T>("full, " + sizes, n);
    expect_right_at_every_level<T>("causal, " + sizes, n, mha::Causal{});
  };
  for (const int dim : {64, 96, 128, 256}) expect(dim, dim);
  expect(192, 128);
}
TEST_F(CpuBackward, EqualsTheReferenceAtHeadSizesOfModelsInFloat) { expect_right_at_head_sizes_of_models<float>(); }
TEST_F(CpuBackward, EqualsTheReferenceAtHeadSizesOfModelsInDouble) { expect_right_at_head_sizes_of_models<double>(); }

template <class T> void expect_right_after_chunks_of_keys() {
  constexpr int keys = 2 * simd::key_chunk + 77;
  for (const int queries : {3, 40}) {  // in few rows, and in lanes
    const BackwardSizes n{1, queries, keys, 2, 1, 16, 24};
    const std::string rows = std::to_string(queries) + " queries";
    expect_right_at_every_level<T>("full, " + rows, n);
    expect_right_at_every_level<T>("causal, " + rows, n, mha::Causal{});
    expect_right_at_every_level<T>("steep, " + rows, n, mha::Scale{0.5}, mha::Sink({0.5f, -1.f}));
  }
}
TEST_F(CpuBackward, EqualsTheReferenceOfRowsMergedFromChunksOfKeysInFloat) {
  expect_right_after_chunks_of_keys<float>();
}
TEST_F(CpuBackward, EqualsTheReferenceOfRowsMergedFromChunksOfKeysInDouble) {
  expect_right_after_chunks_of_keys<double>();
}

TEST_F(CpuBackward, DifferentiatesThroughTheLogSumExp) {
  const BackwardSizes n{2, 90, 70, 4, 2, 24, 16};  // the first queries see no key
  const BackwardCase<double> c("log-sum-exp", n);
  mha::Tensor<double, 3> d_lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  const mha::Sink sink({0.5f, -1.f, 2.f, 0.f});
  const auto on = [&](const auto& backend) {
    mha::AttentionTape<double, std::remove_cvref_t<decltype(backend)>> tape;
    const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, sink, backend, mha::record(tape));
    return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, sink, backend,
                                   mha::LogSumExpGradient(d_lse));
  };
  const auto g = on(One{}), expected = on(mha::Reference{});
  EXPECT_LT(support::relative_error(g.query, expected.query), bound<double>);
  EXPECT_LT(support::relative_error(g.key, expected.key), bound<double>);
  EXPECT_LT(support::relative_error(g.value, expected.value), bound<double>);
  EXPECT_LT(support::relative_error(g.sink, expected.sink), bound<double>);
}

TEST_F(CpuBackward, KeepsTheLogSumExpsGradientUnderALargeSink) {
  // Weights with a sink of 300 underflow in float; the log-sum-exp's derivative has weights without it.
  const BackwardSizes n{2, 90, 110, 4, 2, 24, 16};
  const BackwardCase<float> c("large sink", n);
  const BackwardCase<double> wide = c.as<double>();
  mha::Tensor<float, 3> d_lse(n.batch, n.heads, n.queries);
  mha::Tensor<double, 3> wide_d_lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  std::copy(d_lse.begin(), d_lse.end(), wide_d_lse.begin());
  const mha::Sink sink({300.f, -1.f, 95.f, 85.f});
  const auto on = [&](const auto& at, const auto& d, const auto& backend, const auto&... extra) {
    using T = mha::ScalarOf<decltype(at.q)>;
    mha::AttentionTape<T, std::remove_cvref_t<decltype(backend)>> tape;
    const auto out = mha::attention(at.q, at.k, at.v, sink, backend, mha::record(tape), extra...);
    return mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, sink, backend, mha::LogSumExpGradient(d),
                                   extra...);
  };
  const auto head = [&](const auto& x, Index h) {  // alone, or the other heads hide its error
    mha::Tensor<double, 4> part(n.batch, x.extent(1), 1, x.extent(3));
    for (Index b = 0; b < n.batch; ++b)
      for (Index i = 0; i < x.extent(1); ++i)
        for (Index d = 0; d < x.extent(3); ++d) part(b, i, 0, d) = x(b, i, h, d);
    return part;
  };
  const double least = 0.1 * std::sqrt(support::inner(c.d_out, c.d_out));  // a sum of terms of either sign
  const auto expect = [&](const auto&... extra) {
    const auto expected = on(wide, wide_d_lse, mha::Reference{}, extra...);
    for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
      mha::force_isa(static_cast<mha::IsaLevel>(level));
      const auto g = on(c, d_lse, One{}, extra...);
      for (Index h = 0; h < n.heads; ++h)
        EXPECT_LT(support::relative_error(head(g.query, h), head(expected.query, h)), bound<float>) << h;
      for (Index h = 0; h < n.kv_heads; ++h)
        EXPECT_LT(support::relative_error(head(g.key, h), head(expected.key, h)), bound<float>) << h;
      EXPECT_LT(support::relative_error(g.value, expected.value), bound<float>);
      EXPECT_LT(support::relative_error(g.sink, expected.sink, least), bound<float>);
    }
  };
  expect();
  expect(mha::Causal{}, mha::SoftCap{2.f});
  expect(mha::mask([](auto, auto h, auto q, auto k) { return (q * k + h) % 3 != 0; }), Bent{});
}

template <class G> void expect_same_bits(const G& a, const G& b) {
  EXPECT_EQ(support::differing(a.query, b.query), 0u);
  EXPECT_EQ(support::differing(a.key, b.key), 0u);
  EXPECT_EQ(support::differing(a.value, b.value), 0u);
  EXPECT_EQ(support::differing(a.sink, b.sink), 0u);
}

TEST_F(CpuBackward, HasTheSameBitsForAnyThreads) {
  using Pool = mha::CpuWith<mha::ThreadPool>;
  // Pieces of one head, two of queries and of keys; heads, whose keys are in two pieces, and in one.
  for (const BackwardSizes n : {BackwardSizes{1, 310, 450, 1, 1, 16, 16}, BackwardSizes{2, 61, 350, 4, 2, 24, 40},
                                BackwardSizes{3, 41, 99, 6, 2, 32, 32}}) {
    const BackwardCase<float> c("threads", n);
    const mha::Sink sink(std::vector<float>(static_cast<std::size_t>(n.heads), 0.5f));
    mha::Tensor<float, 3> d_lse(n.batch, n.heads, n.queries);
    support::Random("d_lse").fill(d_lse);
    const auto on = [&](const auto& backend, const auto&... dropout) {
      mha::AttentionTape<float, std::remove_cvref_t<decltype(backend)>> tape;
      const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, sink, backend, mha::record(tape), dropout...);
      return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, sink, backend,
                                     mha::LogSumExpGradient(d_lse), dropout...);
    };
    const auto alone = on(One{});
    const mha::Dropout dropout{.p = 0.2f}, nothing{.p = 0.f};
    const mha::DropoutSeed seed{support::seed()};
    const auto dropped = on(One{}, dropout, seed);
    EXPECT_GT(support::differing(dropped.query, alone.query), 0u);
    expect_same_bits(on(One{}, nothing, seed), alone);
    expect_same_bits(on(One{}, dropout), alone);
    for (const int threads : {1, 2, 3, 5, 7}) {
      const Pool pool(mha::ThreadPool{threads});
      expect_same_bits(on(pool), alone);
      expect_same_bits(on(pool, dropout, seed), dropped);
    }
  }
}

TEST_F(CpuBackward, ASequencesGradientsDoNotDependOnItsBatch) {
  const BackwardSizes n{3, 100, 130, 4, 2, 24, 16};
  const BackwardCase<float> c("batch", n);
  const auto all = c.gradients<mha::Cpu>(mha::Causal{});
  for (Index b = 0; b < 3; ++b) {
    const auto one = [&](const mha::Tensor<float, 4>& t) {
      mha::Tensor<float, 4> part(1, t.extent(1), t.extent(2), t.extent(3));
      std::copy_n(&t(b, 0, 0, 0), part.size(), part.data());
      return part;
    };
    BackwardCase<float> alone;
    alone.q = one(c.q);
    alone.k = one(c.k);
    alone.v = one(c.v);
    alone.d_out = one(c.d_out);
    const auto g = alone.gradients<mha::Cpu>(mha::Causal{});
    EXPECT_EQ(support::differing(g.query, one(all.query)), 0u);
    EXPECT_EQ(support::differing(g.key, one(all.key)), 0u);
    EXPECT_EQ(support::differing(g.value, one(all.value)), 0u);
  }
}

TEST_F(CpuBackward, AQuerysGradientDoesNotDependOnTheOthers) {
  const BackwardSizes n{1, 120, 200, 2, 1, 24, 16};
  const BackwardCase<float> c("queries", n);
  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed()};
  const auto all = c.gradients<One>(mha::Causal{}), dropped = c.gradients<One>(mha::Causal{}, dropout, seed);
  for (const Index first : {1, 50, 119}) {
    const auto rest = [&](const mha::Tensor<float, 4>& t) {
      mha::Tensor<float, 4> part(1, t.extent(1) - first, t.extent(2), t.extent(3));
      std::copy_n(&t(0, first, 0, 0), part.size(), part.data());
      return part;
    };
    BackwardCase<float> late;
    late.q = rest(c.q);
    late.k = c.k;
    late.v = c.v;
    late.d_out = rest(c.d_out);
    EXPECT_EQ(support::differing(late.gradients<One>(mha::Causal{}).query, rest(all.query)), 0u);
    EXPECT_EQ(support::differing(late.gradients<One>(mha::Causal{}, dropout, seed).query, rest(dropped.query)), 0u);
  }
}

TEST_F(CpuBackward, HiddenNaNIsInertAndAVisibleOnePropagates) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    BackwardCase<float> c("nan", {1, 130, 130, 2, 1, 20, 12});
    const auto clean = c.gradients<One>(mha::Causal{});
    for (Index d = 0; d < 12; ++d) c.v(0, 100, 0, d) = c.k(0, 100, 0, d) = nan;
    const auto keys = c.gradients<One>(mha::Causal{});
    for (Index i = 0; i < 100; ++i)
      for (Index d = 0; d < 20; ++d) EXPECT_EQ(keys.query(0, i, 1, d), clean.query(0, i, 1, d));
    EXPECT_TRUE(std::isnan(keys.query(0, 100, 0, 0)));
    EXPECT_TRUE(std::isnan(keys.key(0, 3, 0, 0)));
    EXPECT_TRUE(std::isnan(keys.value(0, 129 - 29, 0, 0)));

    BackwardCase<float> other("nan", {1, 130, 130, 2, 1, 20, 12});
    for (Index d = 0; d < 12; ++d) other.d_out(0, 60, 1, d) = other.q(0, 60, 1, d) = nan;
    const auto queries = other.gradients<One>(mha::Causal{});
    for (Index k = 61; k < 130; ++k)
      for (Index d = 0; d < 12; ++d) {
        EXPECT_EQ(queries.key(0, k, 0, d), clean.key(0, k, 0, d));
        EXPECT_EQ(queries.value(0, k, 0, d), clean.value(0, k, 0, d));
      }
    for (Index k = 0; k <= 60; ++k) EXPECT_TRUE(std::isnan(queries.value(0, k, 0, 0)));
    EXPECT_TRUE(std::isnan(queries.query(0, 60, 1, 3)));
    EXPECT_EQ(queries.query(0, 60, 0, 3), clean.query(0, 60, 0, 3));
    EXPECT_EQ(queries.query(0, 61, 1, 3), clean.query(0, 61, 1, 3));
  }
}

TEST_F(CpuBackward, EmptyRowsGiveExactlyNothing) {
  BackwardCase<float> c("empty", {2, 90, 40, 2, 1, 8, 8});  // 50 queries see no key
  const auto clean = c.gradients<One>(mha::Causal{});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 50; ++i)
      for (Index d = 0; d < 8; ++d) c.d_out(b, i, 0, d) = c.q(b, i, 1, d) = std::numeric_limits<float>::quiet_NaN();
  expect_same_bits(c.gradients<One>(mha::Causal{}), clean);
  for (Index d = 0; d < 8; ++d) EXPECT_EQ(support::bits(clean.query(1, 49, 1, d)), 0u);
}

TEST_F(CpuBackward, KeepsRowsWhoseLogitsAreFarFromZero) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    EXPECT_LT(support::FarRows<float>().error<One>(), 5e-6);
    EXPECT_LT(support::FarRows<double>().error<One>(), 1e-6);  // what double keeps of a logit beside −10⁹
    EXPECT_LT(support::FarRows<mha::bfloat16>().error<One>(), 1e-2);
  }
}

template <class T> void expect_at_most_twice_the_error() {
  for (const double size : {0.5, 2.}) {
    BackwardCase<float> in("plain", {1, 260, 260, 1, 1, 64, 64});
    for (float& x : in.q) x *= static_cast<float>(size);
    const auto c = in.as<T>();
    const auto plain = support::plain_16_bit(c);
    const auto expected = c.template as<double>().template gradients<mha::Reference>(mha::Causal{});
    for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
      mha::force_isa(static_cast<mha::IsaLevel>(level));
      const auto g = c.template gradients<One>(mha::Causal{});
      EXPECT_LT(support::relative_error(g.query, expected.query), 2 * support::relative_error(plain.q, expected.query));
      EXPECT_LT(support::relative_error(g.key, expected.key), 2 * support::relative_error(plain.k, expected.key));
      EXPECT_LT(support::relative_error(g.value, expected.value), 2 * support::relative_error(plain.v, expected.value));
    }
  }
}
TEST_F(CpuBackward, ErrsAtMostTwiceAsMuchAsAPlain16BitImplementation) {
  expect_at_most_twice_the_error<mha::bfloat16>();
  expect_at_most_twice_the_error<mha::half>();
}

TEST_F(CpuBackward, RecordingChangesNoBitOfTheOutput) {
  for (const int queries : {3, 200}) {
    const BackwardCase<float> c("recording", {1, queries, 5000, 2, 1, 16, 16});  // more than a chunk of keys
    mha::AttentionTape<float> tape;
    const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, mha::record(tape));
    EXPECT_EQ(support::differing(out, mha::attention(c.q, c.k, c.v, mha::Causal{})), 0u);
  }
}

TEST_F(CpuBackward, WritesWhatIsWantedAnyStridesAndAdds) {
  const BackwardSizes n{2, 50, 60, 4, 2, 12, 20};
  const BackwardCase<mha::bfloat16> c("destinations", n);
  mha::AttentionTape<mha::bfloat16> tape;
  mha::Workspace workspace;
  const auto out = mha::attention(c.q, c.k, c.v, Bent{}, mha::record(tape), workspace);
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  mha::Tensor<float, 4> dq(2, 50, 4, 12);
  std::vector<float> transposed(2 * 60 * 2 * 20, 3.f);
  const mha::TensorView<float, 4> dv{transposed.data(), {2, 60, 2, 20}, {60 * 2 * 20, 1, 60 * 20, 60}};
  const int allocations = workspace.allocations();
  mha::attention_backward_into({dq, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  mha::attention_backward_into({{}, {}, mha::add_to(dv)}, c.d_out, c.q, c.k, c.v, out, tape, Bent{}, workspace);
  EXPECT_LE(workspace.allocations(), allocations + 1);
  for (std::size_t i = 0; i < dq.size(); ++i)
    EXPECT_EQ(support::bits(mha::bfloat16(dq.data()[i])), support::bits(g.query.data()[i]));
  mha::Tensor<float, 4> wide(2, 60, 2, 20);
  mha::attention_backward_into({{}, {}, wide}, c.d_out, c.q, c.k, c.v, out, tape, Bent{});
  for (Index k = 0; k < 60; ++k)
    for (Index d = 0; d < 20; ++d) EXPECT_EQ(dv(1, k, 1, d), (3 + wide(1, k, 1, d)) + wide(1, k, 1, d));
}

/// The same numbers, each head's rows along the axis that is contiguous.
template <class T> struct Turned {
  std::vector<T> memory;
  mha::TensorView<const T, 4> view;

  explicit Turned(const mha::Tensor<T, 4>& x) : memory(x.size()) {
    const Index b = x.extent(0), n = x.extent(1), h = x.extent(2), d = x.extent(3);
    const mha::TensorView<T, 4> to{
        memory.data(), {b, n, h, d}, {std::ptrdiff_t{h} * d * n, 1, std::ptrdiff_t{d} * n, n}};
    for (Index i = 0; i < b; ++i)
      for (Index l = 0; l < n; ++l)
        for (Index g = 0; g < h; ++g)
          for (Index e = 0; e < d; ++e) to(i, l, g, e) = x(i, l, g, e);
    view = to;
  }
};
template <class T> void expect_reads_any_strides() {
  const BackwardCase<T> c("strides", BackwardSizes{2, 50, 60, 4, 2, 11, 21});
  mha::AttentionTape<T> tape;
  const auto out = mha::attention(c.q, c.k, c.v, Bent{}, mha::record(tape));
  const auto expected = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, Bent{});
  const Turned<T> q(c.q), k(c.k), v(c.v), d_out(c.d_out), result(out);
  const auto g = mha::attention_backward(d_out.view, q.view, k.view, v.view, result.view, tape, Bent{});
  EXPECT_EQ(support::differing(g.query, expected.query), 0u);
  EXPECT_EQ(support::differing(g.key, expected.key), 0u);
  EXPECT_EQ(support::differing(g.value, expected.value), 0u);
}

TEST_F(CpuBackward, ReadsAnyStrides) {
  expect_reads_any_strides<float>();
  expect_reads_any_strides<double>();
  expect_reads_any_strides<mha::bfloat16>();
}

TEST_F(CpuBackward, RaggedSequencesAreSequencesApart) {
  const std::vector<Index> queries{0, 70, 70, 75}, keys{0, 20, 60, 260};
  const BackwardCase<float> c("ragged", {1, 75, 260, 4, 2, 16, 24});
  const auto ragged = c.gradients<One>(mha::Causal{}, mha::Ragged{queries, keys});
  const auto reference = c.as<double>().gradients<mha::Reference>(mha::Causal{}, mha::Ragged{queries, keys});
  EXPECT_LT(support::relative_error(ragged.query, reference.query), bound<float>);
  EXPECT_LT(support::relative_error(ragged.key, reference.key), bound<float>);
  EXPECT_LT(support::relative_error(ragged.value, reference.value), bound<float>);
  expect_same_bits(c.gradients<mha::Cpu>(mha::Causal{}, mha::Ragged{queries, keys}), ragged);
  for (Index k = 20; k < 60; ++k) EXPECT_EQ(ragged.value(0, k, 0, 0), 0);  // the second has no queries

  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed()};
  const auto dropped = c.gradients<One>(mha::Causal{}, mha::Ragged{queries, keys}, dropout, seed);
  const auto expected =
      c.as<double>().gradients<mha::Reference>(mha::Causal{}, mha::Ragged{queries, keys}, dropout, seed);
  EXPECT_LT(support::relative_error(dropped.query, expected.query), bound<float>);
  EXPECT_LT(support::relative_error(dropped.key, expected.key), bound<float>);
  EXPECT_LT(support::relative_error(dropped.value, expected.value), bound<float>);
}

TEST_F(CpuBackward, EmptyTensorsAreNoError) {
  for (const BackwardSizes n : {BackwardSizes{.batch = 0}, BackwardSizes{.queries = 0}, BackwardSizes{.keys = 0},
                                BackwardSizes{.value_dim = 0}}) {
    const BackwardCase<float> c("no elements", n);
    const auto g = c.gradients<mha::Cpu>();
    for (const float x : g.query) EXPECT_EQ(x, 0);
    for (const float x : g.key) EXPECT_EQ(x, 0);
    for (const float x : g.value) EXPECT_EQ(x, 0);
  }
}

/// The pieces of one head in an order of the caller's.
struct HeadInPieces : support::OneHead<mha::Cpu> {
  HeadInPieces() : OneHead(support::BackwardCase<float>("one head", {1, 700, 800, 1, 1, 24, 16})) {}

  template <class Order> void run(const Order& order) {
    const auto call = this->call();
    const auto level = mha::current_isa();
    const cpu::AnyBackwardCall<float> any(call, level);
    const auto kernels = simd::backward_kernels<float>(level, 700);
    const cpu::BackwardTiling tiling(kernels.tile, 24, 16);
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const cpu::HeadMemory<float> memory(frame, tiling, 700, 800, 24, 16);
    const cpu::BackwardScratch<float> scratch(frame, tiling.lanes);
    const cpu::HeadBackward<float> head(any, level, kernels, tiling, memory, 0, 0);
    support::run_in_pieces(head, scratch, order);
  }
};

TEST(HeadBackward, PiecesGiveTheSameBitsInEveryOrderThatIsAllowed) {
  HeadInPieces by_keys, by_queries, by_waves;
  by_keys.run(support::by_keys);
  by_queries.run([](Index rows, Index columns, auto&& piece) {
    for (Index n = 0; n < rows; ++n)
      for (Index m = 0; m < columns; ++m) piece(n, m);
  });
  by_waves.run(support::by_waves);
  for (const HeadInPieces* const other : {&by_queries, &by_waves}) {
    EXPECT_EQ(support::differing(other->dq, by_keys.dq), 0u);
    EXPECT_EQ(support::differing(other->dk, by_keys.dk), 0u);
    EXPECT_EQ(support::differing(other->dv, by_keys.dv), 0u);
  }
  const auto expected = by_keys.c.as<double>().gradients<mha::Reference>(mha::Causal{});
  EXPECT_LT(support::relative_error(by_keys.dk, expected.key), 5e-6);
}

}  // namespace
