// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include "backend/backend.hpp"
#include "cache/gathered_rows.hpp"
#include "cache/kv_source.hpp"
#include "core/borrowed.hpp"
#include "policy/call_shape.hpp"
#include "policy/mask.hpp"

/// A checked call as a backend gets it, whose memory may be its own.
namespace mha::inline MHA_NAMESPACE::detail {

/// The origins, on the host, of the call of which this one is a piece, if `sent` has such a call.
template <class Sent> const Index* whole_of(const Sent& sent) {
  if constexpr (requires { sent.whole; })
    return sent.whole;
  else
    return nullptr;
}

/// The call as a backend gets it that does not reach the host's memory: its offsets, origins and the numbers of its
/// source in memory of its own, where sent(list) says, or, if that is null, copied for this call.
template <class B, class Call, class Frame, class Sent>
Call staged(const B& backend, Call call, Frame& frame, typename B::Workspace& workspace, const Sent& sent) {
  if constexpr (!computes_on_host<B>) {
    const auto there = [&](const Index* here, Index n) {
      const Index* const known = here != nullptr ? sent(here) : nullptr;
      return here == nullptr || known != nullptr ? known : backend.stage(here, n, frame, workspace);
    };
    const Index batch = call.shape.batch;
    const Origins here = call.shape.origin;
    const Index* const q_here = call.q_offsets;
    const Index* const q_offsets = call.shape.query_offsets = there(q_here, batch + 1);
    using Source = std::remove_cvref_t<decltype(call.kv)>;
    constexpr bool moves = !HasData<Source> || MovesData<Source>;
    static_assert(moves,
                  "mha: a source that goes to a device has a with_data(f) of its own, not that of a base "
                  "(see mha/cache/kv_source.hpp)");
    const auto kv = source_with_data(call.kv, [&](const auto& data) {
      auto result = data;
      if constexpr (std::is_same_v<decltype(result), Borrowed<Index>>)
        if (data.memory == Memory::host && data.data != nullptr)
          result = {data.data == q_here ? q_offsets : there(data.data, data.size), data.size, Memory::device};
      return result;
    });
    call.shape.origin.each = there(here.each, batch);
    const auto moved = [&](const auto& data) {
      auto result = data;
      if constexpr (std::is_same_v<decltype(result), Origins>) {
        const bool whole = data.each == whole_of(sent);
        if (data.each != nullptr) result = whole ? Origins(there(data.each, batch)) : call.shape.origin;
      }
      return result;
    };
    auto mask = with_data(call.mask, moved);
    auto score = with_data(call.score, moved);
    call.q_offsets = q_offsets;
    return call.with(kv, std::move(mask), std::move(score));  // a policy of the user's may have no assignment
  } else {
    return call;
  }
}

template <class B, class Call, class Frame>
Call staged(const B& backend, Call call, Frame& frame, typename B::Workspace& workspace) {
  return staged(backend, std::move(call), frame, workspace, [](const Index*) -> const Index* { return nullptr; });
}

/// The rows of a staged call's source, written to these arrays, whose offsets are on the host: and these as the backend
/// gets them.
template <class T, class Scope, class Source>
GatheredRows<T> gather(Scope& scope, const Source& source, const CallShape& shape, GatheredRows<T> to) {
  if constexpr (!computes_on_host<std::remove_cvref_t<decltype(scope.backend)>>)
    if (to.offsets.data != nullptr)
      to.offsets = {scope.backend.stage(to.offsets.data, to.offsets.size, scope.frame, scope.workspace),
                    to.offsets.size, Memory::device};
  scope.items(gather_items(source, shape, to));
  return to;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
