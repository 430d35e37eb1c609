// SPDX-License-Identifier: Apache-2.0
// libFuzzer's input as the index of a checkpoint in shards. It is refused with a SafetensorsError of one short line, or
// it is what the JSON library's own tree of it says, and every shard is a file beside the index.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <mha/io.hpp>

namespace {

#define HOLDS(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

void check(std::string_view text, const mha::detail::SafetensorsIndex& index) {
  const auto tree = nlohmann::json::parse(text, nullptr, false);
  HOLDS(tree.is_object() && tree.contains("weight_map"));
  const auto& map = tree.at("weight_map");
  HOLDS(map.is_object() && map.size() == index.size());
  for (const auto& [name, shard] : index) {
    HOLDS(map.at(name) == shard);
    HOLDS(!shard.empty() && shard.find('/') == shard.npos && shard.find('\0') == shard.npos && shard != "..");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  // In memory of exactly its size, where the address sanitizer sees a read beyond its end.
  const std::vector<char> exact(input, input + size);
  const std::string_view text(exact.data(), exact.size());
  try {
    check(text, mha::detail::read_safetensors_index("fuzz", text));
  } catch (const mha::SafetensorsError& error) {
    const std::string_view message = error.what();
    HOLDS(!message.empty() && message.size() < 1000);
    HOLDS(std::none_of(message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
  }
  return 0;
}
