// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/norm.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../core/tensor.hpp"
#include "arguments.hpp"
#include "cost.hpp"
#include "narrow_weights.hpp"
#include "norm_weights.hpp"
#include "recording.hpp"
#include "rows.hpp"
#include "weights_version.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

struct Centred {
  static constexpr const char* name = "LayerNorm";
  static constexpr bool centred = true, bias = true;
  static constexpr double eps = 1e-5;
};
struct RootMeanSquare {
  static constexpr const char* name = "RmsNorm";
  static constexpr bool centred = false, bias = false;
  static constexpr double eps = 1e-6;
};

inline NormConfig completed_norm(const char* name, NormConfig c, double eps, bool bias) {
  if (!c.eps) c.eps = eps;
  if (!c.bias) c.bias = bias;
  require(c.width > 0, name, ": width is ", c.width, ", it must be at least 1");
  require(c.width <= longest_axis, name, ": width is ", c.width, ", the limit is ", longest_axis);
  require(*c.eps >= 0 && std::isfinite(*c.eps), name, ": eps is ", *c.eps, ", it must be a finite number, 0 or above");
  return c;
}

/// The sentences for what a norm may be given after x.
template <class... Extra> constexpr void check_norm_arguments() {
  static_assert(
      ((IntoArgument<Extra> || ResidualArgument<Extra> || SumIntoArgument<Extra> || WorkspaceArgument<Extra> ||
        BackendArgument<Extra> || CallTapeArgument<Extra> || RefusedArgument<Extra>)&&...),
      "mha: after x a norm takes mha::into(y), mha::residual(r), mha::sum_into(s), a Workspace and a "
      "backend, and to be differentiated a tape (see mha/block/norm.hpp)");
  static_assert(at_most_one<IntoArgument<Extra>...> && at_most_one<ResidualArgument<Extra>...> &&
                    at_most_one<SumIntoArgument<Extra>...> && at_most_one<WorkspaceArgument<Extra>...> &&
                    at_most_one<BackendArgument<Extra>...>,
                "mha: mha::into(y), mha::residual(r), mha::sum_into(s), a Workspace and a backend may be given once "
                "each (see mha/block/norm.hpp)");
  static_assert(!(SumIntoArgument<Extra> || ...) || (ResidualArgument<Extra> || ...),
                "mha: mha::sum_into(s) stores x + r, so the norm needs mha::residual(r) too (see mha/block/norm.hpp)");
}

