// SPDX-License-Identifier: Apache-2.0
// A program of benchmarks that take their own times and print a table of them.
#pragma once

#include <string>
#include <utility>

#include <benchmark/benchmark.h>

namespace bench {

/// A benchmark of so many rounds: f(state, arguments…).
template <class F, class... Arguments> void add(const std::string& name, int rounds, F&& f, Arguments&&... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<F>(f), std::forward<Arguments>(arguments)...)
      ->Iterations(rounds)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

/// What main returns: runs the benchmarks that the command line names, then prints.
template <class Print> int run_all(int argc, char** argv, const Print& print) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  print();
  return 0;
}

}  // namespace bench
