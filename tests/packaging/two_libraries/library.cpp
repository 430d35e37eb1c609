// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include <mha/backend/executor.hpp>

namespace {

int sum_of(int tasks, const mha::ThreadPool& pool) {
  std::atomic<int> sum{0};
  pool.run(tasks, [&](int task, int) { sum += task; });
  return sum;
}

}  // namespace

extern "C" int on_shared_pool(int tasks) { return sum_of(tasks, mha::ThreadPool{}); }
extern "C" int on_own_pool(int tasks) { return sum_of(tasks, mha::ThreadPool(3)); }
