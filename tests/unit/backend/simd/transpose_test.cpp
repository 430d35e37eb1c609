// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/transpose.hpp>

#include "levels.hpp"

namespace {

namespace simd = mha::detail::simd;

struct Transpose {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const std::uint32_t* from, std::ptrdiff_t from_stride, std::uint32_t* to,
                                    std::ptrdiff_t to_stride) {
    simd::transpose16<Isa>(from, from_stride, to, to_stride);
  }
};

TEST(Transpose16, PutsEveryWordWhereItBelongs) {
  std::vector<std::uint32_t> from(16 * 19);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<std::uint32_t> to(16 * 21, 7u);
    Isa::template run<Transpose, const std::uint32_t*, std::ptrdiff_t, std::uint32_t*, std::ptrdiff_t>(from.data(), 19,
                                                                                                       to.data(), 21);
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t j = 0; j < 21; ++j) EXPECT_EQ(to[i * 21 + j], j < 16 ? from[j * 19 + i] : 7u);
  });
}

}  // namespace
