// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "narrow_weights.hpp"
#include "parts.hpp"
#include "weight_view.hpp"
#include "weights_version.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The sizes of a Linear.
struct LinearConfig {
  Index inputs = 0;   ///< the width of its rows
  Index outputs = 0;  ///< the width of its results
  bool bias = true;
};

/// Named views of a Linear's parameters.
///
/// Shapes    weight (in, out)  bias (out)  gate (in, out), gate_bias (out) with Gated<F>; null data for what it does
///           not have, and for all while there are no weights, or only packed ones
template <class T> struct LinearViews {
  TensorView<T, 2> weight;
  TensorView<T, 1> bias;
  TensorView<T, 2> gate;
  TensorView<T, 1> gate_bias;
  std::span<T> all;

  /// Every number in one row, for an optimiser: weight, bias, gate, gate_bias, matrices row by row.
  ///
  /// Errors    ShapeError if there are no weights yet, or only packed ones, or they are borrowed: those have names only
  std::span<T> flat() const { return detail::flat_of(weight.data != nullptr, all); }

  /// step(numbers, their gradients), spans of one length, as for_each() of a layer's parameters.
  ///
  /// Errors    as flat(); ShapeError for gradients of other sizes, before the first step
  template <class Gradients, class Step> void for_each(const Gradients& gradients, Step&& step) const {
    const auto d = detail::checked_gradients("for_each", *this, gradients);
    detail::run_step(step, flat(), d);
  }
};

/// Weights of a Linear that stay where they are; pass mha::transposed(view) for a matrix that is stored (out, in).
///
/// Shapes    those of LinearViews
/// Scalars   the Linear's own; or half or bfloat16 under float or double
template <class T> struct BorrowedLinear {
  WeightView<T, 2> weight{};
  WeightView<T, 1> bias{};
  WeightView<T, 2> gate{};
  WeightView<T, 1> gate_bias{};
};

namespace detail {

template <class T> struct PartsOf<LinearViews<T>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    f("weight", v.weight...), f("bias", v.bias...), f("gate", v.gate...), f("gate_bias", v.gate_bias...);
  }
};

template <class W> LinearViews<const W> views_of(const BorrowedLinear<W>& w) {
  return {w.weight, w.bias, w.gate, w.gate_bias, {}};
}

