// SPDX-License-Identifier: Apache-2.0
// Parts of the CUDA backend, saved and loaded: their weights are the host's, and what the device has of them is new
// after.
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/norm.hpp>
#include <mha/io/mapped_file.hpp>
#include <mha/io/safetensors.hpp>
#include <mha/io/safetensors_writer.hpp>
#include <mha/io/saved_weights.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/score/alibi_slopes.hpp>

#include "compare.hpp"
#include "far_cuda.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha_test::message_of;
using mha_test::Scratch;
using support::FarCuda;

template <class Part> void save(const Scratch& scratch, const Part& part, const char* path) {
  mha::SafetensorsWriter file;
  mha::save_weights(file, "part", part);
  file.write(scratch.root() / path);
}
std::string text_of(const Scratch& scratch, const char* path) {
  const mha::MappedFile file(scratch.root() / path);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}
/// `other` once `part` is loaded into it.
template <class Part> Part loaded(const Part& part, Part other) {
  const Scratch scratch;
  save(scratch, part, "m");
  mha::load_weights(mha::Safetensors(scratch.root() / "m"), "part", other);
  save(scratch, other, "again");
  EXPECT_TRUE(text_of(scratch, "again") == text_of(scratch, "m"));
  return other;
}

template <class T> class FarSavedLayer : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(FarSavedLayer, Scalars);

TYPED_TEST(FarSavedLayer, ComputesWithWhatIsLoaded) {
  using T = TypeParam;
  using Layer =
      mha::MultiHeadAttention<T, FarCuda, mha::GroupedQuery<mha::Dynamic>, mha::QkNorm, mha::Sink, mha::AlibiSlopes>;
  const auto make = [](float number) {
    return Layer({.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .bias = true},
                 mha::Sink(std::vector<float>(4, number)), mha::AlibiSlopes(std::vector<float>(4, number)));
  };
  Layer layer = make(0.25f), other = make(1);
  layer.initialize(mha::XavierUniform{.seed = 3});
  other.initialize(mha::XavierUniform{.seed = 4});
  mha::Tensor<T, 3> rows(2, 20, 24);
  support::Random("far saved layer").fill(rows);
  const auto x = mha::to_device(rows);
  const auto expect_equal = [&](const Layer& a, const Layer& b) {
    EXPECT_EQ(support::differing(mha::to_host(a(x)), mha::to_host(b(x))), 0u);
  };
  expect_equal(loaded(layer, make(0)), layer);  // without weights before
  expect_equal(loaded(layer, other), layer);
  // And after a step of training.
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  mha::cuda::Workspace workspace;
  mha::DeviceTensor<T, 3> dx(2, 20, 24);
  const auto y = mha::to_host(layer(x, tape));
  layer.backward(x, tape, gradients, mha::into(dx), workspace);
  layer.update([&](auto& p) {
    p.for_each(gradients.to_host(workspace), [](auto numbers, auto of_numbers) {
      using Number = std::remove_cvref_t<decltype(numbers[0])>;
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = Number(static_cast<float>(numbers[i]) - 0.3f * static_cast<float>(of_numbers[i]));
    });
  });
  EXPECT_NE(support::differing(mha::to_host(layer(x)), y), 0u);
  expect_equal(loaded(layer, std::move(other)), layer);

  layer.drop_unpacked();
  mha::SafetensorsWriter file;
  EXPECT_NE(message_of<mha::ShapeError>([&] { mha::save_weights(file, "part", layer); }), "");
}

TEST(FarSavedBlocks, AreThoseThatAreLoaded) {
  using Linear = mha::Linear<mha::bfloat16, FarCuda, mha::SwiGlu>;
  Linear linear({.inputs = 16, .outputs = 24});
  linear.initialize(mha::XavierUniform{.seed = 1});
  static_cast<void>(loaded(linear, Linear({.inputs = 16, .outputs = 24})));
  using FeedForward = mha::FeedForward<float, FarCuda>;
  FeedForward feed_forward({.d_model = 16, .d_hidden = 24});
  feed_forward.initialize(mha::XavierUniform{.seed = 1});
  static_cast<void>(loaded(feed_forward, FeedForward({.d_model = 16, .d_hidden = 24})));
  using Norm = mha::RmsNorm<mha::half, FarCuda>;
  Norm norm({.width = 16});
  norm.update([](auto& p) { p.weight(3) = mha::half(3.5f); });
  EXPECT_EQ(static_cast<float>(loaded(norm, Norm({.width = 16})).parameters().weight(3)), 3.5f);
}

}  // namespace
