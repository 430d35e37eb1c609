// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/layer/parameter_views.hpp>

#include "message_of.hpp"

namespace {

using mha::Index;
using support::message_of;
using Views = mha::ParameterViews<float>;

TEST(ParameterViews, FlatNeedsOwnWeights) {
  EXPECT_EQ(message_of([] { Views{}.flat(); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
  std::vector<float> numbers(24);
  Views p;
  p.query.heads = mha::view(numbers.data(), 2, 3, 4);
  EXPECT_EQ(
      message_of([&] { p.flat(); }),
      "parameters: flat() has nothing to show, because the weights are borrowed and need not be in one row: read them "
      "by name");
  p.all = numbers;
  EXPECT_EQ(p.flat().data(), numbers.data());
  EXPECT_EQ(p.flat().size(), numbers.size());
}

TEST(ParameterViews, PartsAreAllThatAreNamedOnceEach) {
  float numbers[11] = {};
  Views p;
  float* at = numbers;
  for (auto* heads : {&p.query, &p.key, &p.value}) {
    heads->heads = mha::view(at++, 1, 1, 1);
    heads->bias = mha::view(at++, 1, 1);
  }
  p.output.weight = mha::view(at++, 1, 1);
  for (auto* vector : {&p.output.bias, &p.query_norm, &p.key_norm, &p.gate}) *vector = mha::view(at++, 1);
  std::set<std::string> names;
  std::set<const float*> places;
  mha::detail::PartsOf<Views>::each(
      [&](const char* name, const auto& v) {
        names.insert(name);
        places.insert(v.data);
      },
      p);
  EXPECT_EQ(names.size(), 11u);
  EXPECT_EQ(places.size(), 11u);
  EXPECT_EQ(places.count(nullptr), 0u);
}

TEST(LinearWeights, AreWrittenFromAMatrixOfTheirShape) {
  mha::Tensor<float, 2> to(2, 3);
  mha::Tensor<double, 2> from(2, 3), turned(3, 2);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j) from(i, j) = 10 * i + j + 1;
  const mha::LinearWeights<float> output{to.view(), {}};
  output = from;
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j) EXPECT_EQ(to(i, j), static_cast<float>(10 * i + j + 1));
  EXPECT_EQ(message_of([&] { output = turned; }),
            "update: the matrix is (3, 2), expected (2, 3): assign its transpose, mha::transposed(view)");
}

TEST(BorrowedWeights, NameTheScalarThatTheyAreIn) {
  using mha::detail::WeightsOfAnother;
  static_assert(WeightsOfAnother<mha::BorrowedWeights<mha::half>, float>);
  static_assert(WeightsOfAnother<mha::ParameterViews<const mha::bfloat16>, float>);
  static_assert(!WeightsOfAnother<mha::BorrowedWeights<float>, float> && !WeightsOfAnother<Views, float>);
}

}  // namespace
