// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/backend/systolic/attend.hpp>
#include <mha/backend/systolic/tile_product.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"
#include "units.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;
using mha::MatrixUnit;
using mha::SumOrder;

/// Fused attention with the product given, nothing else of the backend.
template <class Chosen> struct Fused {
  static constexpr const char* name = "Fused";
  using Workspace = mha::Workspace;
  mha::Support supported() const { return {}; }
  template <class T> void gemm(const mha::GemmCall<T>&, Workspace&) const {}
  template <class T> std::string explain(const mha::AttendPlan&) const { return name; }
  template <class Call> void attend(const Call& call, Workspace& workspace) const {
    systolic::attend(systolic::any_call(call, mha::current_isa()), kernels(), workspace, mha::Serial{});
  }
  template <class Call> void weights(const Call& call, mha::TensorView<float, 4> to, Workspace& workspace) const {
    systolic::weights(systolic::any_call(call, mha::current_isa()), kernels(), to, workspace, mha::Serial{});
  }
  static systolic::Kernels kernels() { return systolic::kernels_of(Chosen::unit(), mha::current_isa()); }
};

struct OfTheMachine {
  static systolic::ProductUnit unit() { return systolic::attention_unit<mha::AmxArray>(); }
};
template <SumOrder Order> struct EmulatedAs {
  static systolic::ProductUnit unit() { return systolic::emulated_unit(Order); }
};
using Hardware = Fused<OfTheMachine>;

struct Sizes {
  Index batch, queries, keys, heads, kv_heads, head_dim, value_dim;
};

template <class T> struct Case {
  mha::Tensor<T, 4> q, k, v;

  Case(const Sizes& s, const char* name)
      : q(s.batch, s.queries, s.heads, s.head_dim),
        k(s.batch, s.keys, s.kv_heads, s.head_dim),
        v(s.batch, s.keys, s.kv_heads, s.value_dim) {
    support::Random random(name);
    random.fill(q);
    random.fill(k);
    random.fill(v);
  }
};

template <class T> struct Result {
  mha::Tensor<T, 4> out;
  mha::Tensor<mha::Accumulator<T>, 3> log_sum_exp;
};

template <class B, class T, class... Extra> Result<T> attend(const Case<T>& c, const Extra&... extra) {
  Result<T> r{mha::Tensor<T, 4>(c.q.extent(0), c.q.extent(1), c.q.extent(2), c.v.extent(3)),
              mha::Tensor<mha::Accumulator<T>, 3>(c.q.extent(0), c.q.extent(2), c.q.extent(1))};
  support::poison_all(r.out);
  support::poison_all(r.log_sum_exp);
  mha::attention_into<B>(r.out, c.q, c.k, c.v, extra..., mha::LogSumExp(r.log_sum_exp));
  return r;
}

/// The tensor as the array sees it.
template <class T> mha::Tensor<double, 4> rounded(const mha::Tensor<T, 4>& t) {
  mha::Tensor<double, 4> to(t.extent(0), t.extent(1), t.extent(2), t.extent(3));
  for (std::size_t i = 0; i < t.size(); ++i)
    to.data()[i] = static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(t.data()[i]))));
  return to;
}
/// The tensor, and behind each row its absolute values.
inline mha::Tensor<double, 4> beside_magnitudes(const mha::Tensor<double, 4>& t) {
  const Index dim = t.extent(3);
  mha::Tensor<double, 4> to(t.extent(0), t.extent(1), t.extent(2), 2 * dim);
  for (std::size_t i = 0; i < t.size(); ++i) {
    const auto n = static_cast<std::size_t>(dim), at = i / n * 2 * n + i % n;
    to.data()[at] = t.data()[i];
    to.data()[at + n] = std::abs(t.data()[i]);
  }
  return to;
}

