// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#if __has_include(<sys/mman.h>)
#include <fcntl.h>
#include <unistd.h>
#endif

#include "../config.hpp"
#include "file_bytes.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// A file that is written beside its place, as <name>.part, or mha.part where that name is too long, and put there by
/// commit(), on the disk: until then, and for good where anything fails, what has its name stays as it is, and so does
/// what is mapped of it. A link is replaced. The new file has the permissions of the one that it replaces.
///
/// Errors    failure.fail for a folder that is not there, a place that is no regular file, a full disk
class NewFile {
 public:
  explicit NewFile(const FileFailure& failure) : failure_(failure) {
    const std::filesystem::path& path = failure.path;
    std::error_code unknown;
    const std::filesystem::file_status old = std::filesystem::status(path, unknown);
    if (unknown == std::errc::filename_too_long) fail(ENAMETOOLONG);
    if (std::filesystem::is_directory(old)) fail(EISDIR);
    if (!path.has_filename()) fail(ENOENT);
    if (std::filesystem::exists(old) && !std::filesystem::is_regular_file(old)) failure_("not a regular file", EINVAL);
    // Another process may be writing the same file, or have ended amid that.
    constexpr int most = 1000;
    std::filesystem::path name = path;
    for (int number = 0; number < most; ++number) {
      part_ = name;
      part_ += number == 0 ? ".part" : ".part" + std::to_string(number);
      errno = 0;
      file_ = open(part_);
      if (errno == ENAMETOOLONG && name.filename() != "mha")
        name.replace_filename("mha"), number = -1;
      else if (file_ != nullptr || errno != EEXIST)
        break;
    }
    if (file_ == nullptr) {
      part_.clear();  // another's
      fail(errno);
    }
    std::error_code ignored;  // a file system may have none
    if (std::filesystem::exists(old)) std::filesystem::permissions(part_, old.permissions(), ignored);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() { discard(); }

  void write(const void* bytes, std::size_t size) {
    errno = 0;
    if (std::fwrite(bytes, 1, size, file_) != size) fail(errno);
  }

  /// The file is there, whole.
  void commit() {
    errno = 0;
    if (std::fflush(file_) != 0 || !reaches_the_disk(file_)) fail(errno);
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail(errno);
    std::error_code error;
    std::filesystem::rename(part_, failure_.path, error);
    if (error) fail(error.default_error_condition().value());
    part_.clear();
    keep_name();
  }

 private:
  /// Null if there is such a file.
  static std::FILE* open(const std::filesystem::path& path) {
#if __has_include(<sys/mman.h>)
    return std::fopen(path.c_str(), "wbxe");
#else
    return std::fopen(path.string().c_str(), "wbx");
#endif
  }
  static bool reaches_the_disk([[maybe_unused]] std::FILE* file) {
#if __has_include(<sys/mman.h>)
    return ::fsync(::fileno(file)) == 0 || errno == EINVAL || errno == ENOTSUP;  // there are file systems without it
#else
    return true;
#endif
  }
  /// The folder's entry is on the disk too. Of a folder that cannot be opened, or is on a file system that does not
  /// write one, the system does so later: the file is there and whole.
  void keep_name() const {
#if __has_include(<sys/mman.h>)
    const std::filesystem::path folder = failure_.path.parent_path();
    const int opened = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return;
    ::fsync(opened);
    ::close(opened);
#endif
  }

  void discard() noexcept {
    if (file_ != nullptr) std::fclose(std::exchange(file_, nullptr));
    if (part_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
    part_.clear();
  }
  [[noreturn]] void fail(int error) {
    discard();
    failure_("cannot write", error != 0 ? error : EIO);
  }

  FileFailure failure_;
  std::filesystem::path part_;  // empty if there is none
  std::FILE* file_ = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
