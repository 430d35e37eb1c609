// SPDX-License-Identifier: Apache-2.0
// expect: mha: project_memory takes Ragged, Origin, a Workspace and a backend
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x, mha::Workspace& workspace) {
#ifdef MHA_FAIL
  return layer.project_memory(x, mha::Causal{}, workspace);
#else
  return layer.project_memory(x, workspace);
#endif
}
