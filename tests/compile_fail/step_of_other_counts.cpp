// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the rows of a step and the sources of reorder() are mha::Index (int)
#include <cstddef>
#include <vector>

#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Contiguous, float>;

#ifdef MHA_FAIL
auto result(Cache& cache, const std::vector<std::size_t>& rows) { return cache.step(cache.ids(), rows); }
#else
auto result(Cache& cache, const std::vector<mha::Index>& rows) { return cache.step(cache.ids(), rows); }
#endif
