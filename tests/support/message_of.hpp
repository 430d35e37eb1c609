// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <mha/core/check.hpp>

namespace support {

/// What f throws, as text; empty if it does not throw an Error.
template <class Error = mha::ShapeError, class F> std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace support
