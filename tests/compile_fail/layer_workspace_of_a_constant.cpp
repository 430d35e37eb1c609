// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a call writes to its Workspace, and this one is const
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

#ifdef MHA_FAIL
auto result(const Layer& layer, const mha::Tensor<float, 2>& x, const mha::Workspace& workspace) {
#else
auto result(const Layer& layer, const mha::Tensor<float, 2>& x, mha::Workspace& workspace) {
#endif
  return layer(x, workspace);
}
