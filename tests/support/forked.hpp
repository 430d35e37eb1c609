// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define MHA_TEST_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MHA_TEST_THREAD_SANITIZER 1
#endif
#endif

namespace mha_test {

/// Whether a forked child may start threads: ThreadSanitizer ends it.
#if defined(MHA_TEST_THREAD_SANITIZER)
inline constexpr bool child_may_start_threads = false;
#else
inline constexpr bool child_may_start_threads = true;
#endif

/// What became of a forked child that runs f and then calls exit(), with code 0 where f returns true: "exit 0", or
/// "signal 14" after 60 seconds.
template <class F> std::string forked(F&& f) {
  std::fflush(nullptr);  // what is buffered would be written twice
  const pid_t child = ::fork();
  if (child < 0) return "no fork";
  if (child == 0) {
    ::alarm(60);
    int code = 2;
    try {
      code = f() ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "forked: %s\n", error.what());
    }
    std::exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return "no child";
  return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status));
}

}  // namespace mha_test
