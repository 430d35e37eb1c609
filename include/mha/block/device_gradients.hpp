// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../core/copy.hpp"
#include "../core/view.hpp"
#include "gradients.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The gradients of what a block or layer on a device has learned: in the device's memory, where backward() adds to
/// them, and on the host with their names when they are asked for. It moves and does not copy.
///
///   auto gradients = layer.gradients();  // all 0
///   dx = layer.backward(dy, tape, gradients, workspace);
///   layer.update([&](auto& p) { p.for_each(gradients.to_host(workspace), step); });
///   gradients.clear(workspace);
///
/// Recorded  a CUDA graph may hold backward() and clear(workspace): every replay adds, or makes all 0
/// Memory    Host is what Cpu has, LinearGradients and the like: the copy on the host is one and is kept. One that has
///           other numbers than the device makes them in its member received(), after each copy
template <class Host, class B> class DeviceGradients {
  using A = std::remove_const_t<std::remove_pointer_t<decltype(std::declval<const Host&>().memory().data)>>;
  using Workspace = typename B::Workspace;

 public:
  using Named = typename Host::Named;

  DeviceGradients(const B& backend, Host host) : backend_(backend), host_(std::move(host)) {
    [[maybe_unused]] const auto held = detail::entered(backend_);
    numbers_ = detail::TensorOf<B, A, 1>(host_.memory().extent[0]);
    clear();
  }

  DeviceGradients(DeviceGradients&&) = default;
  DeviceGradients& operator=(DeviceGradients&&) = default;
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;
  ~DeviceGradients() = default;

  /// All ← 0 on the device, as a new step begins, in the workspace's stream.
  void clear(Workspace& workspace) {
    const TensorView<A, 1> all = numbers_.view();
    detail::require_reachable(backend_, "clear", "the memory of the gradients", all);
    detail::ItemsOn<B>{backend_, workspace}(detail::zero_items(all.data, all.size()));
  }
  /// The same for calls without a Workspace; waits for it, so that it cannot be recorded.
  void clear() {
    Workspace own;
    detail::require_sendable(backend_, own);
    clear(own);
    backend_.download(std::as_const(numbers_).view().data, std::span<A>{}, own);
  }

  /// What backward() has added up, once the workspace's stream has done what it was given; waits for that. The same
  /// object call after call.
  const Host& to_host(Workspace& workspace) {
    const TensorView<const A, 1> from = std::as_const(numbers_).view();
    detail::require_reachable(backend_, "to_host", "the memory of the gradients", from);
    backend_.download(from.data, host_.writable(), workspace);
    if constexpr (requires { host_.received(); }) host_.received();
    return host_;
  }
  /// The same after calls without a Workspace.
  const Host& to_host() {
    Workspace own;
    return to_host(own);
  }

  /// All numbers on the device, in the order of memory() on the host, that of flat() first, for what adds up gradients
  /// of several devices.
  TensorView<A, 1> memory() { return numbers_.view(); }
  TensorView<const A, 1> memory() const { return numbers_.view(); }

  // Refused in one sentence.
  template <int = 0> std::span<const A> flat() const {
    static_assert(detail::valid<Host>,
                  "mha: these gradients are in the memory of a device: read them by to_host(workspace), "
                  "p.for_each(gradients.to_host(workspace), step) (see mha/block/device_gradients.hpp)");
    return {};
  }

  // What backward() does with them.

  /// Named views for shapes, and what else does not change; what they point at is not on the device.
  const Host& on_host() const { return host_; }
  /// Named views of what is on the device.
  Named there() { return host_.elsewhere(numbers_.view().data); }

 private:
  B backend_;
  Host host_;
  detail::TensorOf<B, A, 1> numbers_;
};

namespace detail {

template <class Host, class B> struct GradientsOfBackend { using type = Host; };
template <class Host, class B>
requires(!computes_on_host<B>) struct GradientsOfBackend<Host, B> {
  using type = DeviceGradients<Host, B>;
};
/// The gradients that a block on the backend adds to.
template <class Host, class B> using GradientsOn = typename GradientsOfBackend<Host, B>::type;

template <class Host, class B, class... Arguments>
GradientsOn<Host, B> make_gradients([[maybe_unused]] const B& backend, const Arguments&... arguments) {
  if constexpr (computes_on_host<B>)
    return Host(arguments...);
  else
    return GradientsOn<Host, B>(backend, Host(arguments...));
}

/// Gradients as the host has them, for shapes alone.
template <class G> const auto& shaped(const G& gradients) {
  if constexpr (requires { gradients.on_host(); })
    return gradients.on_host();
  else
    return gradients;
}
/// Their named views.
template <class G> const typename G::Named& shapes_of(const G& gradients) { return shaped(gradients); }

/// All numbers of gradients that are given; null data for none.
template <class G> auto memory_of_given(const G* gradients) {
  return gradients != nullptr ? gradients->memory() : decltype(gradients->memory()){};
}
/// Named views that a backward pass adds to; without gradients these, which have shapes and null data.
template <class G> typename G::Named named_there(G* gradients, const typename G::Named& shapes) {
  if (gradients == nullptr) return shapes;
  if constexpr (requires { gradients->there(); })
    return gradients->there();
  else
    return *gradients;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
