// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "../config.hpp"
#include "../core/check.hpp"
#include "file_bytes.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A file's bytes in memory, read-only and unmapped at the end: pages are read when they are touched and shared with
/// other processes. The file must not be written to or shrink while it is mapped; one that takes its name by a rename
/// is another. Where the system does not map as POSIX does, on Windows, the bytes are read at once and kept.
///
/// Cost      no copy; the mapping starts at a page, so it is aligned for every scalar
/// Errors    std::system_error if the path cannot be opened, is not a regular file, or cannot be mapped
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path)
      : MappedFile(path, [](const std::system_error& error) { detail::throw_error(error); }) {}
  /// fail(error) throws one of another type, or ends the program.
  MappedFile(const std::filesystem::path& path, void (*fail)(const std::system_error&))
      : bytes_(detail::FileBytes::of(path, {path, fail})) {}

  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() { detail::FileBytes::release(bytes_); }

  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace mha::inline MHA_NAMESPACE
