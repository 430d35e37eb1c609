// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdlib>
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
#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A file's bytes in memory, read-only and unmapped at the end: pages are read when they are touched and shared with
/// other processes. POSIX. The file must not shrink while it is mapped.
///
/// Cost      no copy; the mapping starts at a page, so it is aligned for every scalar
/// Errors    std::system_error if the path cannot be opened, is not a regular file, or cannot be mapped
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path)
      : MappedFile(path, [](const std::system_error& error) { detail::throw_error(error); }) {}
  /// fail(error) throws one of another type, or ends the program.
  MappedFile(const std::filesystem::path& path, void (*fail)(const std::system_error&)) {
    const auto stop = [&](const char* what, int error) {
      fail(std::system_error(error, std::generic_category(), std::string(what) + " '" + path.string() + "'"));
      std::abort();
    };
    // Without O_NONBLOCK, opening a FIFO would wait for its writer.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.number < 0) stop("cannot open", errno);
    struct stat status = {};
    if (::fstat(file.number, &status) != 0) stop("cannot examine", errno);
    if (S_ISDIR(status.st_mode)) stop("cannot read", EISDIR);
    if (!S_ISREG(status.st_mode)) stop("not a regular file", EINVAL);
    if (static_cast<unsigned long long>(status.st_size) > std::numeric_limits<std::size_t>::max())
      stop("cannot map", EFBIG);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;  // mmap refuses an empty range
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (memory == MAP_FAILED) stop("cannot map", errno);
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

  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  };

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mha::inline MHA_NAMESPACE
