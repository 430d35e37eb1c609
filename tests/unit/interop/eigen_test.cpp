// SPDX-License-Identifier: Apache-2.0
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/interop/eigen.hpp>
// clang-format off
#include <Eigen/Core>  // after ours here, before it in other tests
// clang-format on

namespace {

using mha::TensorView;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The view has the object's size and shows the object's own elements, in its own memory.
template <class M> void expect_same_elements(M& m) {
  const auto v = mha::view(m);
  static_assert(decltype(v)::rank == 2);
  ASSERT_EQ(v.extent[0], m.rows());
  ASSERT_EQ(v.extent[1], m.cols());
  for (int i = 0; i < v.extent[0]; ++i)
    for (int j = 0; j < v.extent[1]; ++j) ASSERT_EQ(&v(i, j), &m.coeffRef(i, j)) << i << ' ' << j;
}

TEST(EigenView, ShowsMatricesAndArraysInEitherStorageOrder) {
  Eigen::MatrixXf columns(3, 5);
  RowMajor rows(3, 5);
  Eigen::ArrayXXd array(3, 5);
  Eigen::Matrix<int, 2, 3> fixed;
  Eigen::Matrix<int, 2, 3, Eigen::RowMajor> fixed_rows;
  expect_same_elements(columns);
  expect_same_elements(rows);
  expect_same_elements(array);
  expect_same_elements(fixed);
  expect_same_elements(fixed_rows);
  EXPECT_EQ(mha::view(columns).stride[0], 1);
  EXPECT_EQ(mha::view(rows).stride[1], 1);
}

TEST(EigenView, ShowsVectorsAsOneRowOrColumn) {
  Eigen::VectorXf column(4);
  Eigen::RowVectorXf row(4);
  expect_same_elements(column);
  expect_same_elements(row);
}

TEST(EigenView, ShowsMapsWithAnyStrides) {
  std::vector<float> memory(60);
  Eigen::Map<Eigen::MatrixXf> plain(memory.data(), 4, 5);
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> outer(memory.data(), 4, 5, Eigen::OuterStride<>(7));
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  Eigen::Map<Eigen::MatrixXf, 0, Strides> both(memory.data(), 4, 5, Strides(11, 2));
  Eigen::Map<RowMajor, 0, Strides> both_rows(memory.data(), 4, 5, Strides(12, 2));
  Eigen::Map<Eigen::RowVectorXf, 0, Eigen::InnerStride<>> spread(memory.data(), 4, Eigen::InnerStride<>(3));
  expect_same_elements(plain);
  expect_same_elements(outer);
  expect_same_elements(both);
  expect_same_elements(both_rows);
  expect_same_elements(spread);
}

TEST(EigenView, ShowsBlocksRefsAndTransposes) {
  Eigen::MatrixXf columns(6, 8);
  RowMajor rows(6, 8);
  auto block = columns.block(1, 2, 3, 4);
  auto block_of_rows = rows.block(1, 2, 3, 4);
  auto row = columns.row(2);
  auto column = rows.col(3);
  auto middle = rows.middleRows(2, 3);
  auto transposed = columns.transpose();
  Eigen::Ref<Eigen::MatrixXf> ref(columns);
  Eigen::Ref<RowMajor> ref_of_rows = block_of_rows;
  expect_same_elements(block);
  expect_same_elements(block_of_rows);
  expect_same_elements(row);
  expect_same_elements(column);
  expect_same_elements(middle);
  expect_same_elements(transposed);
  expect_same_elements(ref);
  expect_same_elements(ref_of_rows);
}

TEST(EigenView, ShowsSegmentsOfVectors) {
  Eigen::VectorXf column(9);
  Eigen::RowVectorXd row(9);
  Eigen::MatrixXf columns(6, 8);
  auto segment = column.segment(2, 4);
  auto head = row.head<3>();
  auto tail = row.tail(5);
  auto of_a_row = columns.row(3);
  auto spread = of_a_row.segment(1, 6);
  expect_same_elements(segment);
  expect_same_elements(head);
  expect_same_elements(tail);
  expect_same_elements(spread);
  EXPECT_EQ(mha::view(spread).stride[1], 6);
  const auto temporary = mha::view(column.segment(2, 4));
  static_assert(std::same_as<decltype(temporary), const TensorView<float, 2>>);
  EXPECT_EQ(&temporary(3, 0), &column(5));
}

TEST(EigenView, OfAConstSegmentIsReadOnlyAndLastsAsItsVectorDoes) {
  using mha::detail::LastingView;
  const Eigen::VectorXf column = Eigen::VectorXf::Random(9);
  const auto temporary = mha::view(column.segment(2, 4));
  static_assert(std::same_as<decltype(temporary), const TensorView<const float, 2>>);
  EXPECT_EQ(&temporary(3, 0), &column(5));
  using Ref = Eigen::Ref<const Eigen::VectorXf>;
  static_assert(LastingView<Eigen::VectorBlock<const Eigen::VectorXf>>);
  EXPECT_FALSE(LastingView<Eigen::VectorBlock<const Ref>>) << "it may hold a copy";
  static_assert(LastingView<Eigen::VectorBlock<const Ref>&>);
}

TEST(EigenView, WritesThrough) {
  Eigen::MatrixXf m = Eigen::MatrixXf::Zero(2, 2);
  auto corner = m.block(1, 1, 1, 1);
  mha::view(corner)(0, 0) = 5;
  mha::view(m)(0, 1) = 4;
  EXPECT_EQ(m(1, 1), 5);
  EXPECT_EQ(m(0, 1), 4);
}

TEST(EigenView, ShowsTemporaryBlocksOfAMatrix) {
  Eigen::MatrixXf m = Eigen::MatrixXf::Random(5, 7);
  Eigen::Map<Eigen::MatrixXf> map(m.data(), 5, 7);
  const auto top = mha::view(m.topRows(2)), turned = mha::view(m.transpose()), part = mha::view(map.block(1, 2, 3, 4));
  static_assert(std::same_as<decltype(top), const TensorView<float, 2>>);
  EXPECT_EQ(top.extent[0], 2);
  EXPECT_EQ(&top(1, 6), &m(1, 6));
  EXPECT_EQ(turned.extent[0], 7);
  EXPECT_EQ(&turned(6, 1), &m(1, 6));
  EXPECT_EQ(&part(2, 3), &m(3, 5));
}

TEST(EigenView, IsReadOnlyForConstObjects) {
  const Eigen::MatrixXf m = Eigen::MatrixXf::Random(3, 4);
  const Eigen::Map<const Eigen::MatrixXf> map(m.data(), 3, 4);
  const Eigen::Ref<const Eigen::MatrixXf> ref(m);
  const auto block = m.bottomRows(2);
  const auto turned = mha::view(m.transpose()), top = mha::view(m.topRows(2)), right = mha::view(map.rightCols(3)),
             other = mha::view(Eigen::Map<const Eigen::MatrixXf>(m.data(), 4, 3));
  EXPECT_EQ(&turned(3, 2), &m(2, 3));
  EXPECT_EQ(&top(1, 3), &m(1, 3));
  EXPECT_EQ(&right(2, 0), &m(2, 1));
  EXPECT_EQ(&other(3, 2), m.data() + 11);
  static_assert(std::same_as<decltype(mha::view(m)), TensorView<const float, 2>>);
  static_assert(std::same_as<decltype(mha::view(map)), TensorView<const float, 2>>);
  static_assert(std::same_as<decltype(mha::view(ref)), TensorView<const float, 2>>);
  static_assert(std::same_as<decltype(mha::view(block)), TensorView<const float, 2>>);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) {
      EXPECT_EQ(mha::view(m)(i, j), m(i, j));
      EXPECT_EQ(mha::view(map)(i, j), m(i, j));
      EXPECT_EQ(mha::view(ref)(i, j), m(i, j));
    }
  EXPECT_EQ(mha::view(block)(1, 3), m(2, 3));
  Eigen::MatrixXf writable(2, 2);
  static_assert(std::same_as<decltype(mha::view(writable)), TensorView<float, 2>>);
}

