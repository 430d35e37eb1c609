// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/backward.hpp>
#include <mha/backend/cuda/gradient_split.hpp>
#include <mha/policy/mask/positional.hpp>

#include "gpu_model/backward_model.hpp"

namespace {

using mha::Index;
using mha::cuda::GradientSlice;
using mha::cuda::GradientSlices;
using support::BackwardCase;
using support::BackwardSizes;
using support::gpu::BackwardModel;

std::vector<std::vector<Index>> all(const GradientSlices& slices) {
  std::vector<std::vector<Index>> to;
  slices.for_each([&](const GradientSlice& s) {
    to.push_back({s.first_sequence, s.sequences, s.first_row, s.rows});
    EXPECT_LE(s.rows_of_all(), slices.first().rows_of_all());
  });
  return to;
}

TEST(GradientSlices, AreWholeSequencesOrTilesOfOne) {
  using All = std::vector<std::vector<Index>>;
  EXPECT_EQ(all({3, 100, 64, 10, 3000}), (All{{0, 3, 0, 100}}));
  EXPECT_EQ(all({3, 100, 64, 10, 2999}), (All{{0, 2, 0, 100}, {2, 1, 0, 100}}));
  EXPECT_EQ(all({2, 200, 64, 10, 1999}), (All{{0, 1, 0, 192}, {0, 1, 192, 8}, {1, 1, 0, 192}, {1, 1, 192, 8}}));
  EXPECT_EQ(all({1, 130, 64, 10, 1}), (All{{0, 1, 0, 64}, {0, 1, 64, 64}, {0, 1, 128, 2}})) << "a tile at least";
  EXPECT_EQ(all({3, 100, 64, 0, std::numeric_limits<std::int64_t>::max()}), (All{{0, 3, 0, 100}}));
  EXPECT_EQ(all({0, 100, 64, 10, 3000}), All{});
  EXPECT_EQ(all({3, 0, 64, 10, 3000}), All{});
}

/// Shares of at least these queries, in slices of at most these bytes.
struct Limits {
  Limits(Index queries, std::int64_t bytes) { BackwardModel<>::limits = {queries, bytes}; }
  ~Limits() { BackwardModel<>::limits = {}; }
};
std::ptrdiff_t launches(const std::string& kernel) {
  std::ptrdiff_t n = 0;
  for (const std::string& name : BackwardModel<>::kernels) n += name == "attention_backward (" + kernel + ")" ? 1 : 0;
  return n;
}

/// Two shares of five heads, into what is there; slices of a tile, of a sequence, of all.
template <class T, class... Extra> void check(const std::string& name, std::ptrdiff_t sums, const Extra&... extra) {
  const BackwardCase<T> c(name, {2, 40, 70, 5, 1, 16, 8});
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  for (const std::int64_t numbers : {1, 70 * 2 * 24, 1 << 20}) {
    const Limits limits(80, numbers * std::int64_t{sizeof(mha::Accumulator<T>)});
    EXPECT_LE(support::gpu::gradient_error<T>(c.template gradients<BackwardModel<>>(extra...), expected), 1) << name;
    EXPECT_EQ(launches("shares"), sums * (numbers == 1 ? 4 : numbers < 1 << 20 ? 2 : 1)) << name;
  }
}
TEST(SharedGradients, AreThoseOfAllHeads) {
  check<mha::bfloat16>("shared gradients, bfloat16", 2, mha::Causal{});
  check<float>("shared gradients, float", 2, mha::Causal{});
  check<double>("shared gradients, double", 2, mha::SlidingWindow{.left = 20, .right = 7});
}

TEST(SharedGradients, OfARaggedSequenceHaveTheBitsOfItAlone) {
  const std::vector<Index> q_offsets{0, 70, 75, 75}, k_offsets{0, 20, 90, 95};
  const BackwardCase<float> c("shared gradients, ragged", {1, 75, 95, 4, 1, 8, 12});
  const Limits limits(70, 95 * 4 * 20 * 4);
  const auto found = c.gradients<BackwardModel<>>(mha::Ragged{q_offsets, k_offsets}, mha::Causal{});
  EXPECT_EQ(launches("shares"), 6);
  for (std::size_t b = 0; b < 3; ++b) {
    const Index q0 = q_offsets[b], k0 = k_offsets[b], queries = q_offsets[b + 1] - q0, keys = k_offsets[b + 1] - k0;
    BackwardCase<float> one("one of them", {1, queries, keys, 4, 1, 8, 12});
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < queries; ++i)
        for (Index d = 0; d < 12; ++d) {
          if (d < 8) one.q(0, i, h, d) = c.q(0, q0 + i, h, d);
          one.d_out(0, i, h, d) = c.d_out(0, q0 + i, h, d);
        }
    for (Index k = 0; k < keys; ++k)
      for (Index d = 0; d < 12; ++d) {
        if (d < 8) one.k(0, k, 0, d) = c.k(0, k0 + k, 0, d);
        one.v(0, k, 0, d) = c.v(0, k0 + k, 0, d);
      }
    const auto alone = one.gradients<BackwardModel<>>(mha::Causal{});
    EXPECT_EQ(launches("shares"), queries >= 35 ? 2 : 0) << b;
    for (Index k = 0; k < keys; ++k)
      for (Index d = 0; d < 12; ++d) {
        if (d < 8) {
          EXPECT_EQ(found.key(0, k0 + k, 0, d), alone.key(0, k, 0, d)) << b << ' ' << k << ' ' << d;
        }
        EXPECT_EQ(found.value(0, k0 + k, 0, d), alone.value(0, k, 0, d)) << b << ' ' << k << ' ' << d;
      }
  }
}

