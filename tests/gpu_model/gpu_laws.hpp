// SPDX-License-Identifier: Apache-2.0
// The laws of attention on the kernels of the CUDA backend, on the host model and on a GPU alike.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

#include "../laws/every_backend.hpp"
#include "../laws/hidden.hpp"

namespace laws {

/// A Setup has a Backend, a scalar T and `static const char* missing()`, why it cannot run here, or nullptr.
template <class Setup> class GpuLaw : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const reason = Setup::missing()) GTEST_SKIP() << "this test runs on a GPU only: " << reason;
  }
};
TYPED_TEST_SUITE_P(GpuLaw);

/// A tile of queries and a bit, some tiles of keys, head sizes of no tile.
inline constexpr Sizes some{
    .batch = 2, .heads = 2, .kv_heads = 1, .queries = 21, .keys = 83, .head_dim = 40, .value_dim = 24};

template <class F> void with_policies(F&& f) {
  f("full", mha::Full{});
  f("causal", mha::Causal{});
  f("functor, soft cap, ALiBi", laws::Strided{}, mha::SoftCap{.cap = 4}, mha::Alibi{});
}

TYPED_TEST_P(GpuLaw, RowsSumToOne) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  support::Random random("gpu laws, sum");
  Inputs<T> in(some, random);
  for (auto& x : in.v) x = T(1.f);
  with_policies([&](const char* name, const auto&... policies) {
    const auto r = attend<B>(in, policies...);
    for (const auto x : r.out) EXPECT_NEAR(support::to_double(x), 1, 2 * support::unit_roundoff<T>() + 1e-6) << name;
  });
}

TYPED_TEST_P(GpuLaw, RowsDependOnNoBatchMate) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  support::Random random("gpu laws, mates");
  const Inputs<T> in(some, random);
  with_policies([&](const char* name, const auto&... policies) {
    const auto both = attend<B>(in, policies...);
    for (Index b = 0; b < some.batch; ++b) {
      const auto alone = attend<B>(laws::rows(in.q, 0, some.queries, b, 1), laws::rows(in.k, 0, some.keys, b, 1),
                                   laws::rows(in.v, 0, some.keys, b, 1), policies...);
      for (Index i = 0; i < some.queries; ++i)
        for (Index h = 0; h < some.heads; ++h)
          EXPECT_TRUE(same_row(alone, 0, i, both, b, i, h)) << name << ", row " << i;
    }
  });
}

TYPED_TEST_P(GpuLaw, CausalPrefixIgnoresTheFuture) {
  support::Random random("gpu laws, future");
  constexpr Index positions[] = {0, 31, 64, 70};
  expect_no_future<typename TypeParam::Backend, typename TypeParam::T>(
      {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 83, .keys = 83, .head_dim = 32, .value_dim = 32}, random,
      positions);
}

TYPED_TEST_P(GpuLaw, HiddenPoisonDoesNothing) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  support::Random random("gpu laws, hidden");
  // The last key is hidden from all rows but the last, and lies in a tile that others see.
  Inputs<T> in(some, random);
  const auto seen_by_last = attend<B>(in, mha::Causal{});
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool in_values : {false, true}) {
      Inputs<T> poisoned = in;
      auto& to = in_values ? poisoned.v : poisoned.k;
      for (Index d = 0; d < to.extent(3); ++d) to(0, some.keys - 1, 0, d) = T(poison);
      const auto r = attend<B>(poisoned, mha::Causal{});
      for (Index b = 0; b < some.batch; ++b)
        for (Index i = 0; i < some.queries; ++i)
          for (Index h = 0; h < some.heads; ++h)
            EXPECT_EQ(same_row(r, b, i, seen_by_last, b, i, h), b == 1 || i + 1 < some.queries)
                << "row " << i << ", " << poison << (in_values ? " in a value" : " in a key");
    }
}

TYPED_TEST_P(GpuLaw, ValidNanStaysInItsRow) {
  support::Random random("gpu laws, NaN");
  expect_nan_in_one_row<typename TypeParam::Backend>(Inputs<typename TypeParam::T>(some, random), 9, 1);
}

