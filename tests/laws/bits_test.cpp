// SPDX-License-Identifier: Apache-2.0
// One row, one answer: a row's bits depend on its query, the keys it sees and its position, on nothing else.
#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "every_backend.hpp"
#include "law.hpp"

namespace {

using laws::at_every_isa;
using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;

using Cpu = mha::CpuWith<mha::Serial>;

/// Pools of one thread and of three are one type, and so one instantiation.
const mha::Cpu& one_thread() {
  static const mha::Cpu backend(mha::ThreadPool(1));
  return backend;
}
const mha::Cpu& three_threads() {
  static const mha::Cpu backend(mha::ThreadPool(3));
  return backend;
}

template <class T> class Bits : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Bits, Scalars);

/// Attention with policies whose types end here: they stay their own in float, and go behind one type in other scalars.
template <class T>
using Attend = std::function<laws::Result<T>(const mha::TensorView<const T, 4>& q, const mha::Tensor<T, 4>& k,
                                             const mha::Tensor<T, 4>& v, Index origin, const mha::Cpu&)>;
template <class T, class... Policies> Attend<T> attend_with(const Policies&... policies) {
  return [policies...](const auto& q, const auto& k, const auto& v, Index origin, const mha::Cpu& backend) {
    constexpr auto types = std::is_same_v<T, float> ? laws::PolicyTypes::own : laws::PolicyTypes::any;
    return attend<mha::Cpu, types>(q, k, v, policies..., mha::Origin{origin}, backend);
  };
}

/// Masks and scores that reach the different paths of a kernel.
template <class T> using Named = std::vector<std::pair<const char*, Attend<T>>>;
template <class T> Named<T> policies() {
  return {{"full", attend_with<T>(mha::Full{})},
          {"causal", attend_with<T>(mha::Causal{})},
          {"window", attend_with<T>(mha::SlidingWindow{.left = 50, .right = 3})},
          {"functor", attend_with<T>(laws::Strided{})},
          {"dropout", attend_with<T>(mha::Causal{}, mha::Dropout{.p = 0.3f}, mha::DropoutSeed{support::seed()})},
          {"causal, soft cap, ALiBi", attend_with<T>(mha::Causal{}, mha::SoftCap{.cap = 4}, mha::Alibi{})},
          {"prefix or window", attend_with<T>(mha::SlidingWindow{.left = 9} || !mha::SlidingWindow{.left = 140})}};
}

TYPED_TEST(Bits, OneQueryEqualsItsRowAmongMany) {
  support::Random random("one query");
  const Sizes sizes{.batch = 1, .queries = 150, .keys = 150, .head_dim = 13, .value_dim = 9};
  const Inputs<TypeParam> in(sizes, random);
  at_every_isa([&] {
    for (const auto& [name, attention] : policies<TypeParam>()) {
      const auto many = attention(in.q.view(), in.k, in.v, 0, one_thread());
      for (const Index i : {0, 1, 63, 127, 128, 149}) {
        const auto one = attention(laws::rows(in.q, i, 1), in.k, in.v, i, one_thread());
        for (Index h = 0; h < sizes.heads; ++h)
          EXPECT_TRUE(same_row(one, 0, 0, many, 0, i, h)) << name << ", row " << i << ", head " << h;
      }
      const auto some = attention(laws::rows(in.q, 41, 77), in.k, in.v, 41, one_thread());
      for (Index i = 0; i < 77; ++i) EXPECT_TRUE(same_row(some, 0, i, many, 0, 41 + i, 1)) << name << ", row " << i;
    }
  });
}

