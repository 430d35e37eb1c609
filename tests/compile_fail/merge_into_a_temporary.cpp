// SPDX-License-Identifier: Apache-2.0
// expect only: mha: merge() into a temporary
#include <mha/mha.hpp>

using Rows = mha::Tensor<float, 4>;
using LogSumExps = mha::Tensor<float, 3>;

void run(Rows& out, LogSumExps& log_sum_exp, const Rows& other, const LogSumExps& other_log_sum_exp) {
#ifdef MHA_FAIL
  mha::merge(Rows(out), log_sum_exp, other, other_log_sum_exp);
#else
  mha::merge(out, log_sum_exp, other, other_log_sum_exp);
#endif
}
