// SPDX-License-Identifier: Apache-2.0
// The masks and scores that are measured, by name, on one thread or all, and how their results are checked.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <mha/mha.hpp>

namespace bench {

/// One thread or all, chosen between calls, so that each kernel is compiled once.
struct OneOrAll {
  static constexpr const char* name = "OneOrAll";
  static inline bool all = false;
  mha::Index workers() const { return all ? mha::ThreadPool{}.workers() : 1; }
  template <class F> void run(mha::Index tasks, F&& f) const {
    all ? mha::ThreadPool{}.run(tasks, f) : mha::Serial{}.run(tasks, f);
  }
};

/// A user's functor without `tile`: every sixteenth pair is hidden, so that what it costs is not saved elsewhere.
struct Sieve {
  bool operator()(int, int, int q, int k) const { return ((q + k) & 15) != 0; }
};

/// A table of the same pairs.
class SieveTable {
 public:
  explicit SieveTable(int length) : length_(length), visible_(std::make_unique<bool[]>(pairs())) {
    for (std::size_t i = 0; i < pairs(); ++i) {
      const auto row = static_cast<int>(i / side()), key = static_cast<int>(i % side());
      visible_[i] = Sieve{}(0, 0, row, key);
    }
  }
  mha::Dense mask() const { return mha::Dense(mha::view(visible_.get(), length_, length_)); }

 private:
  std::size_t side() const { return static_cast<std::size_t>(length_); }
  std::size_t pairs() const { return side() * side(); }
  int length_;
  std::unique_ptr<bool[]> visible_;
};

/// Causal blocks: the first, the query's own, the one before it and every fourth.
inline mha::BlockSparse blocks(int length) {
  constexpr int side = 64;
  const int n = (length + side - 1) / side;
  std::vector<std::uint8_t> map;
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) map.push_back(j <= i && (j == 0 || i - j <= 1 || (i - j) % 4 == 0));
  return mha::BlockSparse({.block = side, .query_blocks = n, .key_blocks = n}, std::move(map));
}

/// Of a padded sequence 1500 of 2048 keys are its own.
constexpr int unpadded(int length) { return static_cast<int>(1500LL * length / 2048); }

inline constexpr std::array patterns = {"full",         "causal",  "window 256", "padding",
                                        "block-sparse", "functor", "table",      "softcap"};

/// f(mask, score) for the pattern of this name.
template <class F> auto with_pattern(std::string_view name, int length, F&& f) {
  const mha::NoScore none;
  if (name == "causal") return f(mha::Causal{}, none);
  if (name == "window 256") return f(mha::SlidingWindow{.left = 255}, none);
  if (name == "block-sparse") return f(blocks(length), none);
  if (name == "functor") return f(Sieve{}, none);
  if (name == "table") {
    const SieveTable table(length);
    return f(table.mask(), none);
  }
  if (name == "softcap") return f(mha::Full{}, mha::SoftCap{30.0f});
  if (name == "padding") {
    const std::array<mha::Index, 1> lengths{unpadded(length)};
    return f(mha::Padding{lengths}, none);
  }
  return f(mha::Full{}, none);
}

/// The largest error of a few rows of attention, relative to 1 or to the value if that is larger; the sums are taken in
/// double straight from the formula.
///
/// Shapes    q, k, v, out (1, L, H, D)
template <class T, class Mask, class Score>
double error_of_rows(const mha::TensorView<const T, 4>& q, const mha::TensorView<const T, 4>& k,
                     const mha::TensorView<const T, 4>& v, const mha::TensorView<const T, 4>& out, const Mask& mask,
                     const Score& score, int rows = 8) {
  const int keys = k.length(), group = q.heads() / k.heads(), origin = keys - q.length();
  const mha::CallShape shape{1, q.heads(), q.length(), keys, origin};
  const auto sees = mha::prepared(mask, shape);
  const auto bent = mha::prepared(score, shape);
  std::mt19937 gen(11);
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    const int i = r == 0 ? q.length() - 1 : std::uniform_int_distribution<int>(0, q.length() - 1)(gen);
    for (int h = 0; h < q.heads(); ++h) {
      std::vector<double> row(static_cast<std::size_t>(v.dim()), 0.0);
      double sum = 0;
      for (int j = 0; j < keys; ++j) {
        if (!sees(0, h, origin + i, j)) continue;
        double dot = 0;
        for (int d = 0; d < q.dim(); ++d) dot += double(q(0, i, h, d)) * double(k(0, j, h / group, d));
        const double w = std::exp(double(bent(dot / std::sqrt(double(q.dim())), 0, h, origin + i, j)));
        sum += w;
        for (int d = 0; d < v.dim(); ++d) row[static_cast<std::size_t>(d)] += w * double(v(0, j, h / group, d));
      }
      for (int d = 0; d < v.dim(); ++d) {
        const double expected = sum == 0 ? 0 : row[static_cast<std::size_t>(d)] / sum;
        const double error = std::abs(double(out(0, i, h, d)) - expected) / std::max(1.0, std::abs(expected));
        if (error > worst || std::isnan(error)) worst = error;  // a NaN is the worst, and stays
      }
    }
  }
  return worst;
}

/// How far from the double sums a right result may be: rounding of the stored result, and of sums in float.
template <class T> constexpr double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 1e-12;
  if constexpr (std::is_same_v<T, mha::half>) return 2e-3;
  if constexpr (std::is_same_v<T, mha::bfloat16>) return 1e-2;
  return 2e-5;
}

}  // namespace bench