TEST(EigenView, OfAnEmptyMatrixIsEmpty) {
  Eigen::MatrixXf m(0, 4);
  const auto v = mha::view(m);
  EXPECT_EQ(v.extent[0], 0);
  EXPECT_EQ(v.extent[1], 4);
  EXPECT_EQ(v.size(), 0);
}

TEST(EigenView, RefusesTemporariesAndExpressions) {
  using mha::detail::LastingView;
  static_assert(LastingView<Eigen::MatrixXf&> && LastingView<const Eigen::MatrixXf&>);
  static_assert(!LastingView<Eigen::MatrixXf> && !LastingView<const Eigen::MatrixXf>);
  static_assert(LastingView<Eigen::Ref<Eigen::MatrixXf>>);
  static_assert(!LastingView<Eigen::Ref<const Eigen::MatrixXf>>, "it may hold a copy");
  static_assert(!LastingView<Eigen::Transpose<const Eigen::Ref<const Eigen::MatrixXf>>>);
  static_assert(!LastingView<Eigen::Block<const Eigen::Ref<const Eigen::MatrixXf>>>);
  using Sum = decltype(std::declval<Eigen::MatrixXf&>() + std::declval<Eigen::MatrixXf&>());
  static_assert(!mha::Viewable<Sum>, "a sum has no memory");
  using Product = decltype(std::declval<Eigen::MatrixXf&>() * std::declval<Eigen::MatrixXf&>());
  static_assert(!mha::Viewable<Product>);
  static_assert(mha::ViewableOfRank<Eigen::MatrixXf, 2> && !mha::ViewableOfRank<Eigen::MatrixXf, 3, 4>);
  static_assert(std::same_as<mha::ScalarOf<const Eigen::Ref<const Eigen::MatrixXd>&>, double>);
}

