// SPDX-License-Identifier: Apache-2.0
// The masks and scores that are measured on a GPU, by name: for the kernels, and for the formula that checks them.
#pragma once

#include <string_view>

#include <mha/config.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score.hpp>
#include <mha/policy/score/softcap.hpp>

namespace bench::gpu {

/// A user's functor without `tile`: every sixteenth pair is hidden, so that what it costs is not saved elsewhere.
struct Sieve {
  MHA_HOST_DEVICE bool operator()(int, int, int q, int k) const { return ((q + k) & 15) != 0; }
};

/// f(mask, score) for full and causal.
template <class F> auto with_plain_pattern(std::string_view name, F&& f) {
  const mha::NoScore none;
  return name == "causal" ? f(mha::Causal{}, none) : f(mha::Full{}, none);
}

/// f(mask, score) for the pattern of this name.
template <class F> auto with_pattern(std::string_view name, F&& f) {
  const mha::NoScore none;
  if (name == "window 256") return f(mha::SlidingWindow{.left = 255}, none);
  if (name == "functor") return f(Sieve{}, none);
  if (name == "softcap") return f(mha::Full{}, mha::SoftCap{30.0f});
  return with_plain_pattern(name, f);
}

}  // namespace bench::gpu
