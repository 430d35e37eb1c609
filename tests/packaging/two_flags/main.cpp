// SPDX-License-Identifier: Apache-2.0
// A unit compiled without flags and one compiled for this machine pass plain pointers and get the same bits. Whatever
// the linker keeps of the two, the program must be right: each unit is also run as a program of its own.
#include <cstdio>
#include <cstring>
#include <vector>

#include "attend.hpp"

int main(int argc, char** argv) {
  const int queries = 70, keys = 200, heads = 3, dim = 40;
  unsigned state = 12345;
  const auto random = [&](int rows) {
    std::vector<float> x(static_cast<std::size_t>(rows * heads * dim));
    for (float& y : x) y = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-22f - 2;
    return x;
  };
  const std::vector<float> q = random(queries), k = random(keys), v = random(keys);
  std::vector<float> here(q.size() + heads * queries, -1), there(here.size(), -2);
  const auto call = [&](std::vector<float>& to) {
    return Call{queries, keys, heads, dim, q.data(), k.data(), v.data(), to.data(), to.data() + q.size()};
  };
  attend(call(here));
  attend_over_there(call(there));
  if (std::memcmp(here.data(), there.data(), here.size() * sizeof(float)) != 0) return 1;
  // The bits, for a comparison with the same program compiled otherwise.
  std::FILE* const file = argc > 1 ? std::fopen(argv[1], "wb") : nullptr;
  if (file == nullptr) return 2;
  const bool written = std::fwrite(here.data(), sizeof(float), here.size(), file) == here.size();
  return std::fclose(file) == 0 && written ? 0 : 3;
}
