// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/items.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "call_shape.hpp"
#include "role.hpp"
#include "rotary_scaling.hpp"

namespace mha::inline MHA_NAMESPACE {

/// How a row's position enters q and k, each (B, L, H, D), where row l of sequence b is at position first[b] + l:
///   void apply(TensorView<T, 4> x, const Origins& first) const         changes the rows in place; T is the layer's
///                                                                      scalar
///   void apply_back(TensorView<A, 4> d, const Origins& first) const    for training: the gradient of the result
///                                                                      becomes that of x, in place; A is the
///                                                                      accumulator, float in a layer of 16 bits
/// For any backend, CUDA among them, instead
///   void for_each_items(TensorView<T, 4> x, const RowPositions& at, f) const
///   void for_each_items_back(TensorView<A, 4> d, const RowPositions& at, f) const
/// call f(items) for one bundle of Items (core/items.hpp) after another; their operator() is MHA_HOST_DEVICE.
template <class P>
concept Position = plays<P, Role::position>;

namespace detail {

/// apply(x, first): of the whole batch, or with offsets of one sequence after another.
template <class T, class Apply>
void apply_to_sequences(const TensorView<T, 4>& x, const RowPositions& at, const Apply& apply) {
  if (at.offsets == nullptr) return apply(x, at.first);
  for (Index b = 0; b < at.sequences; ++b) {
    TensorView<T, 4> sequence = x;
    sequence.data += at.offsets[b] * x.stride[1];
    sequence.extent[1] = at.offsets[b + 1] - at.offsets[b];
    apply(sequence, Origins(at.first[b]));
  }
}

}  // namespace detail

/// Positions do not enter.
struct NoPosition {
  static constexpr Role role = Role::position;
  static constexpr const char* name = "NoPosition";
};

/// Which two coordinates turn together, of the r that turn at all.
struct Halves {                        ///< (d, d + r/2): GPT-NeoX, Hugging Face LLaMA
  static constexpr Index spacing = 1;  ///< of the first coordinates of neighbouring pairs
  MHA_HOST_DEVICE static constexpr Index first(Index pair, Index) { return pair; }
  MHA_HOST_DEVICE static constexpr Index second(Index pair, Index r) { return pair + r / 2; }
};
struct Interleaved {  ///< (2d, 2d + 1): GPT-J, Meta LLaMA
  static constexpr Index spacing = 2;
  MHA_HOST_DEVICE static constexpr Index first(Index pair, Index) { return 2 * pair; }
  MHA_HOST_DEVICE static constexpr Index second(Index pair, Index) { return 2 * pair + 1; }
};

/// Rotary position embedding: pairs of coordinates turn by position · frequency, so that q·k depends on distance.
///
/// Formula   (x, y) → (x cos a − y sin a, x sin a + y cos a),  a = position · base^(−2i/r) for pair i; a scaling
///           changes the frequencies, YarnScaling and LongRopeScaling the lengths too
/// Shapes    (B, L, H, D) in place; the first r = dims coordinates turn (all of D if 0), the rest stay
/// Numerics  angles in double precision, their sine and cosine rounded to the accumulator
/// Errors    ShapeError if dims is odd, negative or larger than D, or base or the scaling is out of range; of apply()
///           also if x overlaps itself, or there is not one position per sequence
/// Source    Su et al. 2021, eq. 34
template <class Pairing = Halves, class Scaling = Unscaled> struct Rotary {
  static_assert(
      requires(const Scaling& s, Index i, double f) {
        Pairing::first(i, i), Pairing::second(i, i), Pairing::spacing;
        s.frequency(TurningPair{i, i, s.base(f, i), f}), s.check();
      },
      "mha: Rotary<Pairing, Scaling> takes Halves or Interleaved, then Unscaled, LinearScaling, NtkScaling, "
      "Llama3Scaling, YarnScaling, LongRopeScaling or AnyScaling (see mha/policy/rotary_scaling.hpp)");
  static constexpr Role role = Role::position;
  static constexpr const char* name = std::same_as<Pairing, Halves> ? "Rotary<Halves>" : "Rotary<Interleaved>";
  double base = 10000;
  Index dims = 0;
  Scaling scaling{};

  friend bool operator==(const Rotary&, const Rotary&) = default;

  std::string in_words() const {
    const std::string pairing = std::same_as<Pairing, Halves> ? "Halves" : "Interleaved";
    const std::string scaled = detail::scaling_in_words(scaling);
    return "Rotary<" + pairing + (scaled.empty() ? "" : ", " + scaled) + "> of base " + detail::number_text(base) +
           (dims == 0 ? "" : " in " + std::to_string(dims) + " dims");
  }

  /// Checks the values against the head size.
  void check(Index head_dim) const {
    detail::require(dims >= 0 && dims <= head_dim, "Rotary: dims is ", dims, " but the head size is ", head_dim);
    detail::require(turning(head_dim) % 2 == 0, "Rotary: ", turning(head_dim), " coordinates of ", head_dim,
                    " would turn, expected an even number");
    detail::require_positive("Rotary", "base", base);
    scaling.check();
    const double scaled = scaling.base(base, turning(head_dim));
    detail::require(scaled > 0 && std::isfinite(scaled), "Rotary: base ", base, " is scaled to ", scaled,
                    ", it must stay a positive finite number");
  }

  /// Pairs of coordinates of every row, each turned in all of its heads.
  template <class T> struct Turn {
    static constexpr Index most = 64;    ///< pairs at once: their frequencies need no memory of their own
    static constexpr Index period = 16;  ///< of positions, on the host
    using A = Accumulator<T>;

    std::ptrdiff_t rows;
    Index columns, cost;
    TensorView<T, 4> x;
    RowPositions at;
    Index first_pair, turning;
    double magnitude;  ///< of the sines and cosines
    double frequency[std::size_t{most}];

    struct Place {
      Index sequence, row, position;
      bool present;  ///< a short sequence of a ragged batch lacks the last rows
    };
    MHA_HOST_DEVICE constexpr Place place(std::ptrdiff_t row) const {
      const bool ragged = at.offsets != nullptr;
      const Index length = ragged ? at.longest : x.extent[1];
      const Index b = static_cast<Index>(row / length), l = static_cast<Index>(row % length);
      const bool present = !ragged || l < at.offsets[b + 1] - at.offsets[b];
      return {ragged ? 0 : b, ragged ? at.offsets[b] + l : l, at.first[b] + l, present};
    }

    MHA_HOST_DEVICE static void turn(T& even, T& odd, A c, A s) {
      const A u(even), v(odd);
      even = T(u * c - v * s);
      odd = T(u * s + v * c);
    }

    MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
      const Place to = place(row);
      if (!to.present) return;
      const double angle = double(to.position) * frequency[column];
      const A c = static_cast<A>(magnitude * std::cos(angle)), s = static_cast<A>(magnitude * std::sin(angle));
      const Index pair = first_pair + column;
      for (Index h = 0; h < x.extent[2]; ++h)
        turn(x(to.sequence, to.row, h, Pairing::first(pair, turning)),
             x(to.sequence, to.row, h, Pairing::second(pair, turning)), c, s);
    }

    /// The same for many rows, with a sine and a cosine for each pair and one row of `period`: position p turns by
    /// p mod period, kept from row to row, after p − p mod period. A row's bits depend on its own position only.
    void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
      Directions far, near[std::size_t{period}];
      bool far_known = false, near_known[std::size_t{period}] = {};
      Index far_position = 0;
      A c[std::size_t{most}], s[std::size_t{most}];
      for (std::ptrdiff_t row = begin; row < end; ++row) {
        const Place to = place(row);
        if (!to.present) continue;
        const Index rest = to.position & (period - 1), multiple = to.position - rest;
        if (!near_known[rest]) near[rest].point(*this, rest, magnitude);
        near_known[rest] = true;
        if (!far_known || far_position != multiple) far.point(*this, multiple, 1);
        far_known = true, far_position = multiple;
        const Directions& by = near[rest];
        for (Index i = 0; i < columns; ++i) {
          c[i] = static_cast<A>(far.cosine[i] * by.cosine[i] - far.sine[i] * by.sine[i]);
          s[i] = static_cast<A>(far.sine[i] * by.cosine[i] + far.cosine[i] * by.sine[i]);
        }
        for (Index h = 0; h < x.extent[2]; ++h) turn_head(x.pointer(to.sequence, to.row, h, 0), c, s);
      }
    }

