// SPDX-License-Identifier: Apache-2.0
// What the laws on the processor share: random calls, every instruction-set level, an executor of our own.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>

#include "call.hpp"
#include "plain_backend.hpp"

namespace laws {

// On these machines and scalars attend_erased() is compiled once, in machines_*.cpp; with -DLAWS_ALONE a law is one
// file, and policies keep their types.
#define LAWS_ATTEND(Extern, B, T)                                                   \
  Extern template Result<T> attend_erased<B, T>(const mha::TensorView<const T, 4>&, \
                                                const mha::TensorView<const T, 4>&, \
                                                const mha::TensorView<const T, 4>&, const Arguments<B, T>&);
#define LAWS_DECLARE(B, T)                                      \
  template <> inline constexpr bool compiled_once<B, T> = true; \
  LAWS_ATTEND(extern, B, T)
#define LAWS_DEFINE(B, T) LAWS_ATTEND(, B, T)

#define LAWS_ON_CPU(Do, B) Do(B, float) Do(B, double) Do(B, mha::half) Do(B, mha::bfloat16)
#define LAWS_ON_EIGEN(Do, B) Do(B, float) Do(B, double) Do(B, mha::bfloat16)
#define LAWS_ON_OTHERS(Do) Do(support::PlainBackend, float) Do(mha::Reference, float) Do(mha::Reference, double)

using SerialCpu = mha::CpuWith<mha::Serial>;
using SerialEigenCpu = mha::EigenCpuWith<mha::Serial>;
#if !defined(LAWS_ALONE)
LAWS_ON_CPU(LAWS_DECLARE, mha::Cpu)
LAWS_ON_CPU(LAWS_DECLARE, SerialCpu)
LAWS_ON_EIGEN(LAWS_DECLARE, mha::EigenCpu)
LAWS_ON_EIGEN(LAWS_DECLARE, SerialEigenCpu)
LAWS_ON_OTHERS(LAWS_DECLARE)
#endif

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

/// An executor of a user's own: n new threads for every call, task t always on worker t mod n.
struct NewThreads {
  static constexpr const char* name = "NewThreads";
  Index n = 1;

  Index workers() const { return n; }
  template <class F> void run(Index tasks, F&& f) const {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr error;
    for (Index worker = 0; worker < n; ++worker)
      threads.emplace_back([&, worker] {
        try {
          for (Index t = worker; t < tasks; t += n) f(t, worker);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(mutex);
          error = std::current_exception();
        }
      });
    for (std::thread& t : threads) t.join();
    if (error) std::rethrow_exception(error);
  }
};
using CpuOnNewThreads = mha::CpuWith<NewThreads>;

/// attend() on n of them.
template <class Backend = CpuOnNewThreads, class... Args> auto attend_on_new_threads(Index n, Args&&... args) {
  return attend<Backend>(args..., Backend{NewThreads{n}});
}

}  // namespace laws
