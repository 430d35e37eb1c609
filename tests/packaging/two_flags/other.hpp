// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One call on plain memory. Shapes: q, out (queries, heads, dim)  k, v (keys, heads, dim)  log_sum_exp (heads,
/// queries)
struct Call {
  int queries, keys, heads, dim;
  const float *q, *k, *v;
  float *out, *log_sum_exp;
};

void attend_over_there(const Call& call);
