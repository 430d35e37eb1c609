// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/layer/key_values.hpp>

#include "message_of.hpp"

namespace {

using mha::Index;
using mha::detail::take_projected_offsets;
using Made = mha::KeyValues<float>;

TEST(KeyValues, AreMemoryOfTheirOwnScalarAlone) {
  using Rows = mha::Tensor<float, 3>;
  static_assert(mha::detail::MemoryOf<const Made&, Made> && mha::detail::MemoryOf<Rows, Made>);
  static_assert(!mha::detail::MemoryOf<mha::Tensor<double, 3>, Made> && !mha::detail::MemoryArgument<int>);
  static_assert(mha::detail::has_foreign_memory<Made, mha::KeyValues<double>> &&
                !mha::detail::has_foreign_memory<Made, Made, int>);
  static_assert(mha::detail::misplaced_memory<int, Made> && !mha::detail::misplaced_memory<Made, int>);
  using mha::ContiguousKv;
  static_assert(mha::detail::MemoryOf<const ContiguousKv<float>&, Made> &&
                mha::detail::MemoryOf<ContiguousKv<mha::half>, Made>);
  static_assert(mha::detail::has_foreign_memory<Made, ContiguousKv<double>> &&
                mha::detail::misplaced_memory<int, ContiguousKv<float>>);
}

TEST(KeyValues, FitTheLayerAndItsWeights) {
  const mha::Config c{.num_kv_heads = 2, .head_dim = 4, .value_dim = 3};
  const auto message = [&](Index heads, Index dim, Index value_dim, std::uint64_t version) {
    const Made made{
        mha::Tensor<float, 4>(1, 5, heads, dim), mha::Tensor<float, 4>(1, 5, heads, value_dim), {}, version};
    return support::message_of([&] { mha::detail::require_fitting_memory(made, c, 7); });
  };
  EXPECT_EQ(message(2, 4, 3, 7), "");
  EXPECT_EQ(message(2, 4, 3, 0), "") << "0 fits any weights";
  EXPECT_NE(message(2, 4, 3, 6).find("projected with other weights"), std::string::npos);
  EXPECT_EQ(message(1, 4, 3, 7), "layer: key has 1 head but the layer has 2");
  EXPECT_EQ(message(2, 5, 3, 7), "layer: key has head size 5 but the layer has head size 4");
  EXPECT_EQ(message(2, 4, 4, 7), "layer: value has head size 4 but the layer has head size 3");
}

TEST(KeyValues, OfASourceFitTheLayer) {
  const mha::Config c{.num_kv_heads = 2, .head_dim = 4, .value_dim = 3};
  const auto message = [&](Index heads, Index dim, Index value_dim) {
    const mha::Tensor<float, 4> key(1, 5, heads, dim), value(1, 5, heads, value_dim);
    const mha::ContiguousKv<float> source{key.view(), value.view()};
    return support::message_of([&] { mha::detail::require_fitting_source(mha::detail::kv_sizes(source), c); });
  };
  EXPECT_EQ(message(2, 4, 3), "");
  EXPECT_EQ(message(1, 4, 3), "layer: the source has 1 key/value head but the layer has 2");
  EXPECT_EQ(message(2, 5, 3), "layer: the source has head size 5 but the layer has head size 4");
  EXPECT_EQ(message(2, 4, 4), "layer: the source has value head size 4 but the layer has value head size 3");
}

TEST(KeyValues, OfARaggedBatchAreCutAsTheyWereProjected) {
  const std::vector<Index> queries{0, 2, 3}, keys{0, 4, 9}, others{0, 5, 9}, three{0, 1, 2, 9}, none{}, whole{0, 3};
  std::optional<mha::Ragged> ragged(mha::Ragged{queries});
  take_projected_offsets(keys, 1, ragged);
  ASSERT_EQ(ragged->keys().size, 3);
  EXPECT_EQ(ragged->keys()[1], 4) << "those of the keys, not of the queries";

  const auto message = [](const std::vector<Index>& offsets, Index batch, std::optional<mha::Ragged> call) {
    return support::message_of([&] { take_projected_offsets(offsets, batch, call); });
  };
  EXPECT_EQ(message(keys, 1, mha::Ragged{queries, keys}), "");
  EXPECT_NE(message(keys, 1, mha::Ragged{queries, others}).find("sequence 1 starts at row 5"), std::string::npos);
  EXPECT_NE(message(keys, 1, mha::Ragged{queries, three}).find("3 key sequences"), std::string::npos);
  EXPECT_NE(message(keys, 1, std::nullopt).find("as 2 sequences"), std::string::npos);
  EXPECT_EQ(message(none, 1, std::nullopt), "");
  EXPECT_EQ(message(none, 4, std::nullopt), "");
  EXPECT_EQ(message(none, 1, mha::Ragged{whole}), "");
  EXPECT_NE(message(none, 4, mha::Ragged{whole}).find("a batch of 4"), std::string::npos);
  EXPECT_NE(message(none, 1, mha::Ragged{queries}).find("cuts it into 2"), std::string::npos);
}

TEST(KeyValues, OfOneSequenceServeEverySequenceOfQueries) {
  const mha::Tensor<float, 4> one(1, 5, 2, 4), three(3, 5, 2, 4), queries(3, 6, 2, 4);
  const auto shared = mha::detail::shared_by(queries.view(), one.view());
  EXPECT_EQ(shared.batch(), 3);
  EXPECT_EQ(&shared(2, 1, 0, 3), &one(0, 1, 0, 3));
  const auto own = mha::detail::shared_by(queries.view(), three.view());
  EXPECT_EQ(&own(2, 1, 0, 3), &three(2, 1, 0, 3));
}

}  // namespace
