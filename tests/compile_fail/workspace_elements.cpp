// SPDX-License-Identifier: Apache-2.0
// expect: mha: a Workspace holds trivial types only
#include <string>

#include <mha/core/workspace.hpp>

void use(mha::Workspace::Frame& frame) {
#ifdef MHA_FAIL
  frame.take<std::string>(3);
#else
  frame.take<char>(3);
#endif
}
