// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Sizes or values that do not fit together. The message names the call, the axis and both values.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// How many pages, or places for sequences, a call needs of a key/value cache, how many are free, and how many it has.
struct CacheRoom {
  enum Of : unsigned char { pages, sequences };
  Of of;
  Index needed, free, total;
};

/// A key/value cache has too few pages, or no place for a sequence, left. Nothing has changed, and the same call may
/// succeed once sequences are removed or truncated, but not if needed > total. A handler of ShapeError catches it too:
/// a loop that makes room and calls again has one of CacheFull before that.
class CacheFull : public ShapeError, public CacheRoom {
 public:
  CacheFull(const std::string& message, const CacheRoom& room) : ShapeError(message), CacheRoom(room) {}
};

namespace detail {

/// Whether a call may compile that is accepted only to be refused with a sentence: static_assert(valid<T>, "mha: …").
template <class...> inline constexpr bool valid = false;

/// What such a call returns, which fits everywhere, so that the sentence is the only error.
struct Refused {
  template <class T> operator T() const;
};

/// T{}, behind a static_assert that refuses a T without a default constructor: nothing more is said of such a T.
template <class T> constexpr T default_value() {
  if constexpr (std::is_default_constructible_v<T>)
    return T{};
  else
    std::abort();
}
/// What a sentence has refused already, among the arguments of a call.
template <class E>
concept RefusedArgument = std::same_as<std::remove_cvref_t<E>, Refused>;

/// Whether at most one of these is so: at_most_one<ScaleArgument<Extra>...>.
template <bool... Given> inline constexpr bool at_most_one = (0 + ... + int(Given)) <= 1;

/// A number as messages have it: 0.1, -1e-09, inf.
MHA_COLD inline std::string number_text(double number) {
  char text[32];
  return std::string(text, static_cast<std::size_t>(std::snprintf(text, sizeof text, "%.9g", number)));
}

/// One piece of a message: a text or a number.
class MessagePiece {
 public:
  MessagePiece(std::string_view text) : kind_(Kind::text), text_(text) {}
  MessagePiece(const char* text) : MessagePiece(std::string_view(text)) {}
  MessagePiece(const std::string& text) : MessagePiece(std::string_view(text)) {}
  template <std::integral Number> MessagePiece(Number n) {
    if constexpr (std::is_signed_v<Number>) {
      kind_ = Kind::integer;
      integer_ = n;
    } else {
      kind_ = Kind::natural;
      natural_ = n;
    }
  }
  template <std::floating_point Number> MessagePiece(Number n) : kind_(Kind::real), real_(static_cast<double>(n)) {}

  MHA_COLD void append_to(std::string& message) const {
    switch (kind_) {
      case Kind::text:
        message += text_;
        break;
      case Kind::integer:
        message += std::to_string(integer_);
        break;
      case Kind::natural:
        message += std::to_string(natural_);
        break;
      case Kind::real:
        message += number_text(real_);
        break;
    }
  }

