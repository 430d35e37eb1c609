// SPDX-License-Identifier: Apache-2.0
// Every instruction of the device against the words of mha/backend/cuda/machine.hpp, as the host model is
// (tests/gpu_model/operations_test.cpp).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_machine.cuh>
#include <mha/backend/cuda/device_memory.hpp>

#include "gpu.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::cuda::Chunk;
using mha::cuda::DeviceArray;
using mha::cuda::DeviceMachine;
using mha::cuda::Shared;

static_assert(mha::cuda::Machine<DeviceMachine>);

template <class T> std::vector<T> back(const DeviceArray<T>& from) {
  std::vector<T> to(from.size());
  EXPECT_EQ(cudaMemcpy(to.data(), from.data(), to.size() * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return to;
}
template <class T> DeviceArray<T> on_device(const std::vector<T>& from) {
  return DeviceArray<T>(std::span<const T>(from));
}

/// d = a · b of small integers: a (16, 16), b (16, 8), both in shared memory as rows of 16 elements.
template <class T> __global__ void product(const T* a, const T* b, float* d) {
  DeviceMachine m;
  const int lane = m.thread();
  m.cp_async16(m.shared() + lane * 16, a + lane * 8, true);
  m.cp_async16(m.shared() + 512 + lane * 16, b + lane % 16 * 8, lane < 16);
  m.commit();
  m.template wait<0>();
  m.sync();
  std::uint32_t left[4], right[4];
  float sum[4] = {};
  // Matrices of a: rows 0 … 7 and 8 … 15 of columns 0 … 7, then of columns 8 … 15.
  m.ldmatrix_x4(left, m.shared() + lane % 16 * 32 + lane / 16 * 16);
  m.ldmatrix_x4_trans(right, m.shared() + 512 + lane % 16 * 16);
  m.template mma_m16n8k16<T>(sum, left, right[0], right[1]);
  for (int i = 0; i < 4; ++i) m.store_global(d + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2, sum[i]);
}

template <class T> class DeviceProduct : public testing::Test {};
using Halves = testing::Types<bfloat16, mha::half>;
TYPED_TEST_SUITE(DeviceProduct, Halves);

TYPED_TEST(DeviceProduct, HasTheFragmentsOfTheHostModel) {
  MHA_NEEDS_GPU();
  support::Random random("device mma");
  std::vector<TypeParam> a, b;
  for (int i = 0; i < 256; ++i) a.push_back(TypeParam(static_cast<float>(random.below(17) - 8)));
  for (int i = 0; i < 128; ++i) b.push_back(TypeParam(static_cast<float>(random.below(17) - 8)));
  auto device_a = on_device(a), device_b = on_device(b);
  auto device_d = on_device(std::vector<float>(128, NAN));
  product<<<1, 32, 1024>>>(device_a.data(), device_b.data(), device_d.data());
  const auto d = back(device_d);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += float(a[i * 16 + k]) * float(b[k * 8 + j]);
      EXPECT_EQ(d[i * 8 + j], sum) << i << ", " << j;
    }
}

constexpr int operations = 17;

__global__ void everything(const std::uint32_t* from, std::uint32_t* bits, double* numbers) {
  DeviceMachine m;
  const int lane = m.thread();
  int next = 0;
  const auto tell = [&](std::uint32_t x) { m.store_global(bits + next++ * 32 + lane, x); };
  tell(static_cast<std::uint32_t>(m.block().x * 100 + m.block().y * 10 + m.block().z));
  tell(m.shuffle_xor(static_cast<std::uint32_t>(lane), 5));
  tell(static_cast<std::uint32_t>(m.shuffle_xor(static_cast<float>(lane), 16)));
  tell(static_cast<std::uint32_t>(m.shuffle_xor(static_cast<double>(lane), 31)));
  tell(m.any(lane == 31));
  tell(m.all(lane != 31));
  tell(m.pack<bfloat16>(1.f, -2.f));
  tell(m.pack<mha::half>(65520.f, 0x1p-25f));
  tell(m.pack<bfloat16>(1 + 0x1p-8f, 1 + 0x3p-8f));
  // Zeros for what is not valid; words of each size.
  m.cp_async16(m.shared() + lane * 16, from + lane * 4, lane < 20);
  m.commit();
  m.template wait<0>();
  m.sync_warp();
  tell(m.load<Chunk>(m.shared() + (31 - lane) * 16).word[2]);
  m.sync_warp();
  m.store(m.shared() + lane * 8, 1.0 / (1 + lane));
  m.store(m.shared() + 512 + lane * 4, static_cast<float>(lane));
  m.sync_warp();
  tell(static_cast<std::uint32_t>(m.load<float>(m.shared() + 512 + (lane ^ 1) * 4)));
  tell(static_cast<std::uint32_t>(1 / m.load<double>(m.shared() + (lane ^ 1) * 8) + 0.5));
  tell(__float_as_uint(m.exp2(-126.f)));
  tell(__float_as_uint(m.exp2(-127.f)));
  tell(__float_as_uint(m.exp2(-INFINITY)));
  tell(__float_as_uint(m.max(1.f, NAN)));
  tell(__float_as_uint(m.fma(1 + 0x1p-23f, 1 - 0x1p-23f, -1.f)));
  m.store_global(numbers + lane, static_cast<double>(m.exp2(0.1f * static_cast<float>(lane))));
  m.store_global(numbers + 32 + lane, m.exp2(0.1 * lane));
  m.store_global(numbers + 64 + lane, static_cast<double>(m.log(1.f + static_cast<float>(lane))));
  m.store_global(numbers + 96 + lane, m.log(1.0 + lane));
}

TEST(DeviceMachine, DoesWhatTheMachineIsSaidToDo) {
  MHA_NEEDS_GPU();
  std::vector<std::uint32_t> source(128);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint32_t>(i);
  auto from = on_device(source), bits = on_device(std::vector<std::uint32_t>(operations * 32, 0xdeadbeefu));
  auto numbers = on_device(std::vector<double>(128, NAN));
  everything<<<1, 32, 1024>>>(from.data(), bits.data(), numbers.data());
  const auto got = back(bits);
  const auto exact = back(numbers);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t expected[operations] = {
        0,           lane ^ 5,       lane ^ 16,   lane ^ 31,   1,
        0,           0xc0003f80u,    0x00007c00u, 0x3f823f80u, 31 - lane < 20 ? (31 - lane) * 4 + 2 : 0,
        lane ^ 1,    (lane ^ 1) + 1, 0x00800000u, 0,           0,
        0x3f800000u, 0xa8800000u};
    for (std::uint32_t i = 0; i < operations; ++i) EXPECT_EQ(got[i * 32 + lane], expected[i]) << "operation " << i;
    EXPECT_NEAR(exact[lane], std::exp2(double(0.1f * static_cast<float>(lane))), 4e-7 * exact[lane]);
    EXPECT_NEAR(exact[32 + lane], std::exp2(0.1 * lane), 1e-15 * exact[32 + lane]);
    EXPECT_NEAR(exact[64 + lane], std::log(1.0 + lane), 1e-6);
    EXPECT_NEAR(exact[96 + lane], std::log(1.0 + lane), 1e-15 * 4);
  }
}

