// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <mha/core/check.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/view.hpp>
#include <mha/io/safetensors.hpp>
#include <mha/io/safetensors_writer.hpp>

#include "forked.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

namespace fs = std::filesystem;
using mha::SafetensorsError;
using mha::SafetensorsWriter;
using mha_test::message_of;
using mha_test::Scratch;
using support::Random;

std::string text_of(const fs::path& path) {
  const mha::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

TEST(SafetensorsWriter, WritesTheFormat) {
  const Scratch scratch;
  const fs::path path = scratch.root() / "m";
  const std::vector<float> w{1, 2, 3, 4, 5, 6};
  const std::vector<std::uint8_t> tokens{7, 8, 9};
  SafetensorsWriter file;
  file.add("tokens", mha::view(tokens.data(), 3));
  file.add("w", mha::transposed(mha::view(w.data(), 2, 3)));
  file.metadata("format", "pt");
  file.metadata("by", "\"me\"");
  file.write(path);
  std::string json =
      R"({"__metadata__":{"by":"\"me\"","format":"pt"},"w":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
      R"("tokens":{"dtype":"U8","shape":[3],"data_offsets":[24,27]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string data;
  for (const float x : {1.f, 4.f, 2.f, 5.f, 3.f, 6.f}) data.append(reinterpret_cast<const char*>(&x), sizeof x);
  EXPECT_EQ(text_of(path), mha_test::safetensors_bytes(json, data + "\x07\x08\x09"));
  // The elements are those of the time of writing.
  std::vector<float> later(1, 1);
  SafetensorsWriter again;
  again.add("later", mha::view(later.data(), 1));
  later[0] = 2;
  again.write(path);
  EXPECT_EQ((mha::Safetensors(path).view<float, 1>("later")(0)), 2.f);
}

TEST(SafetensorsWriter, WritesAFileOfNothing) {
  const Scratch scratch;
  SafetensorsWriter().write(scratch.root() / "m");
  EXPECT_EQ(text_of(scratch.root() / "m"), mha_test::safetensors_bytes("{}      ", ""));
  EXPECT_TRUE(mha::Safetensors(scratch.root() / "m").names().empty());
}

/// Files that Hugging Face's package has written, each of one scalar: it stores tensors by name.
TEST(SafetensorsWriter, WritesWhatHuggingFaceDoes) {
  const Scratch scratch;
  std::set<std::string> dtypes;
  for (const char* family : {"bert", "gemma", "gpt2", "llama", "qwen3", "t5", "vit"}) {
    const fs::path path = fs::path(MHA_GOLDEN_DIR) / "../../examples/models/data" / family / "model.safetensors";
    const mha::Safetensors file(path);
    SafetensorsWriter copy;
    const auto add = [&]<class T>(T, const std::string& name) {
      if (file.info(name).shape.size() == 1) copy.add(name, file.view<T, 1>(name));
      if (file.info(name).shape.size() == 2) copy.add(name, file.view<T, 2>(name));
      if (file.info(name).shape.size() == 3) copy.add(name, file.view<T, 3>(name));
      if (file.info(name).shape.size() == 4) copy.add(name, file.view<T, 4>(name));
    };
    for (const std::string& name : file.names()) {
      const std::string& dtype = file.info(name).dtype;
      dtypes.insert(dtype);
      if (dtype == "F32") add(float{}, name);
      if (dtype == "F16") add(mha::half{}, name);
      if (dtype == "BF16") add(mha::bfloat16{}, name);
    }
    for (const auto& [key, text] : file.metadata()) copy.metadata(key, text);
    copy.write(scratch.root() / "copy");
    EXPECT_TRUE(text_of(scratch.root() / "copy") == text_of(path)) << family;
    EXPECT_GT(file.names().size(), 10u);
  }
  EXPECT_GT(dtypes.size(), 1u);
}

template <class T> T random_element(Random& random) {
  if constexpr (std::is_same_v<T, bool>)
    return random.chance(0.5);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(random.engine()());
  else
    return Random::rounded<T>(random.normal());
}

