// SPDX-License-Identifier: Apache-2.0
// A Linear by loops in double with a bound of its error, and rows in memory of any strides.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <mha/block/linear.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace support {

using mha::Index;

/// Activations of slope 1 at most, so that they make no error larger.
struct Bent {
  static constexpr const char* name = "Bent";
  template <class S> MHA_HOST_DEVICE S operator()(const S& x) const { return S(0.625f) * x + S(0.375f) * mha::abs(x); }
};

/// How rows (B, L, E) lie in memory.
enum class Lie { dense, padded, sequences_interleaved, columns_apart, by_columns };
inline constexpr Lie lies[] = {Lie::dense, Lie::padded, Lie::sequences_interleaved, Lie::columns_apart,
                               Lie::by_columns};

/// Rows in memory of their own, everything else in it poisoned.
template <class T> struct Rows {
  std::vector<T> memory;
  mha::TensorView<T, 3> view;

  Rows(Lie lie, Index b, Index l, Index e) {
    std::ptrdiff_t batch = 0, row = 0, column = 1;
    switch (lie) {
      case Lie::dense:
        row = e, batch = std::ptrdiff_t{l} * row;
        break;
      case Lie::padded:
        row = e + 3, batch = std::ptrdiff_t{l} * row + 5;
        break;
      case Lie::sequences_interleaved:
        batch = e, row = std::ptrdiff_t{b} * e;
        break;
      case Lie::columns_apart:
        column = 2, row = 2 * std::ptrdiff_t{e} + 1, batch = std::ptrdiff_t{l} * row;
        break;
      case Lie::by_columns:
        row = 1, column = std::ptrdiff_t{b} * l, batch = l;
        break;
    }
    memory.assign(static_cast<std::size_t>(1 + (b - 1) * batch + (l - 1) * row + (e - 1) * column), T{});
    view = {memory.data(), {b, l, e}, {batch, row, column}};
    poison_all(memory);
  }
  Rows(const Rows&) = delete;

  mha::TensorView<const T, 3> read() const { return view; }
  template <class F> void each(F&& f) {
    for (Index b = 0; b < view.extent[0]; ++b)
      for (Index l = 0; l < view.extent[1]; ++l)
        for (Index e = 0; e < view.extent[2]; ++e) f(b, l, e);
  }
  void draw(Random& random) {
    each([&](Index b, Index l, Index e) { view(b, l, e) = Random::rounded<T>(random.normal()); });
  }
  void copy(const mha::TensorView<const T, 3>& from) {
    each([&](Index b, Index l, Index e) { view(b, l, e) = from(b, l, e); });
  }
  /// How many elements between the rows are no longer poisoned.
  std::size_t spoilt() const {
    Rows inside(*this, 0);
    std::size_t n = 0;
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (inside.memory[i] == T(mha::Accumulator<T>(0)) && bits(memory[i]) != bits(poison<T>())) ++n;
    return n;
  }

 private:
  Rows(const Rows& like, int) : memory(like.memory.size(), T(mha::Accumulator<T>(0))), view(like.view) {
    view.data = memory.data();
    each([&](Index b, Index l, Index e) { view(b, l, e) = T(mha::Accumulator<T>(1)); });
  }
};

/// One number with what a computation in T may miss it by.
struct Bounded {
  double value = 0, error = 0;
};

/// Element (b, l, j) of activation(x W + bias), `operand` being the relative error of a factor as the backend reads it;
/// a number below `zero_below` may count as zero.
template <class T, class F>
Bounded linear_oracle(const mha::TensorView<const T, 3>& x, const mha::LinearViews<const T>& p, const F& activation,
                      Index b, Index l, Index j, double operand, double zero_below = 0) {
  // What a rounding of a subnormal number may miss it by at most.
  const double least = std::max<double>(std::numeric_limits<mha::Accumulator<T>>::denorm_min(), zero_below);
  const auto sum = [&](const mha::TensorView<const T, 2>& w, const mha::TensorView<const T, 1>& bias) {
    Bounded s;
    double size = 0, factors = 0;
    for (Index k = 0; k < w.extent[0]; ++k) {
      const double term = to_double(x(b, l, k)) * to_double(w(k, j));
      s.value += term;
      size += std::abs(term);
      factors += std::abs(to_double(x(b, l, k))) + std::abs(to_double(w(k, j)));
    }
    if (bias.data != nullptr) s.value += to_double(bias(j));
    if (bias.data != nullptr) size += std::abs(to_double(bias(j)));
    const double roundings = w.extent[0] + 4;
    s.error = size * (roundings * unit_roundoff<mha::Accumulator<T>>() + 2 * operand) + roundings * least +
              factors * zero_below + storage_error<T>(s.value);
    return s;
  };
  constexpr double own = 16 * unit_roundoff<mha::Accumulator<T>>();  // an activation's
  const Bounded s = sum(p.weight, p.bias);
  if constexpr (mha::detail::is_gated<F>) {
    const Bounded g = sum(p.gate, p.gate_bias);
    const double f = activation.activation(g.value);
    return {f * s.value, std::abs(f) * (s.error + own * std::abs(s.value)) +
                             (std::abs(s.value) + s.error) * 1.2 * g.error + 4 * least};
  } else {
    const double f = activation(s.value);
    return {f, 1.2 * s.error + own * std::abs(f) + 4 * least};  // 1.2: no activation of ours is steeper
  }
}

/// The relative error of a product's factor: Systolic rounds them to bfloat16.
template <class B, class T> constexpr double operand_error() {
  return std::string_view(B::name) == "Systolic" && !std::is_same_v<T, mha::bfloat16> ? unit_roundoff<mha::bfloat16>()
                                                                                      : 0;
}

/// Below what products may take a number for zero: the matrix units do so with subnormal ones.
template <class B> constexpr double zero_below() {
  return std::string_view(B::name) == "Systolic" ? double(std::numeric_limits<float>::min()) : 0;
}

}  // namespace support
