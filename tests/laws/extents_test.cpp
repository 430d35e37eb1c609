// SPDX-License-Identifier: Apache-2.0
// Extents up to 2^31 − 1, of views with stride 0 that need no memory: a size that does not fit is a ShapeError, and
// what fits is computed. Run under the sanitizers this also says that no product of extents wraps around on the way.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::TensorView;
using support::message_of;

constexpr Index most = std::numeric_limits<Index>::max(), longest = most / 2;
const float one = 1;

template <int Rank> TensorView<const float, Rank> everywhere_one(const std::array<Index, std::size_t{Rank}>& extents) {
  TensorView<const float, Rank> v{&one, {}, {}};
  std::copy(extents.begin(), extents.end(), v.extent);
  return v;
}

/// The product of extents, an empty axis counted as 1, in more bits than five of them fill.
long double product(std::initializer_list<Index> extents) {
  long double p = 1;
  for (const Index e : extents) p *= std::max(e, 1);
  return p;
}
bool holds(std::initializer_list<Index> extents) { return product(extents) < 0x1p55L; }

template <class B> class ExtentsOn : public testing::Test {};
using Machines = testing::Types<mha::Cpu, mha::EigenCpu, mha::Reference, mha::Systolic<>>;
TYPED_TEST_SUITE(ExtentsOn, Machines, );

TYPED_TEST(ExtentsOn, AttentionRefusesWhatDoesNotFitAndComputesTheRest) {
  support::Random random(std::string("extents, ") + TypeParam::name);
  constexpr Index sizes[] = {0, 1, 1, 1, 2, 3, 5, 1 << 16, longest, longest + 1, most};
  const auto draw = [&] { return sizes[random.below(static_cast<int>(std::size(sizes)))]; };
  int refused = 0, computed = 0;
  for (int round = 0; round < 20000 && (computed < 200 || refused < 200); ++round) {
    const Index batch = draw(), queries = draw(), keys = draw(), heads = draw(), dim = draw(), value_dim = draw();
    if (dim == 0) continue;
    const bool fits = holds({batch, queries, heads, dim}) && holds({batch, keys, heads, dim}) &&
                      holds({batch, keys, heads, value_dim}) && holds({batch, queries, heads, value_dim}) &&
                      keys <= longest && queries <= longest && dim <= longest && value_dim <= longest;
    const auto q = everywhere_one<4>({batch, queries, heads, dim}), k = everywhere_one<4>({batch, keys, heads, dim}),
               v = everywhere_one<4>({batch, keys, heads, value_dim});
    std::string said;
    if (fits) {
      // Small enough to be run, by loops over every axis that is not empty.
      if (product({batch, queries, heads}) * (keys + 1.L) * (std::max(dim, value_dim) + 1.L) > 1e4L) continue;
      const mha::Tensor<float, 4> out = mha::attention<TypeParam>(q, k, v, mha::Origin{0});
      for (const float x : out) ASSERT_EQ(x, keys == 0 ? 0.f : 1.f);
      ++computed;
    } else {
      // A result that may be had is there before the call is checked.
      float nothing = 0;
      const TensorView<float, 4> out{&nothing, {batch, queries, heads, value_dim}, {}};
      said = message_of([&] { mha::attention_into<TypeParam>(out, q, k, v, mha::Origin{0}); });
      EXPECT_EQ(said.find("attention: "), 0u)
          << said << ' ' << batch << ' ' << queries << ' ' << keys << ' ' << heads << ' ' << dim << ' ' << value_dim;
      ++refused;
    }
  }
  EXPECT_GE(refused, 200);
  EXPECT_GE(computed, 200);
}