TEST(EigenView, SaysWhenAnExtentIsTooLarge) {
  const Eigen::Index rows = Eigen::Index{1} << 31;
  Eigen::Map<Eigen::VectorXf> none(nullptr, rows);
  EXPECT_EQ(none.rows(), rows);
  EXPECT_THROW(static_cast<void>(mha::view(none)), mha::ShapeError);
}

TEST(EigenResult, IsARowMajorMatrixOfTheInputsScalar) {
  const auto made = mha::detail::ResultOf<Eigen::MatrixXd>::make(3, 4);
  static_assert(std::remove_cvref_t<decltype(made)>::IsRowMajor);
  static_assert(std::same_as<std::remove_cvref_t<decltype(made)>::Scalar, double>);
  EXPECT_EQ(made.rows(), 3);
  EXPECT_EQ(made.cols(), 4);
  using OfRef = decltype(mha::detail::ResultOf<Eigen::Ref<const Eigen::MatrixXf>>::make(1, 1));
  static_assert(std::same_as<OfRef, RowMajor>, "an owner, whatever the input was");
}

TEST(EigenNames, AreDeclaredAsEigenHasThem) {
  using namespace mha::detail;
  static_assert(eigen_dynamic == Eigen::Dynamic && eigen_row_major == Eigen::RowMajor);
  static_assert(eigen_lvalue == Eigen::LvalueBit);
  static_assert(alignment_of_eigen<float>() == EIGEN_DEFAULT_ALIGN_BYTES);
}

TEST(EigenScalars, AreAccumulatedInFloat) {
  static_assert(std::same_as<mha::Accumulator<Eigen::half>, float>);
  static_assert(std::same_as<mha::Accumulator<const Eigen::bfloat16>, float>);
  Eigen::Matrix<Eigen::half, 2, 2> m;
  m << Eigen::half(1), Eigen::half(2), Eigen::half(3), Eigen::half(4);
  float sum = 0;
  const auto v = mha::view(m);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) sum += mha::Accumulator<Eigen::half>(v(i, j));
  EXPECT_EQ(sum, 10);
}

TEST(EigenScalars, RoundAsOursDo) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const float ours = mha::half::from_bits(b), theirs = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(b));
    ASSERT_TRUE(ours == theirs || (ours != ours && theirs != theirs)) << bits;
  }
  for (float x = 1e-8f; x < 1e5f; x *= 1.0007f) {
    ASSERT_EQ(mha::half(x).bits, Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x))) << x;
    ASSERT_EQ(mha::bfloat16(x).bits, Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x))) << x;
  }
}

}  // namespace
