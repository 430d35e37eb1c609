// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include <omp.h>

#include "../config.hpp"

#if !defined(_OPENMP)
#error "mha: OpenMp needs OpenMP switched on: link mha::openmp, or compile with -fopenmp (see mha/openmp.hpp)"
#endif

namespace mha::inline MHA_NAMESPACE {

/// Tasks as an OpenMP loop, for programs that have its threads already: mha::CpuWith<mha::OpenMp>.
struct OpenMp {
  static constexpr const char* name = "OpenMp";
  Index workers() const { return omp_in_parallel() ? 1 : omp_get_max_threads(); }
  template <class F> void run(Index tasks, F&& f) const {
    std::exception_ptr error;  // an exception may not leave an OpenMP region
    const bool here = tasks <= 1 || omp_in_parallel() != 0;
#pragma omp parallel for schedule(dynamic, 1) if (!here)
    for (Index t = 0; t < tasks; ++t) {
      MHA_TRY { f(t, here ? Index{0} : Index{omp_get_thread_num()}); }
      MHA_CATCH(...) {
#pragma omp critical(mha_openmp_error)
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace mha::inline MHA_NAMESPACE
