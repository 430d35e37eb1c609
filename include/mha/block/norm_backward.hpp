// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backward.hpp"
#include "../backend/norm_backward.hpp"
#include "../call_backend.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../core/workspace.hpp"
#include "arguments.hpp"
#include "cost.hpp"
#include "dense_backward.hpp"
#include "device_gradients.hpp"
#include "gradients.hpp"
#include "kept_arrays.hpp"
#include "recording.hpp"
#include "row_norm.hpp"
#include "trainable.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {
template <class T, Backend B, class Kind> class TrainableNorm;
}

/// What a call of a norm leaves for its backward pass. Calls reuse its memory; one tape serves any norms of this scalar
/// and backend on one device, the last call counts.
///
/// Keeps     the rows that were normed, x or x + residual, in accumulators; it borrows nothing
template <class T, class B> class NormTape {
  using A = Accumulator<T>;

 public:
  static constexpr bool is_call_tape = true;

  NormTape() = default;
  NormTape(NormTape&& other) noexcept
      : version_(std::exchange(other.version_, 0)), rows_(other.rows_), memory_(std::move(other.memory_)) {}
  NormTape& operator=(NormTape&& other) noexcept {
    version_ = std::exchange(other.version_, 0);
    rows_ = other.rows_;
    memory_ = std::move(other.memory_);
    return *this;
  }
  ~NormTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return version_ != 0; }

 private:
  template <class, Backend, class> friend class detail::TrainableNorm;

  std::uint64_t version_ = 0;  // of the parameters
  TensorView<A, 3> rows_{};
  detail::KeptArrays<A, B> memory_;
};

namespace detail {

/// to = x + residual in accumulators, as items.
///
/// Shapes    (B, L, E), `to` row-major; residual null data for none
template <class T> struct NormedRows {
  using A = Accumulator<T>;

  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 3> x, residual;
  TensorView<A, 3> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index j) const {
    const Index b = static_cast<Index>(row / x.extent[1]), l = static_cast<Index>(row % x.extent[1]);
    const A z(x(b, l, j));
    to(b, l, j) = residual.data == nullptr ? z : z + A(residual(b, l, j));
  }

  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    for (std::ptrdiff_t row = begin; row < end; ++row) {
      const Index b = static_cast<Index>(row / x.extent[1]), l = static_cast<Index>(row % x.extent[1]);
      const T* const from = x.pointer(b, l, 0);
      A* const z = to.pointer(b, l, 0);
      if constexpr (std::is_same_v<T, A> && std::is_trivially_copyable_v<T>)
        if (residual.data == nullptr && x.stride[2] == 1) {
          std::memcpy(z, from, static_cast<std::size_t>(x.extent[2]) * sizeof(T));
          continue;
        }
      for (Index j = 0; j < x.extent[2]; ++j) z[j] = A(from[j * x.stride[2]]);
      if (residual.data == nullptr) continue;
      const T* const added = residual.pointer(b, l, 0);
      for (Index j = 0; j < x.extent[2]; ++j) z[j] = z[j] + A(added[j * residual.stride[2]]);
    }
  }
};

/// The sentences for what a norm's backward() may be given after the tape.
template <class Gradients, class... Extra> constexpr bool check_norm_backward_arguments() {
  static_assert(((GradientsArgument<Extra> || IntoArgument<Extra> || AddToArgument<Extra> || WorkspaceArgument<Extra> ||
                  BackendArgument<Extra>)&&...),
                "mha: after the tape backward() of a norm takes gradients, mha::into(dx) or mha::add_to(dx), a "
                "Workspace and a backend; a residual has the gradient of x (see mha/block/norm_backward.hpp)");
  static_assert(at_most_one<(IntoArgument<Extra> || AddToArgument<Extra>)...> &&
                    at_most_one<WorkspaceArgument<Extra>...> && at_most_one<BackendArgument<Extra>...>,
                "mha: one of mha::into(dx) and mha::add_to(dx), a Workspace and a backend may be given once each "
                "(see mha/block/norm_backward.hpp)");
  return check_gradients<Gradients, Extra...>();
}

