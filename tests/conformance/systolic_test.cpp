// SPDX-License-Identifier: Apache-2.0
// Layers on every matrix unit of this machine, and on emulated arrays, in whole calls and through caches, against the
// layer on the reference in double.
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/systolic.hpp>

#include "layers.hpp"
#include "random.hpp"
#include "units.hpp"

namespace {

using conformance::exact;
using conformance::expect_close;
using conformance::read_in_pieces;
using mha::bfloat16;
using mha::Config;
using mha::Index;
using mha::MatrixUnit;
using support::Random;

template <class S, class A = mha::AmxArray, class P = mha::DefaultPrecision> struct On {
  using T = S;
  using Backend = mha::Systolic<A, P, mha::Serial>;
  static constexpr bool on_hardware = std::is_same_v<A, mha::AmxArray>;
};

/// Numbers of bfloat16 in any scalar: what both layers get is the same, so that what differs was lost on the way.
template <class T> T number(Random& random, double scale) {
  return static_cast<T>(float(bfloat16(static_cast<float>(random.normal() * scale))));
}
template <class T> mha::Tensor<T, 3> random_rows(Index batch, Index length, Index width, Random& random) {
  mha::Tensor<T, 3> x(batch, length, width);
  for (T& element : x) element = number<T>(random, 1);
  return x;
}

/// Relative to the largest number of the answer. Rounding to bfloat16 misses by u = 2⁻⁹ of a number; an answer passes
/// through six such roundings that count once each (values, softmax weights, heads, the output weights' products, and
/// in 16-bit storage Q, K, V's own), and those of q and k move a logit by 2·u·|s|, which the exponential turns into as
/// much of the weight: logits here stay below 8.
constexpr double tolerance = (6 + 2 * 8) * 0x1p-9;

template <class Setup> class SystolicConformance : public testing::Test {
 public:
  using T = typename Setup::T;

  template <class... P> static void check(const char* name, const Config& config, const P&... policies) {
    SCOPED_TRACE(name);
    Random random(name);
    mha::MultiHeadAttention<T, typename Setup::Backend, P...> layer(config, policies...);
    mha::MultiHeadAttention<double, mha::Reference, P...> oracle(config, policies...);
    conformance::same_weights(layer, oracle, [&] { return number<T>(random, 0.2); });
    const auto x = random_rows<T>(2, 19, config.d_model, random),
               memory = random_rows<T>(2, 70, config.d_model, random);
    const std::vector<Index> lengths = {70, 20};
    const auto y = oracle(exact(x)), z = oracle(exact(x), exact(memory));
    const auto w = oracle.attention_weights(exact(x), exact(memory));
    mha::Tensor<T, 2> text(49, config.d_model);
    for (T& element : text) element = number<T>(random, 1);
    const mha::SlidingWindow window{.left = 20};
    const auto read = oracle(exact(text), window);
    const auto padded = oracle(exact(x), exact(memory), mha::Padding{lengths}, mha::SoftCap{.cap = 3});
    for (const MatrixUnit unit : {MatrixUnit::portable, MatrixUnit::dot_product, MatrixUnit::amx}) {
      if (!mha::missing(unit).empty() || (unit != MatrixUnit::portable && !Setup::on_hardware)) continue;
      SCOPED_TRACE(to_string(unit));
      const unit::ForceUnit forced(unit);
      expect_close(layer(x), y, tolerance);
      expect_close(layer(x, memory), z, tolerance);
      expect_close(layer.attention_weights(x, memory), w, tolerance);
      expect_close(layer(x, memory, mha::Padding{lengths}, mha::SoftCap{.cap = 3}), padded, tolerance);
      const mha::Paged pages{.pages = 4, .length = 49, .page = 16};
      expect_close(read_in_pieces(layer, text, pages, window, random), read, tolerance);
      const mha::Ring ring{.left = 20, .rows = 9, .first = 2};
      expect_close(read_in_pieces(layer, text, ring, window, random), read, tolerance);
    }
  }
};
using Setups =
    testing::Types<On<bfloat16>, On<float>, On<mha::half>, On<float, mha::TpuArray<128>, mha::HighPrecision>>;
TYPED_TEST_SUITE(SystolicConformance, Setups);

TYPED_TEST(SystolicConformance, LayersAgreeWithTheDoubleReference) {
  TestFixture::check("plain", {.d_model = 40, .num_heads = 4});
  TestFixture::check("grouped, other widths",
                     {.d_model = 20, .num_heads = 6, .head_dim = 7, .value_dim = 5, .bias = true},
                     mha::GroupedQuery<2>{}, mha::SlidingWindow{.left = 11, .right = 4});
  TestFixture::check("one key head", {.d_model = 48, .num_heads = 4, .bias = true}, mha::MultiQuery{}, mha::Causal{},
                     mha::Alibi{});
  TestFixture::check("no bias of keys", {.d_model = 40, .num_heads = 4, .bias = true, .key_bias = false});
  TestFixture::check("no bias of the output", {.d_model = 40, .num_heads = 4, .bias = true, .output_bias = false});
}

std::vector<float> some_floats(const char* stream, std::size_t n) {
  Random random(stream);
  std::vector<float> values(n);
  for (float& x : values) x = number<float>(random, 1);
  return values;
}

TYPED_TEST(SystolicConformance, LayersWithPositionsMasksAndScoresAgreeWithTheDoubleReference) {
  const Config plain{.d_model = 40, .num_heads = 4, .bias = true};
  const Config grouped{.d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 8, .value_dim = 5};
  TestFixture::check("turned, normalised, sinks", grouped, mha::GroupedQuery<2>{}, mha::QkNorm{}, mha::Causal{},
                     mha::Rotary<mha::Halves>{}, mha::Sink(some_floats("sink", 6)));
  TestFixture::check("relative bias, gates", plain, mha::GatedHeads{},
                     mha::RelativeBias(some_floats("table", 8 * 4), {.count = 8, .max_distance = 20}));
  std::vector<std::uint8_t> map(9 * 9, 1);
  for (std::size_t i = 0; i < map.size(); i += 4) map[i] = 0;
  TestFixture::check("block map, soft cap", plain, mha::SoftCap{.cap = 2},
                     mha::BlockSparse({.block = 8, .query_blocks = 9, .key_blocks = 9}, map));
  TestFixture::check("first keys or a window", plain, mha::SlidingWindow{.left = 5} || mha::FirstKeys{.count = 3},
                     mha::AlibiSlopes(some_floats("slopes", 4)));
}

TEST(SystolicConformance, UnitsThatWereNotTried) {
  std::string reasons;
  for (const MatrixUnit unit : {MatrixUnit::dot_product, MatrixUnit::amx})
    if (!mha::missing(unit).empty()) reasons += std::string(to_string(unit)) + ": " + mha::missing(unit) + "; ";
  if (!reasons.empty()) GTEST_SKIP() << reasons;
}

}  // namespace
