// SPDX-License-Identifier: Apache-2.0
// A layer of a backend whose tensors are DeviceTensors beside the same weights in double on the host.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/layer/kv_cache.hpp>
#include <mha/layer/multi_head_attention.hpp>

#include "device_checks.hpp"

namespace layer_checks {

using mha::Index;
using mha::Tensor;

inline const mha::Config config{
    .d_model = 256, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .value_dim = 32, .bias = true};
template <class T, class B>
using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::QkNorm, mha::Rotary<>,
                                      mha::Sink, mha::GatedHeads>;

template <class T, int Rank, class... I> Tensor<T, Rank> drawn(support::Random& random, I... extents) {
  Tensor<T, Rank> x(extents...);
  random.fill(x);
  return x;
}

/// The same weights, rounded to T, in both layers.
template <class B, class T> struct Twins {
  const mha::Sink sink{{0.5f, -1, 2, 0}};
  Layer<T, B> there;
  Layer<double, mha::Reference> here;

  explicit Twins(support::Random& random, const mha::Config& sizes = config) : there(sizes, sink), here(sizes, sink) {
    std::vector<T> weights(static_cast<std::size_t>(here.parameter_count()));
    for (T& w : weights) w = support::Random::rounded<T>(random.uniform(-0.1, 0.1));
    there.update([&](auto& p) { std::copy(weights.begin(), weights.end(), p.flat().begin()); });
    here.update([&](auto& p) {
      std::transform(weights.begin(), weights.end(), p.flat().begin(), [](T w) { return support::to_double(w); });
    });
  }
};

template <class T> double bound() {
  return sizeof(T) == 8 ? 1e-11 : sizeof(T) == 4 ? 1e-4 : 64 * support::unit_roundoff<T>();
}

/// Prompts in pieces, single tokens, a fork that goes on otherwise and a sequence that was saved, by a cache in the
/// device's memory, beside whole sequences on the host under the same masks.
template <class B, class T, class Storage, class... Masks>
void expect_steps(const char* name, const Storage& storage, const Masks&... masks) {
  support::Random random(name);
  const Twins<B, T> twins(random);
  typename B::Workspace workspace;
  auto cache = mha::make_cache(twins.there, storage, {.sequences = 3});
  std::vector<mha::SequenceId> ids{cache.add(), cache.add()};
  // The third shares the first rows of the second.
  constexpr Index shared = 18;
  Tensor<T, 3> x = drawn<T, 3>(random, 3, 60, 256);
  std::copy_n(&x(1, 0, 0), shared * 256, &x(2, 0, 0));
  const auto expected = twins.here(device_checks::doubled(x, Tensor<double, 3>(3, 60, 256)), masks...);
  std::vector<Index> length{0, 0, shared};
  const auto step = [&](const std::vector<Index>& rows) {
    Index all = 0;
    for (const Index n : rows) all += n;
    Tensor<T, 2> of_step(all, 256);
    Tensor<double, 2> of_whole(all, 256);
    for (std::size_t s = 0, at = 0; s < rows.size(); at += static_cast<std::size_t>(rows[s++]) * 256) {
      const Index sequence = static_cast<Index>(s);
      if (rows[s] == 0) continue;
      std::copy_n(&x(sequence, length[s], 0), rows[s] * 256, of_step.data() + at);
      std::copy_n(&expected(sequence, length[s], 0), rows[s] * 256, of_whole.data() + at);
      length[s] += rows[s];
    }
    auto now = cache.step(ids, rows);
    const auto y = mha::to_host(twins.there(mha::to_device(of_step), now[0], masks..., workspace));
    now.commit();
    device_checks::expect_near(y, of_whole, bound<T>(), "a step");
  };
  for (const std::vector<Index>& rows : {std::vector<Index>{17, 5}, {1, 15}, {20, 1}, {1, 1}, {12, 1}}) step(rows);
  auto elsewhere = std::move(cache);
  cache = std::move(elsewhere);
  ids.push_back(cache.fork(ids[1], shared));
  step({1, 2, 3});
  const auto bytes = cache.save(ids[1]);
  cache.remove(ids[1]);
  ids[1] = cache.restore(bytes);
  step({0, 3, 4});
}

/// A cache whose values are in its keys, in pages that a fork shares, beside one that stores the same values.
template <class B, class T> void expect_values_in_keys(const char* name) {
  support::Random random(name);
  const mha::Paged storage{.pages = 8, .length = 64, .page = 16};
  mha::KvShape shape{.heads = 2, .dim = 64, .value_dim = 40};
  mha::KvCache<mha::Paged, T, B> both(shape, storage, {.sequences = 3});
  shape.values_in_keys = true;
  mha::KvCache<mha::Paged, T, B> alone(shape, storage, {.sequences = 3});
  EXPECT_EQ(alone.bytes(), std::size_t{8 * 16 * 2 * 64} * sizeof(T));
  const auto go_on = [&](mha::SequenceId of_both, mha::SequenceId of_alone, Index n) {
    const Tensor<T, 3> key = drawn<T, 3>(random, n, 2, 64);
    Tensor<T, 3> value(n, 2, 40);
    for (Index i = 0; i < n; ++i)
      for (Index g = 0; g < 2; ++g) std::copy_n(&key(i, g, 0), 40, &value(i, g, 0));
    const auto q = mha::to_device(drawn<T, 3>(random, n, 4, 64));
    auto step = both.step(of_both, n), other = alone.step(of_alone, n);
    step.append(0, mha::to_device(key), mha::to_device(value));
    other.append(0, mha::to_device(key));
    const auto expected = mha::to_host(mha::attention<B>(q, step.source(0), mha::Causal{}));
    const auto y = mha::to_host(mha::attention<B>(q, other.source(0), mha::Causal{}));
    EXPECT_EQ(support::differing(y, expected), 0u) << n << " rows";
    step.commit();
    other.commit();
  };
  const auto a = both.add(), b = alone.add();
  for (const Index n : {18, 1, 1}) go_on(a, b, n);
  go_on(both.fork(a, 19), alone.fork(b, 19), 5);
  go_on(a, alone.restore(alone.save(b)), 2);
}

template <class B, class T> void expect_layers(const char* name) {
  support::Random random(name);
  const Twins<B, T> twins(random);
  typename B::Workspace workspace;
  const auto x = drawn<T, 3>(random, 2, 77, 256);
  const auto wide = [](const auto& t) {
    return device_checks::doubled(t, Tensor<double, 3>(t.extent(0), t.extent(1), t.extent(2)));
  };
  const auto y = mha::to_host(twins.there(mha::to_device(x), workspace));
  device_checks::expect_near(y, twins.here(wide(x)), bound<T>(), "self-attention");
  auto sums = mha::to_device(drawn<T, 3>(random, 2, 77, 256));
  const auto added = wide(mha::to_host(sums)), expected = twins.here(wide(x), mha::residual(added));
  device_checks::expect_near(mha::to_host(twins.there(mha::to_device(x), mha::residual(sums), workspace)), expected,
                             bound<T>(), "a residual");
  twins.there(mha::to_device(x), mha::residual(sums), mha::into(sums), workspace);
  device_checks::expect_near(mha::to_host(sums), expected, bound<T>(), "in place of the residual");
  for (const bool keys : {true, false}) {
    mha::Config some = config;
    (keys ? some.key_bias : some.output_bias) = false;
    const Twins<B, T> others(random, some);
    device_checks::expect_near(mha::to_host(others.there(mha::to_device(x), workspace)), others.here(wide(x)),
                               bound<T>(), keys ? "no bias of the keys" : "no bias of the output");
  }
  const auto memory = drawn<T, 3>(random, 2, 90, 256);
  const auto far_x = mha::to_device(x), far_memory = mha::to_device(memory);
  const auto cross = twins.here(wide(x), wide(memory));
  device_checks::expect_near(mha::to_host(twins.there(far_x, far_memory, workspace)), cross, bound<T>(),
                             "cross-attention");
  const auto made = twins.there.project_memory(far_memory, workspace);
  device_checks::expect_near(mha::to_host(twins.there(far_x, made, workspace)), cross, bound<T>(),
                             "memory projected once");

  const auto values = drawn<T, 3>(random, 2, 90, 256);
  const auto far_values = mha::to_device(values);
  const auto apart = twins.here(wide(x), wide(memory), wide(values));
  device_checks::expect_near(mha::to_host(twins.there(far_x, far_memory, far_values, workspace)), apart, bound<T>(),
                             "keys and values of different rows");
  const auto made_apart = twins.there.project_memory(far_memory, far_values, workspace);
  device_checks::expect_near(mha::to_host(twins.there(far_x, made_apart, workspace)), apart, bound<T>(),
                             "the same projected once");
  const auto values_of_x = drawn<T, 3>(random, 2, 77, 256);
  device_checks::expect_near(mha::to_host(twins.there(far_x, far_x, mha::to_device(values_of_x), workspace)),
                             twins.here(wide(x), wide(x), wide(values_of_x)), bound<T>(), "values of other rows");

  const auto of_one = drawn<T, 3>(random, 1, 90, 256);
  const auto one = twins.there.project_memory(mha::to_device(of_one), workspace);
  Tensor<double, 3> of_each(2, 90, 256);
  for (Index b = 0; b < 2; ++b)
    std::transform(of_one.begin(), of_one.end(), &of_each(b, 0, 0), [](T w) { return support::to_double(w); });
  device_checks::expect_near(mha::to_host(twins.there(far_x, one, workspace)), twins.here(wide(x), of_each), bound<T>(),
                             "a memory of one sequence");

  const std::vector<Index> offsets{0, 5, 5, 70, 77};
  const auto rows = drawn<T, 2>(random, 77, 256);
  const auto wide_rows = device_checks::doubled(rows, Tensor<double, 2>(77, 256));
  device_checks::expect_near(mha::to_host(twins.there(mha::to_device(rows), mha::Ragged{offsets}, workspace)),
                             twins.here(wide_rows, mha::Ragged{offsets}), bound<T>(), "ragged");
}

}  // namespace layer_checks
