// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/simd/isa.hpp>

namespace {

using mha::IsaLevel;
using mha::detail::isa_from_environment;

constexpr IsaLevel levels[] = {IsaLevel::baseline, IsaLevel::avx2, IsaLevel::avx512};

/// MHA_ISA for the time of one test.
class Isa : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = std::getenv("MHA_ISA"); before != nullptr) before_ = before;
    level_ = mha::current_isa();
  }
  void TearDown() override {
    // Set but empty means the best level, as unset does.
    setenv("MHA_ISA", before_.c_str(), 1);
    mha::force_isa(level_);
  }
  static std::string message(const char* asked) {
    setenv("MHA_ISA", asked, 1);
    try {
      isa_from_environment();
    } catch (const mha::ShapeError& e) {
      return e.what();
    }
    return "no error";
  }

 private:
  std::string before_;
  IsaLevel level_ = IsaLevel::baseline;
};

TEST_F(Isa, LevelsHaveNamesAndAnOrder) {
  EXPECT_STREQ(to_string(IsaLevel::baseline), "baseline");
  EXPECT_STREQ(to_string(IsaLevel::avx2), "avx2");
  EXPECT_STREQ(to_string(IsaLevel::avx512), "avx512");
  EXPECT_LT(IsaLevel::baseline, IsaLevel::avx2);
  EXPECT_LT(IsaLevel::avx2, IsaLevel::avx512);
}

TEST_F(Isa, EnvironmentLowersTheLevel) {
  unsetenv("MHA_ISA");
  EXPECT_EQ(isa_from_environment(), mha::best_isa());
  setenv("MHA_ISA", "", 1);
  EXPECT_EQ(isa_from_environment(), mha::best_isa());
  for (const IsaLevel level : levels)
    if (level <= mha::best_isa()) {
      setenv("MHA_ISA", to_string(level), 1);
      EXPECT_EQ(isa_from_environment(), level);
    }
}

TEST_F(Isa, UnknownOrMissingLevelsAreErrors) {
  EXPECT_EQ(message("sse9"), "MHA_ISA: 'sse9' is none of baseline, avx2, avx512");
  for (const IsaLevel level : levels) {
    if (level <= mha::best_isa()) continue;
    EXPECT_EQ(message(to_string(level)), "MHA_ISA: " + std::string(mha::detail::runs_up_to()) +
                                             to_string(mha::best_isa()) + " but " + to_string(level) +
                                             " was asked for");
  }
}

TEST_F(Isa, ForcedLevelIsTheOneInUse) {
  for (const IsaLevel level : levels)
    if (level <= mha::best_isa()) {
      mha::force_isa(level);
      EXPECT_EQ(mha::current_isa(), level);
    } else {
      const IsaLevel before = mha::current_isa();
      EXPECT_THROW(mha::force_isa(level), mha::ShapeError);
      EXPECT_EQ(mha::current_isa(), before);
    }
}

struct WriteLevel {
  template <class Tag> static void run(IsaLevel* to) { *to = Tag::level; }
};

TEST_F(Isa, DispatchReachesTheBodyOfTheLevel) {
  for (const IsaLevel level : levels) {
    if (level > mha::best_isa()) continue;
    IsaLevel ran = IsaLevel::baseline;
    const int bytes = mha::detail::simd::with_isa(level, [&](auto isa) {
      isa.template run<WriteLevel>(&ran);
      return isa.register_bytes;
    });
    EXPECT_EQ(ran, level);
    EXPECT_EQ(bytes, 16 << static_cast<int>(level));
  }
}

#if defined(__x86_64__)
// What was measured on AMD's processors of family 26 holds for them and those after them, and for nobody else's.
TEST_F(Isa, ProcessorsThatForgetRequestsAreAmdsSinceZen5) {
  std::ifstream info("/proc/cpuinfo");
  bool amd = false;
  int family = 0;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    amd = amd || (line.starts_with("vendor_id") && line.ends_with("AuthenticAMD"));
    if (line.starts_with("cpu family")) family = std::stoi(line.substr(line.find(':') + 1));
  }
  if (family == 0) GTEST_SKIP() << "no family of the processor to read here";
  EXPECT_EQ(mha::detail::forgets_requests(), amd && family >= 26);
}
#else
// An emulator may show the file of another processor.
TEST_F(Isa, NoOtherProcessorIsKnownToForgetRequests) { EXPECT_FALSE(mha::detail::forgets_requests()); }
#endif

}  // namespace
