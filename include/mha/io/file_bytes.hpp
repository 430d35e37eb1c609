// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <span>
#include <string>
#include <system_error>

#if __has_include(<sys/mman.h>)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "../config.hpp"
#include "../core/host_memory.hpp"

/// The bytes of a regular file, as MappedFile owns them: of(path, failure) and release(bytes).
namespace mha::inline MHA_NAMESPACE::detail {

/// What ends the use of a file: fail(error) throws, or ends the program.
struct FileFailure {
  const std::filesystem::path& path;
  void (*fail)(const std::system_error&);

  [[noreturn]] void operator()(const char* what, int error) const {
    fail(std::system_error(error, std::generic_category(), std::string(what) + " '" + path.string() + "'"));
    std::abort();
  }
};

#if __has_include(<sys/mman.h>)
/// Mapped: pages are read when they are touched and shared with other processes.
struct MappedBytes {
  static std::span<const std::byte> of(const std::filesystem::path& path, const FileFailure& failure) {
    // Without O_NONBLOCK, opening a FIFO would wait for its writer.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.number < 0) failure("cannot open", errno);
    struct stat status = {};
    if (::fstat(file.number, &status) != 0) failure("cannot examine", errno);
    if (S_ISDIR(status.st_mode)) failure("cannot read", EISDIR);
    if (!S_ISREG(status.st_mode)) failure("not a regular file", EINVAL);
    if (static_cast<unsigned long long>(status.st_size) > std::numeric_limits<std::size_t>::max())
      failure("cannot map", EFBIG);
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0) return {};  // mmap refuses an empty range
    void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (memory == MAP_FAILED) failure("cannot map", errno);
    return {static_cast<const std::byte*>(memory), size};
  }
  static void release(std::span<const std::byte> bytes) noexcept {
    // munmap wants a writable pointer, though it writes nothing.
    if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }

 private:
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  };
};
#endif

/// Read into memory, where the system maps no files as POSIX does.
struct ReadBytes {
  static std::span<const std::byte> of(const std::filesystem::path& path, const FileFailure& failure) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) failure("cannot open", error ? generic(error) : ENOENT);
    if (std::filesystem::is_directory(status)) failure("cannot read", EISDIR);
    if (!std::filesystem::is_regular_file(status)) failure("not a regular file", EINVAL);
    const std::uintmax_t all = std::filesystem::file_size(path, error);
    if (error) failure("cannot examine", generic(error));
    if (all > static_cast<std::uintmax_t>(std::numeric_limits<std::ptrdiff_t>::max())) failure("cannot read", EFBIG);
    const auto size = static_cast<std::size_t>(all);
    errno = 0;
    std::ifstream stream(path, std::ios::binary);
    if (!stream) failure("cannot open", errno != 0 ? errno : EIO);
    if (size == 0) return {};
    std::byte* const bytes = HostMemory::allocate(size);
    if (!stream.read(reinterpret_cast<char*>(bytes), static_cast<std::streamsize>(size))) {
      HostMemory::free(bytes);
      failure("cannot read", errno != 0 ? errno : EIO);
    }
    return {bytes, size};
  }
  static void release(std::span<const std::byte> bytes) noexcept {
    if (!bytes.empty()) HostMemory::free(const_cast<std::byte*>(bytes.data()));
  }

 private:
  /// The number that POSIX gives a reason: of Windows it is another.
  static int generic(const std::error_code& error) { return error.default_error_condition().value(); }
};

#if __has_include(<sys/mman.h>)
using FileBytes = MappedBytes;
#else
using FileBytes = ReadBytes;
#endif

}  // namespace mha::inline MHA_NAMESPACE::detail
