// SPDX-License-Identifier: Apache-2.0
// Pages or a ring behind one type, so that a machine's kernels over sources are compiled once.
#pragma once

#include <cstddef>
#include <cstdint>

#include <mha/cache/paged_kv.hpp>
#include <mha/cache/ring_kv.hpp>

namespace support {

template <class T> struct AnySource {
  using Scalar = T;
  using Index = mha::Index;
  mha::PagedKv<T> pages;
  mha::RingKv<T> ring;
  bool in_pages;

  explicit AnySource(const mha::PagedKv<T>& kv) : pages(kv), ring{}, in_pages(true) {}
  explicit AnySource(const mha::RingKv<T>& kv) : pages{}, ring(kv), in_pages(false) {}

  MHA_HOST_DEVICE Index batch() const { return in_pages ? pages.batch() : ring.batch(); }
  MHA_HOST_DEVICE Index heads() const { return in_pages ? pages.heads() : ring.heads(); }
  MHA_HOST_DEVICE Index dim() const { return in_pages ? pages.dim() : ring.dim(); }
  MHA_HOST_DEVICE Index value_dim() const { return in_pages ? pages.value_dim() : ring.value_dim(); }
  MHA_HOST_DEVICE Index keys(Index b) const { return in_pages ? pages.keys(b) : ring.keys(b); }
  MHA_HOST_DEVICE Index held(Index b, Index k) const { return in_pages ? k : ring.held(b, k); }
  MHA_HOST_DEVICE Index held_end(Index b, Index k) const { return in_pages ? pages.keys(b) : ring.held_end(b, k); }
  MHA_HOST_DEVICE mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    return in_pages ? pages.run(b, g, begin, end) : ring.run(b, g, begin, end);
  }

  void check(const char* call) const { in_pages ? pages.check(call) : ring.check(call); }
  bool rows_aligned() const {
    const auto aligned = [](const auto& v) {
      constexpr std::ptrdiff_t unit = 16 / static_cast<std::ptrdiff_t>(sizeof(T));
      bool all = reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.extent[3] % unit == 0;
      for (int a = 0; a < 3; ++a) all = all && v.stride[a] % unit == 0;
      return all;
    };
    return in_pages ? aligned(pages.key) && aligned(pages.value) : aligned(ring.key) && aligned(ring.value);
  }
  template <class F> AnySource with_data(F&& f) const {
    return in_pages ? AnySource(pages.with_data(f)) : AnySource(ring.with_data(f));
  }
};

}  // namespace support