/// One tensor of T with memory of its own, gaps and turned axes, and what a file should have of it.
struct Expected {
  std::string name, bytes;
  std::vector<std::uint64_t> shape;
  const char* dtype;
};
template <class T, int Rank> Expected add_random(SafetensorsWriter& file, const std::string& name, Random& random) {
  mha::TensorView<T, Rank> v;
  std::ptrdiff_t reach = 1;
  std::vector<int> axes(Rank);
  std::iota(axes.begin(), axes.end(), 0);
  for (int a = Rank - 1; a > 0; --a)
    std::swap(axes[static_cast<std::size_t>(a)], axes[static_cast<std::size_t>(random.below(a + 1))]);
  std::ptrdiff_t back = 0;
  for (const int a : axes) {
    v.extent[a] = random.chance(0.1) ? 0 : random.chance(0.05) ? 5000 / Rank / Rank / Rank : 1 + random.below(4);
    v.stride[a] = reach;
    reach *= std::max(v.extent[a], 1) + random.below(2);
    if (random.chance(0.2)) {
      if (v.extent[a] > 1) back += v.stride[a] * (v.extent[a] - 1);
      v.stride[a] = -v.stride[a];
    } else if (random.chance(0.1)) {
      v.stride[a] = 0;
    }
  }
  const std::shared_ptr<T[]> memory(new T[static_cast<std::size_t>(reach)]);
  for (std::ptrdiff_t i = 0; i < reach; ++i) memory[i] = random_element<T>(random);
  v.data = memory.get() + back;
  file.add(name, v, memory);

  Expected expected{name, {}, {}, mha::detail::safetensors_dtype<T>()};
  std::ptrdiff_t elements = 1;
  for (int a = 0; a < Rank; ++a) {
    expected.shape.push_back(static_cast<std::uint64_t>(v.extent[a]));
    elements *= v.extent[a];
  }
  for (std::ptrdiff_t i = 0; i < elements; ++i) {
    std::ptrdiff_t rest = i, offset = 0;
    for (int a = Rank - 1; a >= 0; --a) {
      offset += rest % v.extent[a] * v.stride[a];
      rest /= v.extent[a];
    }
    expected.bytes.append(reinterpret_cast<const char*>(v.data + offset), sizeof(T));
  }
  return expected;
}

std::string random_name(Random& random) {
  static const std::vector<std::string> pieces{
      "layers.", "0",    "weight", "\"", "\\", "/", "\n", "\t",    std::string(1, '\0'),
      "\x1f",    "\x7f", "é",      "中", "😀",  " ", "{",  "u0041", "__metadata__"};
  std::string name = "x";
  for (int n = random.below(5); n > 0; --n) name += pieces[static_cast<std::size_t>(random.below(int(pieces.size())))];
  return name;
}

template <class T> void check_alignment(const mha::Safetensors& file, const Expected& expected) {
  if (expected.dtype != std::string_view(mha::detail::safetensors_dtype<T>())) return;
  const auto at = reinterpret_cast<std::uintptr_t>(file.bytes(expected.name).data());
  EXPECT_EQ(at % sizeof(T), 0u) << expected.name;
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  Random random("safetensors writer");
  const Scratch scratch;
  const fs::path path = scratch.root() / "m";
  for (int round = 0; round < 100; ++round) {
    SafetensorsWriter file;
    std::vector<Expected> all;
    std::vector<std::string> names;
    const auto add = [&]<class T>(T) {
      std::string name = random_name(random);
      while (std::find(names.begin(), names.end(), name) != names.end()) name += "'";
      names.push_back(name);
      switch (1 + random.below(5)) {
        case 1:
          all.push_back(add_random<T, 1>(file, name, random));
          break;
        case 2:
          all.push_back(add_random<T, 2>(file, name, random));
          break;
        case 3:
          all.push_back(add_random<T, 3>(file, name, random));
          break;
        case 4:
          all.push_back(add_random<T, 4>(file, name, random));
          break;
        default:
          all.push_back(add_random<T, 5>(file, name, random));
          break;
      }
    };
    for (int n = random.below(8); n > 0; --n) switch (random.below(12)) {
        case 0:
          add(double{});
          break;
        case 1:
          add(float{});
          break;
        case 2:
          add(mha::half{});
          break;
        case 3:
          add(mha::bfloat16{});
          break;
        case 4:
          add(bool{});
          break;
        case 5:
          add(std::int8_t{});
          break;
        case 6:
          add(std::uint8_t{});
          break;
        case 7:
          add(std::int16_t{});
          break;
        case 8:
          add(std::uint16_t{});
          break;
        case 9:
          add(std::int32_t{});
          break;
        case 10:
          add(std::uint32_t{});
          break;
        default:
          add(std::int64_t{});
          break;
      }
    const std::string key = random_name(random), text = random_name(random);
    file.metadata(key, text);
    file.write(path);

    const mha::Safetensors read(path);
    ASSERT_EQ(read.names().size(), all.size());
    EXPECT_EQ(read.metadata().size(), 1u);
    EXPECT_EQ(read.metadata().at(key), text);
    for (const Expected& e : all) {
      EXPECT_EQ(read.info(e.name).dtype, e.dtype);
      EXPECT_EQ(read.info(e.name).shape, e.shape);
      const auto bytes = read.bytes(e.name);
      EXPECT_TRUE(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == e.bytes) << e.name;
      check_alignment<double>(read, e), check_alignment<float>(read, e), check_alignment<mha::half>(read, e);
      check_alignment<std::int64_t>(read, e), check_alignment<std::int32_t>(read, e);
    }
  }
}

