// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "backend/backend.hpp"
#include "backend/default.hpp"
#include "core/check.hpp"
#include "core/workspace.hpp"
#include "policy/activation.hpp"

/// What a call computes on: the backend that it names or is given, and what it holds of that while it runs.
namespace mha::inline MHA_NAMESPACE::detail {

/// The type of the backend value among a call's arguments, or the fallback.
template <class Fallback, class... Extra> struct GivenBackend { using type = Fallback; };
template <class Fallback, class E, class... Rest> struct GivenBackend<Fallback, E, Rest...> {
  using type = typename std::conditional_t<BackendArgument<E>, std::type_identity<std::remove_cvref_t<E>>,
                                           GivenBackend<Fallback, Rest...>>::type;
};
/// In the place of a type that is no backend, or whose header is missing, so that our sentence is the only error.
template <bool header_missing> struct NoBackend {
  static constexpr const char* name = "none";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;
  Support supported() const;
  template <class Call> void gemm(const Call&, Workspace&) const;
  template <class Call> void attend(const Call&, Workspace&) const;
  template <class Call, class To> void weights(const Call&, const To&, Workspace&) const;
  template <class T> std::string explain(const AttendPlan&) const;
};
template <class B> using OrNoBackend = std::conditional_t<Backend<B>, B, NoBackend<!is_defined<B>>>;
/// What a call computes on: the type it names, else that of the value it is given, else the default.
template <class Named, class Default, class... Extra>
using CallBackend = OrNoBackend<typename std::conditional_t<std::is_void_v<Named>, GivenBackend<Default, Extra...>,
                                                            std::type_identity<Named>>::type>;

/// The value of T among a constructor's arguments, or a new one.
template <class T> constexpr T given_or_default() {
  constexpr bool has_default = std::default_initializable<T>, has_role = Backend<T> || Activation<T>;
  static_assert(has_default || !has_role,
                "mha: this backend or activation has no default constructor: give its value to the constructor, "
                "layer({…}, value), linear({…}, value) (see mha/call_backend.hpp)");
  return default_value<T>();
}
template <class T, class V, class... Rest> constexpr T given_or_default(const V& first, const Rest&... rest) {
  if constexpr (std::same_as<V, T>)
    return first;
  else
    return given_or_default<T>(rest...);
}

/// The call's backend, or a new one.
template <class B> B call_backend() {
  constexpr bool header_missing = std::same_as<B, NoBackend<true>>, backend = !std::same_as<B, NoBackend<false>>;
  static_assert(
      !header_missing,
      "mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic, <mha/cuda.cuh> for Cuda, "
      "<mha/mha.hpp> for Cpu, or name mha::EigenCpu, which <mha/eigen.hpp> has (see mha/backend/default.hpp)");
  static_assert(backend,
                "mha: the template argument is no backend: attention<mha::Cpu>(q, k, v) (see mha/backend/backend.hpp)");
  static_assert(std::default_initializable<B>,
                "mha: this backend has no default constructor: give its value to the call, "
                "attention(q, k, v, backend) (see mha/backend/backend.hpp)");
  return default_value<B>();
}
template <class B, class E, class... Rest> decltype(auto) call_backend(const E& first, const Rest&... rest) {
  if constexpr (std::same_as<E, B>) {
    return (first);
  } else {
    static_assert(!BackendArgument<E>,
                  "mha: the call names one backend type and is given the value of another (see mha/call.hpp)");
    return call_backend<B>(rest...);
  }
}

/// The call's backend, or the layer's.
template <class B> const B& backend_or(const B& own) { return own; }
template <class B, class E, class... Rest> const B& backend_or(const B& own, const E& first, const Rest&... rest) {
  if constexpr (std::same_as<E, B>) {
    return first;
  } else {
    static_assert(!BackendArgument<E>,
                  "mha: a call may be given another value of the layer's backend type, but not another backend type: "
                  "borrow() the weights into a layer of that type (see mha/backend/backend.hpp)");
    return backend_or(own, rest...);
  }
}

/// What a call computes with until it returns: the backend, entered; the Workspace among its arguments, or one of its
/// own; memory of that in a frame; and what runs items there.
///
///   detail::CallScope<B> scope(backend, extra...);
template <class B> class CallScope {
  using Workspace = typename B::Workspace;
  Workspace own_;
  decltype(entered(std::declval<const B&>(), std::declval<Workspace&>())) held_;

 public:
  template <class... Extra>
  explicit CallScope(const B& on, Extra&... extra)
      : held_(entered(on, workspace_or(own_, extra...))),
        backend(on),
        workspace(workspace_or(own_, extra...)),
        frame(workspace.frame()),
        items{backend, workspace} {}

  const B& backend;
  Workspace& workspace;
  typename Workspace::Frame frame;
  const ItemsOn<B> items;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