/// A norm of rows with its backward pass, which costs a program nothing that does not call it.
///
///   auto tape = norm.tape();
///   auto gradients = norm.gradients();
///   y = norm(x, tape);
///   dx = norm.backward(dy, tape, gradients);
template <class T, Backend B, class Kind> class TrainableNorm : public RowNorm<T, B, Kind> {
  using Base = RowNorm<T, B, Kind>;
  using A = Accumulator<T>;
  using Base::backend_, Base::config_, Base::numbers, Base::version_;

  template <class = void> static constexpr bool differentiates() { return check_trains<T, B>(); }

 public:
  using Workspace = typename B::Workspace;
  using Tape = NormTape<T, B>;
  using Gradients = GradientsOn<NormGradients<A>, B>;

  using Base::Base;

  /// An empty tape for calls of this norm, and of others of its scalar and backend.
  template <int = 0> [[nodiscard]] auto tape() const {
    if constexpr (differentiates())
      return Tape{};
    else
      return Refused{};
  }
  /// Zero gradients of weight and bias.
  template <int = 0> [[nodiscard]] Gradients gradients() const {
    return make_gradients<NormGradients<A>>(backend_, this->parameter_count(),
                                            [this](A* data) { return this->template carve<A>(data); });
  }

  using Base::operator();
  /// norm(x, tape, …): the call without a tape, which leaves on it what backward() needs. Its bits are the same, and x
  /// may change at once, as by mha::into(x).
  ///
  /// Then      what a call without a tape is given
  /// Errors    as without; the tape is as it was then
  // First is apart from Extra, because clang 14 takes (X&&, Extra&&...) for the refusal of RowNorm.
  template <class X, class First, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<X>, T>&& has_call_tape<First, Extra...>) [[nodiscard]] auto operator()(
      X&& x, First&& first, Extra&&... extra) const {
    if constexpr (!differentiates() || !check_call_recording<Tape, First, Extra...>()) {
      return Refused{};
    } else {
      check_norm_arguments<First, Extra...>();
      check_memory_of<B, std::remove_cvref_t<X>>();
      this->require_present(Kind::name);
      const auto from = read_sequence(x);
      this->check_x(from);
      Tape& tape = given_tape<Tape>(first, extra...);
      const auto keep = [&](const TensorView<const T, 3>& residual, const ItemsOn<B>& items) {
        typename KeptArrays<A, B>::Draft kept(tape.memory_, items.backend, Kind::name);
        const auto rows = take_like<A>(kept, from);
        kept.keep();
        tape.version_ = 0;  // until all is there
        tape.rows_ = rows;
        items(NormedRows<T>{std::ptrdiff_t{from.extent[0]} * from.extent[1], from.extent[2], 1, from, residual, rows});
        tape.version_ = version_;
      };
      return this->template run_into<std::remove_cvref_t<X>>(from, keep, first, extra...);
    }
  }

  /// The gradients of ⟨dy, y⟩ for the call on the tape: those of weight and bias are added to `gradients`; that of what
  /// was normed is returned, or written to mha::into(dx), or added to what mha::add_to(dx) holds. Of norm(x,
  /// mha::residual(r)) it is the gradient of x and of r; with mha::sum_into(s) that of s, wherever s goes on, is added
  /// to it, as mha::add_to(ds) does.
  ///
  /// Formula   g = dy ∘ weight;  dx = (g − mean(g) − n mean(g ∘ n)) / √(var + eps), n being the norm of the
  ///           row; without mean(g) for RmsNorm;  d_weight = Σ dy ∘ n, d_bias = Σ dy
  /// Shapes    dy as y  →  dx as x
  /// Then      gradients, without which those of weight and bias are left out; mha::into(dx) or mha::add_to(dx), a
  ///           Workspace, another value of the backend's type
  /// Numerics  in Accumulator<T>, sums over up to 64 rows in it, of these in double for float; the same bits for
  ///           any number of threads; a row of dy that is exactly 0 has the gradient 0 and adds nothing, whatever
  ///           stands in x
  /// Memory    with a Workspace and a destination nothing is allocated after the first step of a shape
  /// Errors    before anything is computed, ShapeError if nothing is on the tape, or it is of other parameters than the
  ///           norm has now, a size is not the call's, gradients are of other sizes, or dx overlaps what is read
  template <SequenceOf<T> DY, class... Extra>
  auto backward(const DY& dy, const std::type_identity_t<Tape>& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !check_norm_backward_arguments<Gradients, Extra...>()) {
      return Refused{};
    } else {
      check_memory_of<B, DY>();
      const auto given = read_sequence(dy);
      if constexpr ((AddToArgument<Extra> || ...))
        back<true>(given, tape, find_add_to<T>(extra...), extra...);
      else
        return into_or_returned<DY, T>(
            backend_, given, config_.width, [&](const TensorView<T, 3>& dx) { back<false>(given, tape, dx, extra...); },
            extra...);
    }
  }
  // Refused in one sentence.
  template <class DY, class OfTape, class... Extra>
  requires(!takes_backward<T, Tape, DY, OfTape>) Refused backward(const DY&, const OfTape&, Extra&&...)
  const { return refuse_backward<T, Tape, DY, OfTape>(); }

  /// What the backward pass of a call on this many rows costs; it has no products. mha::add_to(dx) reads dx too.
  ///
  /// Errors    ShapeError if rows is negative
  [[nodiscard]] BackwardStageCost backward_cost(Index rows) const {
    const StageCost forward = this->cost(rows);
    const double elements = double(rows) * config_.width, wide = std::is_same_v<T, A> ? 0 : 2 * elements * sizeof(A);
    return {{forward.parameters, 0,
             sizeof(T) * 2 * elements + sizeof(A) * (elements + config_.width + double(forward.parameters))},
            elements * sizeof(A),
            wide};
  }
  /// Its bytes and memory, one fact a line.
  [[nodiscard]] std::string explain_backward(Index rows) const { return backward_in_words(backward_cost(rows)); }

 private:
  template <bool adds, class... Extra>
  MHA_NO_INLINE void back(const TensorView<const T, 3>& dy, const Tape& tape, const TensorView<T, 3>& dx,
                          Extra&... extra) const {
    Gradients* const gradients = find_gradients<Gradients>(extra...);
    const B& backend = backend_or(backend_, extra...);
    this->require_present("backward");
    require_recorded(tape.recorded(), tape.version_ == version_, "norm");
    const TensorView<const A, 3> rows_kept = tape.rows_;
    const auto sums = memory_of_given(gradients);
    require_backward_rows(backend, rows_kept, dy, config_.width, dx, config_.width, sums, tape.memory_);
    const auto shape = [](Index n) { return TensorView<A, 1>{nullptr, {n}, {1}}; };
    require_reachable(backend, "backward", "the norm's weight",
                      TensorView<const A, 1>{numbers(), {config_.width}, {1}});
    const NormViews<A> shapes{shape(config_.width), shape(*config_.bias ? config_.width : 0), {}};
    if (gradients != nullptr) require_gradients("backward", shapes_of(*gradients), shapes);
    require_apart("dx", dx, TensorView<const T, 3>{}, dy, sums);
    require_apart_from_parameters("dx", footprint(dx), this->parameters());
    if (dx.size() == 0) return;
    CallScope<B> scope(backend, extra...);
    const auto added = named_there(gradients, shapes);
    const TensorView<const A, 2> d = widened(as_rows(dy, scope.frame, scope.items), scope.frame, scope.items);
    const auto differentiate = [&](const TensorView<A, 2>& to) {
      run_norm_backward(backend,
                        NormBackwardCall<A>{collapsed<const A>(tape.rows_), d, to, numbers(), added.weight.data,
                                            added.bias.data, static_cast<A>(*config_.eps), Kind::centred},
                        scope.workspace);
    };
    if constexpr (std::is_same_v<T, A> && !adds)
      if (rows_collapse(dx) && (dx.stride[2] == 1 || dx.extent[2] == 1)) return differentiate(collapsed(dx));
    const auto rows = take_like<A>(scope.frame, dx);
    differentiate(collapsed(rows));
    for (Index b = 0; b < dx.extent[0]; ++b) {
      const auto sequence = [b](const auto& v) {
        return TensorView<std::remove_pointer_t<decltype(v.data)>, 2>{
            v.data + b * v.stride[0], {v.extent[1], v.extent[2]}, {v.stride[1], v.stride[2]}};
      };
      scope.items(convert_items<adds>(TensorView<const A, 2>(sequence(rows)), sequence(dx)));
    }
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