TEST(SafetensorsWriter, ConvertsScalars) {
  const Scratch scratch;
  const fs::path path = scratch.root() / "m";
  // Between two neighbours of bfloat16, and of half: to the even one, and off the middle to the nearer.
  const std::vector<float> x{
      1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1e30f, -0.f};
  const std::vector<double> d{0.1, 1e300};
  const std::vector<mha::half> h{mha::half(0.1f)};
  SafetensorsWriter file;
  file.add<mha::bfloat16>("bfloat16", mha::view(x.data(), 7));
  file.add<mha::half>("half", mha::view(x.data(), 7));
  file.add<double>("double", mha::view(x.data(), 7));
  file.add<float>("float", mha::view(d.data(), 2));
  file.add<mha::bfloat16>("narrow", mha::view(d.data(), 1));
  file.add<float>("wide", mha::view(h.data(), 1));
  file.add<double>("wider", mha::view(h.data(), 1));
  file.write(path);
  const mha::Safetensors read(path);
  const auto b = read.view<mha::bfloat16, 1>("bfloat16");
  EXPECT_EQ(float(b(0)), 1.f);
  EXPECT_EQ(float(b(1)), 1 + 0x1p-6f);
  EXPECT_EQ(float(b(2)), 1 + 0x1p-7f);
  const auto half = read.view<mha::half, 1>("half");
  EXPECT_EQ(float(half(3)), 1.f);
  EXPECT_EQ(float(half(4)), 1 + 0x1p-9f);
  EXPECT_EQ(float(half(5)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(half(6).bits, 0x8000);
  EXPECT_EQ((read.view<double, 1>("double")(2)), double(x[2]));
  EXPECT_EQ((read.view<float, 1>("float")(0)), 0.1f);
  EXPECT_EQ((read.view<float, 1>("float")(1)), std::numeric_limits<float>::infinity());
  EXPECT_EQ((read.view<mha::bfloat16, 1>("narrow")(0).bits), mha::bfloat16(0.1f).bits);
  EXPECT_EQ((read.view<float, 1>("wide")(0)), float(h[0]));
  EXPECT_EQ((read.view<double, 1>("wider")(0)), double(float(h[0])));
}

TEST(SafetensorsWriter, JoinsAxes) {
  const Scratch scratch;
  const std::vector<float> numbers(24);
  SafetensorsWriter file;
  file.add_joined("w", mha::view(numbers.data(), 2, 3, 4), 2);
  file.write(scratch.root() / "m");
  EXPECT_EQ(mha::Safetensors(scratch.root() / "m").info("w").shape, (std::vector<std::uint64_t>{6, 4}));
}

TEST(SafetensorsWriter, KeepsMemoryAlive) {
  const Scratch scratch;
  SafetensorsWriter file;
  std::weak_ptr<mha::Tensor<float, 1>> seen;
  {
    const auto owner = std::make_shared<mha::Tensor<float, 1>>(2);
    (*owner)(1) = 3;
    seen = owner;
    file.add("x", *owner, owner);
  }
  EXPECT_FALSE(seen.expired());
  file.write(scratch.root() / "m");
  EXPECT_EQ((mha::Safetensors(scratch.root() / "m").view<float, 1>("x")(1)), 3.f);
}

TEST(SafetensorsWriter, RefusesNames) {
  const float x = 1;
  const auto v = mha::view(&x, 1);
  SafetensorsWriter file;
  file.add("x", v);
  const auto error_of = [&](const std::string& name) {
    return message_of<SafetensorsError>([&] { file.add(name, v); });
  };
  EXPECT_EQ(error_of("x"), "SafetensorsWriter: tensor 'x' is added twice");
  EXPECT_EQ(error_of(""), "SafetensorsWriter: the name of a tensor is empty");
  EXPECT_EQ(error_of("__metadata__"),
            "SafetensorsWriter: tensor '__metadata__' has the name that the format keeps for metadata()");
  EXPECT_EQ(error_of("ab\xff"), "SafetensorsWriter: the name of a tensor is not UTF-8 at its byte 3, after 'ab'");
  file.metadata("k\n", "v");
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.metadata("k\n", "w"); }),
            "SafetensorsWriter: __metadata__ has 'k?' twice");
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.metadata("\xc2", "w"); }),
            "SafetensorsWriter: a key of __metadata__ is not UTF-8 at its byte 1, after ''");
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.metadata("l", "w\x80"); }),
            "SafetensorsWriter: the text of __metadata__ 'l' is not UTF-8 at its byte 2, after 'w'");
  // What was refused has changed nothing.
  const Scratch scratch;
  file.write(scratch.root() / "m");
  const mha::Safetensors read(scratch.root() / "m");
  EXPECT_EQ(read.names(), std::vector<std::string>{"x"});
  EXPECT_EQ(read.metadata().size(), 1u);
  EXPECT_EQ(read.metadata().at("k\n"), "v");
}

