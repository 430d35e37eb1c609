// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <mha/core/host_memory.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// What Linux says of the memory at p: whether huge pages were asked for. Nothing where it does not say.
std::optional<bool> huge_pages_asked(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream range(line); range >> std::hex >> begin >> dash >> end && dash == '-')
      here = begin <= address && address < end;
    else if (here && line.starts_with("VmFlags:"))
      return line.find(" hg") != std::string::npos;
  }
  return std::nullopt;
}

TEST(HostMemory, LargeArraysAskForHugePages) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good()) GTEST_SKIP() << "no huge pages here";
  const mha::Tensor<float, 1> large(8 * mebibyte / sizeof(float));
  const auto asked = huge_pages_asked(large.data() + large.size() / 2);
  if (!asked) GTEST_SKIP() << "this system does not tell";
  EXPECT_TRUE(*asked);

  mha::Workspace workspace(8 * mebibyte);
  auto frame = workspace.frame();
  EXPECT_EQ(huge_pages_asked(frame.take<std::byte>(8 * mebibyte) + 4 * mebibyte), true);
}

TEST(HostMemory, IsAlignedAndAllOfItCanBeWritten) {
  for (const std::size_t bytes : {std::size_t{1}, 4 * mebibyte - 1, 4 * mebibyte, 7 * mebibyte + 13}) {
    std::byte* const p = mha::HostMemory::allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % mha::alignment, 0u) << bytes;
    std::fill_n(p, bytes, std::byte{7});
    EXPECT_EQ(p[bytes - 1], std::byte{7}) << bytes;
    mha::HostMemory::free(p);
  }
}

TEST(HostMemory, RefusesSizesThatRoundUpToNothing) {
  for (const std::size_t less : {std::size_t{0}, std::size_t{63}, static_cast<std::size_t>(-1) / 2}) {
    const std::size_t bytes = static_cast<std::size_t>(-1) - less;
    EXPECT_THROW(mha::HostMemory::free(mha::HostMemory::allocate(bytes)), std::bad_alloc) << bytes;
    EXPECT_THROW(mha::Workspace{bytes}, std::bad_alloc) << bytes;
  }
}

}  // namespace
