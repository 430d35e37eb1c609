// SPDX-License-Identifier: Apache-2.0
// Every allocation of the program, Eigen's included, is counted. Include it in one source file of a program.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace bench {

/// Bytes in use and the most of them since peak_above() began, from the allocator's own block sizes.
struct Allocations {
  std::atomic<std::size_t> bytes{0}, peak{0}, count{0};
};
inline Allocations allocations;

#if defined(__GLIBC__)
inline constexpr bool counts_allocations = true;
#else
inline constexpr bool counts_allocations = false;  // there is no portable way to stand in for malloc
#endif

/// The most bytes that f held at once beyond what was in use before, and how often it allocated.
struct Footprint {
  std::size_t bytes = 0, count = 0;
};
template <class F> Footprint footprint(F&& f) {
  const std::size_t before = allocations.bytes, count = allocations.count;
  allocations.peak = before;
  f();
  return {allocations.peak - before, allocations.count - count};
}

}  // namespace bench

#if defined(__GLIBC__)
extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT: glibc's own names
void* __libc_calloc(std::size_t, std::size_t);    // NOLINT
void* __libc_realloc(void*, std::size_t);         // NOLINT
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT
void __libc_free(void*);                          // NOLINT
}

namespace bench::detail {

inline void* taken(void* p) noexcept {
  if (p == nullptr) return p;
  const std::size_t now = allocations.bytes += malloc_usable_size(p);
  std::size_t peak = allocations.peak;
  while (now > peak && !allocations.peak.compare_exchange_weak(peak, now)) {
  }
  ++allocations.count;
  return p;
}
inline void given_back(void* p) noexcept {
  if (p != nullptr) allocations.bytes -= malloc_usable_size(p);
}

}  // namespace bench::detail

extern "C" {
void* malloc(std::size_t n) noexcept { return bench::detail::taken(__libc_malloc(n)); }
void* calloc(std::size_t n, std::size_t size) noexcept { return bench::detail::taken(__libc_calloc(n, size)); }
void* realloc(void* p, std::size_t n) noexcept {
  bench::detail::given_back(p);
  return bench::detail::taken(__libc_realloc(p, n));
}
void* memalign(std::size_t align, std::size_t n) noexcept { return bench::detail::taken(__libc_memalign(align, n)); }
void* aligned_alloc(std::size_t align, std::size_t n) noexcept {
  return bench::detail::taken(__libc_memalign(align, n));
}
int posix_memalign(void** p, std::size_t align, std::size_t n) noexcept {
  *p = bench::detail::taken(__libc_memalign(align, n));
  return *p != nullptr || n == 0 ? 0 : ENOMEM;
}
void free(void* p) noexcept {
  bench::detail::given_back(p);
  __libc_free(p);
}
}
#endif
