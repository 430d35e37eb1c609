// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../config.hpp"

namespace mha::inline v0 {

/// A file's bytes in memory, read-only and unmapped at the end: pages are read when they are touched and shared with
/// other processes. POSIX. The file must not shrink while it is mapped.
///
/// Cost      no copy; the mapping starts at a page, so it is aligned for every scalar
/// Errors    std::system_error if the path cannot be opened, is no regular file, or cannot be mapped
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.number < 0) fail("cannot open", path, errno);
    struct stat status = {};
    if (::fstat(file.number, &status) != 0) fail("cannot examine", path, errno);
    if (S_ISDIR(status.st_mode)) fail("cannot read", path, EISDIR);
    if (!S_ISREG(status.st_mode)) fail("not a regular file", path, EINVAL);
    if (static_cast<unsigned long long>(status.st_size) > std::numeric_limits<std::size_t>::max())
      fail("cannot map", path, EFBIG);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;  // mmap refuses an empty range
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (memory == MAP_FAILED) fail("cannot map", path, errno);
    data_ = static_cast<const std::byte*>(memory);
  }

  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile() {
    // munmap wants a writable pointer, though it writes nothing.
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  };

  [[noreturn]] static void fail(const char* what, const std::filesystem::path& path, int error) {
    throw std::system_error(error, std::generic_category(), std::string(what) + " '" + path.string() + "'");
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mha::inline v0