class OnUnit : public testing::TestWithParam<MatrixUnit> {
 protected:
  void SetUp() override { UNIT_OR_SKIP(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Attend, OnUnit, testing::ValuesIn(systolic::all_units), unit::unit_name);

/// Within the bound of attend()'s docstring.
template <class T, class... Extra> void expect_within_bound(const Case<T>& c, const char* what, const Extra&... extra) {
  const Result<T> got = attend<Hardware>(c, extra...);
  Case<double> exact({1, 1, 1, 1, 1, 1, 1}, "unused");
  exact.q = rounded(c.q);
  exact.k = rounded(c.k);
  exact.v = beside_magnitudes(rounded(c.v));
  const Result<double> want = attend<mha::Reference>(exact, extra...);

  const int d = c.q.extent(3);
  double most = 0;  // of scale · Σ|q||k|, through the largest elements
  double q_most = 0, k_most = 0;
  for (std::size_t i = 0; i < exact.q.size(); ++i) q_most = std::max(q_most, std::abs(exact.q.data()[i]));
  for (std::size_t i = 0; i < exact.k.size(); ++i) k_most = std::max(k_most, std::abs(exact.k.data()[i]));
  most = std::sqrt(double(d)) * q_most * k_most;
  const double epsilon = 0x1p-7 + 1e-4 + 2 * (d + 8) * 0x1p-24 * most;
  std::size_t outside = 0;
  const auto v_dim = static_cast<std::size_t>(c.v.extent(3));
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const double* const row = want.out.data() + i / v_dim * 2 * v_dim;
    const double r = row[i % v_dim], a = row[v_dim + i % v_dim];
    const double bound = (epsilon * (a + std::abs(r)) + c.k.extent(1) * 0x1p-23 * a) / (1 - epsilon) +
                         2 * support::unit_roundoff<T>() * (std::abs(r) + epsilon * a);
    if (!(std::abs(support::to_double(got.out.data()[i]) - r) <= bound)) ++outside;
  }
  EXPECT_EQ(outside, 0u) << what;
  for (std::size_t i = 0; i < want.log_sum_exp.size(); ++i) {
    const double lse = want.log_sum_exp.data()[i], x = support::to_double(got.log_sum_exp.data()[i]);
    if (std::isinf(lse))
      EXPECT_EQ(x, lse) << what;
    else
      EXPECT_NEAR(x, lse, epsilon / (1 - epsilon) + 1e-5 + std::abs(lse) * 0x1p-22) << what;
  }
}

struct Parity {
  bool operator()(Index, Index h, Index q, Index k) const { return (q + k + h) % 3 != 1; }
};
struct Distance {
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return s - 0.05f * static_cast<float>(mha::abs(q - k));
  }
};

TEST_P(OnUnit, StaysWithinTheBoundOfBfloat16) {
  const unit::ForceUnit force(GetParam());
  expect_within_bound(Case<bfloat16>({1, 200, 200, 2, 1, 64, 64}, "square"), "square");
  expect_within_bound(Case<bfloat16>({2, 37, 331, 4, 2, 80, 48}, "causal"), "causal", mha::Causal{});
  expect_within_bound(Case<float>({1, 70, 300, 2, 2, 33, 7}, "window"), "window", mha::SlidingWindow{.left = 70});
  expect_within_bound(Case<mha::half>({1, 1, 600, 6, 2, 128, 17}, "step"), "one query", mha::Causal{});
  expect_within_bound(Case<float>({1, 50, 65, 2, 1, 1, 1}, "thin"), "D = 1", Parity{});
  expect_within_bound(Case<bfloat16>({1, 90, 130, 3, 3, 40, 20}, "score"), "mask and score functors", Parity{},
                      Distance{});
  expect_within_bound(Case<float>({1, 33, 260, 2, 2, 16, 16}, "sink"), "sink", mha::Sink({0.5f, 3.f}));
}

TEST_P(OnUnit, LongAnchoredRowsStayWithinTheBound) {
  // Logits grow along the keys, so that anchors have to move, and at different blocks in different rows.
  const unit::ForceUnit force(GetParam());
  Case<float> c({1, 48, 700, 1, 1, 32, 8}, "growing");
  for (Index k = 0; k < 700; ++k)
    for (Index d = 0; d < 32; ++d) c.k(0, k, 0, d) *= 0.02f * static_cast<float>(k);
  expect_within_bound(c, "growing logits");
  expect_within_bound(c, "growing logits, causal", mha::Causal{});
}

