// SPDX-License-Identifier: Apache-2.0
// One row, one answer, for dense products: a row's bits depend on itself and the weights, on nothing else.
#include <span>
#include <utility>
#include <vector>

#include <mha/block.hpp>

#include "law.hpp"

namespace {

using laws::at_every_isa;
using laws::Index;
using mha::Tensor;
using mha::TensorView;

/// Pretends to have so many threads: tasks in turn, each by another worker, the last first.
template <Index Count> struct Pretended {
  static constexpr const char* name = "Pretended";
  Index workers() const { return Count; }
  template <class F> void run(Index tasks, F&& f) const {
    for (Index t = tasks - 1; t >= 0; --t) f(t, t % Count);
  }
};

/// Products of the rows of `a` from `first` on, by weights packed or as they lie, in the threads of B.
template <class B, class T> struct Weights {
  Tensor<T, 2> query, key;  // key stored transposed
  Tensor<T, 1> bias;
  decltype(B{}.pack(std::span<const mha::DenseWeights<T>>())) packed;

  Weights(const Tensor<T, 2>& q, const Tensor<T, 2>& k, const Tensor<T, 1>& b)
      : query(q), key(k), bias(b), packed(B{}.pack(std::span<const mha::DenseWeights<T>>(parts()))) {}

  std::vector<mha::DenseWeights<T>> parts() const {
    return {{query.view(), bias.view()}, {mha::transposed(key.view()), {}}};
  }
  std::pair<Tensor<T, 2>, Tensor<T, 2>> operator()(const Tensor<T, 2>& a, Index first, Index count, bool pack) const {
    std::pair<Tensor<T, 2>, Tensor<T, 2>> to{Tensor<T, 2>(count, query.extent(1)), Tensor<T, 2>(count, key.extent(0))};
    const TensorView<const T, 2> rows{&a(first, 0), {count, a.extent(1)}, {a.extent(1), 1}};
    const TensorView<T, 2> c[] = {to.first.view(), to.second.view()};
    mha::Workspace workspace;
    if (pack) {
      B{}.gemm(mha::PackedGemmCall<T, decltype(packed)>{rows, packed, 0, c}, workspace);
    } else {
      const auto loose = parts();
      for (std::size_t i = 0; i < 2; ++i)
        B{}.gemm(mha::GemmCall<T>{rows, loose[i].matrix, loose[i].bias, c[i]}, workspace);
    }
    return to;
  }
};

template <class T> class Projections : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Projections, Scalars);

TYPED_TEST(Projections, ARowIsTheSameAloneAndAmongManyForAnyThreads) {
  using T = TypeParam;
  support::Random random("projected rows");
  const Index many = 270, depth = 700;  // more than a block of rows, and of the depth
  Tensor<T, 2> x(many, depth), query(depth, 170), key(1250, depth);
  Tensor<T, 1> bias(170);
  random.fill(x);
  random.fill(query);
  random.fill(key);
  random.fill(bias);
  const Weights<mha::CpuWith<mha::Serial>, T> serial(query, key, bias);
  const Weights<mha::CpuWith<Pretended<2>>, T> two(query, key, bias);
  const Weights<mha::CpuWith<Pretended<7>>, T> seven(query, key, bias);
  at_every_isa([&] {
    const auto all = serial(x, 0, many, true);
    const auto expect_same = [&](const auto& some, Index first, Index count, const char* how) {
      std::size_t different = 0;
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < 170; ++j)
          different += support::bits(some.first(i, j)) != support::bits(all.first(first + i, j)) ? 1u : 0u;
        for (Index j = 0; j < 1250; ++j)
          different += support::bits(some.second(i, j)) != support::bits(all.second(first + i, j)) ? 1u : 0u;
      }
      EXPECT_EQ(different, 0u) << how << ", " << count << " rows from " << first;
    };
    for (const auto& [first, count] : {std::pair<Index, Index>{0, 1}, {269, 1}, {5, 2}, {7, 4}, {100, 9}, {1, 128}}) {
      expect_same(serial(x, first, count, true), first, count, "packed");
      expect_same(two(x, first, count, true), first, count, "packed, two threads");
      expect_same(seven(x, first, count, true), first, count, "packed, seven threads");
      expect_same(serial(x, first, count, false), first, count, "as they lie");
      expect_same(seven(x, first, count, false), first, count, "as they lie, seven threads");
    }
    expect_same(seven(x, 0, many, true), 0, many, "packed, seven threads");
    expect_same(two(x, 0, many, false), 0, many, "as they lie, two threads");
  });
}

