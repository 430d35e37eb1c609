// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "../core/check.hpp"
#include "../policy/heads.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// A member of Config under the name of a policy: setting it is refused in one sentence.
struct NoMember {
  constexpr NoMember() = default;
  template <class T> constexpr NoMember(const T&) {
    static_assert(
        valid<T>,
        "mha: a mask is a policy and no member of Config: name it in the layer's type, "
        "mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>, or give it to a call, layer(x, mha::Causal{}) "
        "(see mha/policy/mask.hpp)");
  }
};

}  // namespace detail

/// The sizes of a layer. 0 means: derived from the others.
struct Config {
  Index d_model = 0;       ///< E, the width of query rows and of the result
  Index num_heads = 0;     ///< Hq
  Index num_kv_heads = 0;  ///< Hkv; by the heads policy if 0
  Index head_dim = 0;      ///< D; d_model / num_heads if 0
  Index value_dim = 0;     ///< Dv; head_dim if 0
  Index kv_model = 0;      ///< width of the rows that keys and values are made from; d_model if 0
  Index value_model = 0;   ///< of those of values, where a call is given them apart; kv_model if 0
  bool bias = false;       ///< whether the projections add a bias, where the next four do not say otherwise
  std::optional<bool> query_bias{}, key_bias{}, value_bias{}, output_bias{};  ///< each as `bias` if not given
  std::optional<double> scale{};                                              ///< 1/√head_dim if not given
  [[no_unique_address]] detail::NoMember causal{};  ///< no member: a mask is a policy, mha::Causal

  Index query_width() const { return num_heads * head_dim; }
  Index key_width() const { return num_kv_heads * head_dim; }
  Index value_width() const { return num_kv_heads * value_dim; }
  Index concat_width() const { return num_heads * value_dim; }

  bool has_query_bias() const { return query_bias.value_or(bias); }
  bool has_key_bias() const { return key_bias.value_or(bias); }
  bool has_value_bias() const { return value_bias.value_or(bias); }
  bool has_output_bias() const { return output_bias.value_or(bias); }
};

namespace detail {

/// The configuration with every size filled in, or a ShapeError that says which do not fit.
template <Heads H> Config completed(Config c) {
  require(c.d_model > 0, "Config: d_model is ", c.d_model, ", it must be at least 1");
  require(c.num_heads > 0, "Config: num_heads is ", c.num_heads, ", it must be at least 1");
  require(c.num_kv_heads >= 0, "Config: num_kv_heads is ", c.num_kv_heads, ", it must be at least 1");
  require(c.head_dim >= 0, "Config: head_dim is ", c.head_dim, ", it must be at least 1");
  require(c.value_dim >= 0, "Config: value_dim is ", c.value_dim, ", it must be at least 1");
  require(c.kv_model >= 0, "Config: kv_model is ", c.kv_model, ", it must be at least 1");
  require(c.value_model >= 0, "Config: value_model is ", c.value_model, ", it must be at least 1");
  if (c.head_dim == 0) {
    require(c.d_model % c.num_heads == 0, "Config: num_heads ", c.num_heads, " does not divide d_model ", c.d_model,
            ": give head_dim");
    c.head_dim = c.d_model / c.num_heads;
  }
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  if (c.kv_model == 0) c.kv_model = c.d_model;
  if (c.value_model == 0) c.value_model = c.kv_model;
  const Index by_policy = H::kv_heads(c.num_heads);
  if (by_policy == Dynamic) {
    require(c.num_kv_heads > 0, "Config: GroupedQuery<Dynamic> needs num_kv_heads, it is ", c.num_kv_heads);
  } else {
    require(c.num_kv_heads == 0 || c.num_kv_heads == by_policy, "Config: num_kv_heads is ", c.num_kv_heads,
            " but the heads policy says ", by_policy, ": name mha::GroupedQuery<mha::Dynamic> in the layer's type");
    c.num_kv_heads = by_policy;
  }
  require(c.num_heads % c.num_kv_heads == 0, "Config: num_kv_heads ", c.num_kv_heads, " does not divide num_heads ",
          c.num_heads);
  require(c.d_model <= longest_axis, "Config: d_model is ", c.d_model, ", the limit is ", longest_axis);
  require(c.kv_model <= longest_axis, "Config: kv_model is ", c.kv_model, ", the limit is ", longest_axis);
  require(c.value_model <= longest_axis, "Config: value_model is ", c.value_model, ", the limit is ", longest_axis);
  const std::int64_t widest = std::int64_t{c.num_heads} * (c.head_dim > c.value_dim ? c.head_dim : c.value_dim);
  require(widest <= longest_axis, "Config: ", c.num_heads, " heads are ", widest, " wide together, the limit is ",
          longest_axis);
  for (const Index width : {c.query_width(), c.concat_width()})
    checked_product("Config", "the matrix of d_model and all heads", {c.d_model, width});
  checked_product("Config", "the matrix of kv_model and all key/value heads", {c.kv_model, c.key_width()});
  checked_product("Config", "the matrix of value_model and all key/value heads", {c.value_model, c.value_width()});
  if (c.scale) require(std::isfinite(*c.scale), "Config: scale is ", *c.scale, ", not finite");
  return c;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
