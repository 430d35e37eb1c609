// SPDX-License-Identifier: Apache-2.0
// The laws of attention on the CUDA backend's kernels, as far as the host model reaches; its own promises on bits.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../laws/law.hpp"
#include "gpu_model/simulated_cuda.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;
using mha::bfloat16;
using support::SimulatedCuda;
using support::gpu::Order;

/// Runs on a device of one's choice; the defaults come back.
class On {
 public:
  explicit On(Index multiprocessors, Order order = {}) {
    SimulatedCuda::state.device.multiprocessors = multiprocessors;
    SimulatedCuda::state.order = order;
  }
  ~On() { SimulatedCuda::state = {}; }
  On(const On&) = delete;
  On& operator=(const On&) = delete;
};

template <class T> class SimulatedLaw : public testing::Test {};
using Scalars = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(SimulatedLaw, Scalars);

/// A tile of queries and a bit, some tiles of keys, head sizes of no tile.
constexpr Sizes some{.batch = 2, .heads = 2, .kv_heads = 1, .queries = 21, .keys = 83, .head_dim = 40, .value_dim = 24};

template <class F> void with_policies(F&& f) {
  f("full", mha::Full{});
  f("causal", mha::Causal{});
  f("functor, soft cap, ALiBi", laws::Strided{}, mha::SoftCap{.cap = 4}, mha::Alibi{});
}

TYPED_TEST(SimulatedLaw, RowsSumToOne) {
  support::Random random("simulated, sum");
  Inputs<TypeParam> in(some, random);
  for (auto& x : in.v) x = TypeParam(1.f);
  with_policies([&](const char* name, const auto&... policies) {
    const auto r = attend<SimulatedCuda>(in, policies...);
    for (const auto x : r.out)
      EXPECT_NEAR(support::to_double(x), 1, 2 * support::unit_roundoff<TypeParam>() + 1e-6) << name;
  });
}

TYPED_TEST(SimulatedLaw, OrderOfBlocksChangesNoBits) {
  support::Random random("simulated, order");
  const Inputs<TypeParam> many(some, random);
  const Inputs<TypeParam> few(
      {.batch = 1, .heads = 4, .kv_heads = 2, .queries = 2, .keys = 1500, .head_dim = 32, .value_dim = 32}, random);
  for (const Inputs<TypeParam>* in : {&many, &few}) {
    const auto first = attend<SimulatedCuda>(*in, mha::Causal{});
    for (const Order order : {Order{}, Order{Order::backward}, Order{Order::shuffled, 3}, Order{Order::shuffled, 4}}) {
      const On device(132, order);
      laws::expect_same_bits(attend<SimulatedCuda>(*in, mha::Causal{}), first, SimulatedCuda::state.kernel);
    }
  }
}

TYPED_TEST(SimulatedLaw, SplitsOverKeysAgreeWithOnePiece) {
  support::Random random("simulated, split");
  const Inputs<TypeParam> in(
      {.batch = 1, .heads = 2, .kv_heads = 2, .queries = 1, .keys = 2500, .head_dim = 32, .value_dim = 40}, random);
  const auto together = [&] {
    const On device(1);
    return attend<SimulatedCuda>(in);
  }();
  const auto split = attend<SimulatedCuda>(in);
  EXPECT_LE(laws::largest_difference(split.log_sum_exp, together.log_sum_exp), 1e-5);
  EXPECT_LE(laws::largest_difference(split.out, together.out), 2 * support::unit_roundoff<TypeParam>() + 1e-6);
}

TYPED_TEST(SimulatedLaw, RowsDependOnNoBatchMate) {
  support::Random random("simulated, mates");
  const Inputs<TypeParam> in(some, random);
  with_policies([&](const char* name, const auto&... policies) {
    const auto both = attend<SimulatedCuda>(in, policies...);
    for (Index b = 0; b < some.batch; ++b) {
      const auto alone =
          attend<SimulatedCuda>(laws::rows(in.q, 0, some.queries, b, 1), laws::rows(in.k, 0, some.keys, b, 1),
                                laws::rows(in.v, 0, some.keys, b, 1), policies...);
      for (Index i = 0; i < some.queries; ++i)
        for (Index h = 0; h < some.heads; ++h)
          EXPECT_TRUE(same_row(alone, 0, i, both, b, i, h)) << name << ", row " << i;
    }
  });
}

