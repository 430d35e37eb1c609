// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// How many key/value heads there are for the query heads. Query head h reads key/value head h / (Hq / Hkv).
template <class P>
concept Heads = plays<P, Role::heads> && requires {
  { std::remove_cvref_t<P>::kv_heads(Index{}) } -> std::same_as<Index>;
};

/// Every query head has its own key/value head: Hkv = Hq (Vaswani et al. 2017).
struct MultiHead {
  static constexpr Role role = Role::heads;
  static constexpr Index kv_heads(Index query_heads) { return query_heads; }
};

/// Hq / Hkv consecutive query heads share one key/value head (Ainslie et al. 2023).
///
/// GroupedQuery<Dynamic> takes Hkv from Config::num_kv_heads.
template <Index KvHeads> struct GroupedQuery {
  static_assert(KvHeads > 0 || KvHeads == Dynamic,
                "mha: GroupedQuery<n> needs at least one key/value head, or mha::Dynamic (see mha/policy/heads.hpp)");
  static constexpr Role role = Role::heads;
  static constexpr Index kv_heads(Index) { return KvHeads; }
};

/// All query heads share one key/value head (Shazeer 2019).
struct MultiQuery {
  static constexpr Role role = Role::heads;
  static constexpr Index kv_heads(Index) { return 1; }
};

}  // namespace mha::inline MHA_NAMESPACE
