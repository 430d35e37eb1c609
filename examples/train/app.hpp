// SPDX-License-Identifier: Apache-2.0
// The program behind main: options in, a trained model out.
#pragma once

#include <ostream>

namespace train {

/// What the model writes goes to `out`; progress (if `terminal`), results and errors to `log`. Returns the exit code:
/// 0, or 1 after one sentence that says what is wrong.
int run(int argc, const char* const* argv, std::ostream& out, std::ostream& log, bool terminal);

}  // namespace train
