// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/default.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../policy/activation.hpp"
#include "../policy/dropout.hpp"
#include "arguments.hpp"
#include "cost.hpp"
#include "device_gradients.hpp"
#include "feed_forward_backward.hpp"
#include "feed_forward_weights.hpp"
#include "gradients.hpp"
#include "initialize.hpp"
#include "kept_arrays.hpp"
#include "linear.hpp"
#include "linear_backward.hpp"
#include "linear_call.hpp"
#include "linear_weights.hpp"
#include "narrow_weights.hpp"
#include "packed_matrices.hpp"
#include "recording.hpp"
#include "row_dropout.hpp"
#include "rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The feed-forward of a transformer block: a Linear up with an activation, or a gated pair, and one down.
///
/// Formula   y = F(x W_up + b_up) W_down + b_down (+ residual);  with Gated<F>, as SwiGlu is:
///           y = (F(x W_gate + b_gate) ∘ (x W_up + b_up)) W_down + b_down (+ residual)
/// Shapes    x (L, d_model) or (B, L, d_model)  →  the same;  the hidden rows (B·L, d_hidden) are in the Workspace
/// Values    an activation with data, and the backend, in any order, as for a Linear
/// Dropout   of y before the residual is added, as for a Linear
/// Bits, Threads   as for a Linear
/// Errors    ShapeError if a size of the configuration is less than 1, or the activation is a null function
/// Source    Vaswani et al. 2017, §3.3; Shazeer 2020, GLU variants improve transformer
///
///   mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 512, .d_hidden = 1376, .bias = false});
///   ff.initialize(mha::XavierUniform{.seed = 1});
///   ff(x, mha::residual(x), mha::into(x));  // x += ff(x)
template <class T, class B = Cpu, class F = Gelu, class... Others> class FeedForward {
  using On = detail::OrNoBackend<B>;

 public:
  using Scalar = T;
  using Workspace = typename On::Workspace;
  using Up = Linear<T, On, F>;
  using Down = Linear<T, On>;

  template <class... Values>
  explicit FeedForward(const FeedForwardConfig& config, const Values&... values)
      : config_(checked(config)),
        up_({.inputs = config.d_model, .outputs = config.d_hidden, .bias = config.bias},
            detail::given_or_default<On>(values...), detail::given_activation<F>(values...)),
        down_({.inputs = config.d_hidden, .outputs = config.d_model, .bias = config.bias}, up_.backend()) {
    detail::check_linear_values<B, F, Values...>();
    down_.dropout_ = detail::given_dropout(values...);
  }

  [[nodiscard]] const FeedForwardConfig& config() const { return config_; }
  [[nodiscard]] const On& backend() const { return up_.backend(); }

  /// Its Linears, whose weights can be updated, initialized and borrowed apart too. One that is assigned has to have
  /// the sizes of the configuration, or calls refuse it.
  Up& up() { return up_; }
  [[nodiscard]] const Up& up() const { return up_; }
  Down& down() { return down_; }
  [[nodiscard]] const Down& down() const { return down_; }

  /// Read-only named views of the weights, .up and .down as their Linears' parameters().
  [[nodiscard]] FeedForwardViews<const T> parameters() const { return {up_.parameters(), down_.parameters(), {}}; }
  [[nodiscard]] std::int64_t parameter_count() const { return up_.parameter_count() + down_.parameter_count(); }
  /// The memory of the weights that the backend packed; 0 if there are none.
  [[nodiscard]] std::size_t packed_bytes() const { return up_.packed_bytes() + down_.packed_bytes(); }

  /// f(const FeedForwardViews<T>&): changes the weights of both, as Linear::update() does.
  ///
  /// Errors    ShapeError if those of one are borrowed or dropped; nothing changes then, unless f itself did it
  template <class Change> void update(Change&& f) {
    up_.parameters_.require_writable("update: up()");
    down_.parameters_.require_writable("update: down()");
    const bool none_before = !down_.parameters_.present();
    LinearViews<T> written{};
    MHA_TRY {
      up_.update([&](const LinearViews<T>& up) {
        down_.update([&](const LinearViews<T>& down) {
          written = down;
          const FeedForwardViews<T> both{up, down, {}};
          f(both);
        });
      });
    }
    MHA_CATCH(...) {  // down() may have been packed, and no memory left for up()
      if (none_before && down_.parameters_.forget(written)) down_.products_ = {};
      MHA_RETHROW;
    }
  }

  /// Draws the weights of both, e.g. XavierUniform{.seed = 1}.
  template <class Initializer> void initialize(const Initializer& draw) {
    update([&](const auto& p) { draw(p); });
  }

  /// Uses weights where they are, as Linear::borrow() does; keep_alive holds those of both.
  ///
  /// Errors    ShapeError if a matrix or vector of one does not have its shape, or is one of the FeedForward's own;
  ///           nothing changes then
  void borrow(const BorrowedFeedForward<T>& w, std::shared_ptr<const void> keep_alive = nullptr) {
    borrow(FeedForwardViews<const T>{detail::views_of(w.up), detail::views_of(w.down), {}}, std::move(keep_alive));
  }
  /// Another FeedForward's weights: feed_forward.borrow(other.parameters()).
  template <std::same_as<FeedForwardViews<const T>> Views>
  void borrow(const Views& w, std::shared_ptr<const void> keep_alive = nullptr) {
    require_shapes(w, "borrow: up()", "borrow: down()", false);
    const auto keeper = [&](const LinearViews<const T>& part, const char* call) {
      auto held = detail::keeper_of(up_.parameters_, down_.parameters_, part, call);
      return keep_alive != nullptr ? keep_alive : std::move(held);
    };
    auto of_up = keeper(w.up, "borrow: up()"), of_down = keeper(w.down, "borrow: down()");
    up_.borrow(w.up, std::move(of_up));
    down_.borrow(w.down, std::move(of_down));
  }

  /// Weights in half or bfloat16 under float or double, BorrowedFeedForward<bfloat16>{.up = …, .down = …} or the
  /// parameters() of a FeedForward of that scalar, as Linear::borrow() takes them.
  ///
  /// Errors    as above
  template <class W>
  requires(!std::same_as<W, T>) void borrow(const BorrowedFeedForward<W>& w, std::shared_ptr<const void> = nullptr) {
    borrow(FeedForwardViews<const W>{detail::views_of(w.up), detail::views_of(w.down), {}});
  }
  template <class W>
  requires(!std::same_as<W, T>) void borrow(const FeedForwardViews<const W>& w, std::shared_ptr<const void> = nullptr) {
    if constexpr (detail::check_narrow<T, W>()) {
      require_shapes(w, "borrow: up()", "borrow: down()", !detail::keeps_narrow<On, T, W>);
      up_.borrow(w.up);
      down_.borrow(w.down);
    }
  }

  /// Weights that are rounded to 8 or 4 bits, as Linear::quantize() takes them; the errors are those of borrow().
  template <class Q = scaled_int8, class W = T> void quantize(const BorrowedFeedForward<W>& w) {
    quantize<Q>(FeedForwardViews<const W>{detail::views_of(w.up), detail::views_of(w.down), {}});
  }
  template <class Q = scaled_int8, class W> void quantize(const FeedForwardViews<const W>& w) {
    if constexpr (detail::check_quantized<Q, T, W, On>()) {
      require_shapes(w, "quantize: up()", "quantize: down()", !detail::keeps_rounded<On, T, W, Q>);
      std::shared_ptr<const void> held;  // what down() reads when up() has let go of it
      if constexpr (std::same_as<W, T>) {
        up_.parameters_.require_foreign(w.down, "quantize: down()");
        held = up_.parameters_.keeper_of(w.down);
      }
      up_.template quantize<Q>(w.up);
      down_.template quantize<Q>(w.down);
    }
  }
  /// Those that it has, of both or, if one refuses, of neither.
  template <class Q = scaled_int8> void quantize() {
    const bool up_is = up_.template keeps<Q>(), down_is = down_.template keeps<Q>();
    if (!up_is) up_.require_readable("quantize: up()");
    if (!down_is) down_.require_readable("quantize: down()");
    if (!up_is && !down_is) return quantize<Q>(parameters());
    up_.template quantize<Q>();
    down_.template quantize<Q>();
  }

  /// The rows of x through both.
  ///
  /// Then      in any order: residual(r), which is added last and may be x or y; into(y), where y may be x itself; a
  ///           DropoutSeed; a Workspace; another value of the backend's type
  /// Errors    ShapeError if a size is not the configuration's, there are no weights, or a DropoutSeed and no Dropout
  template <SequenceOf<T> X, class... Extra>
  requires(!detail::has_call_tape<Extra...>) [[nodiscard]] auto operator()(const X& x, Extra&&... extra) const {
    detail::check_linear_arguments<On, X, Extra...>();
    const auto from = detail::read_sequence(x);
    const On& backend = detail::backend_or(up_.backend(), extra...);
    require_sizes("feed_forward");
    up_.require_weights("feed_forward: up()");
    down_.require_weights("feed_forward: down()");
    up_.check("feed_forward", "d_model", backend, from);
    return detail::into_or_returned<X, T>(
        backend, from, config_.d_model, [&](const TensorView<T, 3>& y) { run(backend, from, y, extra...); }, extra...);
  }
  // Refused in one sentence.
  template <class X, class... Extra>
  requires(!SequenceOf<X, T>) detail::Refused operator()(X&&, Extra&&...) const { return detail::refuse_rows<T, X>(); }

  /// What a call leaves for its backward pass.
  using Tape = FeedForwardTape<T, On>;
  using Gradients = detail::GradientsOn<FeedForwardGradients<Accumulator<T>>, On>;

  /// An empty tape for calls of this FeedForward, and of others of its scalar and backend.
  template <int = 0> [[nodiscard]] auto tape() const {
    if constexpr (Up::differentiates())
      return Tape{};
    else
      return detail::Refused{};
  }
  /// Zero gradients of the weights: .up and .down as the parameters of both Linears, and all in one flat().
  template <int = 0> [[nodiscard]] Gradients gradients() const {
    return detail::make_gradients<FeedForwardGradients<Accumulator<T>>>(
        backend(), parameter_count(), [this](Accumulator<T>* data) {
          return FeedForwardViews<Accumulator<T>>{up_.parameters_.layout(data),
                                                  down_.parameters_.layout(data + up_.parameter_count()),
                                                  {data, static_cast<std::size_t>(parameter_count())}};
        });
  }

  /// feed_forward(x, tape, …): the call without a tape, which leaves on it what backward() needs. Its bits are the
  /// same.
  ///
  /// Then      what a call without a tape is given; x stays as it is until the backward pass has run
  /// Errors    as without, and ShapeError if the result overlaps x, or only packed weights are left and the backend
  ///           does not unpack them; the tape is as it was then
  template <class X, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<X>, T>&& detail::has_call_tape<Extra...>) [[nodiscard]] auto operator()(
      X&& x, Extra&&... extra) const {
    if constexpr (!Up::differentiates() || !detail::check_call_recording<Tape, Extra...>() ||
                  !detail::check_recorded_rows<X>()) {
      return detail::Refused{};
    } else {
      detail::check_linear_arguments<On, std::remove_cvref_t<X>, Extra...>();
      const auto from = detail::read_sequence(x);
      const On& backend = detail::backend_or(up_.backend(), extra...);
      require_sizes("feed_forward");
      up_.require_trainable("feed_forward: up()");
      down_.require_trainable("feed_forward: down()");
      up_.check("feed_forward", "d_model", backend, from);
      return detail::into_or_returned<std::remove_cvref_t<X>, T>(
          backend, from, config_.d_model, [&](const TensorView<T, 3>& y) { record(backend, from, y, extra...); },
          extra...);
    }
  }

  /// The gradients of ⟨dy, y⟩ for the call on the tape, as Linear::backward() has them: those of the weights are added
  /// to `gradients`, that of x is returned, or written to mha::into(dx), or added, in T, to what mha::add_to(dx) holds.
  /// That of a residual is dy itself.
  ///
  /// Shapes    dy as y  →  dx as x
  /// Then      gradients, without which those of the weights are not computed; mha::into(dx) or mha::add_to(dx), a
  ///           Workspace, another value of the backend's type
  /// Errors    as Linear::backward()
  template <SequenceOf<T> DY, class... Extra>
  auto backward(const DY& dy, const std::type_identity_t<Tape>& tape, Extra&&... extra) const {
    if constexpr (!Up::differentiates() || !detail::check_block_backward_arguments<Gradients, Extra...>()) {
      return detail::Refused{};
    } else {
      detail::check_memory_of<On, DY>();
      const auto given = detail::read_sequence(dy);
      return detail::gradient_of_rows<DY, T>(
          backend(), given, config_.d_model, [&](const auto& dx) { back(given, tape, dx, extra...); }, extra...);
    }
  }
  // Refused in one sentence.
  template <class DY, class OfTape, class... Extra>
  requires(!detail::takes_backward<T, Tape, DY, OfTape>) detail::Refused backward(const DY&, const OfTape&, Extra&&...)
  const { return detail::refuse_backward<T, Tape, DY, OfTape>(); }

  /// What Linear::drop_unpacked() does, for both or, if one refuses, for neither.
  void drop_unpacked() {
    up_.require_packed("drop_unpacked: up()");
    down_.require_packed("drop_unpacked: down()");
    up_.parameters_.keep_packed_only(up_.parameters_.version());
    down_.parameters_.keep_packed_only(down_.parameters_.version());
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

  /// What the backward pass of such a call costs, as Linear::backward_cost() has it; the hidden rows are on the tape,
  /// their gradients in the Workspace.
  ///
  /// Errors    ShapeError if rows is negative
  [[nodiscard]] BackwardStageCost backward_cost(Index rows) const {
    const BackwardStageCost up = up_.backward_cost(rows), down = down_.backward_cost(rows);
    const double hidden = double(rows) * config_.d_hidden * sizeof(T);
    return {static_cast<const StageCost&>(up) + down, up.tape_bytes + down.tape_bytes + hidden,
            std::max(up.scratch_bytes, down.scratch_bytes) + hidden};
  }
  /// Its products, bytes and memory, one fact a line.
  [[nodiscard]] std::string explain_backward(Index rows) const {
    return detail::backward_in_words(backward_cost(rows));
  }

 private:
  static const FeedForwardConfig& checked(const FeedForwardConfig& c) {
    detail::require(c.d_model > 0, "FeedForward: d_model is ", c.d_model, ", it must be at least 1");
    detail::require(c.d_hidden > 0, "FeedForward: d_hidden is ", c.d_hidden, ", it must be at least 1");
    return c;
  }

  void require_sizes(const char* call) const { detail::require_sizes(call, config_, up_.config(), down_.config()); }

  /// Of weights, of which each number is to be copied or not.
  template <class W>
  void require_shapes(const FeedForwardViews<const W>& w, const char* up, const char* down, bool copied) const {
    static_cast<void>(up_.parameters_.checked(w.up, up));
    static_cast<void>(down_.parameters_.checked(w.down, down));
    if (!copied) return;
    up_.parameters_.require_one_allocation(up);
    down_.parameters_.require_one_allocation(down);
  }

  /// Memory of the frame for the hidden rows of x, (B, L, d_hidden).
  template <class Frame> TensorView<T, 3> take_hidden(const TensorView<const T, 3>& x, Frame& frame) const {
    const Index extents[] = {x.extent[0], x.extent[1], config_.d_hidden};
    return detail::take_like<T>(frame, detail::row_major<3>(static_cast<T*>(nullptr), extents));
  }

  template <class... Extra>
  MHA_NO_INLINE void run(const On& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                         Extra&... extra) const {
    const auto residual = down_.checked_residual("feed_forward", backend, x, y, extra...);
    const DropoutDraws draws = detail::draws_of("feed_forward", down_.dropout_, extra...);
    detail::CallScope<On> scope(backend, extra...);
    const auto hidden = take_hidden(x, scope.frame);
    up_.multiply(x, hidden, {}, {}, scope);
    down_.multiply(hidden, y, residual, draws, scope);
  }

  template <class... Extra>
  MHA_NO_INLINE void record(const On& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                            Extra&... extra) const {
    const auto residual = down_.checked_residual("feed_forward", backend, x, y, extra...);
    detail::require(!detail::share_elements(y, x),
                    "feed_forward: the result overlaps x, which the backward pass of the tape reads");
    Tape& tape = detail::given_tape<Tape>(extra...);
    const DropoutDraws draws = detail::draws_of("feed_forward", down_.dropout_, extra...);
    detail::CallScope<On> scope(backend, extra...);
    typename detail::KeptArrays<T, On>::Draft hidden_rows(tape.hidden_, backend, "feed_forward");
    typename detail::KeptArrays<Accumulator<T>, On>::Draft kept(tape.up_.arrays_, backend, "feed_forward");
    const auto hidden = take_hidden(x, hidden_rows);
    const auto sums = up_.sums_on(kept, x);
    hidden_rows.keep();
    kept.keep();
    tape.down_.version_ = 0;
    up_.record(x, hidden, {}, {}, tape.up_, sums, scope);
    down_.record(hidden, y, residual, draws, tape.down_, {}, scope);
  }

  template <class... Extra>
  MHA_NO_INLINE void back(const TensorView<const T, 3>& dy, const Tape& tape, const detail::RowGradient<T>& d_x,
                          Extra&... extra) const {
    const TensorView<T, 3>& dx = d_x.to;
    Gradients* const gradients = detail::find_gradients<Gradients>(extra...);
    const On& backend = detail::backend_or(up_.backend(), extra...);
    require_sizes("backward");
    up_.require_trainable("backward: up()");
    down_.require_trainable("backward: down()");
    detail::require_recorded(tape.recorded(), up_.made(tape.up_) && down_.made(tape.down_), "FeedForward");
    const TensorView<const T, 3>& x = tape.up_.x_;
    const auto numbers = detail::memory_of_given(gradients);
    detail::require_backward_rows(backend, x, dy, config_.d_model, dx, config_.d_model, numbers, tape.hidden_,
                                  tape.up_.arrays_);
    if (gradients != nullptr) {
      detail::require_gradients("backward: up", detail::shapes_of(*gradients).up, up_.shapes());
      detail::require_gradients("backward: down", detail::shapes_of(*gradients).down, down_.shapes());
    }
    detail::require_apart("dx", dx, x, dy, numbers);
    detail::require_apart_from_parameters("dx", detail::footprint(dx), up_.parameters(), " of up()");
    detail::require_apart_from_parameters("dx", detail::footprint(dx), down_.parameters(), " of down()");
    detail::CallScope<On> scope(backend, extra...);
    const auto to = detail::named_there(gradients, {up_.shapes(), down_.shapes(), {}});
    const auto d_hidden = detail::take_like<T>(scope.frame, tape.down_.x_);
    down_.back(tape.down_, dy, to.down, {d_hidden}, scope);
    up_.back(tape.up_, d_hidden, to.up, d_x, scope);
  }

  FeedForwardConfig config_;
  Up up_;
  Down down_;

  // Last, because clang skips what follows a failed assertion.
  static_assert(detail::check_linear_types<B, F, Others...>());
};

}  // namespace mha::inline MHA_NAMESPACE