// Decoding: heads of a group share a tile, keys come in chunks that threads may share, and other kernels run.
TYPED_TEST(Bits, FewQueriesOverManyKeysEqualTheirRowsAmongMany) {
  support::Random random("few queries");
  const Sizes sizes{
      .batch = 1, .heads = 4, .kv_heads = 2, .queries = 50, .keys = 4200, .head_dim = 16, .value_dim = 32};
  const Inputs<TypeParam> in(sizes, random);
  const Index origin = sizes.keys - sizes.queries;
  const std::vector<Index> visible = {4150};
  const mha::Sink sink({0.5f, -3, 10, -INFINITY});
  using T = TypeParam;
  const Named<T> policies{{"full", attend_with<T>(mha::Full{})},
                          {"causal", attend_with<T>(mha::Causal{}, sink)},
                          {"window", attend_with<T>(mha::SlidingWindow{.left = 4100, .right = 3})},
                          {"dropout", attend_with<T>(sink, mha::Dropout{.p = 0.3f}, mha::DropoutSeed{support::seed()})},
                          {"padding", attend_with<T>(mha::Padding{visible}, mha::Alibi{}, sink)},
                          {"functor, soft cap", attend_with<T>(laws::Strided{}, mha::SoftCap{.cap = 4})}};
  at_every_isa([&] {
    for (const auto& [name, attention] : policies) {
      const auto many = attention(in.q.view(), in.k, in.v, origin, one_thread());
      for (const Index count : {1, 2, 3, 8, 20}) {
        const Index first = count == 1 ? sizes.queries - 1 : random.below(sizes.queries - count + 1);
        const auto q = laws::rows(in.q, first, count);
        const auto few = attention(q, in.k, in.v, origin + first, one_thread());
        const auto shared = attention(q, in.k, in.v, origin + first, three_threads());
        expect_same_bits(few, shared, std::string(name) + ", chunks shared among threads");
        for (Index h = 0; h < sizes.heads; ++h)
          for (Index i = 0; i < count; ++i)
            EXPECT_TRUE(same_row(few, 0, i, many, 0, first + i, h))
                << name << ", row " << first + i << " of " << count << " rows, head " << h;
      }
    }
  });
}

TYPED_TEST(Bits, OneStepEqualsTheLastRowOfThePrompt) {
  support::Random random("step");
  const Inputs<TypeParam> in({.batch = 1, .queries = 140, .keys = 140}, random);
  constexpr Index lengths[] = {1, 2, 17, 128, 129, 140};
  at_every_isa([&] { laws::expect_steps_of_a_prompt<Cpu>(in, lengths); });
}

TYPED_TEST(Bits, CausalPrefixIgnoresTheFuture) {
  at_every_isa([] {
    support::Random random("future");
    constexpr Index positions[] = {0, 15, 16, 100, 127, 128};
    laws::expect_no_future<Cpu, TypeParam>({.queries = 140, .keys = 140}, random, positions);
  });
}

TYPED_TEST(Bits, PaddedEqualsAlone) {
  support::Random random("padded");
  const Sizes sizes{.batch = 4, .queries = 140, .keys = 140};
  const Inputs<TypeParam> in(sizes, random);
  const std::vector<Index> lengths = {140, 1, 128, 77};
  at_every_isa([&] {
    const auto batch = attend<Cpu>(in, mha::Padding{lengths});
    for (Index b = 0; b < 4; ++b) {
      const Index length = lengths[static_cast<std::size_t>(b)];
      const auto alone = attend<Cpu>(laws::rows(in.q, 0, length, b, 1), laws::rows(in.k, 0, length, b, 1),
                                     laws::rows(in.v, 0, length, b, 1));
      for (Index h = 0; h < sizes.heads; ++h)
        for (Index i = 0; i < length; ++i)
          EXPECT_TRUE(same_row(alone, 0, i, batch, b, i, h)) << "sequence " << b << ", row " << i;
    }
  });
}

