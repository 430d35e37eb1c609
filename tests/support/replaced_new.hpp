// SPDX-License-Identifier: Apache-2.0
// Replaces operator new and delete for failing_new.hpp. Include it in one source of a program.
#pragma once

#include <cstddef>
#include <new>

#include "failing_new.hpp"

void* operator new(std::size_t n) { return support::detail::allocate(n, 1); }
void* operator new[](std::size_t n) { return support::detail::allocate(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) {
  return support::detail::allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return support::detail::allocate(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  try {
    return support::detail::allocate(n, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept { support::detail::release(p); }
void operator delete[](void* p) noexcept { support::detail::release(p); }
void operator delete(void* p, std::size_t) noexcept { support::detail::release(p); }
void operator delete[](void* p, std::size_t) noexcept { support::detail::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { support::detail::release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { support::detail::release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { support::detail::release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { support::detail::release(p); }