TYPED_TEST(SimulatedLaw, CausalPrefixIgnoresTheFuture) {
  support::Random random("simulated, future");
  const Sizes sizes{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 83, .keys = 83, .head_dim = 32, .value_dim = 32};
  const Inputs<TypeParam> in(sizes, random), other(sizes, random);
  const auto before = attend<SimulatedCuda>(in, mha::Causal{});
  for (const Index now : {0, 31, 64, 70}) {
    Inputs<TypeParam> changed = in;
    for (Index l = now + 1; l < sizes.keys; ++l)
      for (Index d = 0; d < 32; ++d)
        changed.k(0, l, 0, d) = other.k(0, l, 0, d), changed.v(0, l, 0, d) = other.v(0, l, 0, d);
    const auto after = attend<SimulatedCuda>(changed, mha::Causal{});
    for (Index i = 0; i <= now; ++i) EXPECT_TRUE(same_row(after, 0, i, before, 0, i, 0)) << "row " << i;
    EXPECT_FALSE(same_row(after, 0, now + 1, before, 0, now + 1, 0)) << "row " << now + 1;
  }
}

TYPED_TEST(SimulatedLaw, HiddenPoisonDoesNothing) {
  support::Random random("simulated, hidden");
  // The last key is hidden from all rows but the last, and lies in a tile that others see.
  Inputs<TypeParam> in(some, random);
  const auto seen_by_last = attend<SimulatedCuda>(in, mha::Causal{});
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool in_values : {false, true}) {
      Inputs<TypeParam> poisoned = in;
      auto& to = in_values ? poisoned.v : poisoned.k;
      for (Index d = 0; d < to.extent(3); ++d) to(0, some.keys - 1, 0, d) = TypeParam(poison);
      const auto r = attend<SimulatedCuda>(poisoned, mha::Causal{});
      for (Index b = 0; b < some.batch; ++b)
        for (Index i = 0; i < some.queries; ++i)
          for (Index h = 0; h < some.heads; ++h)
            EXPECT_EQ(same_row(r, b, i, seen_by_last, b, i, h), b == 1 || i + 1 < some.queries)
                << "row " << i << ", " << poison << (in_values ? " in a value" : " in a key");
    }
}

TYPED_TEST(SimulatedLaw, ValidNanStaysInItsRow) {
  support::Random random("simulated, NaN");
  Inputs<TypeParam> in(some, random);
  const auto clean = attend<SimulatedCuda>(in);
  in.q(0, 9, 1, 3) = TypeParam(std::numeric_limits<float>::quiet_NaN());
  const auto r = attend<SimulatedCuda>(in);
  for (Index i = 0; i < some.queries; ++i)
    for (Index h = 0; h < some.heads; ++h)
      if (i == 9 && h == 1)
        for (Index d = 0; d < some.value_dim; ++d) EXPECT_TRUE(std::isnan(support::to_double(r.out(0, i, h, d))));
      else
        EXPECT_TRUE(same_row(r, 0, i, clean, 0, i, h)) << "row " << i;
}

TYPED_TEST(SimulatedLaw, RowsWithoutKeysAreZero) {
  support::Random random("simulated, empty");
  const Inputs<TypeParam> in(
      {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 30, .keys = 12, .head_dim = 16, .value_dim = 16}, random);
  const auto r = attend<SimulatedCuda>(in, mha::Causal{});
  for (Index i = 0; i < 18; ++i) {
    EXPECT_EQ(r.log_sum_exp(0, 0, i), -std::numeric_limits<float>::infinity()) << "row " << i;
    for (Index d = 0; d < 16; ++d) EXPECT_EQ(support::to_double(r.out(0, i, 0, d)), 0) << "row " << i;
  }
  EXPECT_TRUE(std::isfinite(r.log_sum_exp(0, 0, 18)));
}

