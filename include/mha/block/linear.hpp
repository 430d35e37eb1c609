// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../backend/default.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/check.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "../policy/activation.hpp"
#include "../policy/dropout.hpp"
#include "arguments.hpp"
#include "cost.hpp"
#include "device_gradients.hpp"
#include "gradients.hpp"
#include "linear_backward.hpp"
#include "linear_call.hpp"
#include "linear_memory.hpp"
#include "linear_product.hpp"
#include "linear_weights.hpp"
#include "narrow_weights.hpp"
#include "recording.hpp"
#include "row_dropout.hpp"
#include "rows.hpp"
#include "trainable.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A dense layer with an activation: its scalar, the machine it runs on, and a functor of one number, or Gated of one.
///
/// Formula   y = F(x W + b) (+ residual);  with Gated<F>: y = F(x W_g + b_g) ∘ (x W + b) (+ residual)
/// Shapes    x (L, in) or (B, L, in)  W, W_g (in, out)  b, b_g (out)  y and residual as x, the last axis out
/// Values    an activation with data, the backend, Dropout{.p}, each at most once: Linear<…> up({…}, activation)
/// Dropout   in calls with a DropoutSeed, of the result before the residual is added: element (b, l, j) is kept if
///           dropout_keeps(dropout, seed, 1, b, 0, l, j). The result is stored in T before, in a pass of its own
/// Numerics  F and what follows it in Accumulator<T>: of the product's own sums where the backend fuses them with it
///           (FusesEpilogue), else of sums stored in T
/// Bits      a row of y depends on its own x and residual alone where products do so: on Reference, Cpu and Systolic
/// Threads   calls are const; one Linear serves many threads, each with a Workspace, tape and gradients of its own
/// Errors    ShapeError if a size of the configuration is less than 1, or the activation is a null function
///
///   mha::Linear<float, mha::Cpu, mha::Gelu> up({.inputs = 768, .outputs = 3072});
///   up.initialize(mha::XavierUniform{.seed = 1});
///   auto y = up(x);  // (L, 768) → (L, 3072)
template <class T, class B = Cpu, class F = Identity, class... Others>
class Linear : public LinearMemory<T, detail::OrNoBackend<B>, F> {
  using On = detail::OrNoBackend<B>;
  using Memory = LinearMemory<T, On, F>;
  using Memory::gated, Memory::parameters_, Memory::backend_, Memory::products_, Memory::require_weights;

 public:
  using Scalar = T;
  using Workspace = typename On::Workspace;
  using Memory::config, Memory::parameter_count;

  template <class... Values>
  explicit Linear(const LinearConfig& sizes, const Values&... values)
      : Memory(sizes, detail::given_or_default<On>(values...)),
        activation_(detail::given_activation<F>(values...)),
        dropout_(detail::given_dropout(values...)) {
    detail::check_linear_values<B, F, Values...>();
  }

  [[nodiscard]] const F& activation() const { return activation_; }

  /// The rows of x through the Linear.
  ///
  /// Shapes    x (L, in) or (B, L, in)  →  the same, the last axis out
  /// Then      in any order: residual(r), which is added last and may be y itself; into(y), where y may be x itself,
  ///           for the price of a copy; a DropoutSeed; a Workspace; another value of the backend's type
  /// Errors    ShapeError if a size is not the configuration's, there are no weights, or a DropoutSeed and no Dropout
  template <SequenceOf<T> X, class... Extra>
  requires(!detail::has_call_tape<Extra...>) [[nodiscard]] auto operator()(const X& x, Extra&&... extra) const {
    detail::check_linear_arguments<On, X, Extra...>();
    const auto from = detail::read_sequence(x);
    const On& backend = detail::backend_or(backend_, extra...);
    require_weights("linear");
    check("linear", "inputs", backend, from);
    return detail::into_or_returned<X, T>(
        backend, from, config().outputs, [&](const TensorView<T, 3>& y) { run(backend, from, y, extra...); }, extra...);
  }
  // Refused in one sentence.
  template <class X, class... Extra>
  requires(!SequenceOf<X, T>) detail::Refused operator()(X&&, Extra&&...) const { return detail::refuse_rows<T, X>(); }

  /// What a call leaves for its backward pass.
  using Tape = LinearTape<T, On>;
  using Gradients = detail::GradientsOn<LinearGradients<Accumulator<T>>, On>;

  /// An empty tape for calls of this Linear, and of others of its scalar and backend.
  template <int = 0> [[nodiscard]] auto tape() const {
    if constexpr (differentiates())
      return Tape{};
    else
      return detail::Refused{};
  }
  /// Zero gradients of the weights.
  template <int = 0> [[nodiscard]] Gradients gradients() const {
    return detail::make_gradients<LinearGradients<Accumulator<T>>>(
        backend_, parameters_.size(), [this](Accumulator<T>* data) { return parameters_.layout(data); });
  }