/// A norm of rows without its backward pass. Users name LayerNorm or RmsNorm.
template <class T, Backend B, class Kind> class RowNorm {
  using A = Accumulator<T>;
  struct OnHost {
    Tensor<A, 1> numbers;
  };
  template <class Other> struct UploadedBy { using type = OnHost; };
  template <class Other>
  requires(!computes_on_host<Other>) struct UploadedBy<Other> {
    using type =
        std::shared_ptr<const std::remove_cvref_t<decltype(std::declval<const Other&>().upload(std::span<const A>()))>>;
  };
  /// Weight and bias in the accumulator's precision, one after the other, where the backend reads them.
  using Ready = typename UploadedBy<B>::type;

 public:
  using Scalar = T;
  using Workspace = typename B::Workspace;

  explicit RowNorm(const NormConfig& config) requires std::default_initializable<B> : RowNorm(config, B{}) {}
  RowNorm(const NormConfig& config, B backend)
      : config_(completed_norm(Kind::name, config, Kind::eps, Kind::bias)),
        backend_(std::move(backend)),
        own_(parameter_count()) {
    std::fill_n(own_.begin(), config_.width, T(A(config_.zero_centered ? 0 : 1)));
    ready_ = made_ready(parameters());
  }

  RowNorm(const RowNorm&) = default;
  RowNorm(RowNorm&&) noexcept = default;
  /// Nothing changes if it throws.
  RowNorm& operator=(const RowNorm& other) { return *this = RowNorm(other); }
  RowNorm& operator=(RowNorm&&) noexcept = default;
  ~RowNorm() = default;

  /// The configuration with everything filled in.
  [[nodiscard]] const NormConfig& config() const { return config_; }

  /// What it computes on, unless a call is given another.
  [[nodiscard]] const B& backend() const { return backend_; }

  /// Read-only named views. At first the norm alone: weight 1, or 0 if zero_centered, and bias 0; null data in a norm
  /// that was moved from.
  [[nodiscard]] NormViews<const T> parameters() const {
    return borrowed_ ? borrowed_->views : carve<const T>(own_.data());
  }
  [[nodiscard]] std::int64_t parameter_count() const { return std::int64_t{config_.width} * (*config_.bias ? 2 : 1); }

  /// f(const NormViews<T>&): the only way to change them, element by element. They stay where they are; nothing changes
  /// if f throws.
  ///
  /// Errors    ShapeError if they are borrowed, or there are none because the norm was moved from
  template <class F> void update(F&& f) {
    require_own();
    Tensor<T, 1> next = own_;
    const auto views = carve<T>(next.data());
    f(views);
    require_own();  // f may have borrowed others
    ready_ = made_ready(carve<const T>(next.data()));
    version_ = next_version();
    std::copy(next.begin(), next.end(), own_.begin());
  }

  /// Uses parameters where they are, e.g. in a mapped checkpoint, which `keep_alive` holds as long as the norm lives;
  /// without one, their owner must outlive it, unless they are those that it borrows already. Calls read a copy in the
  /// accumulator's precision: parameters that change are to be borrowed anew.
  ///
  /// Errors    ShapeError if a vector does not have the norm's width or is the norm's own, or there is a bias too many
  ///           or too few; nothing changes then
  void borrow(const BorrowedNorm<T>& p, std::shared_ptr<const void> keep_alive = nullptr) {
    const Index bias = *config_.bias ? config_.width : 0;
    require(p.weight.extent[0] == config_.width, "borrow: the weight has ", p.weight.extent[0], " elements, expected ",
            config_.width);
    require(p.bias.extent[0] == bias, "borrow: the bias has ", p.bias.extent[0], " elements, expected ", bias);
    require_data("borrow", "weight", p.weight);
    require_data("borrow", "bias", p.bias);
    require(own_.size() == 0 || (!may_overlap(p.weight, own_.view()) && !may_overlap(p.bias, own_.view())),
            "borrow: weights that are among the ", parameter_count(), " of the norm's own, expected another's");
    NormViews<const T> views{p.weight, p.bias, {}};
    if (bias == 0) views.bias = {};  // null data is what says that there is none
    if (borrowed_ && keep_alive == nullptr) {
      const NormViews<const T>& old = borrowed_->views;
      const auto meets = [&](const TensorView<const T, 1>& v) {
        return may_overlap(v, old.weight) || may_overlap(v, old.bias);
      };
      if (meets(views.weight) || meets(views.bias)) keep_alive = borrowed_->keep_alive;
    }
    auto next = std::make_shared<const Borrowed>(Borrowed{views, std::move(keep_alive)});
    ready_ = made_ready(views);
    borrowed_ = std::move(next);
    version_ = next_version();
    own_ = Tensor<T, 1>();
  }
  template <std::same_as<NormViews<const T>> Views>
  void borrow(const Views& p, std::shared_ptr<const void> keep_alive = nullptr) {
    borrow(BorrowedNorm<T>{p.weight, p.bias}, std::move(keep_alive));
  }
  /// Parameters in half or bfloat16 under float or double: norm.borrow(mha::BorrowedNorm<mha::bfloat16>{.weight = …}).
  /// They are read here only, into a copy in T.
  ///
  /// Errors    as above
  template <class W>
  requires(!std::same_as<W, T>) void borrow(const BorrowedNorm<W>& p, std::shared_ptr<const void> = nullptr) {
    if constexpr (check_narrow<T, W>()) {
      require_data("borrow", "weight", p.weight);
      require_data("borrow", "bias", p.bias);
      const auto copy = std::make_shared<std::pair<Tensor<T, 1>, Tensor<T, 1>>>(widened(p.weight), widened(p.bias));
      borrow(BorrowedNorm<T>{.weight = copy->first, .bias = copy->second}, copy);
    }
  }

  /// The norm of every row.
  ///
  /// Shapes    x (L, E) or (B, L, E), any strides  →  the same
  /// Then      in any order: into(y), where y may be x; residual(r), for the norm of x + r; sum_into(s), which stores
  ///           x + r besides, s perhaps x or r; a Workspace; another value of the backend's type. Where y or s overlaps
  ///           x or r otherwise, it costs a copy
  /// Errors    ShapeError before anything is computed, for sizes that differ, y and s that overlap, a norm moved from
  template <SequenceOf<T> X, class... Extra>
  requires(!has_call_tape<Extra...>) [[nodiscard]] auto operator()(const X& x, Extra&&... extra) const {
    check_norm_arguments<Extra...>();
    check_memory_of<B, X>();
    require_present(Kind::name);
    const auto from = read_sequence(x);
    check_x(from);
    return run_into<X>(from, NothingBefore{}, extra...);
  }
  // Refused in one sentence.
  template <class X, class... Extra>
  requires(!SequenceOf<X, T>) Refused operator()(X&&, Extra&&...) const {
    static_assert(Sequence<X>,
                  "mha: a norm takes x with 2 or 3 axes: an Eigen matrix, an mha::Tensor or a view of a pointer, "
                  "mha::view(p, L, E); an Eigen expression is computed first, norm((2 * x).eval()) "
                  "(see mha/block/norm.hpp)");
    static_assert(!Sequence<X>,
                  "mha: the norm's scalar and the input's differ: convert the input, such as "
                  "norm(x.cast<T>().eval()) for a norm of T (see mha/block/norm.hpp)");
    return {};
  }

  /// What a call on this many rows costs; a residual adds its reading, sum_into() its writing.
  ///
  /// Errors    ShapeError if rows is negative
  [[nodiscard]] StageCost cost(Index rows) const {
    require(rows >= 0, "cost: rows is ", rows, ", it must be at least 0");
    const std::int64_t count = parameter_count();
    return {count, 0, double(sizeof(T)) * (2.0 * rows * config_.width + double(count))};
  }

  /// The configuration, parameters, cost and kernel of such a call, one fact a line.
  [[nodiscard]] std::string explain(Index rows) const {
    const StageCost c = cost(rows);
    char eps[32];
    std::snprintf(eps, sizeof eps, "%g", *config_.eps);
    const auto n = [](auto x) { return count_in_words(x); };
    return "norm:        " + std::string(Kind::name) + ", width " + n(config_.width) + ", eps " + eps +
           (*config_.bias ? ", bias" : ", no bias") + (config_.zero_centered ? ", weight stored less 1" : "") +
           "\nweights:     " + n(c.parameters) + " " + scalar_name<T>() + ", " + (borrowed_ ? "borrowed" : "owned") +
           "\ncost:        " + n(c.bytes) + " bytes for " + n(rows) + " rows\nkernel:      " + B::name +
           (Normalizes<B, T> ? ": one of its own" : ": a row after another") + ", sums in " + scalar_name<A>() + "\n";
  }

 protected:
  /// before(residual, items) is called after all checks, before anything is written.
  struct NothingBefore {
    template <class... Any> void operator()(const Any&...) const {}
  };
  template <class X, class Before, class... Extra>
  auto run_into(const TensorView<const T, 3>& from, const Before& before, Extra&... extra) const {
    return into_or_returned<X, T>(
        backend_, from, from.extent[2], [&](const TensorView<T, 3>& y) { run(from, y, before, extra...); }, extra...);
  }
  template <class Before, class... Extra>
  MHA_NO_INLINE void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, const Before& before,
                         Extra&... extra) const {
    const auto residual = find_rows<Residual, const T>(extra...);
    const auto sum = find_rows<SumInto, T>(extra...);
    check_like("the result", x, y);
    require_own_memory(Kind::name, "the result", y, axes_of_rows);
    if constexpr ((ResidualArgument<Extra> || ...)) check_like("the residual", x, residual);
    if constexpr ((SumIntoArgument<Extra> || ...)) {
      check_like("the sum", x, sum);
      require_own_memory(Kind::name, "the sum", sum, axes_of_rows);
      require(!share_elements(y, sum), Kind::name, ": the result and the sum overlap, expected separate memory");
    }
    const B& backend = backend_or(backend_, extra...);
    CallScope<B> scope(backend, extra...);
    require_supported(backend, Kind::name);
    require_reachable(backend, Kind::name, "x", x);
    require_reachable(backend, Kind::name, "the residual", residual);
    require_reachable(backend, Kind::name, "the result", y);
    require_reachable(backend, Kind::name, "the sum", sum);
    require_reachable(backend, Kind::name, "the norm's weight",
                      TensorView<const A, 1>{numbers(), {config_.width}, {1}});
    before(residual, scope.items);
    // Rows are read more than once while they are written.
    const auto writable = [&](const TensorView<T, 3>& to) {
      const TensorView<const T, 3> written = to;
      const bool in_place = (same_view(x, written) || !share_elements(x, written)) &&
                            (same_view(residual, written) || !share_elements(residual, written));
      return in_place ? to : take_like<T>(scope.frame, to);
    };
    const TensorView<T, 3> y_rows = writable(y), sum_rows = writable(sum);
    run_norm(backend,
             NormCall<T>{x, residual, y_rows, sum_rows, numbers(), numbers() + config_.width,
                         static_cast<A>(*config_.eps), Kind::centred},
             scope.workspace);
    if (y_rows.data != y.data) scope.items(copy_items(TensorView<const T, 3>(y_rows), y));
    if (sum_rows.data != sum.data) scope.items(copy_items(TensorView<const T, 3>(sum_rows), sum));
  }

  void require_present(const char* call) const {
    require(borrowed_ || own_.size() > 0, call, ": expected ", parameter_count(),
            " weights, got 0: the norm was moved from");
  }
  void require_own() const {
    require(!borrowed_, "update: the norm's ", parameter_count(),
            " parameters are borrowed, so they cannot be written: copy them in the update() of a new one");
    require_present("update");
  }
  void check_x(const TensorView<const T, 3>& x) const {
    require_data(Kind::name, "x", x);
    require_row_count(Kind::name, "x", x);
    require_equal(Kind::name, "width", "x", x.extent[2], "the norm", config_.width);
  }
  template <class View> static void check_like(const char* name, const TensorView<const T, 3>& x, const View& v) {
    require_data(Kind::name, name, v);
    for (int axis = 0; axis < 3; ++axis)
      require_equal(Kind::name, axes_of_rows[axis], "x", x.extent[axis], name, v.extent[axis]);
  }

  template <class W> static Tensor<T, 1> widened(const TensorView<const W, 1>& from) {
    Tensor<T, 1> to(from.extent[0]);
    for (Index j = 0; j < from.extent[0]; ++j) to(j) = T(float(from(j)));
    return to;
  }

  template <class U> NormViews<U> carve(U* data) const {
    if (data == nullptr) return {};
    NormViews<U> p{view(data, config_.width), {}, {data, static_cast<std::size_t>(parameter_count())}};
    if (*config_.bias) p.bias = view(data + config_.width, config_.width);
    return p;
  }

  Ready made_ready(const NormViews<const T>& p) const {
    const Index width = config_.width;
    Tensor<A, 1> numbers(2 * std::int64_t{width});
    for (Index j = 0; j < width; ++j) {
      numbers(j) = config_.zero_centered ? A(1) + A(p.weight(j)) : A(p.weight(j));
      if (p.bias.data != nullptr) numbers(width + j) = A(p.bias(j));
    }
    if constexpr (computes_on_host<B>)
      return {std::move(numbers)};
    else
      return std::make_shared<typename Ready::element_type>(
          backend_.upload(std::span<const A>(numbers.data(), numbers.size())));
  }
  const A* numbers() const {
    if constexpr (computes_on_host<B>)
      return ready_.numbers.data();
    else
      return ready_->data();
  }

  struct Borrowed {
    NormViews<const T> views;
    std::shared_ptr<const void> keep_alive;
  };

  NormConfig config_;
  [[no_unique_address]] B backend_;
  Tensor<T, 1> own_;
  std::shared_ptr<const Borrowed> borrowed_;  // null while they are its own
  Ready ready_;
  std::uint64_t version_ = next_version();  // of the parameters
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
