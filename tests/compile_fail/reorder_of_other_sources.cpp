// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the rows of a step and the sources of reorder() are mha::Index (int)
#include <vector>

#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Paged, float>;

#ifdef MHA_FAIL
void reorder(Cache& cache, const std::vector<long>& from) { cache.reorder(cache.ids(), from); }
#else
void reorder(Cache& cache, const std::vector<int>& from) { cache.reorder(cache.ids(), from); }
#endif