  /// linear(x, tape, …): the call without a tape, which leaves on it what backward() needs. Its bits are the same.
  ///
  /// Then      what a call without a tape is given; x stays as it is until the backward pass has run
  /// Errors    as without, and ShapeError if the result overlaps x, or only packed weights are left and the backend
  ///           does not unpack them; the tape is as it was then
  template <class X, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<X>, T>&& detail::has_call_tape<Extra...>) [[nodiscard]] auto operator()(
      X&& x, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_call_recording<Tape, Extra...>() ||
                  !detail::check_recorded_rows<X>()) {
      return detail::Refused{};
    } else {
      detail::check_linear_arguments<On, std::remove_cvref_t<X>, Extra...>();
      const auto from = detail::read_sequence(x);
      const On& backend = detail::backend_or(backend_, extra...);
      require_trainable("linear");
      check("linear", "inputs", backend, from);
      return detail::into_or_returned<std::remove_cvref_t<X>, T>(
          backend, from, config().outputs, [&](const TensorView<T, 3>& y) { record(backend, from, y, extra...); },
          extra...);
    }
  }

  /// The gradients of ⟨dy, y⟩ for the call on the tape: those of the weights are added to `gradients`, that of x is
  /// returned, or written to mha::into(dx), or added, in T, to what mha::add_to(dx) holds. That of a residual is dy
  /// itself.
  ///
  /// Shapes    dy as y  →  dx as x
  /// Then      gradients, without which those of the weights are not computed; mha::into(dx) or mha::add_to(dx), a
  ///           Workspace, another value of the backend's type
  /// Numerics  sums in Accumulator<T>, those of a bias in double for float; the same bits for any number of threads; a
  ///           row of dy that is exactly 0 adds nothing, whatever stands in x
  /// Memory    with a Workspace and mha::into() nothing is allocated after the first step of a shape
  /// Errors    before anything is computed, ShapeError if nothing is on the tape, or it is of other weights than the
  ///           Linear has now, a size is not the call's, gradients are of other sizes, or dx or they overlap what is
  ///           read. After any other exception, such as of memory that gave out, they may have part of a step
  template <SequenceOf<T> DY, class... Extra>
  auto backward(const DY& dy, const std::type_identity_t<Tape>& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_block_backward_arguments<Gradients, Extra...>()) {
      return detail::Refused{};
    } else {
      detail::check_memory_of<On, DY>();
      const auto given = detail::read_sequence(dy);
      return detail::gradient_of_rows<DY, T>(
          backend_, given, config().inputs, [&](const auto& dx) { back(given, tape, dx, extra...); }, extra...);
    }
  }
  // Refused in one sentence.
  template <class DY, class OfTape, class... Extra>
  requires(!detail::takes_backward<T, Tape, DY, OfTape>) detail::Refused backward(const DY&, const OfTape&, Extra&&...)
  const { return detail::refuse_backward<T, Tape, DY, OfTape>(); }

  /// What a call on this many rows costs; the activation is not counted.
  ///
  /// Errors    ShapeError if rows is negative
  [[nodiscard]] StageCost cost(Index rows) const {
    detail::require(rows >= 0, "cost: rows is ", rows, ", it must be at least 0");
    const double n = rows, in = config().inputs, out = config().outputs, numbers = in * out * (gated ? 2 : 1);
    const double biases = double(parameter_count()) - numbers, read = products_.weight_bytes() * numbers;
    return {parameter_count(), 2 * n * numbers, read + sizeof(T) * (biases + n * (in + out))};
  }

  /// The product, weights, activation and kernel of such a call, one fact a line.
  [[nodiscard]] std::string explain(Index rows) const {
    const auto weights = detail::weights_in_words(parameters_, products_), drops = detail::dropout_in_words(dropout_);
    return detail::linear_in_words<T, F>(backend_, cost(rows), config(), rows, weights) + drops;
  }

  /// The same of its backward pass.
  [[nodiscard]] BackwardStageCost backward_cost(Index rows) const {
    BackwardStageCost c = detail::linear_backward_cost<T, On, F>(cost(rows), config(), rows, dropout_.has_value());
    if (detail::computes_on_host<On> && parameters_.packed_only())
      c.scratch_bytes += sizeof(T) * (gated ? 2.0 : 1.0) * config().inputs * config().outputs;
    return c;
  }
  [[nodiscard]] std::string explain_backward(Index n) const { return detail::backward_in_words(backward_cost(n)); }

 private:
  template <class, class, class, class...> friend class FeedForward;

  // Everything is checked before anything is computed.
  void check(const char* call, const char* width, const On& backend, const TensorView<const T, 3>& x) const {
    detail::check_linear_rows<T>(call, width, backend, x, config().inputs);
  }
  /// The residual of a call whose result goes to y, null data for none.
  template <class... Extra>
  TensorView<const T, 3> checked_residual(const char* call, const On& backend, const TensorView<const T, 3>& x,
                                          const TensorView<T, 3>& y, const Extra&... extra) const {
    detail::require_like(call, backend, "the result", x, y, config().outputs);
    detail::require_own_memory(call, "the result", y, detail::axes_of_rows);
    const auto residual = detail::find_rows<Residual, const T>(extra...);
    if constexpr ((detail::ResidualArgument<Extra> || ...))
      detail::require_like(call, backend, "the residual", x, residual, config().outputs);
    return residual;
  }

  // The backward pass. Nothing of it is compiled where it is not called.

  template <class = void> static constexpr bool differentiates() {
    if constexpr (detail::check_trains<T, On>()) return detail::check_differentiable<F>();
    return false;
  }
  void require_trainable(const char* call) const {
    require_weights(call);
    detail::require_unpackable_weights(!parameters_.packed_only() || products_.unpacks(), call, "Linear",
                                       parameter_count(), On::name);
  }
  template <class... Extra>
  MHA_NO_INLINE void record(const On& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                            Extra&... extra) const {
    const auto residual = checked_residual("linear", backend, x, y, extra...);
    const DropoutDraws draws = detail::draws_of("linear", dropout_, extra...);
    detail::require(!detail::share_elements(y, x),
                    "linear: the result overlaps x, which the backward pass of the tape reads");
    Tape& tape = detail::given_tape<Tape>(extra...);
    detail::CallScope<On> scope(backend, extra...);
    typename detail::KeptArrays<Accumulator<T>, On>::Draft kept(tape.arrays_, backend, "linear");
    const auto sums = sums_on(kept, x);
    kept.keep();
    record(x, y, residual, draws, tape, sums, scope);
  }
  LinearViews<Accumulator<T>> shapes() const { return parameters_.layout(static_cast<Accumulator<T>*>(nullptr)); }
  /// Whether a call of these weights is on the tape.
  bool made(const Tape& tape) const { return tape.version_ == parameters_.version(); }
  template <class Kept> auto sums_on(Kept& kept, const TensorView<const T, 3>& x) const {
    return detail::sums_for<On, F, Accumulator<T>>(kept, x.extent[0] * x.extent[1], config().outputs);
  }
  /// Everything is checked, and the tape has memory for the sums.
  void record(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const TensorView<const T, 3>& residual,
              const DropoutDraws& draws, Tape& tape, const std::array<TensorView<Accumulator<T>, 2>, 2>& sums,
              const detail::CallScope<On>& scope) const {
    tape.version_ = 0;  // until all is there
    tape.x_ = x;
    tape.sums_ = sums;
    tape.draws_ = draws;
    multiply(x, y, residual, draws, scope, std::span(tape.sums_).last(gated ? 2 : 1));
    tape.version_ = parameters_.version();
  }

  template <class... Extra>
  MHA_NO_INLINE void back(const TensorView<const T, 3>& dy, const Tape& tape, const detail::RowGradient<T>& d_x,
                          Extra&... extra) const {
    const TensorView<T, 3>& dx = d_x.to;
    Gradients* const gradients = detail::find_gradients<Gradients>(extra...);
    const On& backend = detail::backend_or(backend_, extra...);
    require_trainable("backward");
    detail::require_recorded(tape.recorded(), made(tape), "Linear");
    const auto numbers = detail::memory_of_given(gradients);
    detail::require_backward_rows(backend, tape.x_, dy, config().outputs, dx, config().inputs, numbers, tape.arrays_);
    if (gradients != nullptr) detail::require_gradients("backward", detail::shapes_of(*gradients), shapes());
    detail::require_apart("dx", dx, tape.x_, dy, numbers);
    detail::require_apart_from_parameters("dx", detail::footprint(dx), parameters_.views());
    detail::CallScope<On> scope(backend, extra...);
    back(tape, dy, detail::named_there(gradients, shapes()), d_x, scope);
  }
  void back(const Tape& tape, const TensorView<const T, 3>& dy, const LinearViews<Accumulator<T>>& gradients,
            const detail::RowGradient<T>& dx, const detail::CallScope<On>& scope) const {
    auto frame = scope.workspace.frame();
    const auto w = products_.readable(scope.backend, parameters_.views(), parameters_.packed_only(), config(), frame);
    const auto d = detail::dropped_gradient(tape.draws_, dy, frame, scope.items);
    detail::linear_backward<T>(scope.backend, activation_, w, tape.x_, tape.sums_, d, gradients, dx, scope.workspace);
  }

  template <class... Extra>
  MHA_NO_INLINE void run(const On& backend, const TensorView<const T, 3>& x, const TensorView<T, 3>& y,
                         Extra&... extra) const {
    const auto residual = checked_residual("linear", backend, x, y, extra...);
    const DropoutDraws draws = detail::draws_of("linear", dropout_, extra...);
    detail::CallScope<On> scope(backend, extra...);
    multiply(x, y, residual, draws, scope);
  }
  template <class... Kept>
  void multiply(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const TensorView<const T, 3>& residual,
                const DropoutDraws& draws, const detail::CallScope<On>& scope, const Kept&... kept) const {
    detail::run_dropped(draws, y, residual, scope.items, [&](const auto& to, const auto& added) {
      products_.run(scope.backend, x, to, added, activation_, parameters_.views(), scope.workspace, kept...);
    });
  }

  F activation_;
  std::optional<Dropout> dropout_;

  // Last, because clang skips what follows a failed assertion.
  static_assert(detail::check_linear_types<B, F, Others...>());
};

}  // namespace mha::inline MHA_NAMESPACE
