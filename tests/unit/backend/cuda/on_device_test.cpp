// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/on_device.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

#include "gpu.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::on_device;

static_assert(std::is_same_v<decltype(on_device(mha::Causal{})), mha::Causal>);
static_assert(std::is_same_v<decltype(on_device(mha::Chain{mha::SoftCap{2.f}, mha::Alibi{}})),
                             mha::Chain<mha::SoftCap, mha::Alibi>>);
using PaddedCausal = mha::And<mha::cuda::OnDevice<mha::Padding>, mha::Causal>;
static_assert(std::is_same_v<decltype(on_device(mha::And<mha::Padding, mha::Causal>{})), PaddedCausal>);
static_assert(mha::Mask<PaddedCausal> && !mha::Borrows<PaddedCausal>);
static_assert(mha::Score<mha::cuda::DeviceRelativeBias> && mha::SinkPolicy<mha::cuda::DeviceSink>);
static_assert(std::is_trivially_copyable_v<mha::cuda::DistanceTable>);

TEST(DistanceTable, HasTheBiasOfEveryDistance) {
  support::Random random("distance table");
  for (const mha::RelativeBuckets buckets :
       {mha::RelativeBuckets{}, mha::RelativeBuckets{.count = 10, .max_distance = 7, .bidirectional = false},
        mha::RelativeBuckets{.count = 6, .max_distance = 40},
        mha::RelativeBuckets{.count = 64, .max_distance = 1000}}) {
    constexpr Index heads = 3;
    std::vector<float> numbers(static_cast<std::size_t>(buckets.count * heads));
    random.fill(numbers);
    const mha::RelativeBias bias(numbers, buckets);
    const std::vector<float> table = mha::cuda::table_by_distance(bias);
    const mha::cuda::DistanceTable fast{mha::Borrowed<float>(table), buckets.max_distance};
    for (Index h = 0; h < heads; ++h)
      for (Index d = -5000; d <= 5000; ++d) {
        const Index q = d < 0 ? -d + 3 : 3, k = q + d;
        ASSERT_EQ(fast(1.5f, 0, h, q, k), bias(1.5f, 0, h, q, k)) << "head " << h << " distance " << d;
      }
  }
}

TEST(DistanceTable, IsRefusedWhereNoIndexCountsTheDistances) {
  for (const auto& [reach, heads] : {std::pair{2147483647, 1}, std::pair{1 << 30, 1}, std::pair{1 << 28, 8}}) {
    const mha::RelativeBias bias(std::vector<float>(std::size_t(32 * heads), 1.f), {.max_distance = reach});
    try {
      static_cast<void>(mha::cuda::table_by_distance(bias));
      ADD_FAILURE() << "a table for max_distance " << reach;
    } catch (const mha::ShapeError& e) {
      EXPECT_NE(std::string(e.what()).find("RelativeBias: max_distance " + std::to_string(reach)), std::string::npos)
          << e.what();
    }
  }
}

TEST(OnDevice, APolicyOwnsBothCopiesAndChecksTheHosts) {
  MHA_NEEDS_GPU();
  std::vector<Index> lengths{3, 5};
  const auto padding = on_device(mha::Padding{lengths});
  lengths.assign(2, 100);  // the policy has its own
  const mha::CallShape shape{2, 1, 4, 6, 2};
  const mha::Padding ready = padding.prepared(shape);
  EXPECT_EQ(ready.lengths.memory, mha::Memory::device);
  std::vector<Index> back(2);
  mha::cuda::check(cudaMemcpy(back.data(), ready.lengths.data, 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(back, (std::vector<Index>{3, 5}));
  EXPECT_TRUE(padding(0, 0, 0, 2));
  EXPECT_FALSE(padding(0, 0, 0, 3));
  EXPECT_THROW(static_cast<void>(padding.prepared({2, 1, 4, 4, 0})), mha::ShapeError) << "5 of 4 keys";
}

TEST(OnDevice, TablesKeepTheirStrides) {
  MHA_NEEDS_GPU();
  mha::Tensor<bool, 3> visible(3, 4, 5);
  for (std::size_t i = 0; i < visible.size(); ++i) visible.data()[i] = i % 3 == 0;
  const mha::TensorView<const bool, 4> turned{visible.data(), {1, 3, 5, 4}, {0, 20, 1, 5}};
  const auto dense = on_device(mha::Dense(turned));
  const mha::Dense ready = dense.prepared({1, 3, 5, 4, 0});
  EXPECT_EQ(ready.memory, mha::Memory::device);
  std::vector<char> back(60);
  mha::cuda::check(cudaMemcpy(back.data(), ready.visible.data, 60, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (Index h = 0; h < 3; ++h)
    for (Index q = 0; q < 5; ++q)
      for (Index k = 0; k < 4; ++k)
        EXPECT_EQ(back[static_cast<std::size_t>(&ready.visible(0, h, q, k) - ready.visible.data)] != 0,
                  turned(0, h, q, k));
}

TEST(OnDevice, SinksAndBiasesAreCheckedForTheCall) {
  MHA_NEEDS_GPU();
  const auto sink = on_device(mha::Sink({1, 2, 3}));
  EXPECT_EQ(sink.logits(3).memory, mha::Memory::device);
  EXPECT_THROW(static_cast<void>(sink.logits(2)), mha::ShapeError);
  const auto bias = on_device(mha::RelativeBias(std::vector<float>(64, 1.f)));
  EXPECT_EQ(bias.prepared({1, 2, 4, 4, 0}).by_distance.memory, mha::Memory::device);
  EXPECT_THROW(static_cast<void>(bias.prepared({1, 3, 4, 4, 0})), mha::ShapeError);
  const auto slopes = on_device(mha::AlibiSlopes({1, 2}));
  EXPECT_EQ(slopes.prepared({1, 2, 4, 4, 0}).slopes.memory, mha::Memory::device);
  EXPECT_THROW(static_cast<void>(slopes.prepared({1, 3, 4, 4, 0})), mha::ShapeError);
}

}  // namespace
