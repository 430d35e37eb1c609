// SPDX-License-Identifier: Apache-2.0
// expect only: mha: SinkGradient takes a tensor of one axis (Hq)
#include <Eigen/Core>

#include <mha/mha.hpp>

auto result(Eigen::VectorXf& logits) {
#ifdef MHA_FAIL
  return mha::SinkGradient(mha::add_to(logits));
#else
  return mha::SinkGradient(mha::add_to(mha::view(logits.data(), logits.size())));
#endif
}
