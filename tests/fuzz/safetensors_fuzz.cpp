// SPDX-License-Identifier: Apache-2.0
// libFuzzer's input as a .safetensors file. It is refused with a SafetensorsError of one short line, or every promise
// of the reader holds: tensors cover the data exactly once, and every byte of theirs can be read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <mha/io.hpp>

namespace {

#define HOLDS(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

void check_message(const mha::SafetensorsError& error) {
  const std::string_view text = error.what();
  HOLDS(!text.empty() && text.size() < 1000);
  HOLDS(std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
}

/// The message of what f throws; empty if it returns.
template <class F> std::string refusal(F&& f) {
  try {
    f();
  } catch (const mha::SafetensorsError& error) {
    check_message(error);
    return error.what();
  }
  return {};
}

std::size_t bits_of(std::string_view dtype) {
  if (dtype.ends_with("64")) return 64;
  if (dtype.ends_with("32")) return 32;
  if (dtype.ends_with("16")) return 16;
  return 8;
}

/// The header against the JSON library's own tree of it, and against the bytes of the file.
void check_header(std::string_view file, const mha::detail::SafetensorsHeader& header) {
  HOLDS(header.data_begin >= 10 && header.data_begin <= file.size());
  const std::string_view text = file.substr(8, header.data_begin - 8), data = file.substr(header.data_begin);
  const auto tree = nlohmann::json::parse(text, nullptr, false);
  HOLDS(tree.is_object());
  HOLDS(tree.size() == header.tensors.size() + tree.count("__metadata__"));
  HOLDS(header.metadata.size() == (tree.contains("__metadata__") ? tree.at("__metadata__").size() : 0));
  for (const auto& [key, value] : header.metadata) HOLDS(tree.at("__metadata__").at(key) == value);

  std::vector<unsigned> covered(data.size(), 0);
  for (const auto& [name, tensor] : header.tensors) {
    const auto& entry = tree.at(name);
    HOLDS(entry.at("dtype") == tensor.dtype && entry.at("shape") == tensor.shape);
    HOLDS(entry.at("data_offsets") == std::vector({tensor.begin, tensor.end}) && entry.size() == 3);
    HOLDS(tensor.begin <= tensor.end && tensor.end <= data.size());
    std::uint64_t bytes = bits_of(tensor.dtype) / 8;
    for (const std::uint64_t extent : tensor.shape)
      if (std::count(tensor.shape.begin(), tensor.shape.end(), 0u) > 0)
        bytes = 0;
      else
        HOLDS(!__builtin_mul_overflow(bytes, extent, &bytes));
    HOLDS(bytes == tensor.end - tensor.begin);
    for (std::uint64_t i = tensor.begin; i < tensor.end; ++i) ++covered[i];
  }
  HOLDS(std::all_of(covered.begin(), covered.end(), [](unsigned n) { return n == 1; }));
}

/// A view and a copy show the file's bytes, or say why they cannot; every other type and rank is refused.
template <class T, int Rank>
void check_tensor(const mha::Safetensors& file, std::string_view data, std::string_view name) {
  const mha::SafetensorInfo& info = file.info(name);
  const bool fits = info.dtype == mha::detail::safetensors_dtype<T>() && info.shape.size() == Rank;
  const std::string_view bytes = data.substr(info.begin, info.end - info.begin);
  const std::string copied = refusal([&] {
    const auto copy = file.copy<T, Rank>(name);
    HOLDS(fits && copy.size() * sizeof(T) == bytes.size());
    for (int axis = 0; axis < Rank; ++axis)
      HOLDS(static_cast<std::uint64_t>(copy.extent(axis)) == info.shape[static_cast<std::size_t>(axis)]);
    HOLDS(bytes.empty() || std::memcmp(copy.data(), bytes.data(), bytes.size()) == 0);
  });
  HOLDS(fits || !copied.empty());
  const std::string viewed = refusal([&] {
    const auto view = file.view<T, Rank>(name);
    HOLDS(fits && static_cast<std::size_t>(view.size()) * sizeof(T) == bytes.size());
    HOLDS(bytes.empty() || std::memcmp(view.data, bytes.data(), bytes.size()) == 0);
  });
  HOLDS(fits || !viewed.empty());
  HOLDS(copied.empty() || copied == viewed);  // what cannot be copied cannot be viewed, for the same reason
}

template <class T> void check_ranks(const mha::Safetensors& file, std::string_view data, std::string_view name) {
  check_tensor<T, 1>(file, data, name);
  check_tensor<T, 2>(file, data, name);
  check_tensor<T, 3>(file, data, name);
  check_tensor<T, 4>(file, data, name);
}

/// The same through a file.
void check_file(std::string_view bytes, const mha::detail::SafetensorsHeader& header) {
  const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  HOLDS(descriptor >= 0 && ::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const mha::Safetensors file("/proc/self/fd/" + std::to_string(descriptor));
  HOLDS(::close(descriptor) == 0);
  HOLDS(file.names().size() == header.tensors.size());
  const std::string_view data = bytes.substr(header.data_begin);
  for (const std::string& name : file.names()) {
    HOLDS(file.contains(name));
    check_ranks<float>(file, data, name);
    check_ranks<double>(file, data, name);
    check_ranks<mha::bfloat16>(file, data, name);
    check_ranks<std::int8_t>(file, data, name);
    check_ranks<bool>(file, data, name);
  }
  HOLDS(!refusal([&] { static_cast<void>(file.info("no such tensor, or one of an unlikely name")); }).empty());
}

/// Most inputs begin with a brace: then what lies up to the last brace is the header, and its length is put in front.
std::string file_of(std::string_view input) {
  if (!input.starts_with('{')) return std::string(input);
  const std::size_t length = std::min(input.size(), input.rfind('}') + 1);
  const std::size_t header = length == 0 ? input.size() : length;
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header >> (8 * i) & 0xff);
  return file.append(input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const std::string text = file_of({reinterpret_cast<const char*>(input), size});
  // In memory of exactly its size, where the address sanitizer sees a read beyond its end.
  const std::vector<char> exact(text.begin(), text.end());
  const std::string_view file(exact.data(), exact.size());
  refusal([&] {
    const auto header = mha::detail::read_safetensors_header("fuzz", std::as_bytes(std::span(exact)));
    check_header(file, header);
    check_file(file, header);
  });
  return 0;
}
