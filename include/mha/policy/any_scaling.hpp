// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../config.hpp"
#include "rotary_scaling.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A scaling of Rotary that is chosen when the program runs, as by a checkpoint's config.json: one of those that
/// rotary_scaling.hpp has, whose results it gives bit for bit.
///
///   mha::Rotary<mha::Halves, mha::AnyScaling> rotary{.scaling = mha::YarnScaling{.factor = 4, .original_length =
///   32768}};
class AnyScaling {
 public:
  constexpr AnyScaling() : AnyScaling(Unscaled{}) {}
  constexpr AnyScaling(const Unscaled& scaling) : kind_(Kind::unscaled), unscaled_(scaling) {}
  constexpr AnyScaling(const LinearScaling& scaling) : kind_(Kind::linear), linear_(scaling) {}
  constexpr AnyScaling(const NtkScaling& scaling) : kind_(Kind::ntk), ntk_(scaling) {}
  constexpr AnyScaling(const Llama3Scaling& scaling) : kind_(Kind::llama3), llama3_(scaling) {}
  constexpr AnyScaling(const YarnScaling& scaling) : kind_(Kind::yarn), yarn_(scaling) {}

  /// f(the scaling that it holds).
  template <class F> constexpr auto visit(const F& f) const {
    switch (kind_) {
      case Kind::unscaled:
        break;
      case Kind::linear:
        return f(linear_);
      case Kind::ntk:
        return f(ntk_);
      case Kind::llama3:
        return f(llama3_);
      case Kind::yarn:
        return f(yarn_);
    }
    return f(unscaled_);
  }

  double base(double base, Index turning) const {
    return visit([&](const auto& s) { return s.base(base, turning); });
  }
  double frequency(const TurningPair& pair) const {
    return visit([&](const auto& s) { return s.frequency(pair); });
  }
  double magnitude() const {
    return visit([](const auto& s) { return detail::magnitude_of(s); });
  }
  void check() const {
    visit([](const auto& s) { s.check(); });
  }

  friend bool operator==(const AnyScaling& a, const AnyScaling& b) {
    if (a.kind_ != b.kind_) return false;
    switch (a.kind_) {
      case Kind::unscaled:
        break;
      case Kind::linear:
        return a.linear_ == b.linear_;
      case Kind::ntk:
        return a.ntk_ == b.ntk_;
      case Kind::llama3:
        return a.llama3_ == b.llama3_;
      case Kind::yarn:
        return a.yarn_ == b.yarn_;
    }
    return true;
  }

 private:
  // Not a std::variant, whose header takes the compiler longer than this one and all that it includes.
  enum class Kind : unsigned char { unscaled, linear, ntk, llama3, yarn };
  Kind kind_;
  union {
    Unscaled unscaled_;
    LinearScaling linear_;
    NtkScaling ntk_;
    Llama3Scaling llama3_;
    YarnScaling yarn_;
  };
};

}  // namespace mha::inline MHA_NAMESPACE
