// SPDX-License-Identifier: Apache-2.0
// expect only: mha: SinkGradient writes its tensor, and this one is const
#include <mha/mha.hpp>

#ifdef MHA_FAIL
auto result(const mha::Tensor<float, 1>& logits) { return mha::SinkGradient(logits); }
#else
auto result(mha::Tensor<float, 1>& logits) { return mha::SinkGradient(logits); }
#endif
