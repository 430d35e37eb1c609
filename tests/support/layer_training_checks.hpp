// SPDX-License-Identifier: Apache-2.0
// Backward passes of layers on a backend whose tensors are DeviceTensors, beside the same numbers in double on the
// host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include <mha/backend/cuda/on_device.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/score/alibi_slopes.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/positions.hpp>

#include "trained_scores.hpp"
#include "training_checks.hpp"

namespace training_checks {

template <class View> double squares(const View& v) {
  double sum = 0;
  for (std::ptrdiff_t i = 0; i < v.size(); ++i) sum += double(v.data[i]) * double(v.data[i]);
  return sum;
}

/// The numbers of a score's gradients, as near as all together are large.
template <class Given, class Exact>
void expect_scores(const Given& given, const Exact& exact, double bound, const std::string& what) {
  const std::vector<double> a = support::numbers_of(given), b = support::numbers_of(exact);
  ASSERT_EQ(a.size(), b.size()) << what;
  double error = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(size)) << what << ", gradient of a score";
}

/// Every named part, each of which lies in a row of its own, is as near as itself and all together are large.
template <class Given, class Exact>
void expect_parts(const Given& given, const Exact& exact, double bound, const std::string& what) {
  const double all = std::sqrt(squares(exact.memory()));
  const auto compare = [&](const char* name, const auto& a, const auto& b) {
    ASSERT_EQ(a.size(), b.size()) << name;
    if (b.data == nullptr) return;
    double error = 0;
    for (std::ptrdiff_t i = 0; i < b.size(); ++i) {
      const double difference = double(a.data[i]) - double(b.data[i]);
      error += difference * difference;
    }
    EXPECT_LE(std::sqrt(error), bound * (std::sqrt(squares(b)) + 0.02 * all)) << what << ", gradient of " << name;
  };
  mha::detail::PartsOf<mha::LayerGradientViews<mha::Accumulator<float>>>::each(compare, given, exact);
  expect_scores(given.score, exact.score, bound, what);
}

/// A mask as the device reads it.
template <class E> auto there_of(const E& e) {
  if constexpr (mha::role_of<E>() == mha::Role::mask)
    return mha::on_device(e);
  else
    return e;
}

template <class T> double layer_bound() { return sizeof(T) == 8 ? 1e-12 : sizeof(T) == 4 ? 2e-5 : 8 * bound<T>(); }

/// The same weights, rounded to T, in both.
template <class T, class There, class Here> void share_layer(There& there, Here& here, support::Random& random) {
  std::vector<T> weights(static_cast<std::size_t>(here.parameter_count()));
  for (T& w : weights) w = support::Random::rounded<T>(random.uniform(-0.3, 0.3));
  there.update([&](auto& p) { std::copy(weights.begin(), weights.end(), p.flat().begin()); });
  here.update([&](auto& p) {
    std::transform(weights.begin(), weights.end(), p.flat().begin(), [](T w) { return to_double(w); });
  });
}

