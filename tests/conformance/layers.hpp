// SPDX-License-Identifier: Apache-2.0
// What the tests of whole layers share: the setups, random weights for a layer and its oracle, and how far apart they
// may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "plain_backend.hpp"
#include "random.hpp"

namespace conformance {

using mha::Config;
using mha::Index;
using support::Random;

template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};

template <class T> mha::Tensor<T, 3> random_rows(Index batch, Index length, Index width, Random& random) {
  mha::Tensor<T, 3> x(batch, length, width);
  random.fill(x);
  return x;
}
template <class T> mha::Tensor<T, 2> rows_of(const mha::Tensor<T, 2>& all, Index first, Index end) {
  mha::Tensor<T, 2> part(end - first, all.extent(1));
  std::copy(&all(first, 0), &all(first, 0) + part.size(), part.data());
  return part;
}

template <class T, int Rank> mha::Tensor<double, Rank> exact(const mha::Tensor<T, Rank>& x) {
  auto copy = [&]<int... axis>(std::integer_sequence<int, axis...>) {
    return mha::Tensor<double, Rank>(x.extent(axis)...);
  }
  (std::make_integer_sequence<int, Rank>{});
  for (std::size_t i = 0; i < x.size(); ++i) copy.data()[i] = support::to_double(x.data()[i]);
  return copy;
}

/// Weights of both layers: those of `layer` are drawn by draw(), those of `oracle` are the same numbers.
template <class Layer, class Oracle, class Draw> void same_weights(Layer& layer, Oracle& oracle, const Draw& draw) {
  std::vector<double> values;
  layer.update([&](auto& p) {
    for (auto& x : p.flat()) {
      x = draw();
      values.push_back(support::to_double(x));
    }
  });
  oracle.update([&](auto& p) {
    ASSERT_EQ(p.flat().size(), values.size());
    std::size_t i = 0;
    for (double& x : p.flat()) x = values[i++];
  });
}
template <class Layer, class Oracle> void same_weights(Layer& layer, Oracle& oracle, Random& random) {
  same_weights(layer, oracle, [&] { return random.rounded<typename Layer::Scalar>(random.normal() / 4); });
}

/// Relative to the largest number of the answer. Three products of up to 48 terms and a softmax between them: each
/// rounds by (48 + 16)·u of what it adds up, 16-bit storage rounds Q, K, V and the heads to its own u on top.
template <class T> constexpr double tolerance() {
  return 1000 * support::unit_roundoff<mha::Accumulator<T>>() +
         (std::is_same_v<T, mha::Accumulator<T>> ? 0 : 30 * support::unit_roundoff<T>());
}

/// Errors are relative to the largest number of `expected`.
template <class A, class B> void expect_close(const A& value, const B& expected, double bound) {
  ASSERT_EQ(value.size(), expected.size());
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    most = support::maximum(most, std::abs(support::to_double(expected.data()[i])));
  EXPECT_GT(most, 0) << "the expected values are all zero";
  EXPECT_LE(support::largest_difference(value, expected) / most, bound);
}

/// What a layer makes of a text that it reads through a cache, in steps of nine rows at most.
template <class L, class T, class Storage, class Mask>
mha::Tensor<T, 2> read_in_pieces(const L& layer, const mha::Tensor<T, 2>& text, const Storage& storage,
                                 const Mask& mask, Random& random) {
  auto cache = mha::make_cache(layer, storage);
  const mha::SequenceId id = cache.add();
  std::vector<T> rows;
  for (Index begin = 0, end = 0; begin < text.extent(0); begin = end) {
    end = std::min(begin + 1 + random.below(9), text.extent(0));
    auto step = cache.step(id, end - begin);
    const mha::Tensor<T, 2> y = layer(rows_of(text, begin, end), step[0], mask);
    rows.insert(rows.end(), y.begin(), y.end());
    step.commit();
  }
  mha::Tensor<T, 2> all(text.extent(0), static_cast<Index>(rows.size()) / text.extent(0));
  std::copy(rows.begin(), rows.end(), all.data());
  return all;
}

using LayerSetups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::Cpu, mha::bfloat16>,
                                   On<support::PlainBackend, float>, On<support::PlainBackend, mha::half>>;

}  // namespace conformance
