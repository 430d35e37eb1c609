// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <Eigen/Core>
#include <iterator>

#include "../../core/math.hpp"

namespace mha::inline MHA_NAMESPACE::detail::eigen {

/// s → e^(s − m) for s ≤ m, a functor of Eigen's expressions: a third of the work of Eigen's exp(), which must hold for
/// every number. 0 for s = −∞, NaN for s = NaN.
///
/// Numerics  within 2 ulp; what is below the least normal number is 0 or a subnormal number
/// Source    decay_by_bits()
struct Weight {
  using Constants = MathConstants<float>;
  /// Where packets of float are also shifted as integers, and the greater of NaN, given first, and a number is NaN.
  static constexpr bool shifts_packets = EIGEN_ARCH_i386_OR_x86_64 || EIGEN_ARCH_ARM_OR_ARM64;
  float m;

  float operator()(float s) const { return decay_by_bits(std::min(m - s, Constants::decay_end), 0.f); }

  template <class Packet> Packet packetOp(const Packet& s) const {
    using namespace Eigen::internal;
    using Integers = typename unpacket_traits<Packet>::integer_packet;
    const auto all = [](float x) { return pset1<Packet>(x); };
    const Packet round = all(Constants::round_to_int + Constants::bias);  // leaves the exponent of 2ⁿ in the low bits
    const Packet x = pmax(psub(s, all(m)), all(-Constants::decay_end));
    const Packet shifted = pmadd(x, all(Constants::log2e), round);
    const Packet n = psub(shifted, round);
    const Packet r = pmadd(n, all(-Constants::ln2_low), pmadd(n, all(-Constants::ln2_high), x));
    Packet sum = all(Constants::exp_terms[0]);
    for (std::size_t i = 1; i < std::size(Constants::exp_terms); ++i) sum = pmadd(sum, r, all(Constants::exp_terms[i]));
    const Packet exp = padd(pmadd(sum, pmul(r, r), r), all(1));
    return pmul(exp,
                preinterpret<Packet>(plogical_shift_left<Constants::mantissa_bits>(preinterpret<Integers>(shifted))));
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::eigen

/// What Eigen asks of a functor: its cost, and whether it has packetOp().
template <> struct Eigen::internal::functor_traits<mha::detail::eigen::Weight> {
  enum { Cost = 20, PacketAccess = packet_traits<float>::HasExp && mha::detail::eigen::Weight::shifts_packets };
};