TEST_P(OnUnit, MergedChunksStayWithinTheBound) {
  const unit::ForceUnit force(GetParam());
  constexpr Index chunk = mha::detail::simd::key_chunk;
  expect_within_bound(Case<bfloat16>({1, 3, 2 * chunk + 5, 2, 1, 40, 24}, "chunks"), "causal", mha::Causal{},
                      mha::Sink({0.5f, -INFINITY}));
  expect_within_bound(Case<float>({1, 33, chunk + 1, 1, 1, 7, 5}, "chunk and key"), "one key more", mha::Causal{});
  // Even queries see chunks 0 and 2, odd ones chunk 1, some nothing.
  const auto apart = mha::mask([](Index, Index, Index q, Index k) { return q % 5 != 1 && (k / chunk + q) % 2 == 0; });
  expect_within_bound(Case<float>({1, 6, 2 * chunk + 99, 3, 1, 33, 16}, "apart"), "hidden chunks", apart);
  expect_within_bound(Case<mha::half>({1, 4, 3 * chunk, 1, 1, 16, 48}, "none"), "all hidden",
                      mha::mask([](Index, Index, Index, Index) { return false; }));

  Case<float> c({1, 5, 3 * chunk - 70, 2, 1, 24, 17}, "levels");  // each chunk at a level of its own
  for (Index k = 0; k < 3 * chunk - 70; ++k)
    for (Index d = 0; d < 24; ++d) c.k(0, k, 0, d) *= k / chunk == 1 ? 12.f : 0.5f;
  expect_within_bound(c, "levels");
  mha::Tensor<float, 3> bias(2, 5, 3 * chunk - 70);
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 5; ++i)
      for (Index k = 0; k < 3 * chunk - 70; ++k)
        bias(h, i, k) = (k + i) % 3 == 0 || k / chunk == i % 4 ? -INFINITY : static_cast<float>(k % 7) - 3.f * float(h);
  expect_within_bound(c, "a bias of -inf", mha::AdditiveBias(bias));

  support::Random random("chunks, any shape");
  for (int n = 0; n < 4; ++n) {
    const Index kv_heads = 1 + random.below(2);
    const Sizes sizes{1 + random.below(2),
                      1 + random.below(5),
                      chunk + 1 + random.below(chunk + 99),
                      kv_heads * (1 + random.below(2)),
                      kv_heads,
                      1 + random.below(80),
                      1 + random.below(80)};
    expect_within_bound(Case<float>(sizes, "any shape"), "any shape", mha::Causal{});
  }
}

TEST_P(OnUnit, TensorsBeginAtAnyElement) {
  const unit::ForceUnit force(GetParam());
  const Case<bfloat16> c({1, 70, 150, 2, 2, 64, 32}, "any element");
  const Result<bfloat16> expected = attend<Hardware>(c);
  for (const std::ptrdiff_t start : {0, 1, 2, 3, 31}) {
    std::vector<bfloat16> q_memory(c.q.size() + 32), k_memory(c.k.size() + 32), v_memory(c.v.size() + 32);
    const auto moved = [&](const mha::Tensor<bfloat16, 4>& from, std::vector<bfloat16>& to) {
      auto v = from.view();
      v.data = std::copy(from.begin(), from.end(), to.data() + start) - from.size();
      return v;
    };
    mha::Tensor<bfloat16, 4> out(1, 70, 2, 32);
    support::poison_all(out);
    mha::attention_into<Hardware>(out, moved(c.q, q_memory), moved(c.k, k_memory), moved(c.v, v_memory));
    EXPECT_EQ(support::differing(out, expected.out), 0u) << "from element " << start;
  }
}

TEST_P(OnUnit, LargeFiniteLogitsStayNumbers) {
  // Every logit near −1e9: measured from their maximum, not from 0.
  const unit::ForceUnit force(GetParam());
  const Case<float> c({1, 20, 100, 1, 1, 16, 16}, "far");
  const auto shifted = [](auto s, Index, Index, Index, Index) { return s * 0.f - 1e9f; };
  const auto out = attend<Hardware>(c, mha::score(shifted));
  const auto want = attend<mha::Reference>(c, mha::score(shifted));
  for (std::size_t i = 0; i < out.out.size(); ++i)
    EXPECT_NEAR(out.out.data()[i], want.out.data()[i], 0.05) << i;  // every weight is 1: only v is rounded
  for (std::size_t i = 0; i < out.log_sum_exp.size(); ++i) EXPECT_EQ(out.log_sum_exp.data()[i], -1e9f);
}

TEST_P(OnUnit, HiddenNonFiniteRowsContributeNothing) {
  const unit::ForceUnit force(GetParam());
  const Case<bfloat16> clean({1, 150, 150, 2, 1, 20, 24}, "hidden");
  Case<bfloat16> dirty = clean;
  for (const Index k : {100, 101, 149}) {
    for (Index d = 0; d < 20; ++d) dirty.k(0, k, 0, d) = bfloat16(NAN);
    for (Index d = 0; d < 24; ++d) dirty.v(0, k, 0, d) = bfloat16(d % 2 == 0 ? NAN : INFINITY);
  }
  const auto want = attend<Hardware>(clean, mha::Causal{}), got = attend<Hardware>(dirty, mha::Causal{});
  for (Index i = 0; i < 150; ++i)
    for (Index h = 0; h < 2; ++h)
      for (Index d = 0; d < 24; ++d)
        if (i < 100)
          EXPECT_EQ(support::bits(got.out(0, i, h, d)), support::bits(want.out(0, i, h, d))) << i << ", " << d;
        else
          EXPECT_TRUE(std::isnan(float(got.out(0, i, h, d)))) << i << ", " << d;
}

