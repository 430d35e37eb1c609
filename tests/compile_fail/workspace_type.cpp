// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this backend has a Workspace type of its own
#include <mha/attention.hpp>

struct DeviceScratch {
  static constexpr bool is_workspace = true;
};

auto result(const mha::Tensor<float, 4>& x, [[maybe_unused]] DeviceScratch& scratch,
            [[maybe_unused]] mha::Workspace& workspace) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, scratch);
#else
  return mha::attention(x, x, x, workspace);
#endif
}