TYPED_TEST_P(GpuLaw, RowsWithoutKeysAreZero) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  support::Random random("gpu laws, empty");
  const Inputs<T> in(
      {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 30, .keys = 12, .head_dim = 16, .value_dim = 16}, random);
  const auto r = attend<B>(in, mha::Causal{});
  for (Index i = 0; i < 18; ++i) {
    EXPECT_EQ(r.log_sum_exp(0, 0, i), -std::numeric_limits<float>::infinity()) << "row " << i;
    for (Index d = 0; d < 16; ++d) EXPECT_EQ(support::to_double(r.out(0, i, 0, d)), 0) << "row " << i;
  }
  EXPECT_TRUE(std::isfinite(r.log_sum_exp(0, 0, 18)));
}

TYPED_TEST_P(GpuLaw, RaggedEqualsEachSequenceAlone) {
  support::Random random("gpu laws, ragged");
  const Inputs<typename TypeParam::T> in(
      {.batch = 1, .heads = 2, .kv_heads = 1, .queries = 70, .keys = 70, .head_dim = 32, .value_dim = 16}, random);
  expect_causal_rows_of_each<typename TypeParam::Backend>(Sequences{{20, 0, 33, 17}}, in, {-3, 9, 0, 12});
}

TYPED_TEST_P(GpuLaw, RepeatedKeyHeadsChangeNoBits) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  support::Random random("gpu laws, groups");
  Sizes sizes = some;
  const Inputs<T> shared(sizes, random);
  sizes.kv_heads = sizes.heads;
  Inputs<T> repeated(sizes, random);
  repeated.q = shared.q;
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index l = 0; l < sizes.keys; ++l)
      for (Index h = 0; h < sizes.heads; ++h) {
        for (Index d = 0; d < sizes.head_dim; ++d) repeated.k(b, l, h, d) = shared.k(b, l, 0, d);
        for (Index d = 0; d < sizes.value_dim; ++d) repeated.v(b, l, h, d) = shared.v(b, l, 0, d);
      }
  laws::expect_same_bits(attend<B>(repeated, mha::Causal{}), attend<B>(shared, mha::Causal{}), "groups");
}

/// In different tiles of every kernel, some that no causal row but the last ones sees.
inline constexpr Index poisoned_keys[] = {0, 31, 64, 128, 148};
/// Those of a Setup that is slow are its own.
template <class Setup> constexpr std::span<const Index> poisoned_keys_of() {
  if constexpr (requires { Setup::poisoned_keys; })
    return Setup::poisoned_keys;
  else
    return poisoned_keys;
}

TYPED_TEST_P(GpuLaw, PoisonBehindAMaskDoesNothing) {
  for (const laws::Sizes& sizes : laws::hidden_sizes)
    laws::expect_masks_to_hide<typename TypeParam::Backend, typename TypeParam::T>(poisoned_keys_of<TypeParam>(), sizes,
                                                                                   [](const auto& f) { f(); });
}

TYPED_TEST_P(GpuLaw, PoisonBehindAScoreOfMinusInfinityDoesNothing) {
  for (const laws::Sizes& sizes : laws::hidden_sizes)
    laws::expect_scores_to_hide<typename TypeParam::Backend, typename TypeParam::T>(poisoned_keys_of<TypeParam>(),
                                                                                    sizes, [](const auto& f) { f(); });
}

REGISTER_TYPED_TEST_SUITE_P(GpuLaw, RowsSumToOne, RowsDependOnNoBatchMate, CausalPrefixIgnoresTheFuture,
                            HiddenPoisonDoesNothing, ValidNanStaysInItsRow, RowsWithoutKeysAreZero,
                            RaggedEqualsEachSequenceAlone, RepeatedKeyHeadsChangeNoBits, PoisonBehindAMaskDoesNothing,
                            PoisonBehindAScoreOfMinusInfinityDoesNothing);

}  // namespace laws
