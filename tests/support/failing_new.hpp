// SPDX-License-Identifier: Apache-2.0
// Allocations that fail one after the other or are measured, in a program of which one source includes
// replaced_new.hpp.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace support {

/// How many allocations of this thread succeed before one fails; negative: all do.
inline thread_local int allocations_until_failure = -1;
/// Bytes of the largest allocation of this thread since it was set to 0.
inline thread_local std::size_t largest_allocation = 0;
/// Bytes of all of them.
inline thread_local std::size_t all_allocations = 0;

/// f() with its first allocation failing, then its second, and so on until none fails: unchanged(n) is called after the
/// n-th failure. Returns how many failed.
template <class F, class Unchanged> int with_each_allocation_failing(F&& f, Unchanged&& unchanged) {
  for (int n = 0;; ++n) {
    allocations_until_failure = n;
    try {
      f();
      allocations_until_failure = -1;
      return n;
    } catch (const std::bad_alloc&) {
      allocations_until_failure = -1;
      unchanged(n);
    } catch (...) {
      allocations_until_failure = -1;
      throw;
    }
  }
}

namespace detail {

inline void* allocate(std::size_t size, std::size_t align) {
  if (allocations_until_failure == 0) throw std::bad_alloc();
  if (allocations_until_failure > 0) --allocations_until_failure;
  if (size > largest_allocation) largest_allocation = size;
  all_allocations += size;
  void* const p = align <= alignof(std::max_align_t) ? std::malloc(size == 0 ? 1 : size)
                                                     : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

/// Out of line, or the compiler takes free() after operator new for a mistake.
[[gnu::noinline]] inline void release(void* p) noexcept { std::free(p); }

}  // namespace detail

}  // namespace support
