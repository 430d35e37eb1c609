// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "../config.hpp"

/// Which weights a tape or projected keys were made by.
namespace mha::inline MHA_NAMESPACE::detail {

/// Counted for all layers, Linears and norms of the program, of whatever type. 0 is no version.
inline constinit std::atomic<std::uint64_t> last_version{0};
inline std::uint64_t next_version() { return ++last_version; }

}  // namespace mha::inline MHA_NAMESPACE::detail
