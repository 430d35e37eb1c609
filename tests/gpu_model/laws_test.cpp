// SPDX-License-Identifier: Apache-2.0
// The laws of attention on the CUDA backend's kernels, as far as the host model reaches; its own promises on bits.
#include <type_traits>

#include <mha/mha.hpp>

#include "../conformance/layers.hpp"
#include "gpu_laws.hpp"
#include "kernels.hpp"

namespace {

template <class Scalar> struct Simulated {
  using Backend = support::SimulatedCuda;
  using T = Scalar;
  static const char* missing() { return nullptr; }
  static constexpr laws::Index poisoned_keys[] = {0, 64, 148};
};
using Setups = testing::Types<Simulated<float>, Simulated<mha::bfloat16>>;

}  // namespace

namespace laws {
// Its kernels know no policy's type, and calls need not be compiled for each either.
template <> inline constexpr bool compiled_once<support::SimulatedCuda, float> = true;
template <> inline constexpr bool compiled_once<support::SimulatedCuda, mha::bfloat16> = true;
INSTANTIATE_TYPED_TEST_SUITE_P(Simulated, GpuLaw, Setups);
}  // namespace laws

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::some;
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
  EXPECT_LE(support::largest_difference(split.log_sum_exp, together.log_sum_exp), 1e-5);
  EXPECT_LE(support::largest_difference(split.out, together.out), 2 * support::unit_roundoff<TypeParam>() + 1e-6);
}

/// Rows of each kind in one call: single ones, as many as are few, one more, those of a prompt.
const laws::Sequences mixture{{1, 40, 0, 8, 9, 3}, {700, 60, 5, 300, 50, 385}};

TYPED_TEST(SimulatedLaw, FewQueriesBesideManyHaveALaunchOfTheirOwn) {
  support::Random random("simulated, few beside many");
  const Inputs<TypeParam> in(
      {.batch = 1, .heads = 4, .kv_heads = 2, .queries = 61, .keys = 1500, .head_dim = 32, .value_dim = 16}, random);
  {
    const On device(1);  // nothing is split
    laws::expect_rows_of_each(mixture, in, attend<SimulatedCuda>(in, mha::Causal{}, mixture.ragged()), "in one piece",
                              [](Index, const auto&... qkv) { return attend<SimulatedCuda>(qkv..., mha::Causal{}); });
  }
  SimulatedCuda::state.launches = 0;
  const auto split = attend<SimulatedCuda>(in, mha::Causal{}, mixture.ragged());
  EXPECT_EQ(SimulatedCuda::state.launches, 2);
  const On device(1);
  const auto together = attend<SimulatedCuda>(in, mha::Causal{}, mixture.ragged());
  EXPECT_LE(support::largest_difference(split.log_sum_exp, together.log_sum_exp), 1e-5);
  EXPECT_LE(support::largest_difference(split.out, together.out), 2 * support::unit_roundoff<TypeParam>() + 1e-6);
}

template <class T, class... P> void check_layer(const char* name, const mha::Config& config, const P&... policies) {
  SCOPED_TRACE(name);
  support::Random random(name);
  mha::MultiHeadAttention<T, SimulatedCuda, P...> layer(config, policies...);
  mha::MultiHeadAttention<double, mha::Reference, P...> oracle(config, policies...);
  conformance::same_weights(layer, oracle, [&] { return random.rounded<T>(random.normal() * 0.2); });
  const auto x = conformance::random_rows<T>(2, 19, config.d_model, random);
  // Seven roundings to the storage scalar between x and y; q's and k's count as often as a logit, below 8, is large.
  conformance::expect_close(layer(x), oracle(conformance::exact(x)), (7 + 2 * 8) * support::unit_roundoff<T>());
}

TYPED_TEST(SimulatedLaw, LayersAgreeWithTheDoubleReference) {
  if constexpr (std::is_same_v<TypeParam, float>) {
    check_layer<float>("plain", {.d_model = 40, .num_heads = 4});
    check_layer<float>("grouped", {.d_model = 24, .num_heads = 6, .head_dim = 7, .value_dim = 5, .bias = true},
                       mha::GroupedQuery<2>{}, mha::SlidingWindow{.left = 11, .right = 4});
  }
  check_layer<TypeParam>("rotary, one key head", {.d_model = 48, .num_heads = 4}, mha::MultiQuery{}, mha::Causal{},
                         mha::Rotary<mha::Halves>{}, mha::Alibi{});
}

}  // namespace