TEST(SafetensorsWriter, RefusesSizes) {
  const double x = 1;
  SafetensorsWriter file;
  const auto error_of = [&](const mha::TensorView<const double, 2>& v) {
    return message_of<mha::ShapeError>([&] { file.add("w", v); });
  };
  EXPECT_EQ(error_of({nullptr, {2, 3}, {3, 1}}), "SafetensorsWriter: w has 6 elements but its data is null");
  EXPECT_EQ(error_of({&x, {2, -3}, {3, 1}}), "SafetensorsWriter: w has extent -3 on axis 1");
  // 2⁵⁴ elements, one number shown again and again: 2⁵⁷ bytes each.
  const mha::TensorView<const double, 2> huge{&x, {1 << 27, 1 << 27}, {0, 0}};
  for (int i = 0; i < 32; ++i) file.add(std::to_string(i), huge);
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.add("w", huge); }),
            "SafetensorsWriter: with tensor 'w' of 144115188075855872 bytes the file would have more than "
            "4611686018427387904");
}

TEST(SafetensorsWriter, RefusesAHeaderBeyondTheFormat) {
  const Scratch scratch;
  SafetensorsWriter file;
  file.metadata("k", std::string(100'000'000, 'x'));
  const std::string path = (scratch.root() / "m").string();
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.write(path); }),
            path + ": the header would be 100000032 bytes, more than the format's limit of 100000000");
  EXPECT_TRUE(fs::is_empty(scratch.root()));
}

TEST(SafetensorsWriter, LeavesTheOldFile) {
  const Scratch scratch;
  const fs::path path = scratch.write("m", "old");
  const std::vector<float> x(1000);
  SafetensorsWriter file;
  file.add("x", mha::view(x.data(), 1000));
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.write("/no/such/m"); }),
            "cannot write '/no/such/m': No such file or directory");
  const auto full = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2000, RLIM_INFINITY};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 && message_of<SafetensorsError>([&] { file.write(path); }) ==
                                                         "cannot write '" + path.string() + "': File too large";
  };
  EXPECT_EQ(mha_test::forked(full), "exit 0");
  EXPECT_EQ(text_of(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.root()), fs::directory_iterator()), 1);
  file.write(path);
  // Over the file that is read: what is mapped stays.
  const mha::Safetensors before(path);
  const auto mapped = before.view<float, 1>("x");
  SafetensorsWriter next;
  next.add<mha::bfloat16>("y", mapped);
  next.write(path);
  EXPECT_EQ(mapped(999), 0.f);
  EXPECT_EQ(mha::Safetensors(path).names(), std::vector<std::string>{"y"});
}

}  // namespace
