// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mha/core/check.hpp>
#include <mha/io/mapped_file.hpp>
#include <mha/io/new_file.hpp>

#include "forked.hpp"
#include "scratch.hpp"

namespace new_file_test {

/// What was written to the disk: files and folders, in order.
inline std::string& synced() {
  static std::string kinds;
  return kinds;
}

}  // namespace new_file_test

/// In the place of the system's, which it calls.
extern "C" int fsync(int file) {
  struct stat status = {};
  if (::fstat(file, &status) == 0) new_file_test::synced() += S_ISDIR(status.st_mode) ? "folder " : "file ";
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace {

namespace fs = std::filesystem;
using mha::detail::NewFile;
using mha_test::message_of;
using mha_test::Scratch;

void fail(const std::system_error& error) { mha::detail::throw_error(error); }

void write(const fs::path& path, std::string_view text) {
  NewFile file({path, fail});
  file.write(text.data(), text.size());
  file.commit();
}
std::string error_of(const fs::path& path, std::string_view text = "new") {
  return message_of<std::system_error>([&] { write(path, text); });
}
std::string text_of(const fs::path& path) {
  const mha::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}
std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(NewFile, TakesItsPlaceAtTheEnd) {
  const Scratch scratch;
  const fs::path path = scratch.write("a", "old");
  const mha::MappedFile old(path);
  {
    NewFile file({path, fail});
    file.write("ne", 2);
    file.write("w", 1);
    EXPECT_EQ(text_of(path), "old");
    EXPECT_EQ(files_in(scratch.root()), 2);
    file.commit();
    EXPECT_EQ(text_of(path), "new");
    EXPECT_EQ(files_in(scratch.root()), 1);
  }
  EXPECT_EQ(text_of(path), "new");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(old.data()), old.size()),
            "old");  // what is mapped is still there
  write(scratch.root() / "b", "");
  EXPECT_EQ(text_of(scratch.root() / "b"), "");
}

TEST(NewFile, IsOnTheDiskWithItsName) {
  const Scratch scratch;
  std::string& synced = new_file_test::synced();
  synced.clear();
  const fs::path path = scratch.root() / "a";
  NewFile file({path, fail});
  file.write("new", 3);
  EXPECT_EQ(synced, "");
  file.commit();
  EXPECT_EQ(synced, "file folder ");
}

TEST(NewFile, IsGoneWithoutItsEnd) {
  const Scratch scratch;
  const fs::path path = scratch.write("a", "old");
  { NewFile({path, fail}).write("new", 3); }
  EXPECT_EQ(text_of(path), "old");
  EXPECT_EQ(files_in(scratch.root()), 1);
}

TEST(NewFile, LeavesThatOfAnotherWriter) {
  const Scratch scratch;
  const fs::path other = scratch.write("a.part", "another's");
  write(scratch.root() / "a", "new");
  EXPECT_EQ(text_of(scratch.root() / "a"), "new");
  EXPECT_EQ(text_of(other), "another's");
  EXPECT_EQ(files_in(scratch.root()), 2);
}

TEST(NewFile, HasTheLongestNameThatThereMayBe) {
  const Scratch scratch;
  const auto longest = static_cast<std::size_t>(::pathconf(scratch.root().c_str(), _PC_NAME_MAX));
  const fs::path other = scratch.write("mha.part", "another's");
  std::ptrdiff_t files = 1;
  for (std::size_t size = longest - 6; size <= longest; ++size) {
    const fs::path path = scratch.root() / std::string(size, 'a');
    for (const char* text : {"old", "new"}) {
      EXPECT_EQ(error_of(path, text), "") << size;
      EXPECT_EQ(text_of(path), text);
    }
    EXPECT_EQ(files_in(scratch.root()), ++files);
  }
  const fs::path path = scratch.root() / std::string(longest + 1, 'a');
  EXPECT_EQ(message_of<std::system_error>([&] {
              NewFile({path, fail});
            }),
            "cannot write '" + path.string() + "': File name too long");
  EXPECT_EQ(text_of(other), "another's");
  EXPECT_EQ(files_in(scratch.root()), files);
}

TEST(NewFile, ReplacesALink) {
  const Scratch scratch;
  const fs::path to = scratch.write("to", "old"), link = scratch.root() / "link";
  fs::create_symlink(to, link);
  write(link, "new");
  EXPECT_EQ(text_of(to), "old");
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(text_of(link), "new");
}

TEST(NewFile, HasThePermissionsOfTheOldOne) {
  const Scratch scratch;
  const fs::path path = scratch.write("a", "old");
  for (const fs::perms perms : {fs::perms::owner_read | fs::perms::owner_write, fs::perms::owner_read}) {
    fs::permissions(path, perms);
    {
      NewFile file({path, fail});
      EXPECT_EQ(fs::status(path.string() + ".part").permissions(), perms);  // while it is written too
      file.write("new", 3);
      file.commit();
    }
    EXPECT_EQ(fs::status(path).permissions(), perms);
  }
}

TEST(NewFile, IsGoneWhereItsPlaceIsTaken) {
  const Scratch scratch;
  const fs::path path = scratch.root() / "a";
  const std::string error = message_of<std::system_error>([&] {
    NewFile file({path, fail});
    fs::create_directory(path);
    file.commit();
  });
  EXPECT_EQ(error, "cannot write '" + path.string() + "': Is a directory");
  EXPECT_EQ(files_in(scratch.root()), 1);
}

TEST(NewFile, SaysWhereItCannotBe) {
  const Scratch scratch;
  const std::string absent = (scratch.root() / "no" / "a").string(), folder = scratch.root().string();
  EXPECT_EQ(error_of(absent), "cannot write '" + absent + "': No such file or directory");
  EXPECT_EQ(error_of(folder), "cannot write '" + folder + "': Is a directory");
  EXPECT_EQ(error_of(folder + "/"), "cannot write '" + folder + "/': Is a directory");
  EXPECT_EQ(error_of(folder + "/no/"), "cannot write '" + folder + "/no/': No such file or directory");
  EXPECT_EQ(error_of(""), "cannot write '': No such file or directory");
  EXPECT_EQ(error_of("/dev/full"), "not a regular file '/dev/full': Invalid argument");
  EXPECT_EQ(files_in(scratch.root()), 0);
}

/// As on a full disk: the system takes no more than so many bytes of a file.
class NewFileOfLimitedSize : public testing::TestWithParam<std::size_t> {};
TEST_P(NewFileOfLimitedSize, LeavesTheOldOne) {
  const Scratch scratch;
  const fs::path path = scratch.write("a", "old");
  const std::string text(GetParam(), 'x');
  const auto limited = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, RLIM_INFINITY};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           error_of(path, text) == "cannot write '" + path.string() + "': File too large";
  };
  EXPECT_EQ(mha_test::forked(limited), "exit 0");
  EXPECT_EQ(text_of(path), "old");
  EXPECT_EQ(files_in(scratch.root()), 1);
}
// Noticed as the last buffer is written, and before.
INSTANTIATE_TEST_SUITE_P(Sizes, NewFileOfLimitedSize, testing::Values(2000u, 5'000'000u));

}  // namespace