// The whole layer, whose steps are products and attention.
TYPED_TEST(Projections, ALayersRowIsTheSameAloneAndAmongMany) {
  using T = TypeParam;
  support::Random random("layer rows");
  mha::MultiHeadAttention<T, mha::CpuWith<mha::Serial>, mha::GroupedQuery<2>, mha::Rotary<>, mha::QkNorm> layer(
      {.d_model = 300, .num_heads = 4, .head_dim = 10, .bias = true});
  layer.initialize(mha::XavierUniform{.seed = 3});
  Tensor<T, 2> x(40, 300), memory(33, 300);
  random.fill(x);
  random.fill(memory);
  at_every_isa([&] {
    const auto all = layer(x, memory, mha::Origin{0});
    for (const Index i : {0, 17, 39}) {
      const TensorView<const T, 2> row{&std::as_const(x)(i, 0), {1, 300}, {300, 1}};
      const auto one = layer(row, memory, mha::Origin{i});
      std::size_t different = 0;
      for (Index e = 0; e < 300; ++e) different += support::bits(one(0, e)) != support::bits(all(i, e)) ? 1u : 0u;
      EXPECT_EQ(different, 0u) << "row " << i;
    }
  });
}

// A Linear with a gate.
template <class Q> void expect_rows_alone_and_among_many() {
  support::Random random("projected rows by integers");
  const Index many = 270, depth = 701, columns = 410;
  mha::Linear<float, mha::CpuWith<mha::Serial>, mha::SwiGlu> serial({.inputs = depth, .outputs = columns});
  mha::Linear<float, mha::CpuWith<Pretended<7>>, mha::SwiGlu> seven(serial.config());
  serial.initialize(mha::XavierUniform{.seed = 3});
  seven.template quantize<Q>(serial.parameters());
  serial.template quantize<Q>();
  Tensor<float, 2> x(many, depth);
  random.fill(x);
  at_every_isa([&] {
    const auto all = serial(x);
    EXPECT_EQ(support::differing(seven(x), all), 0u);
    for (const auto& [first, count] :
         {std::pair<Index, Index>{0, 1}, {269, 1}, {5, 2}, {7, 4}, {100, 33}, {20, 8}, {30, 9}, {40, 17}, {1, 128}}) {
      const TensorView<const float, 2> rows{&std::as_const(x)(first, 0), {count, depth}, {depth, 1}};
      const auto some = serial(rows), on_seven = seven(rows);
      std::size_t different = 0;
      for (Index i = 0; i < count; ++i)
        for (Index j = 0; j < columns; ++j)
          different += support::bits(some(i, j)) != support::bits(all(first + i, j)) ||
                               support::bits(on_seven(i, j)) != support::bits(all(first + i, j))
                           ? 1u
                           : 0u;
      EXPECT_EQ(different, 0u) << count << " rows from " << first;
    }
  });
}

TEST(ProjectionsInEightBits, ARowIsTheSameAloneAndAmongManyForAnyThreads) {
  expect_rows_alone_and_among_many<mha::scaled_int8>();
}
TEST(ProjectionsInFourBits, ARowIsTheSameAloneAndAmongManyForAnyThreads) {
  expect_rows_alone_and_among_many<mha::scaled_int4>();
}

}  // namespace
