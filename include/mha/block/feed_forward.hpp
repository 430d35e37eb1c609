// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/default.hpp"
#include "../call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../policy/activation.hpp"
#include "arguments.hpp"
#include "cost.hpp"
#include "feed_forward_config.hpp"
#include "initialize.hpp"
#include "linear.hpp"
#include "rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The feed-forward of a transformer block: a Linear up with an activation, or a gated pair, and one down.
///
/// Formula   y = F(x W_up + b_up) W_down + b_down (+ residual);  with Gated<F>, as SwiGlu is:
///           y = (F(x W_gate + b_gate) ∘ (x W_up + b_up)) W_down + b_down (+ residual)
/// Shapes    x (L, d_model) or (B, L, d_model)  →  the same;  the hidden rows (B·L, d_hidden) are in the Workspace
/// Values    an activation with data, and the backend, in any order, as for a Linear
/// Bits, Threads   as for a Linear
/// Errors    ShapeError if a size of the configuration is less than 1
/// Source    Vaswani et al. 2017, §3.3; Shazeer 2020, GLU variants improve transformer
///
///   mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 512, .d_hidden = 1376, .bias = false});
///   ff.initialize(mha::XavierUniform{.seed = 1});
///   ff(x, mha::residual(x), mha::into(x));  // x += ff(x)
template <class T, class B = Cpu, class F = Gelu> class FeedForward {
  using On = detail::OrNoBackend<B>;

 public:
  using Scalar = T;
  using Workspace = typename On::Workspace;
  using Up = Linear<T, B, F>;
  using Down = Linear<T, B>;

  template <class... Values>
  explicit FeedForward(const FeedForwardConfig& config, const Values&... values)
      : config_(checked(config)),
        up_({.inputs = config.d_model, .outputs = config.d_hidden, .bias = config.bias}, values...),
        down_({.inputs = config.d_hidden, .outputs = config.d_model, .bias = config.bias}, up_.backend()) {}

  const FeedForwardConfig& config() const { return config_; }
  const On& backend() const { return up_.backend(); }

  /// Its Linears, to update, initialize or borrow the weights of.
  Up& up() { return up_; }
  const Up& up() const { return up_; }
  Down& down() { return down_; }
  const Down& down() const { return down_; }
  std::int64_t parameter_count() const { return up_.parameter_count() + down_.parameter_count(); }

  /// Draws the weights of both, the seed of down made from that of up.
  ///
  /// Errors    ShapeError if the weights of one are borrowed or dropped; nothing changes then
  void initialize(const XavierUniform& draw) {
    for (const auto& [name, why] : {std::pair{"up", up_.unwritable()}, std::pair{"down", down_.unwritable()}})
      detail::require(why == nullptr, "initialize: the weights of ", name, "() are ", why,
                      ", so they cannot be written");
    constexpr std::uint64_t another = 0x9e3779b97f4a7c15;
    up_.initialize(draw);
    down_.initialize(XavierUniform{.seed = draw.seed ^ another, .gain = draw.gain});
  }

  /// The rows of x through both.
  ///
  /// Then      in any order: residual(r), which is added last and may be x or y; into(y), where y may be x itself; a
  ///           Workspace; another value of the backend's type
  /// Errors    ShapeError if a size is not the configuration's, or there are no weights
  template <SequenceOf<T> X, class... Extra> [[nodiscard]] auto operator()(const X& x, Extra&&... extra) const {
    detail::check_linear_arguments<On, X, Extra...>();
    const auto from = detail::read_sequence(x);
    const On& backend = detail::backend_or(up_.backend(), extra...);
    up_.require_weights("feed_forward: up()");
    down_.require_weights("feed_forward: down()");
    up_.check("feed_forward", "d_model", backend, from);
    if constexpr ((detail::IntoArgument<Extra> || ...)) {
      run(backend, from, detail::find_into<T>(extra...), extra...);
    } else {
      auto y = detail::result_of_rows<On, X>(from, config_.d_model);
      run(backend, from, detail::with_batch(view(y)), extra...);
      return y;
    }
  }
  // Refused in one sentence.
  template <class X, class... Extra>
  requires(!SequenceOf<X, T>) detail::Refused operator()(X&&, Extra&&...) const { return detail::refuse_rows<T, X>(); }

  /// What Linear::drop_unpacked() does, for both or, if one refuses, for neither.
  void drop_unpacked() {
    up_.require_packed("drop_unpacked: up()");
    down_.require_packed("drop_unpacked: down()");
    up_.parameters_.keep_packed_only();
    down_.parameters_.keep_packed_only();
  }

  /// What a call on this many rows costs; the activation is not counted.
  ///
  /// Errors    ShapeError if rows is negative
  [[nodiscard]] StageCost cost(Index rows) const { return up_.cost(rows) + down_.cost(rows); }

  /// What Linear::explain() says of both, and the memory of the hidden rows.
  [[nodiscard]] std::string explain(Index rows) const {
    return "up\n" + up_.explain(rows) + "down\n" + down_.explain(rows) +
           "workspace:   " + std::to_string(std::int64_t{rows} * config_.d_hidden * std::int64_t{sizeof(T)}) +
           " bytes for the hidden rows\n";
  }

 private:
  static const FeedForwardConfig& checked(const FeedForwardConfig& c) {
    detail::require(c.d_model > 0, "FeedForward: d_model is ", c.d_model, ", it must be at least 1");
    detail::require(c.d_hidden > 0, "FeedForward: d_hidden is ", c.d_hidden, ", it must be at least 1");
    return c;
  }

  template <class... Extra>
  MHA_NO_INLINE void run(const On& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                         Extra&... extra) const {
    const auto residual = down_.checked_residual("feed_forward", backend, x, y, extra...);
    const Index extents[] = {x.extent[0], x.extent[1], config_.d_hidden};
    Workspace own;
    Workspace& workspace = detail::workspace_or(own, extra...);
    auto frame = workspace.frame();
    const auto hidden = detail::take_like<T>(frame, detail::row_major<3>(static_cast<T*>(nullptr), extents));
    up_.multiply(backend, x, hidden, {}, workspace);
    down_.multiply(backend, hidden, y, residual, workspace);
  }

  FeedForwardConfig config_;
  Up up_;
  Down down_;
};

}  // namespace mha::inline MHA_NAMESPACE
