// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the sequences of a call are mha::SequenceId, which cache.add() returns
#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Contiguous, float>;

#ifdef MHA_FAIL
auto result(Cache& cache) { return cache.step(0, 4); }
#else
auto result(Cache& cache) { return cache.step(cache.ids()[0], 4); }
#endif
