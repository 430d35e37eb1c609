// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/compiled/systolic.hpp>

#include "declared.hpp"

namespace {

template <class Threads> using Unit = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>;

TEST(CompiledSystolic, IsRightOnThreads) {
  declared::expect_right<float, Unit<mha::ThreadPool>>(0.15);
  declared::expect_right<mha::half, Unit<mha::ThreadPool>>(0.15);
  declared::expect_right<mha::bfloat16, Unit<mha::ThreadPool>>(0.15);
}
TEST(CompiledSystolic, IsRightInTheCaller) { declared::expect_right<float, Unit<mha::Serial>>(0.15); }

}  // namespace