/// Calls on x, or with keys > 0 on x and a memory, beside those in double; repeated with the same bits, and without an
/// allocation.
template <class B, class T, class There, class Here, class... Extra>
void expect_layer(There& there, Here& here, Index batch, Index queries, Index keys, support::Random& random,
                  const std::string& what, const Extra&... extra) {
  SCOPED_TRACE(what);
  const mha::Config c = here.config();
  share_layer<T>(there, here, random);
  auto x = Rows<T>::drawn(random, batch, queries, c.d_model), memory = Rows<T>::drawn(random, batch, keys, c.kv_model);
  auto wide_tape = here.tape();
  const auto exact_y = keys > 0 ? here(x.wide, memory.wide, wide_tape, extra...) : here(x.wide, wide_tape, extra...);
  const Index out = exact_y.extent(2);
  auto dy = Rows<T>::drawn(random, batch, queries, out);
  auto exact = here.gradients();
  Tensor<double, 3> exact_dm(batch, keys, c.kv_model);
  const auto exact_dx = keys > 0 ? here.backward(dy.wide, wide_tape, exact, mha::memory_into(exact_dm))
                                 : here.backward(dy.wide, wide_tape, exact);
  x.send(), dy.send(), memory.send();

  typename There::Workspace workspace;
  auto tape = there.tape();
  auto gradients = there.gradients();
  mha::DeviceTensor<T, 3> y(batch, queries, out);
  const auto steps = [&](const auto&... far) {
    const double limit = layer_bound<T>();
    Tensor<T, 3> first_dx;
    std::vector<mha::Accumulator<T>> first;
    for (int step = 0; step < 3; ++step) {
      Rows<T> dx(batch, queries, c.d_model), dm(batch, keys, c.kv_model);
      dx.send(), dm.send();
      const int allocations = device_allocations<B>();
      if (keys > 0) {
        const auto rows = memory.view();
        there(x.view(), rows, tape, far..., mha::into(y), workspace);
        there.backward(dy.view(), tape, gradients, mha::into(dx.view()), mha::memory_into(dm.view()), workspace);
      } else {
        there(x.view(), tape, far..., mha::into(y), workspace);
        there.backward(dy.view(), tape, gradients, mha::into(dx.view()), workspace);
      }
      if (step > 0) {
        EXPECT_EQ(device_allocations<B>(), allocations) << "step " << step;
      }
      const auto found = dx.fetched();
      const auto& host = gradients.to_host(workspace);
      const std::vector<mha::Accumulator<T>> all(host.memory().data, host.memory().data + host.memory().extent[0]);
      if (step == 0) {
        expect_norm_wise(mha::to_host(y), exact_y, limit, "y");
        // Of a single key every weight is 1, and all that is left of dx is rounding.
        const double terms = keys == 1 ? 0.02 * std::sqrt(squares(exact_dm.view())) : 0;
        expect_norm_wise(found, exact_dx, limit, "dx", terms);
        if (keys > 0) expect_norm_wise(dm.fetched(), exact_dm, limit, "d_memory");
        expect_parts(host, exact, limit, what);
        first_dx = found, first = all;
      }
      EXPECT_EQ(support::differing(found, first_dx), 0u) << "step " << step;
      EXPECT_EQ(support::differing(all, first), 0u) << "step " << step;
      gradients.clear(workspace);
    }
    // The same without gradients, and where no weights are left but the packed ones.
    const auto expect_again = [&](const There& layer, auto&... wanted) {
      Rows<T> dx(batch, queries, c.d_model), dm(batch, keys, c.kv_model);
      dx.send(), dm.send();
      if (keys > 0) {
        const auto rows = memory.view();
        layer(x.view(), rows, tape, far..., mha::into(y), workspace);
        layer.backward(dy.view(), tape, wanted..., mha::into(dx.view()), mha::memory_into(dm.view()), workspace);
      } else {
        layer(x.view(), tape, far..., mha::into(y), workspace);
        layer.backward(dy.view(), tape, wanted..., mha::into(dx.view()), workspace);
      }
      EXPECT_EQ(support::differing(dx.fetched(), first_dx), 0u);
    };
    expect_again(there);
    if (keys == 0) {
      Rows<T> twice(batch, queries, c.d_model);
      twice.send();
      const auto sum = twice.view();
      there.backward(dy.view(), tape, mha::into(sum), workspace);
      there.backward(dy.view(), tape, mha::add_to(sum), workspace);
      expect_doubled(twice.fetched(), first_dx);
    }
    There packed = there;
    packed.drop_unpacked();
    expect_again(packed, gradients);
    const auto& host = gradients.to_host(workspace);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), host.memory().data));
  };
  steps(there_of(extra)...);
}

template <class T, class B>
using PlainLayer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Dropout>;
template <class T, class B>
using FullLayer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::QkNorm,
                                          mha::Rotary<>, mha::Sink, mha::GatedHeads, mha::AlibiSlopes>;
template <class T, class B>
using BareLayer = mha::MultiHeadAttention<T, B, mha::MultiHead, mha::PerHeadProjection, mha::NoOutput>;

inline const mha::Config sizes{
    .d_model = 40, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .value_dim = 8, .bias = true};

/// Norms, positions, gates, sinks, slopes; sequences of different lengths.
template <class B, class T> void expect_full_layers(const char* name) {
  support::Random random(name);
  const Index batch = 1 + random.below(3), length = 2 + random.below(40);
  const mha::Sink sink{{0.5f, -1, 2, 0}};
  const mha::AlibiSlopes slopes({0.5f, 0.25f, 0, -0.125f});
  FullLayer<T, B> there(sizes, sink, slopes);
  FullLayer<double, mha::Reference> here(sizes, sink, slopes);
  expect_layer<B, T>(there, here, batch, length, 0, random, "norms, positions, gates, sinks and slopes");
  const std::vector<Index> offsets{0, 5, 5, length + 7};
  expect_layer<B, T>(there, here, 1, length + 7, 0, random, "ragged", mha::Ragged{offsets});
  std::vector<Index> positions;
  for (Index i = 0; i < batch * length; ++i) positions.push_back(random.below(50));
  expect_layer<B, T>(there, here, batch, length, 0, random, "positions of rows", mha::Positions{positions});
}

