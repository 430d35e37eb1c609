// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "../config.hpp"
#include "check.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mha::inline MHA_NAMESPACE {

/// Memory of the host, uninitialised, aligned. Arrays of 4 MiB and more ask Linux for huge pages (of 2 MiB, where
/// transparent_hugepage is not `never`): a kernel that walks over many rows of keys or weights would spend up to a
/// third of its time on looking up pages of 4 KiB.
struct HostMemory {
  static constexpr std::size_t alignment = mha::alignment;

  /// Errors    std::bad_alloc if this machine's memory does not hold them
  static std::byte* allocate(std::size_t bytes) {
    // Some libraries round the size up to the alignment before they look at it, and the largest ones become 0.
    if (bytes > static_cast<std::size_t>(-1) / 2) detail::throw_error(std::bad_alloc());
    auto* const p = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{alignment}));
    ask_for_huge_pages(p, bytes);
    return p;
  }
  static void free(void* p) noexcept { ::operator delete (p, std::align_val_t{alignment}); }

 private:
  /// Only advice, for the whole huge pages within, that changes nothing where it is not taken.
  static void ask_for_huge_pages([[maybe_unused]] std::byte* p, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr std::size_t page = std::size_t{1} << 21;
    if (bytes < 2 * page) return;
    const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(p) % page) % page;
    const int error = errno;  // allocate() leaves it as it was
    ::madvise(p + before, (bytes - before) / page * page, MADV_HUGEPAGE);
    errno = error;
#endif
  }
};

}  // namespace mha::inline MHA_NAMESPACE