/// The parameters of a Linear: one allocation of its own, or views of other memory, kept alive with it. There
/// are none until they are written or borrowed.
template <class T, bool gated> class LinearParameters {
 public:
  explicit LinearParameters(const LinearConfig& config) : config_(config) {
    for (const auto& [name, size] : {std::pair{"inputs", config.inputs}, std::pair{"outputs", config.outputs}}) {
      require(size > 0, "Linear: ", name, " is ", size, ", it must be at least 1");
      require(size <= longest_axis, "Linear: ", name, " is ", size, ", the limit is ", longest_axis);
    }
    checked_product("Linear", "the memory of the matrices",
                    {gated ? 2 : 1, std::int64_t{config.inputs} + 1, config.outputs});
  }

  const LinearConfig& config() const { return config_; }
  bool present() const { return borrowed_ != nullptr || has_own(); }
  bool borrowed() const { return borrowed_ != nullptr && !borrowed_->packed_only; }
  /// Whether there are weights in memory of its own.
  bool has_own() const { return own_.size() > 0 && !forgotten_; }
  /// Whether there are weights, but none except those that the backend packed.
  bool packed_only() const { return borrowed_ != nullptr && borrowed_->packed_only; }
  /// Another one after each change; 0 before the first.
  std::uint64_t version() const { return version_; }

  /// How many numbers the parameters are.
  std::int64_t size() const {
    return (gated ? 2 : 1) * (std::int64_t{config_.inputs} + (config_.bias ? 1 : 0)) * config_.outputs;
  }

  LinearViews<const T> views() const {
    if (borrowed_ != nullptr) return borrowed_->views;
    return present() ? carve<const T>(own_.data(), own_.size()) : LinearViews<const T>{};
  }
  /// Named views of so many numbers in a row, in the order of its own; null data for shapes alone.
  template <class U> LinearViews<U> layout(U* data) const { return carve(data, static_cast<std::size_t>(size())); }

  /// The parameters to write, zero at first.
  LinearViews<T> writable() {
    require_writable("update");
    if (own_.size() == 0) own_ = Tensor<T, 1>(static_cast<Index>(size()));
    if (std::exchange(forgotten_, false)) std::fill(own_.begin(), own_.end(), T{});
    version_ = next_version();
    return carve<T>(own_.data(), own_.size());
  }

  /// There are none, if these are still its own; whether they were. Their memory stays, for another Linear that
  /// borrowed them meanwhile: the next update writes to it, borrow() frees it.
  bool forget(const LinearViews<T>& written) noexcept {
    const bool own = own_.data() == written.all.data();
    if (own) forgotten_ = true;
    return own;
  }

  /// Errors    ShapeError if they cannot be written
  void require_writable(const char* call) const {
    require_unborrowed(call);
    require_one_allocation(call, ": borrow them");
  }
  /// Errors    ShapeError if they are too many for memory of their own
  void require_one_allocation(const char* call, const char* remedy = "") const {
    require(size() <= std::numeric_limits<Index>::max(), call, ": the Linear has ", size(),
            " parameters, the most in one allocation is ", std::numeric_limits<Index>::max(), remedy);
  }

  /// Errors    ShapeError if there are none of its own
  void require_own() const {
    require_unborrowed("update");
    require(has_own(), "update: the Linear has 0 of its ", size(), " parameters, because it was moved from");
  }

  /// Uses weights where they are; before(views) comes last of what can throw. Without keep_alive, what holds those that
  /// are borrowed already holds them on, if they are borrowed again.
  template <class F> void borrow(LinearViews<const T> w, std::shared_ptr<const void> keep_alive, const F& before) {
    w = checked(w);
    require_foreign(w);
    if (keep_alive == nullptr) keep_alive = keeper_of(w);
    auto next = std::make_shared<const Borrowed>(Borrowed{w, std::move(keep_alive), false});
    before(w);
    own_ = {};
    borrowed_ = std::move(next);
    version_ = next_version();
  }

  /// Views of weights in any scalar that have the configuration's shape, null data where there is no bias.
  template <class W> LinearViews<const W> checked(LinearViews<const W> w, const char* call = "borrow") const {
    const Index bias = config_.bias ? config_.outputs : 0;
    check_borrowed("weight", w.weight, config_.inputs, config_.outputs, call);
    check_borrowed("bias", w.bias, bias, ": set .bias in the configuration", call);
    check_borrowed("gate", w.gate, gated ? config_.inputs : 0, gated ? config_.outputs : 0, call);
    check_borrowed("gate bias", w.gate_bias, gated ? bias : 0, "", call);
    w.all = {};
    for (auto* vector : {&w.bias, &w.gate_bias})
      if (vector->extent[0] == 0) *vector = {};
    return w;
  }

  /// They are none of its own, which are gone when others are borrowed.
  void require_foreign(const LinearViews<const T>& w, const char* call = "borrow") const {
    require(own_.size() == 0 || !parts_overlap(w, own_.view()), call, ": weights that are among the ", size(),
            " of the Linear's own, expected another's");
  }
  /// What holds them alive, if they are among those that are borrowed already; else null.
  std::shared_ptr<const void> keeper_of(const LinearViews<const T>& w) const {
    return borrowed() && parts_overlap(w, borrowed_->views) ? borrowed_->keep_alive : nullptr;
  }

  /// Views of `copy`, which takes the numbers of checked weights in another scalar, after change(copy).
  template <class W, class Change>
  LinearViews<const T> widened(const LinearViews<const W>& from, Tensor<T, 1>& copy, const char* call,
                               const Change& change) const {
    require_one_allocation(call);
    copy = Tensor<T, 1>(static_cast<Index>(size()));
    const LinearViews<T> to = carve<T>(copy.data(), copy.size());
    widen_parts(from, to);
    change(to);
    return {to.weight, to.bias, to.gate, to.gate_bias, {}};
  }

  /// The packed weights are enough: forgets its own, or those that it borrows.
  void keep_packed_only(std::uint64_t version = next_version()) noexcept {
    static const Borrowed nothing{{}, {}, true};
    own_ = {};
    borrowed_ = std::shared_ptr<const Borrowed>(std::shared_ptr<const void>(), &nothing);  // allocates nothing
    version_ = version;
  }

 private:
  void require_unborrowed(const char* call) const {
    require(!packed_only(), call, ": of the Linear's ", size(),
            " parameters only the packed ones are left, so they cannot be written");
    require(!borrowed(), call, ": the Linear's ", size(),
            " parameters are borrowed, so they cannot be written: copy them in the update() of a new one");
  }

  template <class U> LinearViews<U> carve(U* data, std::size_t size) const {
    LinearViews<U> p;
    p.all = {data, size};
    const Index in = config_.inputs, out = config_.outputs;
    const auto next = [&](std::ptrdiff_t n) { return data == nullptr ? data : std::exchange(data, data + n); };
    p.weight = view(next(std::ptrdiff_t{in} * out), in, out);
    if (config_.bias) p.bias = view(next(out), out);
    if constexpr (gated) {
      p.gate = view(next(std::ptrdiff_t{in} * out), in, out);
      if (config_.bias) p.gate_bias = view(next(out), out);
    }
    return p;
  }

  struct Borrowed {
    LinearViews<const T> views;
    std::shared_ptr<const void> keep_alive;
    bool packed_only;
  };

  Tensor<T, 1> own_;  // first: if a copy assignment throws, nothing has changed
  LinearConfig config_;
  std::shared_ptr<const Borrowed> borrowed_;  // null when they are its own
  std::uint64_t version_ = 0;
  bool forgotten_ = false;  // whether the numbers in own_ are no weights
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