TYPED_TEST(SimulatedLaw, RaggedEqualsEachSequenceAlone) {
  support::Random random("simulated, ragged");
  const Inputs<TypeParam> in(
      {.batch = 1, .heads = 2, .kv_heads = 1, .queries = 70, .keys = 70, .head_dim = 32, .value_dim = 16}, random);
  const std::vector<Index> offsets{0, 20, 20, 53, 70};
  const auto together = attend<SimulatedCuda>(in.q, in.k, in.v, mha::Causal{}, mha::Packed{offsets});
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const Index first = offsets[s], n = offsets[s + 1] - first;
    if (n == 0) continue;
    const auto alone = attend<SimulatedCuda>(laws::rows(in.q, first, n), laws::rows(in.k, first, n),
                                             laws::rows(in.v, first, n), mha::Causal{});
    for (Index i = 0; i < n; ++i)
      for (Index h = 0; h < 2; ++h)
        EXPECT_TRUE(same_row(alone, 0, i, together, 0, first + i, h)) << "sequence " << s << ", row " << i;
  }
}

TYPED_TEST(SimulatedLaw, RepeatedKeyHeadsChangeNoBits) {
  support::Random random("simulated, groups");
  Sizes sizes = some;
  const Inputs<TypeParam> shared(sizes, random);
  sizes.kv_heads = sizes.heads;
  Inputs<TypeParam> repeated(sizes, random);
  repeated.q = shared.q;
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index l = 0; l < sizes.keys; ++l)
      for (Index h = 0; h < sizes.heads; ++h) {
        for (Index d = 0; d < sizes.head_dim; ++d) repeated.k(b, l, h, d) = shared.k(b, l, 0, d);
        for (Index d = 0; d < sizes.value_dim; ++d) repeated.v(b, l, h, d) = shared.v(b, l, 0, d);
      }
  laws::expect_same_bits(attend<SimulatedCuda>(repeated, mha::Causal{}), attend<SimulatedCuda>(shared, mha::Causal{}),
                         "groups");
}

template <class T, class... P> void check_layer(const char* name, const mha::Config& config, const P&... policies) {
  SCOPED_TRACE(name);
  support::Random random(name);
  mha::MultiHeadAttention<T, SimulatedCuda, P...> layer(config, policies...);
  mha::MultiHeadAttention<double, mha::Reference, P...> oracle(config, policies...);
  std::vector<double> values;
  layer.update([&](auto& p) {
    for (T& x : p.flat()) values.push_back(support::to_double(x = support::Random::rounded<T>(random.normal() * 0.2)));
  });
  oracle.update([&](auto& p) { std::copy(values.begin(), values.end(), p.flat().begin()); });
  mha::Tensor<T, 3> x(2, 19, config.d_model);
  random.fill(x);
  mha::Tensor<double, 3> exact(2, 19, config.d_model);
  for (std::size_t i = 0; i < x.size(); ++i) exact.data()[i] = support::to_double(x.data()[i]);
  const auto y = layer(x);
  const auto expected = oracle(exact);
  double most = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(support::to_double(y.data()[i]) - expected.data()[i]);
    if (!(difference <= worst)) worst = difference;
    most = std::max(most, std::abs(expected.data()[i]));
  }
  // Seven roundings to the storage scalar between x and y; q's and k's count as often as a logit, below 8, is large.
  EXPECT_LE(worst / most, (7 + 2 * 8) * support::unit_roundoff<T>());
}

TYPED_TEST(SimulatedLaw, LayersAgreeWithTheDoubleReference) {
  check_layer<TypeParam>("plain", {.d_model = 40, .num_heads = 4});
  check_layer<TypeParam>("grouped", {.d_model = 24, .num_heads = 6, .head_dim = 7, .value_dim = 5, .bias = true},
                         mha::GroupedQuery<2>{}, mha::SlidingWindow{.left = 11, .right = 4});
  check_layer<TypeParam>("rotary, one key head", {.d_model = 48, .num_heads = 4}, mha::MultiQuery{}, mha::Causal{},
                         mha::Rotary<mha::Halves>{}, mha::Alibi{});
}

}  // namespace
