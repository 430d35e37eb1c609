// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/vector.hpp>

#include "compare.hpp"
#include "levels.hpp"

namespace {

namespace simd = mha::detail::simd;

template <class T> class VectorRegister : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(VectorRegister, Scalars);

template <class T> struct Copy {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const T* from, T* to, T* repeated) {
    simd::vector_t<T, Isa> v;
    simd::load(v, from);
    simd::store(to, v);
    simd::broadcast(v, from[1]);
    simd::store(repeated, v);
  }
};

TYPED_TEST(VectorRegister, LoadsStoresAndBroadcastsKeepBitsAtAnyAddress) {
  using T = TypeParam;
  std::vector<T> from(20);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i) - T(7);
  from[2] = T(-0.0);
  unit::for_each_level([&]<class Isa>(Isa) {
    constexpr std::size_t width = simd::Vector<T, Isa>::width;
    std::vector<T> to(20, T(99)), repeated(20, T(99));
    Isa::template run<Copy<T>>(static_cast<const T*>(from.data() + 1), to.data() + 1, repeated.data() + 1);
    for (std::size_t i = 1; i <= width; ++i) {
      EXPECT_EQ(support::bits(to[i]), support::bits(from[i]));
      EXPECT_EQ(support::bits(repeated[i]), support::bits(T(-0.0)));
    }
    EXPECT_EQ(to[0], T(99));
    EXPECT_EQ(to[width + 1], T(99));
  });
}

}  // namespace
