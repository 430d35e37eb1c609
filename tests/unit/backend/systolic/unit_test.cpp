// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/simd/vector.hpp>
#include <mha/backend/systolic/unit.hpp>

#include "units.hpp"

namespace {

using mha::MatrixUnit;
using mha::detail::systolic::all_units;
using mha::detail::systolic::unit_from_environment;

/// MHA_MATRIX_UNIT for the time of one test.
class Unit : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = std::getenv("MHA_MATRIX_UNIT"); before != nullptr) before_ = before;
    unit_ = mha::current_unit();
  }
  void TearDown() override {
    // Set but empty means the best unit, as unset does.
    setenv("MHA_MATRIX_UNIT", before_.c_str(), 1);
    mha::force_unit(unit_);
  }
  static std::string message(const char* asked) {
    setenv("MHA_MATRIX_UNIT", asked, 1);
    try {
      unit_from_environment();
    } catch (const mha::ShapeError& e) {
      return e.what();
    }
    return "no error";
  }

 private:
  std::string before_;
  MatrixUnit unit_ = MatrixUnit::portable;
};

TEST_F(Unit, UnitsHaveNames) {
  EXPECT_STREQ(to_string(MatrixUnit::portable), "portable");
  EXPECT_STREQ(to_string(MatrixUnit::dot_product), "dot_product");
  EXPECT_STREQ(to_string(MatrixUnit::amx), "amx");
}

#if defined(__x86_64__) && defined(__linux__)
TEST(UnitDeathTest, OnlyAmxAsksTheKernelForTiles) {
  // In a process of its own, started anew, because permission is for good.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr long arch_get_xcomp_perm = 0x1022;
  EXPECT_EXIT(
      {
        setenv("MHA_MATRIX_UNIT", "portable", 1);
        const bool portable = unit_from_environment() == MatrixUnit::portable;
        mha::missing(MatrixUnit::dot_product);
        std::uint64_t permitted = 0;
        syscall(SYS_arch_prctl, arch_get_xcomp_perm, &permitted);
        std::_Exit(portable && (permitted >> 18 & 1u) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}
#endif

#if defined(__x86_64__)
TEST(MissingUnit, EachBitOfAmxIsAskedFor) {
  using mha::detail::systolic::missing_amx;
  constexpr std::uint32_t tile = 1u << 24, bf16 = 1u << 22, others = ~(tile | bf16);
  constexpr std::uint64_t config = 1u << 17, data = 1u << 18, all = ~std::uint64_t{0};
  int requests = 0;
  const auto granted = [&] { return ++requests > 0; };
  const auto refused = [&] { return ++requests < 0; };
  EXPECT_EQ(missing_amx(others | bf16, all, granted), "the processor has no tiles (AMX-TILE)");
  EXPECT_EQ(missing_amx(others | tile, all, granted), "the processor's tiles do not multiply bfloat16 (AMX-BF16)");
  for (const std::uint64_t saved : {all & ~config, all & ~data, std::uint64_t{0}})
    EXPECT_EQ(missing_amx(tile | bf16, saved, granted),
              "the system does not save tile registers (XCR0 bits 17 and 18)");
  EXPECT_EQ(requests, 0) << "the kernel is asked last, because what it grants is for good";
  EXPECT_EQ(missing_amx(tile | bf16, config | data, refused),
            "the kernel refuses tile registers to this process (ARCH_REQ_XCOMP_PERM)");
  EXPECT_EQ(missing_amx(tile | bf16, config | data, granted), "");
  EXPECT_EQ(requests, 2);
}

TEST(MissingUnit, DotProductsNeedTheirBitAndAvx512) {
  using mha::IsaLevel;
  using mha::detail::systolic::missing_dot_product;
  EXPECT_EQ(missing_dot_product(~(1u << 5), IsaLevel::avx512),
            "the processor has no bfloat16 dot products (AVX512_BF16)");
  EXPECT_EQ(missing_dot_product(1u << 5, IsaLevel::avx2), MHA_ISA_MAX < 2
                                                              ? "the program has no kernels for AVX-512 (MHA_ISA_MAX)"
                                                              : "the system does not offer AVX-512");
  EXPECT_EQ(missing_dot_product(1u << 5, IsaLevel::avx512), "");
}
#endif

TEST_F(Unit, BestIsTheFastestThatIsThere) {
  EXPECT_EQ(mha::missing(MatrixUnit::portable), "");
  EXPECT_EQ(mha::missing(mha::best_unit()), "");
  if (mha::missing(MatrixUnit::amx).empty()) {
    EXPECT_EQ(mha::best_unit(), MatrixUnit::amx);
  } else if (!mha::detail::systolic::dot_product_pays()) {
    EXPECT_EQ(mha::best_unit(), MatrixUnit::portable);
  }
}

TEST_F(Unit, EnvironmentChooses) {
  unsetenv("MHA_MATRIX_UNIT");
  EXPECT_EQ(unit_from_environment(), mha::best_unit());
  setenv("MHA_MATRIX_UNIT", "", 1);
  EXPECT_EQ(unit_from_environment(), mha::best_unit());
  for (const MatrixUnit unit : all_units)
    if (mha::missing(unit).empty()) {
      setenv("MHA_MATRIX_UNIT", to_string(unit), 1);
      EXPECT_EQ(unit_from_environment(), unit);
    }
}

TEST_F(Unit, UnknownOrMissingUnitsAreErrors) {
  EXPECT_EQ(message("tpu"), "MHA_MATRIX_UNIT: 'tpu' is none of portable, dot_product, amx");
  for (const MatrixUnit unit : all_units) {
    if (mha::missing(unit).empty()) continue;
    EXPECT_EQ(message(to_string(unit)),
              std::string("MHA_MATRIX_UNIT: ") + to_string(unit) + " was asked for but " + mha::missing(unit));
  }
}

TEST_F(Unit, ForcedUnitIsTheOneInUse) {
  for (const MatrixUnit unit : all_units)
    if (mha::missing(unit).empty()) {
      mha::force_unit(unit);
      EXPECT_EQ(mha::current_unit(), unit);
    } else {
      const MatrixUnit before = mha::current_unit();
      EXPECT_THROW(mha::force_unit(unit), mha::ShapeError);
      EXPECT_EQ(mha::current_unit(), before);
    }
}

#if defined(__x86_64__)
struct DotProducts {
  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(float* sum, const std::uint32_t* a, const std::uint32_t* b) {
    using mha::detail::simd::load;
    mha::detail::simd::vector_t<float, Isa> s;
    typename mha::detail::simd::Vector<float, Isa>::int_type x, y;
    load(s, sum);
    load(x, a);
    load(y, b);
    mha::detail::systolic::add_dot_products(s, x, y);
    mha::detail::simd::store(sum, s);
  }
};

TEST_F(Unit, DotProductsAddPairsToTheirSum) {
  UNIT_OR_SKIP(MatrixUnit::dot_product);
  std::uint32_t a[16], b[16];
  float sum[16];
  for (std::uint32_t i = 0; i < 16; ++i) {
    a[i] = 0x40003f80;  // the pair (1, 2)
    b[i] = 0x40804040;  // the pair (3, 4)
    sum[i] = static_cast<float>(i);
  }
  mha::detail::systolic::Avx512Bf16::run<DotProducts>(&sum[0], &a[0], &b[0]);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(sum[i], static_cast<float>(i) + 11);
}
#endif

}  // namespace
