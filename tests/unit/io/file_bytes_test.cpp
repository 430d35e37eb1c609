// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mha/core/check.hpp>
#include <mha/io/file_bytes.hpp>

#include "forked.hpp"
#include "scratch.hpp"

namespace {

using mha::detail::MappedBytes;
using mha::detail::ReadBytes;
using mha_test::message_of;

/// Both ways to the bytes of a file say the same.
template <class Bytes> struct FileBytes : testing::Test {
  static std::span<const std::byte> of(const std::filesystem::path& path) {
    return Bytes::of(path, {path, [](const std::system_error& error) { mha::detail::throw_error(error); }});
  }
  static std::string error_of(const std::filesystem::path& path) {
    return message_of<std::system_error>([&] { static_cast<void>(of(path)); });
  }
};
using Ways = testing::Types<MappedBytes, ReadBytes>;
TYPED_TEST_SUITE(FileBytes, Ways);

TYPED_TEST(FileBytes, AreThoseOfTheFile) {
  const mha_test::Scratch scratch;
  std::string written(100000, 'x');
  for (std::size_t i = 0; i < written.size(); ++i) written[i] = static_cast<char>(i * i >> 3);
  const auto bytes = TestFixture::of(scratch.write("a", written));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), written);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 64, 0u);
  TypeParam::release(bytes);
}

TYPED_TEST(FileBytes, OfAnEmptyFileAreNone) {
  const mha_test::Scratch scratch;
  const auto bytes = TestFixture::of(scratch.write("empty", ""));
  EXPECT_TRUE(bytes.empty());
  TypeParam::release(bytes);
}

TYPED_TEST(FileBytes, FaultsNameThePathAndTheReason) {
  const mha_test::Scratch scratch;
  const auto absent = (scratch.root() / "absent").string();
  EXPECT_EQ(TestFixture::error_of(absent), "cannot open '" + absent + "': No such file or directory");
  EXPECT_EQ(TestFixture::error_of(scratch.root()), "cannot read '" + scratch.root().string() + "': Is a directory");
  EXPECT_EQ(TestFixture::error_of("/dev/null"), "not a regular file '/dev/null': Invalid argument");
  const std::string secret = scratch.write("secret", "s").string();
  ASSERT_EQ(::chmod(secret.c_str(), 0), 0);
  if (::geteuid() != 0) {
    EXPECT_EQ(TestFixture::error_of(secret), "cannot open '" + secret + "': Permission denied");
  }
}

TYPED_TEST(FileBytes, DoNotWaitForTheWriterOfAFifo) {
  const mha_test::Scratch scratch;
  const std::string path = (scratch.root() / "fifo").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(
      mha_test::forked([&] { return TestFixture::error_of(path).find("not a regular file '" + path + "'") == 0; }),
      "exit 0");
}

}  // namespace