// The last sequence has fewer keys than another: what lies behind its last row stays.
TEST(SharedGradients, EndWithTheKeysOfTheirSequence) {
  const std::vector<Index> q_offsets{0, 40, 80}, k_offsets{0, 70, 90};
  const BackwardCase<float> c("shared gradients, behind the last", {1, 80, 90, 4, 1, 8, 8});
  const Limits limits(40, 1 << 20);
  const mha::Ragged ragged{q_offsets, k_offsets};
  mha::AttentionTape<float, BackwardModel<>> tape;
  const auto out = mha::attention<BackwardModel<>>(c.q, c.k, c.v, ragged, mha::record(tape));
  mha::Tensor<float, 4> value(1, 95, 1, 8);
  for (std::size_t i = 0; i < value.size(); ++i) value.data()[i] = 3;
  const mha::TensorView<float, 4> rows{value.data(), {1, 90, 1, 8}, {95 * 8, 8, 8, 1}};
  mha::attention_backward_into({{}, {}, rows}, c.d_out, c.q, c.k, c.v, out, tape, ragged);
  EXPECT_EQ(launches("shares"), 1);
  for (Index k = 90; k < 95; ++k)
    for (Index d = 0; d < 8; ++d) EXPECT_EQ(value(0, k, 0, d), 3) << k;
}

TEST(SharedGradients, AreAddedToWhatIsThere) {
  const BackwardCase<float> c("shared gradients, added", {1, 40, 50, 4, 1, 8, 8});
  const Limits limits(40, 1 << 20);
  const auto found = c.gradients<BackwardModel<>>();
  mha::AttentionTape<float, BackwardModel<>> tape;
  const auto out = mha::attention<BackwardModel<>>(c.q, c.k, c.v, mha::record(tape));
  mha::Tensor<float, 4> value(1, 50, 1, 8);
  for (std::size_t i = 0; i < value.size(); ++i) value.data()[i] = 3;
  mha::attention_backward_into({{}, {}, mha::add_to(value)}, c.d_out, c.q, c.k, c.v, out, tape);
  EXPECT_EQ(launches("shares"), 1) << "dV alone";
  for (std::size_t i = 0; i < value.size(); ++i) EXPECT_EQ(value.data()[i], 3 + found.value.data()[i]);
}

}  // namespace
