// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "../block/narrow_weights.hpp"
#include "../block/parts.hpp"
#include "../block/weight_view.hpp"
#include "../block/weights_version.hpp"
#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "../policy/projection.hpp"
#include "config.hpp"
#include "own_weights.hpp"
#include "parameter_views.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A layer's parameters: one flat allocation of its own, or views of other memory kept alive with it. There
/// are none until they are written or borrowed, so that a mapped checkpoint costs no second copy.
template <class T, class Policies> class Parameters {
  using Projection = typename Policies::Projection;
  using Norm = typename Policies::Norm;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;

  struct NothingBefore {
    void operator()(const ParameterViews<const T>&) const {}
  };
  static constexpr const char* set_bias = ": set .bias in the configuration, or that of this projection";

 public:
  /// Errors    ShapeError for an output bias where there is no output projection
  explicit Parameters(const Config& config) : config_(config) {
    detail::require(Output::has_weights || !config.output_bias.value_or(false),
                    "Config: output_bias is true, but a layer with ", Output::name, " has no output projection");
  }

  bool present() const { return borrowed() || own_.size() > 0; }
  bool borrowed() const { return borrowed_ != nullptr; }
  /// Whether there are no matrices except those that the backend packed.
  bool packed_only() const { return borrowed() && borrowed_->packed_only; }
  const Config& config() const { return config_; }
  /// A number that no other weights of the program have: a new one whenever they are written or borrowed anew, but that
  /// of their owner where another layer makes the same keys of them.
  std::uint64_t version() const { return version_; }
  /// What holds the memory of views() alive, its own too; null if nothing does.
  std::shared_ptr<const void> keep_alive() const { return borrowed() ? borrowed_->keep_alive : own_.owner(); }

  /// How many numbers the parameters are.
  std::int64_t size() const {
    const Config& c = config_;
    const auto projection = [](Index in, Index out, bool bias) { return (std::int64_t{in} + (bias ? 1 : 0)) * out; };
    return projection(c.d_model, c.query_width(), c.has_query_bias()) +
           projection(c.kv_model, c.key_width(), c.has_key_bias()) +
           projection(c.value_model, c.value_width(), c.has_value_bias()) +
           (Output::has_weights ? projection(c.concat_width(), c.d_model, c.has_output_bias()) : 0) +
           (Norm::has_weights ? std::int64_t{2} * c.head_dim : 0) + (Concat::has_gates ? c.num_heads : 0);
  }

  /// Named views of size() numbers in a row, laid out as those that the layer owns; null data for shapes alone.
  template <class U> ParameterViews<U> layout(U* data) const { return carve(data, static_cast<std::size_t>(size())); }

  ParameterViews<const T> views() const {
    return borrowed() ? borrowed_->views : carve<const T>(own_.data(), own_.size());
  }

  /// The parameters to write, zero at first; in new memory if who shares them still reads the old.
  ///
  /// Errors    ShapeError if they are borrowed: another owner writes them
  ParameterViews<T> writable() {
    require_unborrowed();
    if (own_.size() == 0) {
      detail::require(size() <= std::numeric_limits<Index>::max(), "update: the layer has ", size(),
                      " parameters, the limit of one allocation is ", std::numeric_limits<Index>::max(),
                      ": borrow them");
      own_ = detail::OwnWeights<T>(static_cast<Index>(size()));
    }
    T* const data = own_.writable();
    version_ = detail::next_version();
    return carve<T>(data, own_.size());
  }

  /// There are none, if these are still its own.
  void forget(const ParameterViews<T>& written) noexcept {
    if (own_.data() == written.all.data()) own_ = {};
  }

  /// Errors    ShapeError if there are none of its own
  void require_own() const {
    require_unborrowed();
    detail::require(own_.size() > 0, "update: the layer has 0 of its ", size(),
                    " parameters, because it was moved from");
  }

  /// Named views of weights in any scalar that have the configuration's shapes, null data for what there is none of.
  ///
  /// Errors    ShapeError if a matrix, bias or vector does not have the configuration's shape
  template <class W> ParameterViews<const W> checked(ParameterViews<const W> w, const char* call = "borrow") const {
    const Config& c = config_;
    check(call, "query", w.query, c.d_model, c.num_heads, c.head_dim, c.has_query_bias());
    check(call, "key", w.key, c.kv_model, c.num_kv_heads, c.head_dim, c.has_key_bias());
    check(call, "value", w.value, c.value_model, c.num_kv_heads, c.value_dim, c.has_value_bias());
    detail::check_borrowed("output", w.output.weight, Output::has_weights ? c.concat_width() : 0,
                           Output::has_weights ? c.d_model : 0, call);
    detail::check_borrowed("output bias", w.output.bias, Output::has_weights && c.has_output_bias() ? c.d_model : 0,
                           Output::has_weights ? set_bias : "", call);
    constexpr const char* name_norm = ": name mha::QkNorm in the layer's type";
    detail::check_borrowed("query_norm", w.query_norm, Norm::has_weights ? c.head_dim : 0, name_norm, call);
    detail::check_borrowed("key_norm", w.key_norm, Norm::has_weights ? c.head_dim : 0, name_norm, call);
    detail::check_borrowed("gate", w.gate, Concat::has_gates ? c.num_heads : 0,
                           ": name mha::GatedHeads in the layer's type", call);
    for (auto* heads : {&w.query, &w.key, &w.value})
      if (heads->bias.extent[0] == 0) heads->bias = {};
    if (w.output.bias.extent[0] == 0) w.output.bias = {};
    w.all = {};
    return w;
  }
  template <class W> ParameterViews<const W> checked(const BorrowedWeights<W>& w, const char* call = "borrow") const {
    const Config& c = config_;
    // The matrices are checked while they are still as the caller wrote them.
    detail::check_borrowed("query", w.query, c.d_model, c.query_width(), call);
    detail::check_borrowed("key", w.key, c.kv_model, c.key_width(), call);
    detail::check_borrowed("value", w.value, c.value_model, c.value_width(), call);
    detail::check_borrowed("query bias", w.query_bias, c.has_query_bias() ? c.query_width() : 0, set_bias, call);
    detail::check_borrowed("key bias", w.key_bias, c.has_key_bias() ? c.key_width() : 0, set_bias, call);
    detail::check_borrowed("value bias", w.value_bias, c.has_value_bias() ? c.value_width() : 0, set_bias, call);
    ParameterViews<const W> next;
    next.query = by_head(w.query, w.query_bias, c.num_heads, c.head_dim);
    next.key = by_head(w.key, w.key_bias, c.num_kv_heads, c.head_dim);
    next.value = by_head(w.value, w.value_bias, c.num_kv_heads, c.value_dim);
    next.output = {w.output, w.output_bias};
    next.query_norm = w.query_norm;
    next.key_norm = w.key_norm;
    next.gate = w.gate;
    return checked(next, call);
  }

  /// Uses weights where they are; before(views) comes last of what can throw. Without keep_alive, what holds those that
  /// are borrowed already holds them on, if they are borrowed again.
  ///
  /// Errors    as checked(), and ShapeError if they are the layer's own; nothing changes then
  template <class F = NothingBefore>
  void borrow(ParameterViews<const T> w, std::shared_ptr<const void> keep_alive, const F& before = {},
              std::uint64_t version = detail::next_version()) {
    // They would be gone with what the layer owns.
    detail::require(own_.size() == 0 || !detail::parts_overlap(w, own_.view()), "borrow: weights that are among the ",
                    size(), " of the layer's own, expected another's");
    w = checked(w);
    if (borrowed() && keep_alive == nullptr && detail::parts_overlap(w, borrowed_->views))
      keep_alive = borrowed_->keep_alive;
    become({w, std::move(keep_alive), false}, before, version);
  }
  template <class F = NothingBefore>
  void borrow(const BorrowedWeights<T>& w, std::shared_ptr<const void> keep_alive, const F& before = {}) {
    borrow(checked(w), std::move(keep_alive), before);
  }

  /// Writes weights of this configuration in another scalar, then change(views).
  template <class W, class Change> void write(const ParameterViews<const W>& from, const Change& change) {
    const ParameterViews<T> to = writable();
    detail::widen_parts(from, to);
    change(to);
  }

  /// The packed matrices are enough: of these weights, which are checked, it keeps the norms' and the gates, as T.
  template <class W>
  void keep_packed_only(const ParameterViews<const W>& w, std::uint64_t version = detail::next_version()) {
    const auto kept = std::make_shared<Tensor<T, 1>>(w.query_norm.extent[0] + w.key_norm.extent[0] + w.gate.extent[0]);
    ParameterViews<const T> next;
    T* at = kept->data();
    const auto keep = [&](const TensorView<const W, 1>& from, TensorView<const T, 1>& to) {
      if (from.extent[0] == 0) return;
      detail::widen(from, view(at, from.extent[0]));
      to = view(std::as_const(at), from.extent[0]);
      at += from.extent[0];
    };
    keep(w.query_norm, next.query_norm);
    keep(w.key_norm, next.key_norm);
    keep(w.gate, next.gate);
    become({next, kept, true}, NothingBefore{}, version);
  }

  /// Another layer's weights, and what its backend packed if that is of the same type; before(views) comes last of what
  /// can throw.
  ///
  /// Errors    ShapeError if a size is not that of the configuration; nothing changes then
  template <class OtherPolicies, class F>
  void share(const Parameters<T, OtherPolicies>& owner, const F& before, bool same_backend, bool same_keys) {
    const std::uint64_t version = same_keys ? owner.version() : detail::next_version();
    if (!owner.packed_only()) return borrow(owner.views(), owner.keep_alive(), before, version);
    detail::require(same_backend, "borrow: of the owner's ", owner.size(),
                    " parameters only those are left that its backend packed, expected a backend of the same type");
    const Config &c = config_, &o = owner.config();
    const auto same = [](const char* name, Index theirs, Index own) {
      detail::require(theirs == own, "borrow: the packed weights' ", name, " is ", theirs, ", expected ", own);
    };
    same("d_model", o.d_model, c.d_model);
    same("kv_model", o.kv_model, c.kv_model);
    same("value_model", o.value_model, c.value_model);
    same("num_heads", o.num_heads, c.num_heads);
    same("num_kv_heads", o.num_kv_heads, c.num_kv_heads);
    same("head_dim", o.head_dim, c.head_dim);
    same("value_dim", o.value_dim, c.value_dim);
    same("query_bias", o.has_query_bias(), c.has_query_bias());
    same("key_bias", o.has_key_bias(), c.has_key_bias());
    same("value_bias", o.has_value_bias(), c.has_value_bias());
    same("number of output projections", OtherPolicies::Output::has_weights, Output::has_weights);
    if (Output::has_weights) same("output_bias", o.has_output_bias(), c.has_output_bias());
    same("number of norms", OtherPolicies::Norm::has_weights, Norm::has_weights);
    same("number of gates", OtherPolicies::Concat::has_gates, Concat::has_gates);
    become({owner.views(), owner.keep_alive(), true}, before, version);
  }

 private:
  void require_unborrowed() const {
    detail::require(!packed_only(), "update: of the layer's ", size(),
                    " parameters only the packed ones are left, so they cannot be written");
    detail::require(!borrowed(), "update: the layer's ", size(),
                    " parameters are borrowed, so they cannot be written: copy them in the update() of a new layer");
  }

  struct Borrowed {
    ParameterViews<const T> views;
    std::shared_ptr<const void> keep_alive;
    bool packed_only;
  };

  /// Changes to these, after before(views) and all else that can throw.
  template <class F> void become(Borrowed next, const F& before, std::uint64_t version) {
    auto kept = std::make_shared<const Borrowed>(std::move(next));
    before(kept->views);
    borrowed_ = std::move(kept);
    own_ = {};
    version_ = version;
  }

  template <class U> ParameterViews<U> carve(U* data, std::size_t size) const {
    const Config& c = config_;
    ParameterViews<U> p;
    p.all = {data, size};
    U* at = data;
    const auto next = [&](std::ptrdiff_t n) { return at == nullptr ? at : std::exchange(at, at + n); };
    const auto head_weights = [&](Index heads, Index model, Index dim, bool bias) {
      HeadWeights<U> w;
      const std::ptrdiff_t columns = std::ptrdiff_t{heads} * dim;
      w.heads = Projection::layout(next(model * columns), heads, model, dim);
      if (bias) w.bias = view(next(columns), heads, dim);
      return w;
    };
    p.query = head_weights(c.num_heads, c.d_model, c.head_dim, c.has_query_bias());
    p.key = head_weights(c.num_kv_heads, c.kv_model, c.head_dim, c.has_key_bias());
    p.value = head_weights(c.num_kv_heads, c.value_model, c.value_dim, c.has_value_bias());
    if constexpr (Output::has_weights) {
      const Index in = c.concat_width();
      p.output.weight = view(next(std::ptrdiff_t{in} * c.d_model), in, c.d_model);
      if (c.has_output_bias()) p.output.bias = view(next(c.d_model), c.d_model);
    }
    if constexpr (Norm::has_weights) {
      p.query_norm = view(next(c.head_dim), c.head_dim);
      p.key_norm = view(next(c.head_dim), c.head_dim);
    }
    if constexpr (Concat::has_gates) p.gate = view(next(c.num_heads), c.num_heads);
    return p;
  }

  template <class W>
  static void check(const char* call, const char* name, const HeadWeights<const W>& w, Index model, Index heads,
                    Index dim, bool bias) {
    detail::require(w.head_count() == heads && w.model() == model && w.head_dim() == dim, call, ": the ", name,
                    " weights are (", w.head_count(), ", ", w.model(), ", ", w.head_dim(), "), expected (", heads, ", ",
                    model, ", ", dim, ")");
    detail::require_data(call, name, w.heads);
    detail::require(w.bias.extent[0] == (bias ? heads : 0) && w.bias.extent[1] == (bias ? dim : 0), call, ": the ",
                    name, " bias is (", w.bias.extent[0], ", ", w.bias.extent[1], "), expected (", bias ? heads : 0,
                    ", ", bias ? dim : 0, ")", bias == (w.bias.extent[0] != 0) ? "" : set_bias);
    detail::require_data(call, name, w.bias);
  }

  template <class W>
  static HeadWeights<const W> by_head(const TensorView<const W, 2>& w, const TensorView<const W, 1>& bias, Index heads,
                                      Index dim) {
    HeadWeights<const W> r;
    r.heads = {w.data, {heads, w.extent[0], dim}, {dim * w.stride[1], w.stride[0], w.stride[1]}};
    if (bias.extent[0] != 0) r.bias = {bias.data, {heads, dim}, {dim * bias.stride[0], bias.stride[0]}};
    return r;
  }

  detail::OwnWeights<T> own_;  // first: if a copy assignment throws, nothing has changed
  Config config_;
  std::uint64_t version_ = 0;
  std::shared_ptr<const Borrowed> borrowed_;  // null when they are its own
};

}  // namespace mha::inline MHA_NAMESPACE
