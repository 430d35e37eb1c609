// SPDX-License-Identifier: Apache-2.0
// main FIRST SECOND: two shared libraries that have mha. The second computes and is closed, and the first and a forked
// child of it go on.
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Sum = int (*)(int tasks);

void* opened(const char* path) {
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  return library;
}

bool sums(void* library, const char* name) {
  const auto sum = reinterpret_cast<Sum>(::dlsym(library, name));
  return sum != nullptr && sum(100) == 4950;
}

}  // namespace

int main(int, char** arguments) {
  ::setenv("MHA_NUM_THREADS", "4", 1);
  void* const first = opened(arguments[1]);
  void* const second = opened(arguments[2]);
  if (first == nullptr || second == nullptr) return 1;
  if (!sums(second, "on_own_pool") || !sums(second, "on_shared_pool")) return 2;
  ::dlclose(second);
  if (!sums(first, "on_shared_pool")) return 3;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    std::exit(sums(first, "on_shared_pool") ? 0 : 4);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 5;
}