TYPED_TEST(Bits, PackedEqualsAlone) {
  support::Random random("packed");
  const Sizes sizes{.batch = 1, .queries = 200, .keys = 260};
  const Inputs<TypeParam> in(sizes, random);
  const std::vector<Index> queries = {0, 1, 1, 130, 200}, keys = {0, 60, 70, 199, 260};
  const mha::Ragged packed{queries, keys};
  at_every_isa([&] {
    const auto all = attend<Cpu>(in, mha::Causal{}, mha::Alibi{}, packed);
    for (std::size_t s = 0; s + 1 < queries.size(); ++s) {
      const Index count = queries[s + 1] - queries[s], seen = keys[s + 1] - keys[s];
      const auto alone = attend<Cpu>(laws::rows(in.q, queries[s], count), laws::rows(in.k, keys[s], seen),
                                     laws::rows(in.v, keys[s], seen), mha::Causal{}, mha::Alibi{});
      for (Index h = 0; h < sizes.heads; ++h)
        for (Index i = 0; i < count; ++i)
          EXPECT_TRUE(same_row(alone, 0, i, all, 0, queries[s] + i, h)) << "sequence " << s << ", row " << i;
    }
  });
}

TYPED_TEST(Bits, BatchMatesDoNotMatter) {
  support::Random random("batch mates");
  const Sizes sizes{.batch = 3, .heads = 4, .kv_heads = 2};
  const Inputs<TypeParam> in(sizes, random);
  at_every_isa([&] {
    const auto all = attend<Cpu>(in, mha::Causal{}, mha::Alibi{});
    for (Index b = 0; b < 3; ++b) {
      const auto alone = attend<Cpu>(laws::rows(in.q, 0, sizes.queries, b, 1), laws::rows(in.k, 0, sizes.keys, b, 1),
                                     laws::rows(in.v, 0, sizes.keys, b, 1), mha::Causal{}, mha::Alibi{});
      for (Index h = 0; h < 4; ++h)
        for (Index i = 0; i < sizes.queries; ++i) EXPECT_TRUE(same_row(alone, 0, i, all, b, i, h)) << b << ", " << i;
    }
  });
}

TYPED_TEST(Bits, LayoutDoesNotMatter) {
  using T = TypeParam;
  support::Random random("layout");
  const Sizes sizes{.heads = 4, .kv_heads = 2};
  const Inputs<T> in(sizes, random);
  const auto bhld = [](const mha::Tensor<T, 4>& t) {
    mha::Tensor<T, 4> moved(t.extent(0), t.extent(2), t.extent(1), t.extent(3));
    for (Index b = 0; b < t.extent(0); ++b)
      for (Index l = 0; l < t.extent(1); ++l)
        for (Index h = 0; h < t.extent(2); ++h)
          for (Index d = 0; d < t.extent(3); ++d) moved(b, h, l, d) = t(b, l, h, d);
    return moved;
  };
  const auto q = bhld(in.q), k = bhld(in.k), v = bhld(in.v);
  const auto seen_as = [](const mha::Tensor<T, 4>& t) {
    return mha::view_bhld(t.data(), t.extent(0), t.extent(1), t.extent(2), t.extent(3));
  };
  at_every_isa([&] {
    expect_same_bits(attend<Cpu>(in, mha::Causal{}), attend<Cpu>(seen_as(q), seen_as(k), seen_as(v), mha::Causal{}),
                     "(B, H, L, D) memory");
    // The last axis not contiguous either: packed once, the same values.
    mha::Tensor<T, 4> turned(sizes.batch, sizes.kv_heads, sizes.head_dim, sizes.keys);
    for (Index b = 0; b < sizes.batch; ++b)
      for (Index l = 0; l < sizes.keys; ++l)
        for (Index h = 0; h < sizes.kv_heads; ++h)
          for (Index d = 0; d < sizes.head_dim; ++d) turned(b, h, d, l) = in.k(b, l, h, d);
    const auto t = turned.view();
    const mha::TensorView<const T, 4> key{t.data,
                                          {sizes.batch, sizes.keys, sizes.kv_heads, sizes.head_dim},
                                          {t.stride[0], t.stride[3], t.stride[1], t.stride[2]}};
    expect_same_bits(attend<Cpu>(in, mha::Causal{}), attend<Cpu>(in.q, key, in.v, mha::Causal{}), "transposed keys");
  });
}

}  // namespace
