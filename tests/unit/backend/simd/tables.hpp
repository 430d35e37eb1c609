// SPDX-License-Identifier: Apache-2.0
// Tables of pairs as they may lie in memory, and masks that contain them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>

#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/positional.hpp>

namespace unit::tables {

using mha::Index;

inline constexpr Index batch = 2, heads = 3, queries = 53, keys = 77, origin = 5;

/// How a table lies in memory, which holds no byte more than it needs.
struct Layout {
  const char* name;
  std::array<std::ptrdiff_t, 4> stride;
  bool is_classified;
};
inline constexpr std::ptrdiff_t n = std::ptrdiff_t{queries} * keys;
inline constexpr Layout layouts[] = {{"(Lq, Lk)", {3 * n, n, keys, 1}, true},
                                     {"(Lk, Lq)", {3 * n, n, 1, queries}, true},
                                     {"one for all heads", {n, 0, keys, 1}, true},
                                     {"(1, Lk)", {keys, 0, 0, 1}, true},
                                     {"(Lq, 1)", {queries, 0, 1, 0}, true},
                                     {"(1, 1)", {0, 1, 0, 0}, true},
                                     {"(Lq, 1), every second", {0, 0, 2, 0}, true},
                                     {"(Lq, Lk, 2)", {6 * n, 2 * n, 2 * keys, 2}, false},
                                     {"(Lk, Lq, 3)", {3 * n, 1, 3, 3 * queries}, false},
                                     {"rows overlap", {0, 0, 1, 1}, true}};

template <class X> class TableOf {
 public:
  /// f(b, h, i, k): the pair of row i; of pairs in one element that of the last.
  template <class F> TableOf(const Layout& layout, F&& f) : layout_(layout) {
    const Index extent[4] = {batch, heads, queries, keys};
    std::size_t size = 1;
    for (std::size_t a = 0; a < 4; ++a) size += static_cast<std::size_t>((extent[a] - 1) * layout.stride[a]);
    elements_ = std::make_unique<X[]>(size);
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i)
          for (Index k = 0; k < keys; ++k)
            elements_[static_cast<std::size_t>(b * layout.stride[0] + h * layout.stride[1] + i * layout.stride[2] +
                                               k * layout.stride[3])] = f(b, h, i, k);
  }
  mha::TensorView<const X, 4> view() const {
    const auto& s = layout_.stride;
    return {elements_.get(), {batch, heads, queries, keys}, {s[0], s[1], s[2], s[3]}};
  }
  mha::Dense mask() const requires(std::is_same_v<X, bool>) { return mha::Dense(view(), mha::Origins(origin)); }

 private:
  const Layout layout_;
  std::unique_ptr<X[]> elements_;
};
using Table = TableOf<bool>;

/// f(mask) for a table's mask alone, and for masks that contain it.
template <class F> void for_each_mask(const mha::Dense& table, F&& f) {
  const mha::Causal causal;
  const mha::SlidingWindow window{.left = 20};
  f(table);
  f(!table);
  f(!!table);
  f(causal && table);
  f(table && window);
  f(causal || table);
  f(table || window);
  f(!(window && !table) && causal);
}

}  // namespace unit::tables
