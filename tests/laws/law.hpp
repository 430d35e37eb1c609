// SPDX-License-Identifier: Apache-2.0
// What the laws on the processor share: random calls, every instruction-set level, an executor of our own.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "call.hpp"

namespace laws {

/// f() at every instruction-set level of this machine.
template <class F> void at_every_isa(F&& f) {
  const mha::IsaLevel before = mha::current_isa();
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    mha::force_isa(static_cast<mha::IsaLevel>(level));
    SCOPED_TRACE(mha::to_string(static_cast<mha::IsaLevel>(level)));
    f();
  }
  mha::force_isa(before);
}

/// An executor of a user's own: N new threads for every call, task t always on worker t mod N.
template <int N> struct NewThreads {
  static constexpr const char* name = "NewThreads";
  Index workers() const { return N; }
  template <class F> void run(Index tasks, F&& f) const {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr error;
    for (Index worker = 0; worker < N; ++worker)
      threads.emplace_back([&, worker] {
        try {
          for (Index t = worker; t < tasks; t += N) f(t, worker);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(mutex);
          error = std::current_exception();
        }
      });
    for (std::thread& t : threads) t.join();
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace laws
