// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <Eigen/Core>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/borrowed.hpp>
#include <mha/core/check.hpp>

#include "scratch.hpp"

namespace {

using mha::Borrowed;
using mha::Index;

TEST(Borrowed, RefusesMoreElementsThanAnIndexCounts) {
  Index one = 0;
  const std::span<const Index> most(&one, 2147483647u), beyond(&one, std::size_t{1} << 32);
  EXPECT_EQ(Borrowed<Index>(most).size, 2147483647);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Borrowed<Index>(beyond)); }),
            "Borrowed: a container has 4294967296 elements, the limit is 2147483647");
}

TEST(Borrowed, PointsAtNamedContainers) {
  std::vector<Index> v{3, 1, 2};
  const std::vector<Index> c{4, 5};
  std::array<Index, 2> a{6, 7};
  const std::span<const Index> s(v.data() + 1, 2);
  const Borrowed<Index> of_v = v, of_c = c, of_a = a, of_s = s;
  EXPECT_EQ(of_v.data, v.data());
  EXPECT_EQ(of_v.size, 3);
  EXPECT_EQ(of_v[1], 1);
  v[1] = 9;
  EXPECT_EQ(of_v[1], 9) << "it borrows, so it sees the change";
  EXPECT_EQ(of_c[1], 5);
  EXPECT_EQ(of_a.size, 2);
  EXPECT_EQ(of_s.data, v.data() + 1);
  EXPECT_EQ(of_v.memory, mha::Memory::host);
}

// A row of a matrix stored by columns has its elements apart.
TEST(Borrowed, RefusesElementsThatLieApart) {
  Eigen::MatrixXi m(2, 3);
  m << 1, 2, 3, 10, 20, 30;
  const auto row = m.row(0);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Borrowed<Index>(row)); }),
            "Borrowed: 3 elements have strides 2 and 1, expected one after another: copy them first");
  const auto two = m.row(0).head(2);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Borrowed<Index>(two)); }),
            "Borrowed: 2 elements have strides 2 and 1, expected one after another: copy them first");
  // One column of a table whose every second number is wanted.
  using Rows = Eigen::Matrix<Index, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Rows, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> apart(m.data(), 3, 1, {2, 2});
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Borrowed<Index>(apart)); }),
            "Borrowed: 3 elements have strides 2 and 2, expected one after another: copy them first");
  const auto corner = m.topRows(1);
  EXPECT_THROW(static_cast<void>(Borrowed<Index>(corner)), mha::ShapeError);
  const auto column = m.col(1), one = m.col(2);
  const Eigen::VectorXi vector = row;
  const auto single = m.block(1, 2, 1, 1);
  EXPECT_EQ(Borrowed<Index>(column)[1], 20);
  EXPECT_EQ(Borrowed<Index>(one)[0], 3);
  EXPECT_EQ(Borrowed<Index>(vector)[2], 3);
  EXPECT_EQ(Borrowed<Index>(single)[0], 30);
}

// Ids (B, L) and pages (B, n) are read by rows: those of one sequence would be taken for another's.
TEST(Borrowed, RefusesAMatrixByColumns) {
  Eigen::MatrixXi m(2, 3);
  m << 0, 0, 1, 0, 1, 1;
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(Borrowed<Index>(m)); }),
            "Borrowed: 2 rows of 3 elements lie by columns, expected by rows: copy them into a row-major matrix first");
  const auto right = m.rightCols(2);
  EXPECT_THROW(static_cast<void>(Borrowed<Index>(right)), mha::ShapeError);
  using Rows = Eigen::Matrix<Index, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Rows rows = m;
  const auto lower = rows.bottomRows(1);
  const auto turned = m.transpose();
  const Eigen::MatrixXi one_row = m.row(1), one_column = m.col(1), nothing(0, 3);
  EXPECT_EQ(Borrowed<Index>(rows)[2], 1);
  EXPECT_EQ(Borrowed<Index>(lower)[1], 1);
  EXPECT_EQ(Borrowed<Index>(turned).size, 6);
  EXPECT_EQ(Borrowed<Index>(one_row)[1], 1);
  EXPECT_EQ(Borrowed<Index>(one_column).size, 2);
  EXPECT_EQ(Borrowed<Index>(nothing).size, 0);
}

// A span owns nothing, so that one without a name is as good.
TEST(Borrowed, PointsAtNamedArrays) {
  Index written[3] = {3, 1, 2};
  const Index read[2] = {4, 5};
  const Borrowed<Index> of_written = written, of_read = read;
  EXPECT_EQ(of_written.data, written);
  EXPECT_EQ(of_written.size, 3);
  EXPECT_EQ(of_read.data, read);
  EXPECT_EQ(of_read.size, 2);
  static_assert(!std::is_convertible_v<long(&)[2], Borrowed<Index>>);
}

TEST(Borrowed, PointsAtWhatAnUnnamedSpanShows) {
  std::vector<Index> v{3, 1, 2};
  const Borrowed<Index> to_write = std::span(v), to_read = std::span<const Index>(v).subspan(1),
                        fixed = std::span<const Index, 2>(v.data(), 2);
  EXPECT_EQ(to_write.data, v.data());
  EXPECT_EQ(to_write.size, 3);
  EXPECT_EQ(to_read.data, v.data() + 1);
  EXPECT_EQ(to_read.size, 2);
  EXPECT_EQ(fixed.size, 2);
}

TEST(Borrowed, IsMadeFromAPointerAndASize) {
  const Index memory[2] = {1, 2};
  const Borrowed<Index> host{memory, 2};
  EXPECT_EQ(host[1], 2);
  EXPECT_EQ(host.memory, mha::Memory::host);
  const Borrowed<Index> device{memory, 2, mha::Memory::device};
  EXPECT_EQ(device.memory, mha::Memory::device);
  constexpr Borrowed<Index> nothing;
  static_assert(nothing.data == nullptr && nothing.size == 0 && nothing.memory == mha::Memory::host);
}

TEST(Borrowed, IsATriviallyCopyableValue) {
  static_assert(std::is_trivially_copyable_v<Borrowed<Index>>);
  std::vector<Index> v{1};
  Borrowed<Index> a = v;
  Borrowed<Index> b(a);  // not a view of `a` as a container
  EXPECT_EQ(b.data, v.data());
  b = Borrowed<Index>(a);
  EXPECT_EQ(b.size, 1);
}

}  // namespace
