// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#if defined(__x86_64__) && defined(__linux__)

#include <cmath>
#include <cstring>
#include <vector>

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mha/backend/systolic/amx.hpp>
#include <mha/core/scalar.hpp>

#include "random.hpp"

namespace {

namespace amx = mha::detail::systolic::amx;

/// Why this process may not use AMX, empty if it may. Independent of the library's own answer.
std::string amx_missing() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 24)) == 0 || (d & (1u << 22)) == 0)
    return "this machine has no AMX-BF16";
  constexpr long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) return "the kernel does not permit AMX";
  return "";
}

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = amx_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

amx::TileConfig current() {
  amx::TileConfig config;
  asm volatile("sttilecfg %0" : "=m"(config) : : "memory");
  return config;
}

TEST_F(Amx, MultipliesATile) {
  support::Random random("Amx.MultipliesATile");
  std::vector<mha::bfloat16> a(16 * 32), b(16 * 16 * 2);  // A (16, 32)  B (16, 16, 2)
  random.fill(a);
  random.fill(b);
  std::vector<float> before(16 * 20), c(16 * 20, -7.f);  // rows 20 apart: what lies between stays as it is
  for (float& x : before) x = static_cast<float>(random.normal());
  {
    const amx::TileScope scope;
    amx::load<0>(before.data(), 20 * sizeof(float));
    amx::load<3>(a.data(), 64);
    amx::load<7>(b.data(), 64);
    amx::multiply_add<0, 3, 7>();
    amx::store<0>(c.data(), 20 * sizeof(float));
  }
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 20; ++j) {
      if (j >= 16) {
        EXPECT_EQ(c[i * 20 + j], -7.f);
        continue;
      }
      double sum = double(before[i * 20 + j]), size = std::abs(sum);
      for (std::size_t k = 0; k < 32; ++k) {
        const double product = double(float(a[i * 32 + k])) * double(float(b[(k / 2 * 16 + j) * 2 + k % 2]));
        sum += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(double(c[i * 20 + j]), sum, 34 * 0x1p-24 * size) << i << ", " << j;
    }
}

TEST_F(Amx, ZeroesATile) {
  std::vector<float> ones(256, 1.f), to(256, 1.f);
  const amx::TileScope scope;
  amx::load<5>(ones.data(), 64);
  amx::zero<5>();
  amx::store<5>(to.data(), 64);
  for (const float x : to) EXPECT_EQ(x, 0.f);
}

TEST_F(Amx, ScopeReleasesTilesOfACallerWithout) {
  ASSERT_EQ(current().palette, 0);
  {
    const amx::TileScope scope;
    EXPECT_EQ(current().palette, 1);
    EXPECT_EQ(current().rows[7], 16);
    EXPECT_EQ(current().bytes[0], 64);
  }
  EXPECT_EQ(current().palette, 0);
}

TEST_F(Amx, ScopeRestoresTheCallersShapes) {
  amx::TileConfig mine = amx::TileConfig::full();
  mine.rows[2] = 3;
  mine.bytes[2] = 20;
  const amx::TileScope outer(mine);
  { const amx::TileScope inner; }
  const amx::TileConfig after = current();
  EXPECT_EQ(std::memcmp(&after, &mine, sizeof mine), 0);
}

}  // namespace

#endif