   private:
    /// Cosine and sine of every pair at one position.
    struct Directions {
      double cosine[std::size_t{most}], sine[std::size_t{most}];
      void point(const Turn& t, Index position, double length) {
        for (Index i = 0; i < t.columns; ++i) {
          const double angle = double(position) * t.frequency[i];
          cosine[i] = length * std::cos(angle), sine[i] = length * std::sin(angle);
        }
      }
    };

    void turn_head(T* head, const A* c, const A* s) const {
      Index i = 0;
      // Eight pairs at a time, at distances the compiler knows: it makes vectors of them without flags.
      if (x.stride[3] == 1) {
        T *even = head + Pairing::first(first_pair, turning), *odd = head + Pairing::second(first_pair, turning);
        for (; i + 8 <= columns; i += 8, even += 8 * Pairing::spacing, odd += 8 * Pairing::spacing)
          turn_eight(even, odd, c + i, s + i);
      }
      for (; i < columns; ++i)
        turn(head[Pairing::first(first_pair + i, turning) * x.stride[3]],
             head[Pairing::second(first_pair + i, turning) * x.stride[3]], c[i], s[i]);
    }

    static void turn_eight(T* even, T* odd, const A* c, const A* s) {
      constexpr Index spacing = Pairing::spacing;
      A u[8], v[8], first[8], second[8];
      for (Index j = 0; j < 8; ++j) u[j] = A(even[j * spacing]);
      for (Index j = 0; j < 8; ++j) v[j] = A(odd[j * spacing]);
      for (Index j = 0; j < 8; ++j) first[j] = u[j] * c[j] - v[j] * s[j];
      for (Index j = 0; j < 8; ++j) second[j] = u[j] * s[j] + v[j] * c[j];
      for (Index j = 0; j < 8; ++j) even[j * spacing] = T(first[j]);
      for (Index j = 0; j < 8; ++j) odd[j * spacing] = T(second[j]);
    }
  };

  template <class T, class F> void for_each_items(const TensorView<T, 4>& x, const RowPositions& at, F&& f) const {
    for_each_turn(x, at, 1, f);
  }
  /// The gradient of x for that of the result, in place: it turns back, by the same magnitude.
  template <class T, class F>
  void for_each_items_back(const TensorView<T, 4>& gradient, const RowPositions& at, F&& f) const {
    for_each_turn(gradient, at, -1, f);
  }

  template <class T> void apply(const TensorView<T, 4>& x, const Origins& first) const { turn_rows(x, first, 1); }
  /// The same with a position for the first row of each sequence.
  template <class T, std::convertible_to<Borrowed<Index>> Container>
  requires(!std::convertible_to<Container, Origins>) void apply(const TensorView<T, 4>& x,
                                                                Container&& container) const {
    turn_rows(x, origins_of(x, std::forward<Container>(container)), 1);
  }
  /// The gradient of the x that apply() was given, from that of its result, in place.
  template <class T> void apply_back(const TensorView<T, 4>& gradient, const Origins& first) const {
    turn_rows(gradient, first, -1);
  }
  template <class T, std::convertible_to<Borrowed<Index>> Container>
  requires(!std::convertible_to<Container, Origins>) void apply_back(const TensorView<T, 4>& gradient,
                                                                     Container&& container) const {
    turn_rows(gradient, origins_of(gradient, std::forward<Container>(container)), -1);
  }

 private:
  template <class T> static Origins origins_of(const TensorView<T, 4>& x, const Borrowed<Index>& positions) {
    detail::require(positions.memory == Memory::host,
                    "Rotary: positions are in device memory, they are read on the host");
    detail::require(positions.size == x.batch() && (positions.data != nullptr || positions.size == 0),
                    "Rotary: ", positions.data == nullptr ? 0 : positions.size, " positions for ", x.batch(),
                    " sequences");
    return Origins(positions.data);
  }

  template <class T> void turn_rows(const TensorView<T, 4>& x, const Origins& first, double direction) const {
    detail::require_data("Rotary", "x", x);
    detail::require_own_memory("Rotary", "x", x, detail::axes_of_heads);
    check(x.dim());
    for_each_turn(x, {first}, direction, [](const Turn<T>& turn) { detail::run_serially(turn); });
  }

  template <class T, class F>
  void for_each_turn(const TensorView<T, 4>& x, const RowPositions& at, double direction, F&& f) const {
    constexpr Index trigonometry = 8;  // a row's share of sines and cosines
    const Index r = turning(x.dim());
    const double scaled_base = scaling.base(base, r);
    Turn<T> turn{};
    turn.rows =
        at.offsets != nullptr ? std::ptrdiff_t{at.sequences} * at.longest : std::ptrdiff_t{x.batch()} * x.length();
    turn.cost = 2 * x.heads() + trigonometry;
    turn.x = x;
    turn.at = at;
    turn.turning = r;
    turn.magnitude = detail::magnitude_of(scaling);
    for (Index begin = 0; begin < r / 2; begin += Turn<T>::most) {
      turn.first_pair = begin;
      turn.columns = std::min(Turn<T>::most, r / 2 - begin);
      for (Index i = begin; i < begin + turn.columns; ++i)
        turn.frequency[i - begin] =
            direction * scaling.frequency(TurningPair{i, r, scaled_base, std::pow(scaled_base, -2.0 * double(i) / r)});
      f(turn);
    }
  }

  Index turning(Index head_dim) const { return dims == 0 ? head_dim : dims; }
};

}  // namespace mha::inline MHA_NAMESPACE
