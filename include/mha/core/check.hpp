// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "../config.hpp"

namespace mha::inline v0 {

/// Sizes or values that do not fit together. The message names the call, the axis and both values.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

inline std::string text(const std::string& s) { return s; }
inline std::string text(const char* s) { return s; }
template <class Number> std::string text(Number n) { return std::to_string(n); }

/// throw ShapeError("attention: k has 6 heads, …") from its pieces.
template <class... Pieces> [[noreturn]] void fail(const Pieces&... pieces) {
  throw ShapeError((std::string() + ... + text(pieces)));
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
