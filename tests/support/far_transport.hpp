// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "far_backend.hpp"
#include "transport.hpp"

namespace support {

/// How tests bring numbers to far memory and back.
template <> struct MemoryOf<Far> {
  template <class T> class Copy {
   public:
    Copy(const T* here, std::size_t n) : there_(reinterpret_cast<T*>(FarMemory::allocate(n * sizeof(T)))) {
      const Kernel open;
      std::copy_n(here, n, there_);
    }
    T* data() { return there_; }
    void fetch(T* here, std::size_t n) {
      const Kernel open;
      std::copy_n(there_, n, here);
    }

   private:
    T* there_;
  };
  template <class Tensor> static auto fetched(const Tensor& there) { return there.near(); }
};

}  // namespace support