/// A call with keys and values of different rows, and one on what project_memory() made of them, beside those in
/// double; repeated with the same bits, and without an allocation.
template <class B, class T, class There, class Here>
void expect_rows_apart(There& there, Here& here, Index batch, Index queries, Index length, support::Random& random) {
  SCOPED_TRACE("keys and values of different rows");
  const mha::Config c = here.config();
  share_layer<T>(there, here, random);
  auto x = Rows<T>::drawn(random, batch, queries, c.d_model), dy = Rows<T>::drawn(random, batch, queries, c.d_model),
       keys = Rows<T>::drawn(random, batch, length, c.kv_model),
       values = Rows<T>::drawn(random, batch, length, c.value_model);
  auto wide_tape = here.tape();
  const auto exact_y = here(x.wide, keys.wide, values.wide, wide_tape);
  auto exact = here.gradients();
  Tensor<double, 3> exact_dk(batch, length, c.kv_model), exact_dv(batch, length, c.value_model);
  const auto exact_dx = here.backward(dy.wide, wide_tape, exact, mha::memory_into(exact_dk, exact_dv));
  for (auto* rows : {&x, &dy, &keys, &values}) rows->send();

  typename There::Workspace workspace;
  auto tape = there.tape();
  auto memory_tape = there.memory_tape();
  auto d = there.key_value_gradients(batch, length);
  const double limit = layer_bound<T>();
  Tensor<T, 3> first[3];
  for (const bool projected : {false, true})
    for (int step = 0; step < 2; ++step) {
      mha::DeviceTensor<T, 3> y(batch, queries, c.d_model);
      Rows<T> dx(batch, queries, c.d_model), dk(batch, length, c.kv_model), dv(batch, length, c.value_model);
      dx.send(), dk.send(), dv.send();
      auto gradients = there.gradients();
      const auto k = keys.view(), v = values.view();
      if (projected) {
        const auto made = there.project_memory(k, v, memory_tape, workspace);
        there(x.view(), made, tape, mha::into(y), workspace);
        there.backward(dy.view(), tape, gradients, d, mha::into(dx.view()), workspace);
        there.backward(d, memory_tape, gradients, mha::memory_into(dk.view(), dv.view()), workspace);
        d.clear(workspace);
      } else {
        const int allocations = device_allocations<B>();
        there(x.view(), k, v, tape, mha::into(y), workspace);
        there.backward(dy.view(), tape, gradients, mha::into(dx.view()), mha::memory_into(dk.view(), dv.view()),
                       workspace);
        if (step > 0) {
          EXPECT_EQ(device_allocations<B>(), allocations);
        }
      }
      expect_norm_wise(mha::to_host(y), exact_y, limit, "y");
      const Tensor<T, 3> found[] = {dx.fetched(), dk.fetched(), dv.fetched()};
      expect_norm_wise(found[0], exact_dx, limit, "dx");
      expect_norm_wise(found[1], exact_dk, limit, "d_keys");
      expect_norm_wise(found[2], exact_dv, limit, "d_values");
      expect_parts(gradients.to_host(workspace), exact, limit, projected ? "a memory apart" : "a call apart");
      for (int i = 0; i < 3 && step > 0; ++i) EXPECT_EQ(support::differing(found[i], first[i]), 0u) << i;
      std::copy(std::begin(found), std::end(found), first);
    }
}

/// Of a memory whose rows are of another width.
template <class B, class T> void expect_memories(const char* name) {
  support::Random random(name);
  mha::Config across = sizes;
  across.kv_model = 24;
  PlainLayer<T, B> there(across, mha::Dropout{.p = 0.3f});
  PlainLayer<double, mha::Reference> here(across, mha::Dropout{.p = 0.3f});
  const Index batch = 1 + random.below(3), queries = 1 + random.below(40);
  expect_layer<B, T>(there, here, batch, queries, 2 + random.below(40), random, "a memory");
  expect_layer<B, T>(there, here, batch, queries, 1, random, "a memory of one key");
  across.value_model = 12;
  PlainLayer<T, B> apart(across, mha::Dropout{.p = 0.3f});
  PlainLayer<double, mha::Reference> apart_here(across, mha::Dropout{.p = 0.3f});
  expect_rows_apart<B, T>(apart, apart_here, batch, queries, 2 + random.below(40), random);
}

/// What calls are given.
template <class B, class T> void expect_calls(const char* name) {
  support::Random random(name);
  const Index batch = 1 + random.below(3), length = 2 + random.below(40);
  PlainLayer<T, B> there(sizes, mha::Dropout{.p = 0.3f});
  PlainLayer<double, mha::Reference> here(sizes, mha::Dropout{.p = 0.3f});
  std::vector<Index> lengths;
  for (Index b = 0; b < batch; ++b) lengths.push_back(1 + random.below(length));
  const mha::Padding padding{lengths};
  expect_layer<B, T>(there, here, batch, length, 0, random, "dropout and padding", padding, mha::DropoutSeed{7, 3});
  expect_layer<B, T>(there, here, batch, length, 0, random, "a score of the call", mha::SoftCap{2.f});
}

/// Each head's matrices in memory of their own, and no output projection.
template <class B, class T> void expect_bare_layers(const char* name) {
  support::Random random(name);
  const Index batch = 1 + random.below(3), length = 2 + random.below(40);
  const mha::Config bare{.d_model = 24, .num_heads = 3};
  BareLayer<T, B> there(bare);
  BareLayer<double, mha::Reference> here(bare);
  expect_layer<B, T>(there, here, batch, length, 0, random, "heads of their own, no output", mha::Causal{});
  expect_layer<B, T>(there, here, batch, length, length, random, "the same with a memory");
}

}  // namespace training_checks
