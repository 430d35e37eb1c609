// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a call writes to its Workspace, and this one is const
#include <mha/mha.hpp>

#ifdef MHA_FAIL
auto result(const mha::Tensor<float, 4>& x, const mha::Workspace& workspace) {
#else
auto result(const mha::Tensor<float, 4>& x, mha::Workspace& workspace) {
#endif
  return mha::attention(x, x, x, workspace, mha::Causal{});
}
