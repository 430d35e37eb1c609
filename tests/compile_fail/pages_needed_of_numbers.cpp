// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the sequences of a call are mha::SequenceId, which cache.add() returns
#include <vector>

#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Paged, float>;

#ifdef MHA_FAIL
auto result(const Cache& cache, const std::vector<int>& who) { return cache.pages_needed(who, {1, 20}); }
#else
auto result(const Cache& cache, const std::vector<mha::SequenceId>& who) { return cache.pages_needed(who, {1, 20}); }
#endif