TYPED_TEST(ExtentsOn, ALayerRefusesWhatDoesNotFit) {
  using Layer = mha::MultiHeadAttention<float, TypeParam>;
  Layer layer({.d_model = 2, .num_heads = 1});
  layer.initialize(mha::XavierUniform{.seed = 1});
  for (const auto& rows : {std::array{most, 2}, {2, most}, {1, longest + 1}, {most, 1}}) {
    const Index batch = rows[0], length = rows[1];
    EXPECT_EQ(message_of([&] {
                static_cast<void>(layer(everywhere_one<3>({batch, length, 2})));
              }),
              "layer: x has " + std::to_string(batch) + " sequences of " + std::to_string(length) +
                  " rows, the limit is 1073741823 rows");
    const auto x = everywhere_one<2>({3, 2});
    const auto memory = everywhere_one<3>({batch, length, 2});
    EXPECT_NE(message_of([&] { static_cast<void>(layer(x, memory)); }).find("the limit is 1073741823 rows"),
              std::string::npos);
    EXPECT_NE(message_of([&] { static_cast<void>(layer.project_memory(memory)); }).find("the limit is 1073741823 rows"),
              std::string::npos);
  }
  EXPECT_EQ(
      message_of([&] {
        static_cast<void>(layer(everywhere_one<3>({most, most, 2})));
      }),
      "layer: x is (2147483647, 2147483647, 2), more than 36028797018963967 elements, an empty axis counted as 1");
  EXPECT_EQ(layer(everywhere_one<3>({1 << 20, 0, 2})).size(), 0u);
}

TYPED_TEST(ExtentsOn, ALayerWhoseWeightsCannotBeCountedIsRefused) {
  using Layer = mha::MultiHeadAttention<float, TypeParam>;
  EXPECT_EQ(message_of([] { Layer({.d_model = most, .num_heads = 1}); }),
            "Config: d_model is 2147483647, the limit is 1073741823");
  EXPECT_EQ(message_of([] { Layer({.d_model = longest, .num_heads = 1}); }),
            "Config: the matrix of d_model and all heads is (1073741823, 1073741823), more than 36028797018963967 "
            "elements, an empty axis counted as 1");
  EXPECT_NE(message_of([] { Layer({.d_model = 1, .num_heads = 1, .value_dim = 1 << 26, .kv_model = longest}); }), "");
  Layer large({.d_model = 1 << 27, .num_heads = 1});
  EXPECT_EQ(large.parameter_count(), std::int64_t{1} << 56);
  EXPECT_NE(message_of([&] { large.initialize(mha::XavierUniform{}); }).find("update: the layer has 72057594037927936"),
            std::string::npos);
}

/// Each of its sizes fits, but not the rows that a call would make of them.
TEST(Extents, TheRowsOfACallAreCountedBeforeTheyAreTaken) {
  constexpr Index wide = 1 << 29;
  mha::MultiHeadAttention<float, mha::Reference> layer({.d_model = 1, .num_heads = 1, .head_dim = wide});
  mha::BorrowedWeights<float> weights;
  weights.query = weights.key = weights.value = everywhere_one<2>({1, wide});
  weights.output = everywhere_one<2>({wide, 1});
  layer.borrow(weights);
  float nothing = 0;
  const TensorView<float, 3> y{&nothing, {1, wide, 1}, {wide, 1, 1}};
  EXPECT_EQ(message_of([&] {
              layer(everywhere_one<3>({1, wide, 1}), mha::into(y));
            }),
            "layer: the memory of a call's rows is (1, 536870912, 1610612736), more than 36028797018963967 elements, "
            "an empty axis counted as 1");
}

TYPED_TEST(ExtentsOn, ViewsThatLeaveTheAddressSpaceAreRefused) {
  const auto attend = [](const auto& q, const auto& k) { return mha::attention<TypeParam>(q, k, k); };
  float x[4] = {1, 2, 3, 4};
  constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max(), near = -far - 1;
  for (const std::ptrdiff_t stride : {far, far / 4, near, far / 2, -(far / 2)}) {
    const TensorView<const float, 2> v{x, {3, 1}, {stride, 1}}, single{x, {1, 1}, {stride, stride}};
    EXPECT_NE(message_of([&] { static_cast<void>(attend(v, v)); }).find("out of the address space"), std::string::npos)
        << stride;
    EXPECT_EQ(attend(single, single)(0, 0), 1) << "an axis of extent 1 is not walked";
    const std::vector<float> ones(300, 1);  // queries enough that a key far from the next is copied
    const TensorView<const float, 2> many{ones.data(), {300, 1}, {1, 1}};
    EXPECT_EQ(attend(many, single)(299, 0), 1) << "nor where keys are copied";
  }
}

