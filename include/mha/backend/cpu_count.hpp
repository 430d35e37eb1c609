// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// Processors that a quota of CPU time pays for, rounded up: quota and period in microseconds, as cpu.max has them.
/// 0 if the text sets no limit ("max 100000", "-1 100000") or is not a quota.
MHA_COLD inline Index cpus_of_quota(std::string_view text) {
  std::int64_t values[2] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::int64_t& value : values) {
    while (at != end && (*at == ' ' || *at == '\n')) ++at;
    const auto [stopped, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value <= 0) return 0;
    at = stopped;
  }
  const std::int64_t cpus = values[0] / values[1] + (values[0] % values[1] != 0);
  return static_cast<Index>(std::min<std::int64_t>(cpus, std::numeric_limits<Index>::max()));
}

/// A file's text; empty if it cannot be read.
MHA_COLD inline std::string text_of_file(const std::string& path) {
  std::string text;
  if (std::FILE* const file = std::fopen(path.c_str(), "r")) {
    char piece[4096];
    for (std::size_t n; (n = std::fread(piece, 1, sizeof piece, file)) > 0;) text.append(piece, n);
    std::fclose(file);
  }
  return text;
}

/// The smallest quota over this process's control groups and those around them, 0 without one.
///
/// `root` is where control groups are mounted. `groups` is /proc/self/cgroup, lines of "number:controllers:path":
/// version 2 has no controllers and keeps quota and period in cpu.max, version 1 has the controller cpu and two files.
MHA_COLD inline Index cpus_of_groups(const std::string& root, std::string_view groups) {
  Index least = 0;
  while (!groups.empty()) {
    const std::string_view line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(std::min(groups.size(), line.size() + 1));
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == controllers.npos) continue;
    // A container may see its own group as the root, under a path of the host: a folder that is not there sets no
    // limit.
    for (std::string path(line.substr(second + 1));; path.resize(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      const std::string folder = root + (unified ? "" : "/cpu") + path + "/";
      const Index cpus = cpus_of_quota(unified ? text_of_file(folder + "cpu.max")
                                               : text_of_file(folder + "cpu.cfs_quota_us") + " " +
                                                     text_of_file(folder + "cpu.cfs_period_us"));
      if (cpus > 0) least = least == 0 ? cpus : std::min(least, cpus);
      if (path.rfind('/') == path.npos) break;
    }
  }
  return least;
}

/// Processors that the calling thread may run on.
MHA_COLD inline Index cpus_of_affinity() {
#if defined(__linux__)
  // The kernel refuses a set that is shorter than its own.
  for (std::size_t words = 16; words <= 4096; words *= 2) {
    std::vector<unsigned long> set(words);
    if (::sched_getaffinity(0, words * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(set.data())) != 0) continue;
    int cpus = 0;
    for (const unsigned long word : set) cpus += std::popcount(word);
    if (cpus > 0) return cpus;
  }
#endif
  return static_cast<Index>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Processors that this process may keep busy: those it may run on, and no more than its control groups pay for.
MHA_COLD inline Index usable_cpus() {
  const Index cpus = cpus_of_affinity();
#if defined(__linux__)
  if (const Index paid = cpus_of_groups("/sys/fs/cgroup", text_of_file("/proc/self/cgroup")); paid > 0)
    return std::min(cpus, paid);
#endif
  return cpus;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
