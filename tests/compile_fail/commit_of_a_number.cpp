// SPDX-License-Identifier: Apache-2.0
// expect only: mha: step.commit(rows) takes the numbers of the rows that are kept, not how many they are
#include <mha/mha.hpp>

void keep(mha::CacheStep<mha::KvCache<mha::Contiguous, float>>& step, int accepted) {
#ifdef MHA_FAIL
  step.commit(accepted);
#else
  step.commit({accepted});
#endif
}