/// Block b's number from each of its threads; the last block to come adds those of all.
__global__ void merge(double* parts, double* sums, unsigned* counter) {
  DeviceMachine m;
  const int blocks = static_cast<int>(gridDim.x), block = m.block().x, thread = m.thread();
  m.store_global(parts + block * 64 + thread, 1.0 + block * 64 + thread);
  m.sync();
  if (thread == 0) {
    m.fence();
    const unsigned ticket = m.atomic_wrap(counter, static_cast<unsigned>(blocks - 1));
    m.fence();
    m.store(m.shared(), ticket);
  }
  m.sync();
  if (m.load<std::uint32_t>(m.shared()) != static_cast<std::uint32_t>(blocks - 1)) return;
  double sum = 0;
  for (int b = 0; b < blocks; ++b) sum += m.load_global(parts + b * 64 + thread);
  m.store_global(sums + thread, sum);
}

TEST(DeviceMachine, TheLastBlockSeesWhatAllHaveWritten) {
  MHA_NEEDS_GPU();
  constexpr int blocks = 500;
  auto parts = on_device(std::vector<double>(blocks * 64, NAN)), sums = on_device(std::vector<double>(64, NAN));
  auto counter = on_device(std::vector<unsigned>(1, 0u));
  for (int repeat = 0; repeat < 20; ++repeat) {
    merge<<<blocks, 64, 16>>>(parts.data(), sums.data(), counter.data());
    const auto got = back(sums);
    for (int t = 0; t < 64; ++t)
      EXPECT_EQ(got[static_cast<std::size_t>(t)], blocks * (1.0 + t) + 64.0 * blocks * (blocks - 1) / 2);
    EXPECT_EQ(back(counter)[0], 0u);
  }
}

}  // namespace
