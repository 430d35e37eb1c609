// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "../config.hpp"

namespace mha::inline v0 {

/// Sizes or values that do not fit together. The message names the call, the axis and both values.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

/// One piece of a message: a text, or a number as std::to_string writes it.
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

  void append_to(std::string& message) const {
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
        message += std::to_string(real_);
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

/// The same code for every message: the checks of a call are many, and each would bring its own.
[[noreturn]] MHA_NO_INLINE inline void throw_shape_error(std::initializer_list<MessagePiece> pieces) {
  std::string message;
  for (const MessagePiece& piece : pieces) piece.append_to(message);
  throw ShapeError(message);
}

/// throw ShapeError("attention: k has 6 heads, …") from its pieces.
template <class... Pieces> [[noreturn]] void fail(const Pieces&... pieces) {
  throw_shape_error({MessagePiece(pieces)...});
}

/// fail(pieces...) unless the condition holds; the message is only built when it is needed.
template <class... Pieces> void require(bool holds, const Pieces&... pieces) {
  if (!holds) fail(pieces...);
}

/// "SoftCap: cap is -1, it must be a positive finite number".
inline void require_positive(const char* policy, const char* member, double value) {
  require(value > 0 && std::isfinite(value), policy, ": ", member, " is ", value,
          ", it must be a positive finite number");
}

/// Two tensors must agree on an axis: "attention: k has length 7 but v has length 6".
inline void require_equal(const char* call, const char* axis, const char* a, Index a_extent, const char* b,
                          Index b_extent) {
  require(a_extent == b_extent, call, ": ", a, " has ", axis, " ", a_extent, " but ", b, " has ", axis, " ", b_extent);
}

/// A view that has elements must have memory.
template <class View> void require_data(const char* call, const char* name, const View& v) {
  for (int a = 0; a < View::rank; ++a)
    require(v.extent[a] >= 0, call, ": ", name, " has extent ", v.extent[a], " on axis ", a);
  require(v.data != nullptr || v.size() == 0, call, ": ", name, " has ", v.size(), " elements but its data is null");
}

}  // namespace detail

}  // namespace mha::inline v0
