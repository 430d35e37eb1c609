// SPDX-License-Identifier: Apache-2.0
// The program behind main: options in, text out.
#pragma once

#include <ostream>

namespace generate {

/// The text goes to `out` as it comes; progress (if `terminal`), timing and errors to `log`. Returns the exit code: 0,
/// or 1 after one sentence that says what is wrong.
int run(int argc, const char* const* argv, std::ostream& out, std::ostream& log, bool terminal);

}  // namespace generate
