// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <mha/backend/simd/panel_layout.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace unit {

/// Panels of random integers of Q, each group of rows behind its scales, poison between the panels, and the numbers
/// that they are. Half a byte without a number has random bits.
template <class Q> struct IntegerPanels {
  static constexpr bool four = std::is_same_v<Q, mha::scaled_int4>;
  static constexpr mha::Index columns = 48, group = four ? 32 : 256;
  using Scale = std::conditional_t<four, mha::bfloat16, float>;
  static constexpr std::ptrdiff_t lead = columns * static_cast<std::ptrdiff_t>(sizeof(Scale));

  mha::Index depth;
  std::ptrdiff_t apart;
  std::vector<Q> memory;
  std::vector<std::vector<float>> numbers;  ///< (depth, columns) of each panel

  IntegerPanels(support::Random& random, mha::Index panels, mha::Index rows, mha::Index gap = 3)
      : depth(rows), apart(place(rows) + lead + gap * columns), memory(static_cast<std::size_t>(panels * apart)) {
    support::poison_all(memory);
    for (mha::Index p = 0; p < panels; ++p) {
      numbers.emplace_back(static_cast<std::size_t>(rows * columns));
      for (mha::Index k = 0; k < rows; ++k)
        for (mha::Index j = 0; j < columns; ++j) {
          if (k % group == 0) {
            const double size = std::exp2(random.uniform(-9, -5));
            set_scale(p, k, j, static_cast<float>(four && random.chance(0.5) ? -size : size));
          }
          put(p, k, j, four ? random.below(16) - 8 : random.below(255) - 127);
        }
      if constexpr (four)
        for (mha::Index j = 0; rows % 2 != 0 && j < columns; ++j) write(p, rows, j, random.below(16) - 8);
    }
  }

  /// The first row of panel p.
  const Q* at(mha::Index p) const { return memory.data() + p * apart + lead; }
  float scale(mha::Index p, mha::Index k, mha::Index j) const {
    Scale s;
    std::memcpy(static_cast<void*>(&s),
                memory.data() + p * apart + lead_of(k) + j * static_cast<std::ptrdiff_t>(sizeof s), sizeof s);
    return static_cast<float>(s);
  }
  std::vector<float> all() const {
    std::vector<float> flat;
    for (const auto& panel : numbers) flat.insert(flat.end(), panel.begin(), panel.end());
    return flat;
  }
  bool negative(mha::Index p, mha::Index k, mha::Index j) const {
    return std::signbit(numbers[static_cast<std::size_t>(p)][static_cast<std::size_t>(k * columns + j)]);
  }
  /// Number j of row k = integer times its scale.
  void put(mha::Index p, mha::Index k, mha::Index j, int integer) {
    write(p, k, j, integer);
    numbers[static_cast<std::size_t>(p)][static_cast<std::size_t>(k * columns + j)] =
        static_cast<float>(integer) * scale(p, k, j);
  }
  /// Another scale for the rows of a group from k on.
  void put_scale(mha::Index p, mha::Index k, mha::Index j, float to) {
    set_scale(p, k, j, to);
    for (mha::Index row = k; row < std::min(depth, k + group); ++row) put(p, row, j, integer(p, row, j));
  }

 private:
  /// Elements of the groups before row k and of the rows before it in its own, without its scales.
  static std::ptrdiff_t place(mha::Index k) {
    const std::ptrdiff_t of_group = (four ? group / 2 : group) * columns + lead;
    return k / group * of_group + std::ptrdiff_t{four ? (k % group + 1) / 2 : k % group} * columns;
  }
  static std::ptrdiff_t lead_of(mha::Index k) { return place(k / group * group); }
  void set_scale(mha::Index p, mha::Index k, mha::Index j, float to) {
    const Scale s(to);
    std::memcpy(static_cast<void*>(memory.data() + p * apart + lead_of(k) + j * static_cast<std::ptrdiff_t>(sizeof s)),
                &s, sizeof s);
  }
  std::size_t element(mha::Index p, mha::Index k, mha::Index j) const {
    const mha::Index row = k % group;
    return static_cast<std::size_t>(p * apart + lead_of(k) + lead + std::ptrdiff_t{four ? row / 2 : row} * columns + j);
  }
  int integer(mha::Index p, mha::Index k, mha::Index j) const {
    const Q x = memory[element(p, k, j)];
    if constexpr (four) {
      const int half = k % 2 == 0 ? x.pair % 16 : x.pair / 16;
      return half < 8 ? half : half - 16;
    } else {
      return x.integer;
    }
  }

  void write(mha::Index p, mha::Index k, mha::Index j, int integer) {
    Q& x = memory[element(p, k, j)];
    if constexpr (four) {
      const unsigned half = static_cast<unsigned>(integer) & 15u, old = x.pair;
      x.pair = static_cast<std::uint8_t>(k % 2 == 0 ? (old & 0xf0u) | half : (old & 0x0fu) | half << 4);
    } else {
      x.integer = static_cast<std::int8_t>(integer);
    }
  }
};

}  // namespace unit
