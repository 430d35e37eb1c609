// SPDX-License-Identifier: Apache-2.0
// The backward pass of a backend in the memory of a device, against the reference in double.
#pragma once

#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/on_device.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "score_gradient_case.hpp"

namespace gradient_checks {

using mha::Index;

/// All gradients of a call, given the same policies on both sides; the same bits when it is made again.
template <class B, class T, class... Extra>
void expect_right(const std::string& name, const support::BackwardSizes& sizes, const Extra&... extra) {
  const support::BackwardCase<T> c(name, sizes);
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d_out = mha::to_device(c.d_out);
  typename B::Workspace workspace;
  mha::AttentionTape<T, B> tape;
  const auto go = [&](const auto&... there) {
    const auto out = mha::attention<B>(q, k, v, there..., mha::record(tape), workspace);
    const auto gradients = [&] { return mha::attention_backward(d_out, q, k, v, out, tape, there..., workspace); };
    const auto found = gradients(), again = gradients();
    const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
    const auto see = [&](const char* what, const auto& x, const auto& same, const auto& exact) {
      const auto here = mha::to_host(x);
      EXPECT_LE(support::relative_error(here, exact, 1), support::gradient_bound<T>) << name << ": " << what;
      EXPECT_EQ(support::differing(here, mha::to_host(same)), 0u) << name << ": " << what;
    };
    see("query", found.query, again.query, expected.query);
    see("key", found.key, again.key, expected.key);
    see("value", found.value, again.value, expected.value);
    if (expected.sink.size() > 0) see("sink", found.sink, again.sink, expected.sink);
  };
  go(mha::on_device(extra)...);
}

/// The gradients of a bias that repeats these axes and of the numbers of scores, each of which a device has a copy of.
template <class B, class T, class Score, class... Extra>
void expect_scores_right(const std::string& name, const support::BackwardSizes& sizes, int axes, const Score& score,
                         const Extra&... extra) {
  using A = mha::Accumulator<T>;
  const support::BackwardCase<T> c(name, sizes);
  const auto bias = support::repeated_bias<T>(name, sizes, axes);
  const auto expected =
      support::score_gradients<mha::Reference, double>(c.template as<double>(), bias, score, extra...);
  const auto q = mha::to_device(c.q), k = mha::to_device(c.k), v = mha::to_device(c.v), d_out = mha::to_device(c.d_out);
  typename B::Workspace workspace;
  mha::AttentionTape<T, B> tape;
  const auto go = [&](const auto&... there) {
    const auto out = mha::attention<B>(q, k, v, there..., mha::record(tape), workspace);
    const auto gradients = [&](auto& to) {
      return support::numbers_of(
          mha::attention_backward(d_out, q, k, v, out, tape, there..., mha::BiasGradient(to), workspace).score);
    };
    mha::DeviceTensor<A, 4> wide(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
    mha::DeviceTensor<T, 4> own(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
    const auto found = gradients(wide), again = gradients(own);
    const double least = support::gradient_scale(c), bound = support::gradient_bound<T>;
    const auto here = mha::to_host(wide);
    const auto rounded = mha::to_host(own);
    EXPECT_LE(support::relative_error(found, expected.numbers, least), bound) << name << ": numbers";
    EXPECT_LE(support::relative_error(here, expected.bias, least), bound) << name << ": bias";
    EXPECT_EQ(found, again) << name;
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(rounded.data()[i] == static_cast<T>(here.data()[i])) << name << ": element " << i;
  };
  go(mha::on_device(mha::AdditiveBias(bias)), mha::on_device(score), mha::on_device(extra)...);
}

}  // namespace gradient_checks
