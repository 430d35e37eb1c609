// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <mha/io/mapped_file.hpp>

#include "forked.hpp"
#include "scratch.hpp"

namespace {

using mha_test::message_of;

std::string_view text(const mha::MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const mha_test::Scratch scratch;
  const std::string_view bytes("one\0two\n", 8);
  const mha::MappedFile file(scratch.write("a", bytes));
  EXPECT_EQ(text(file), bytes);
  EXPECT_EQ(file.bytes().size(), 8u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.data()) % 64, 0u);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const mha_test::Scratch scratch;
  const mha::MappedFile file(scratch.write("empty", ""));
  EXPECT_EQ(file.size(), 0u);
  EXPECT_TRUE(file.bytes().empty());
}

TEST(MappedFile, OutlivesTheNameOfTheFile) {
  const mha_test::Scratch scratch;
  const auto path = scratch.write("a", "still here");
  const mha::MappedFile file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(text(file), "still here");
}

TEST(MappedFile, MovesAndIsNotCopied) {
  static_assert(!std::is_copy_constructible_v<mha::MappedFile> && !std::is_copy_assignable_v<mha::MappedFile>);
  const mha_test::Scratch scratch;
  mha::MappedFile a(scratch.write("a", "aaa")), b(scratch.write("b", "bbbb"));
  const std::byte* const bytes_of_a = a.data();
  b = std::move(a);
  EXPECT_EQ(text(b), "aaa");
  EXPECT_EQ(b.data(), bytes_of_a);
  const mha::MappedFile c(std::move(b));
  EXPECT_EQ(text(c), "aaa");
  EXPECT_EQ(b.size(), 0u);  // NOLINT: a moved-from file is empty
}

TEST(MappedFile, FaultsNameThePathAndTheReason) {
  const mha_test::Scratch scratch;
  const auto absent = (scratch.root() / "absent").string();
  EXPECT_EQ(message_of<std::system_error>([&] { mha::MappedFile{absent}; }),
            "cannot open '" + absent + "': No such file or directory");
  EXPECT_EQ(message_of<std::system_error>([&] { mha::MappedFile{scratch.root()}; }),
            "cannot read '" + scratch.root().string() + "': Is a directory");
  EXPECT_NE(message_of<std::system_error>([&] { mha::MappedFile{"/dev/null"}; }).find("not a regular file '/dev/null'"),
            std::string::npos);
}

TEST(MappedFile, DoesNotWaitForTheWriterOfAFifo) {
  const mha_test::Scratch scratch;
  const std::string path = (scratch.root() / "fifo").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(mha_test::forked([&] {
              return message_of<std::system_error>([&] {
                       mha::MappedFile{path};
                     }).find("not a regular file '" + path + "'") == 0;
            }),
            "exit 0");
}

}  // namespace
