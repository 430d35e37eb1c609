// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <set>
#include <thread>

#include <mha/backend/crew.hpp>
#include <mha/backend/pool.hpp>

namespace mha_test {

/// Whether the pool runs that many tasks at once, each on a thread of its own. After it those threads have started:
/// a process that forks amid the start of a thread may leave a sanitizer's lock taken for ever in its child.
inline bool runs_at_once(mha::detail::Pool& pool, mha::Index tasks) {
  std::atomic<mha::Index> arrived{0};
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<mha::Index> workers;
  auto meet = [&](mha::Index, mha::Index worker) {
    ++arrived;
    while (arrived < tasks) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    workers.insert(worker);
  };
  pool.run(tasks, meet);
  return threads.size() == static_cast<std::size_t>(tasks) && workers.size() == threads.size() &&
         *workers.begin() == 0 && *workers.rbegin() == tasks - 1;
}

}  // namespace mha_test
