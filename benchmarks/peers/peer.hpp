// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

/// A function of a shared library that Python calls; nothing else of it is visible.
#define MHA_PEER extern "C" __attribute__((visibility("default")))

namespace bench {

/// nullptr, or what went wrong.
template <class F> const char* attempt(F&& f) {
  static std::string message;
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace bench
