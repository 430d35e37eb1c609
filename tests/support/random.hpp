// SPDX-License-Identifier: Apache-2.0
// Random test input: a seed that is new in every run, printed, and repeated with MHA_TEST_SEED=<number>.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>

#include <mha/core/scalar.hpp>

namespace support {

/// The seed of this process.
inline std::uint64_t seed() {
  static const std::uint64_t value = [] {
    std::uint64_t chosen = 0;
    if (const char* const asked = std::getenv("MHA_TEST_SEED"); asked != nullptr && *asked != '\0') {
      const char* const end = asked + std::strlen(asked);
      const auto [stopped, error] = std::from_chars(asked, end, chosen);
      if (error != std::errc{} || stopped != end) {
        std::fprintf(stderr, "MHA_TEST_SEED: '%s' is no 64-bit number\n", asked);
        std::abort();
      }
    } else {
      std::random_device device;
      chosen = (std::uint64_t{device()} << 32) | device();
    }
    std::printf("MHA_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    std::fflush(stdout);
    return chosen;
  }();
  return value;
}

/// Numbers of one test: its name and the seed decide them, not the tests that ran before.
class Random {
 public:
  explicit Random(std::string_view stream) {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char c : stream) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    engine_.seed(seed() ^ hash);
  }

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(engine_); }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  double normal() { return normal_(engine_); }
  bool chance(double probability) { return uniform(0, 1) < probability; }

  /// Normal numbers rounded to the container's scalar.
  template <class Container> void fill(Container& to) {
    for (auto& x : to) x = rounded<std::remove_reference_t<decltype(x)>>(normal());
  }
  template <class T> static T rounded(double x) { return static_cast<T>(static_cast<mha::Accumulator<T>>(x)); }

  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

}  // namespace support