/// The view with the largest stride there is along every axis of one element.
template <class E, int Rank> TensorView<E, Rank> far_along_single_axes(TensorView<E, Rank> v) {
  for (int a = 0; a < Rank; ++a)
    if (v.extent[a] == 1) v.stride[a] = std::numeric_limits<std::ptrdiff_t>::max();
  return v;
}

/// A key and its value at a time, at strides that no second one could have.
struct OneByOne : mha::ContiguousKv<float> {
  mha::KvRun<float> run(Index b, Index g, Index begin, Index) const {
    constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max();
    return {key.pointer(b, begin, g, 0), value.pointer(b, begin, g, 0), far, far, 1};
  }
};

TYPED_TEST(ExtentsOn, AttentionTakesAnyStrideOfASingleElement) {
  for (const Index batch : {1, 2})
    for (const Index queries : {1, 40})
      for (const Index keys : {1, 2, 70})
        for (const Index heads : {1, 2, 16})
          for (const Index dim : {1, 3, 64}) {
            mha::Tensor<float, 4> q(batch, queries, heads, dim), k(batch, keys, 1, dim), v = k, out = q, far = q;
            support::Random random("one element");
            for (auto* t : {&q, &k, &v}) random.fill(*t);
            mha::attention_into<TypeParam>(out, q, k, v);
            mha::attention_into<TypeParam>(
                far_along_single_axes(far.view()), far_along_single_axes(std::as_const(q).view()),
                far_along_single_axes(std::as_const(k).view()), far_along_single_axes(std::as_const(v).view()));
            EXPECT_EQ(support::differing(far, out), 0u)
                << batch << ' ' << queries << ' ' << keys << ' ' << heads << ' ' << dim;
            const OneByOne kv{{std::as_const(k).view(), std::as_const(v).view()}};
            mha::attention_into<TypeParam>(far, q, kv);
            EXPECT_LT(support::largest_difference(far, out), 1e-5) << keys << ' ' << dim;
          }
}

TYPED_TEST(ExtentsOn, ALayerTakesAnyStrideOfASingleElement) {
  for (const Index width : {1, 6, 64})
    for (const Index batch : {1, 2})
      for (const Index length : {1, 9}) {
        mha::MultiHeadAttention<float, TypeParam> layer(
            {.d_model = width, .num_heads = width == 1 ? 1 : 2, .bias = true});
        layer.initialize(mha::XavierUniform{.seed = 1});
        mha::Tensor<float, 3> x(batch, length, width), memory = x, residual = x, y = x, far = x;
        support::Random random("one element");
        for (auto* t : {&x, &memory, &residual}) random.fill(*t);
        layer(x, memory, mha::into(y), mha::residual(residual));
        layer(far_along_single_axes(std::as_const(x).view()), far_along_single_axes(std::as_const(memory).view()),
              mha::into(far_along_single_axes(far.view())),
              mha::residual(far_along_single_axes(std::as_const(residual).view())));
        EXPECT_EQ(support::differing(far, y), 0u) << width << ' ' << batch << ' ' << length;
      }
}

TEST(Extents, RaggedBatchesAreCheckedToo) {
  std::vector<Index> offsets(300, 1 << 16);  // one long sequence and many empty ones, each of which counts as long
  offsets[0] = 0;
  const auto wide = everywhere_one<3>({1 << 16, most, 64});
  float nothing = 0;
  const TensorView<float, 3> out{&nothing, {1 << 16, most, 64}, {std::ptrdiff_t{most} * 64, 64, 1}};
  EXPECT_EQ(message_of([&] { mha::attention_into(out, wide, wide, wide, mha::Ragged{offsets}); }),
            "attention: a batch of the longest sequence of queries is (299, 65536, 2147483647), more than "
            "36028797018963967 elements, an empty axis counted as 1");
}

}  // namespace
