// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that are added to what a destination holds, of any strides, are those that would be written.
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::TensorView;
using support::message_of;
template <class T> using Rows = mha::Tensor<T, 3>;

template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
template <class Setup> class RowGradients : public testing::Test {};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, mha::bfloat16>, On<mha::Reference, double>>;
TYPED_TEST_SUITE(RowGradients, Setups, );

template <class T> Rows<T> drawn(const std::string& stream, Index b, Index l, Index e) {
  Rows<T> x(b, l, e);
  support::Random(stream).fill(x);
  return x;
}

/// Rows (B, L, E) of numbers, the last axis two apart and poison between them and behind each sequence.
template <class T> struct Destination {
  Index batch, length, width;
  Rows<T> before, memory;

  Destination(Index b, Index l, Index e)
      : batch(b), length(l), width(e), before(drawn<T>("before", b, l, e)), memory(b, l + 1, 2 * e) {
    support::poison_all(memory);
    const auto to = view();
    for (Index i = 0; i < b; ++i)
      for (Index j = 0; j < l; ++j)
        for (Index k = 0; k < e; ++k) to(i, j, k) = before(i, j, k);
  }
  TensorView<T, 3> view() {
    return {memory.data(), {batch, length, width}, {std::ptrdiff_t{length + 1} * 2 * width, 2 * width, 2}};
  }
  /// Every element is that before and the gradient, and nothing else has changed.
  void expect_added(const Rows<T>& gradient) {
    using A = mha::Accumulator<T>;
    const auto to = view();
    for (Index i = 0; i < batch; ++i)
      for (Index j = 0; j < length; ++j)
        for (Index k = 0; k < width; ++k) {
          ASSERT_EQ(support::bits(to(i, j, k)), support::bits(T(A(before(i, j, k)) + A(gradient(i, j, k)))));
          to(i, j, k) = support::poison<T>();
        }
    for (std::size_t i = 0; i < memory.size(); ++i)
      ASSERT_EQ(support::bits(memory.data()[i]), support::bits(support::poison<T>()));
  }
};

/// back(a destination of dx, tape, gradients, workspace) adds the gradients that it writes.
template <class T, class Block, class Call, class Back>
void expect_added(const Block& block, Index width, const Call& call, const Back& back) {
  auto tape = block.tape();
  auto gradients = block.gradients();
  mha::Workspace workspace;
  call(tape, workspace);
  Rows<T> written(2, 13, width);
  support::poison_all(written);
  back(mha::into(written), tape, gradients, workspace);
  int allocations = 0;
  for (int step = 0; step < 2; ++step) {
    Destination<T> added(2, 13, width);
    const auto to = added.view();
    back(mha::add_to(to), tape, gradients, workspace);
    added.expect_added(written);
    if (step == 0) allocations = workspace.allocations();
  }
  EXPECT_EQ(workspace.allocations(), allocations);
}

TYPED_TEST(RowGradients, OfBlocksAreAdded) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const auto x = drawn<T>("x", 2, 13, 18), dy = drawn<T>("dy", 2, 13, 18);
  const auto expect = [&](const auto& block) {
    expect_added<T>(
        block, 18, [&](auto& tape, auto& workspace) { static_cast<void>(block(x, tape, workspace)); },
        [&](const auto& to, auto& tape, auto& gradients, auto& workspace) {
          block.backward(dy, tape, gradients, to, workspace);
        });
  };
  mha::Linear<T, B, mha::Gelu> linear({.inputs = 18, .outputs = 18});
  linear.initialize(mha::XavierUniform{.seed = 1});
  expect(linear);
  mha::FeedForward<T, B, mha::SwiGlu> feed_forward({.d_model = 18, .d_hidden = 21});
  feed_forward.initialize(mha::XavierUniform{.seed = 2});
  expect(feed_forward);
  if constexpr (std::is_same_v<T, mha::Accumulator<T>>) expect(mha::RmsNorm<T, B>({.width = 18}));  // else rounded once
  mha::MultiHeadAttention<T, B, mha::Causal> layer({.d_model = 18, .num_heads = 3});
  layer.initialize(mha::XavierUniform{.seed = 3});
  expect(layer);
}

TYPED_TEST(RowGradients, OfAMemoryAreAdded) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const auto x = drawn<T>("x", 2, 13, 18), dy = drawn<T>("dy", 2, 13, 18), memory = drawn<T>("memory", 2, 9, 7);
  mha::MultiHeadAttention<T, B> layer({.d_model = 18, .num_heads = 3, .kv_model = 7});
  layer.initialize(mha::XavierUniform{.seed = 4});
  Rows<T> written(2, 9, 7);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  static_cast<void>(layer(x, memory, tape));
  static_cast<void>(layer.backward(dy, tape, gradients, mha::memory_into(written)));
  expect_added<T>(
      layer, 18, [&](auto& own, auto& workspace) { static_cast<void>(layer(x, memory, own, workspace)); },
      [&](const auto& to, auto& own, auto& of, auto& workspace) {
        Destination<T> d_memory(2, 9, 7);
        const auto sum = d_memory.view();
        layer.backward(dy, own, of, to, mha::memory_into(mha::add_to(sum)), workspace);
        d_memory.expect_added(written);
      });
}

TEST(RowGradientsAreChecked, WhereTheyAreAdded) {
  mha::MultiHeadAttention<float> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 5});
  auto x = drawn<float>("x", 1, 5, 8), dy = drawn<float>("dy", 1, 5, 8);
  Rows<float> narrow(1, 5, 6);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  static_cast<void>(layer(x, tape));
  const auto refused = [&](auto& to) {
    return message_of([&] { layer.backward(dy, tape, gradients, mha::add_to(to)); });
  };
  EXPECT_EQ(refused(narrow), "backward: dx has width 6, expected 8");
  EXPECT_EQ(refused(x), "backward: dx overlaps x");
  EXPECT_EQ(refused(dy), "backward: dx overlaps dy");
  for (const float d : gradients.flat()) EXPECT_EQ(d, 0);
}

}  // namespace
