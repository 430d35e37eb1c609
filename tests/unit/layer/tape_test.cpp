// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

#include <mha/layer/tape.hpp>
#include <mha/mha.hpp>

namespace {

struct Base {
  virtual ~Base() = default;
  virtual int value() const = 0;
};
template <int Size> struct Counted final : Base {
  explicit Counted(int& alive) : alive_(&alive) { ++alive; }
  Counted(const Counted& other) : alive_(other.alive_) { ++*alive_; }
  ~Counted() override { --*alive_; }
  int value() const override { return Size; }
  int* alive_;
  char more[std::size_t{Size}];
};

TEST(InPlace, HoldsOneValueOfAnyTypeAfterAnother) {
  int alive = 0;
  {
    mha::detail::InPlace<Base> held;
    EXPECT_EQ(held.get(), nullptr);
    held.emplace(Counted<100>(alive));
    const Base* const place = held.get();
    EXPECT_EQ(held.get()->value(), 100);
    held.emplace(Counted<4>(alive));
    EXPECT_EQ(held.get(), place);
    EXPECT_EQ(alive, 1);
    held.emplace(Counted<1000>(alive));
    EXPECT_EQ(held.get()->value(), 1000);
    mha::detail::InPlace<Base> moved(std::move(held));
    EXPECT_EQ(held.get(), nullptr);  // NOLINT(bugprone-use-after-move)
    held = std::move(moved);
    EXPECT_EQ(held.get()->value(), 1000);
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(LayerTape, KnowsWhetherACallIsRecordedAndServesAnyLayer) {
  mha::MultiHeadAttention<float> small({.d_model = 4, .num_heads = 2});
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> large({.d_model = 8, .num_heads = 2});
  small.initialize(mha::XavierUniform{.seed = 1});
  large.initialize(mha::XavierUniform{.seed = 2});
  mha::LayerTape<float, mha::Cpu> tape = small.tape();
  EXPECT_FALSE(tape.recorded());
  const mha::Tensor<float, 2> x(3, 4), wide(7, 8);
  static_cast<void>(small(x, tape));
  EXPECT_TRUE(tape.recorded());
  static_cast<void>(large(wide, tape));
  auto g = large.gradients();
  EXPECT_EQ(large.backward(wide, tape, g).extent(0), 7);
}

TEST(LayerTape, RecordsAgainAfterItWasMoved) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::LayerTape<float, mha::Cpu> tape = layer.tape();
  const mha::Tensor<float, 2> x(3, 4);
  static_cast<void>(layer(x, tape));
  const mha::LayerTape<float, mha::Cpu> kept = std::move(tape);
  EXPECT_TRUE(kept.recorded());
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  static_cast<void>(layer(x, tape));
  auto g = layer.gradients();
  EXPECT_EQ(layer.backward(x, tape, g).extent(0), 3);
  EXPECT_EQ(layer.backward(x, kept, g).extent(0), 3);
}

}  // namespace