TEST_P(OnUnit, VisibleInfiniteValueReachesOnlyWhoSeesIt) {
  const unit::ForceUnit force(GetParam());
  Case<float> c({1, 100, 100, 1, 1, 16, 16}, "infinite");
  const auto want = attend<Hardware>(c, mha::Causal{});
  c.v(0, 70, 0, 3) = INFINITY;
  const auto got = attend<Hardware>(c, mha::Causal{});
  for (Index i = 0; i < 100; ++i)
    for (Index d = 0; d < 16; ++d)
      if (i >= 70 && d == 3)
        EXPECT_EQ(got.out(0, i, 0, d), INFINITY) << i;
      else
        EXPECT_EQ(support::bits(got.out(0, i, 0, d)), support::bits(want.out(0, i, 0, d))) << i << ", " << d;
}

TEST_P(OnUnit, EmptyRowsAreZero) {
  const unit::ForceUnit force(GetParam());
  const Case<float> c({1, 70, 70, 1, 1, 16, 16}, "empty");
  const auto odd = mha::mask([](Index, Index, Index q, Index) { return q % 2 == 1; });
  const auto r = attend<Hardware>(c, odd, mha::Sink({1.f}));
  for (Index i = 0; i < 70; ++i) {
    EXPECT_EQ(std::isinf(r.log_sum_exp(0, 0, i)), i % 2 == 0);
    for (Index d = 0; d < 16; ++d) EXPECT_EQ(r.out(0, i, 0, d) == 0.f, i % 2 == 0) << i;
  }
}

TEST_P(OnUnit, WeightsAreWhatAttentionAdds) {
  const unit::ForceUnit force(GetParam());
  const Case<float> c({1, 45, 190, 2, 1, 24, 190}, "weights");
  const auto w = mha::attention_weights<Hardware>(c.q, c.k, mha::Causal{});
  const auto exact = mha::attention_weights<mha::Reference>(rounded(c.q), rounded(c.k), mha::Causal{});
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 45; ++i) {
      double sum = 0;
      for (Index k = 0; k < 190; ++k) {
        sum += double(w(0, h, i, k));
        EXPECT_NEAR(double(w(0, h, i, k)), exact(0, h, i, k), 0x1p-6 * exact(0, h, i, k));
      }
      EXPECT_NEAR(sum, 1, 1e-5);
    }
}

template <SumOrder Order> void expect_bits_of_emulation(MatrixUnit unit) {
  UNIT_OR_SKIP(unit);
  const unit::ForceUnit force(unit);
  const auto same = [](const auto& c, const char* what, const auto&... extra) {
    const auto got = attend<Hardware>(c, extra...);
    const auto want = attend<Fused<EmulatedAs<Order>>>(c, extra...);
    EXPECT_EQ(support::differing(got.out, want.out), 0u) << what;
    EXPECT_EQ(support::differing(got.log_sum_exp, want.log_sum_exp), 0u) << what;
  };
  same(Case<bfloat16>({1, 50, 90, 2, 1, 64, 40}, "bits"), "full");
  same(Case<float>({1, 67, 67, 1, 1, 33, 17}, "causal bits"), "causal", mha::Causal{});
  same(Case<mha::half>({1, 20, 300, 1, 1, 16, 16}, "window bits"), "window", mha::SlidingWindow{.left = 40});
  Case<float> growing({1, 40, 200, 1, 1, 20, 16}, "growing bits");
  for (std::size_t i = 0; i < growing.k.size(); ++i) growing.k.data()[i] *= 0.001f * static_cast<float>(i);
  same(growing, "growing", mha::Causal{}, Distance{});
}

TEST(Emulation, HasTheBitsOfAmx) { expect_bits_of_emulation<SumOrder::split_chains>(MatrixUnit::amx); }
TEST(Emulation, HasTheBitsOfDotProducts) { expect_bits_of_emulation<SumOrder::pairs>(MatrixUnit::dot_product); }
TEST(Emulation, HasTheBitsOfPortableCode) { expect_bits_of_emulation<SumOrder::chained>(MatrixUnit::portable); }

TEST(Counters, BothProductsRunOnTheArray) {
  const Case<bfloat16> c({1, 64, 128, 2, 1, 64, 32}, "counters");
  const mha::ArrayMeter meter;
  attend<Fused<EmulatedAs<SumOrder::chained>>>(c);
  const auto use = meter.use();
  EXPECT_EQ(use.useful, 2 * 64 * 128 * (64 + 32));
  EXPECT_EQ(use.issued, use.useful);
  EXPECT_EQ(use.passes, use.useful / (16 * 16 * 32));
}

}  // namespace