 private:
  enum class Kind : unsigned char { text, integer, natural, real };
  Kind kind_;
  union {
    std::string_view text_;
    long long integer_;
    unsigned long long natural_;
    double real_;
  };
};

/// Throws an error; where the unit is compiled without exceptions, prints what it says and ends the program.
template <class Error> [[noreturn]] MHA_COLD MHA_NO_INLINE void throw_error(const Error& error) {
#if MHA_EXCEPTIONS
  throw error;
#else
  std::fprintf(stderr, "%s\n", error.what());
  std::abort();
#endif
}

/// The same code for every message: the checks of a call are many, and each would bring its own.
MHA_COLD MHA_NO_INLINE inline std::string joined(std::initializer_list<MessagePiece> pieces) {
  std::string message;
  for (const MessagePiece& piece : pieces) piece.append_to(message);
  return message;
}
[[noreturn]] MHA_COLD MHA_NO_INLINE inline void throw_message(std::initializer_list<MessagePiece> pieces) {
  throw_error(ShapeError(joined(pieces)));
}

/// throw ShapeError("attention: k has 6 heads, …") from its pieces.
template <class... Pieces> [[noreturn]] MHA_COLD void fail(const Pieces&... pieces) {
  throw_message({MessagePiece(pieces)...});
}

/// fail(pieces...) unless the condition holds; the message is only built when it is needed.
template <class... Pieces> void require(bool holds, const Pieces&... pieces) {
  if (!holds) fail(pieces...);
}
/// A CacheFull of the pieces unless what is needed is free.
template <class... Pieces> void require_free(const CacheRoom& room, const Pieces&... pieces) {
  if (room.needed > room.free) throw_error(CacheFull(joined({MessagePiece(pieces)...}), room));
}

/// "SoftCap: cap is -1, it must be a positive finite number".
inline void require_positive(const char* policy, const char* member, double value) {
  require(value > 0 && std::isfinite(value), policy, ": ", member, " is ", value,
          ", it must be a positive finite number");
}

/// Two tensors must agree on an axis: "attention: k has length 7 but v has length 6", "k has 1 head but v has 2".
inline void require_equal(const char* call, const char* axis, const char* a, Index a_extent, const char* b,
                          Index b_extent) {
  if (a_extent == b_extent) return;
  if (std::string_view name = axis; name.ends_with("heads")) {
    if (a_extent == 1) name.remove_suffix(1);
    fail(call, ": ", a, " has ", a_extent, " ", name, " but ", b, " has ", b_extent);
  }
  fail(call, ": ", a, " has ", axis, " ", a_extent, " but ", b, " has ", axis, " ", b_extent);
}

/// A policy of the user's own may be a pointer to a function, a std::function or the like.
///
/// Errors    ShapeError if it holds no function
template <class F> constexpr void require_function(const char* role, [[maybe_unused]] const F& f) {
  // A lambda without captures, which converts to a pointer, is never null.
  if constexpr (!std::is_empty_v<F> && requires { static_cast<bool>(f == nullptr); })
    require(!static_cast<bool>(f == nullptr), role, ": the function is null, expected one to call");
}

// Sizes made of sizes: the only place that multiplies extents, so that none of them wraps around.

/// The most elements of a tensor, also of one that shows the same element many times: what kernels make of the number,
/// padded and in bytes, still fits in a std::ptrdiff_t.
inline constexpr std::ptrdiff_t most_elements = std::numeric_limits<std::ptrdiff_t>::max() / 256;

/// The longest axis that kernels cut into blocks: the end of the last block is an Index too.
inline constexpr Index longest_axis = std::numeric_limits<Index>::max() / 2;

/// A number of elements along an axis, which an Index must hold: a std::size_t of 2³² would become 0, and 2.5 be 2.
template <class I> constexpr Index as_extent(I n, const char* call = "view") {
  if constexpr (std::floating_point<I>)
    if (!(n > -2147483649. && n < 2147483648.) || static_cast<I>(static_cast<Index>(n)) != n)
      fail(call, ": an extent is ", n, ", it must be a whole number, the largest is ",
           std::numeric_limits<Index>::max());
  if constexpr (std::integral<I> && sizeof(I) >= sizeof(Index))
    if (!std::in_range<Index>(n))
      fail(call, ": an extent is ", n, ", the largest is ", std::numeric_limits<Index>::max());
  return static_cast<Index>(n);
}

[[noreturn]] MHA_COLD inline void fail_product(const char* call, const char* name,
                                               std::initializer_list<std::int64_t> extents) {
  std::string all;
  for (const std::int64_t extent : extents) all += (all.empty() ? "" : ", ") + std::to_string(extent);
  fail(call, ": ", name, " is (", all, "), more than ", most_elements, " elements, an empty axis counted as 1");
}

/// Whether a · b fits in a std::int64_t, of two numbers that are not negative.
constexpr bool product_fits(std::int64_t a, std::int64_t b) {
  return (a | b) >> 31 == 0 || a == 0 || b <= std::numeric_limits<std::int64_t>::max() / a;  // mostly without dividing
}

/// The product of extents, an empty axis counted as 1: no stride of these axes is larger.
///
/// Errors    ShapeError if it is more than most_elements
constexpr std::ptrdiff_t checked_product(const char* call, const char* name,
                                         std::initializer_list<std::int64_t> extents) {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) {
    const std::int64_t n = std::max(extent, std::int64_t{1});
    if (!product_fits(product, n) || product * n > most_elements) fail_product(call, name, extents);
    product *= n;
  }
  return static_cast<std::ptrdiff_t>(product);
}

/// How many blocks of `size` hold n; n + size − 1 would not fit for the largest n.
constexpr Index blocks_of(Index n, Index size) { return n / size + (n % size != 0 ? 1 : 0); }

/// A text as an argument of a template.
template <std::size_t Size> struct Text {
  char text[Size] = {};
  consteval Text(const char (&from)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) text[i] = from[i];
  }
};

}  // namespace detail

/// A member that has no default: SlidingWindow{.left = 4} compiles, SlidingWindow{} does not, nor does one of 2.5.
/// Messages have its Name.
///
/// Errors    ShapeError if an integer is beyond what T, an integer too, holds
template <class T, detail::Text Name = "a number of rows, positions or pages"> struct Required {
  using RequiredNumber = T;
  T value;

  Required() = delete;
  MHA_HOST_DEVICE constexpr Required(T v) : value(v) {}
  /// One of another Name, which nvcc does not deduce.
  template <class Other>
  requires std::same_as<typename Other::RequiredNumber, T> MHA_HOST_DEVICE constexpr Required(const Other& v)
      : value(v.value) {}
  template <class U>
  requires(std::integral<T>&& std::is_arithmetic_v<U> && !std::same_as<T, U>) constexpr Required(U v)
      : value(static_cast<T>(v)) {
    static_assert(std::integral<U>, "mha: a number of rows, positions or pages is an integer (see mha/core/check.hpp)");
    if constexpr (std::integral<U> && sizeof(U) >= sizeof(T))
      if (!std::in_range<T>(v)) detail::fail(Name.text, " is ", v, ", the largest is ", std::numeric_limits<T>::max());
  }
  MHA_HOST_DEVICE constexpr operator T() const { return value; }
};

}  // namespace mha::inline MHA_NAMESPACE
