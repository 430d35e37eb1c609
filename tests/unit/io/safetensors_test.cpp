// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/io/safetensors.hpp>
#include <mha/policy/mask/dense.hpp>

#include "scratch.hpp"

namespace {

using mha_test::message_of;
using mha_test::safetensors_bytes;

template <class T> std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// 24 bytes of floats, 4 of bfloat16, 4 of half, 16 of int64; the header is padded so that the data is 8-byte aligned.
std::string four_tensors() {
  std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},"h":{"dtype":"F16","shape":[2,1],"data_offsets":[28,32]},)"
      R"("i":{"dtype":"I64","shape":[2],"data_offsets":[32,48]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return safetensors_bytes(
      json, raw<float>({0, 1, 2, 10, 11, 12}) + raw<mha::bfloat16>({mha::bfloat16(1.5f), mha::bfloat16(-2.f)}) +
                raw<mha::half>({mha::half(0.25f), mha::half(3.f)}) + raw<std::int64_t>({-7, std::int64_t{1} << 40}));
}

TEST(Safetensors, ViewsTensorsInTheMapping) {
  const mha_test::Scratch scratch;
  const mha::Safetensors file(scratch.write("m.safetensors", four_tensors()));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"b", "h", "i", "w"}));
  EXPECT_TRUE(file.contains("w"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.info("w").shape, (std::vector<std::uint64_t>{2, 3}));

  const mha::TensorView<const float, 2> w = file.view<float, 2>("w");
  EXPECT_EQ(w.extent[0], 2);
  EXPECT_EQ(w.extent[1], 3);
  EXPECT_EQ(w(0, 2), 2.f);
  EXPECT_EQ(w(1, 0), 10.f);
  EXPECT_EQ(mha::transposed(w)(2, 1), 12.f);
  EXPECT_EQ(w.data, (file.view<float, 2>("w").data));  // a view, not a copy
  EXPECT_EQ(static_cast<float>(file.view<mha::bfloat16, 1>("b")(1)), -2.f);
  EXPECT_EQ(static_cast<float>(file.view<mha::half, 2>("h")(0, 0)), 0.25f);
  EXPECT_EQ((file.view<std::int64_t, 1>("i")(1)), std::int64_t{1} << 40);
  EXPECT_EQ((file.view<long long, 1>("i")(0)), -7);
}

TEST(Safetensors, ShowsTheBytesOfAnyDtype) {
  const mha_test::Scratch scratch;
  const mha::Safetensors file(scratch.write("m.safetensors", four_tensors()));
  const auto h = file.bytes("h");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(h.data()), h.size()),
            raw<mha::half>({mha::half(0.25f), mha::half(3.f)}));
  EXPECT_EQ(file.bytes("i").size(), 16u);
  EXPECT_THROW(static_cast<void>(file.bytes("x")), mha::SafetensorsError);
}

TEST(Safetensors, MappingOutlivesTheReader) {
  const mha_test::Scratch scratch;
  auto file = std::make_unique<mha::Safetensors>(scratch.write("m.safetensors", four_tensors()));
  const auto w = file->view<float, 2>("w");
  const std::shared_ptr<const void> keep = file->mapping();
  file.reset();
  EXPECT_EQ(keep.use_count(), 1);
  EXPECT_EQ(w(1, 2), 12.f);
}

TEST(Safetensors, BooleansAreMasks) {
  const mha_test::Scratch scratch;
  const std::string json = R"({"bad":{"dtype":"BOOL","shape":[3],"data_offsets":[6,9]},)"
                           R"("seen":{"dtype":"BOOL","shape":[2,3],"data_offsets":[0,6]}})";
  const mha::Safetensors file(
      scratch.write("m.safetensors", safetensors_bytes(json, raw<std::int8_t>({1, 0, 0, 1, 1, 0, 0, 1, 2}))));
  const auto seen = file.view<bool, 2>("seen");
  const mha::Dense mask{seen};
  const auto copy = file.copy<bool, 2>("seen");
  const bool expected[2][3] = {{true, false, false}, {true, true, false}};
  for (int q = 0; q < 2; ++q)
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(mask(0, 0, q, k), expected[q][k]) << q << ' ' << k;
      EXPECT_EQ(copy(q, k), expected[q][k]) << q << ' ' << k;
    }
  const std::string fault = file.path() + ": tensor 'bad' has the byte 2 as element 2, expected 0 or 1";
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.view<bool, 1>("bad")); }), fault);
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.copy<bool, 1>("bad")); }), fault);
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.view<std::uint8_t, 2>("seen")); }),
            file.path() + ": tensor 'seen' has dtype BOOL, expected U8");
}

TEST(Safetensors, WrongNameDtypeOrRankSaysWhatIsThere) {
  const mha_test::Scratch scratch;
  const auto path = scratch.write("m.safetensors", four_tensors());
  const mha::Safetensors file(path);
  const auto says = [&](auto&& f) { return message_of<mha::SafetensorsError>(f); };
  EXPECT_EQ(says([&] { static_cast<void>(file.view<float, 2>("x")); }),
            path.string() + ": there is no tensor 'x' among the 4 of this file");
  EXPECT_EQ(says([&] { static_cast<void>(file.view<float, 1>("b")); }),
            path.string() + ": tensor 'b' has dtype BF16, expected F32");
  EXPECT_EQ(says([&] { static_cast<void>(file.copy<std::uint64_t, 1>("i")); }),
            path.string() + ": tensor 'i' has dtype I64, expected U64");
  EXPECT_EQ(says([&] { static_cast<void>(file.view<float, 1>("w")); }),
            path.string() + ": tensor 'w' has rank 2, expected 1");
}

TEST(Safetensors, UnalignedTensorIsRefusedAsViewAndCopied) {
  const mha_test::Scratch scratch;
  std::string json = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                     R"("y":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const auto path = scratch.write("m.safetensors", safetensors_bytes(json, "\x05" + raw<float>({1.25f, -4.f})));
  const mha::Safetensors file(path);
  const std::string place = std::to_string(8 + json.size() + 1);
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.view<float, 1>("y")); }),
            path.string() + ": tensor 'y' begins at byte " + place +
                " of the file, which is not a multiple of the 4 that F32 needs to be read in place; copy() can read "
                "it");
  const auto y = file.copy<float, 1>("y");
  ASSERT_EQ(y.extent(0), 2);
  EXPECT_EQ(y(0), 1.25f);
  EXPECT_EQ(y(1), -4.f);
  EXPECT_EQ((file.view<std::uint8_t, 1>("x")(0)), 5);
}

TEST(Safetensors, EmptyTensorsAndEmptyFilesAreValid) {
  const mha_test::Scratch scratch;
  const mha::Safetensors none(scratch.write("none.safetensors", safetensors_bytes("{}", "")));
  EXPECT_TRUE(none.names().empty());
  const mha::Safetensors file(
      scratch.write("m.safetensors", safetensors_bytes(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},  )"
                                                       R"("f":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                                       raw<float>({2.f}))));
  EXPECT_EQ((file.copy<float, 2>("e").size()), 0u);
  EXPECT_EQ((file.copy<float, 1>("f")(0)), 2.f);
}

TEST(Safetensors, ExtentBeyondIndexIsRefusedWhenViewed) {
  const mha_test::Scratch scratch;
  const mha::Safetensors file(scratch.write(
      "m.safetensors", safetensors_bytes(R"({"e":{"dtype":"F32","shape":[3000000000,0],"data_offsets":[0,0]}})", "")));
  EXPECT_NE(message_of<mha::SafetensorsError>([&] {
              static_cast<void>(file.view<float, 2>("e"));
            }).find("tensor 'e' has an extent of 3000000000, more than the largest Index 2147483647"),
            std::string::npos);
}

TEST(Safetensors, EmptyTensorsOfHugeExtentsAreAFaultOfTheSameType) {
  const mha_test::Scratch scratch;
  const auto read = [&](const std::string& shape, auto&& use) {
    std::string json = R"({"e":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,0]}})";
    json.resize((json.size() + 7) / 8 * 8, ' ');
    const mha::Safetensors file(scratch.write("m.safetensors", safetensors_bytes(json, "")));
    return message_of<mha::SafetensorsError>([&] { use(file); });
  };
  const auto copied = [](const mha::Safetensors& file) { static_cast<void>(file.copy<float, 4>("e")); };
  const auto viewed = [](const mha::Safetensors& file) { static_cast<void>(file.view<float, 4>("e")); };
  for (const std::string shape : {"0,2147483647,2147483647,2147483647", "2147483647,2147483647,0,2147483647",
                                  "2147483647,2147483647,2147483647,0", "2147483647,0,21474834,1"}) {
    EXPECT_NE(read(shape, copied).find("tensor 'e' is empty, but its shape (" + shape.substr(0, shape.find(','))),
              std::string::npos);
    EXPECT_NE(read(shape, viewed).find("elements, an empty axis counted as 1"), std::string::npos);
  }
  EXPECT_EQ(read("2147483647,0,2,3",
                 [](const mha::Safetensors& file) {
                   EXPECT_EQ((file.copy<float, 4>("e").size()), 0u);
                   EXPECT_EQ((file.view<float, 4>("e").extent[0]), 2147483647);
                 }),
            "");
}

TEST(Safetensors, NamesInMessagesArePrintable) {
  const mha_test::Scratch scratch;
  const auto path = scratch.write(
      "m.safetensors", safetensors_bytes(R"({"a\n\u001b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", ""));
  const mha::Safetensors file(path);
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.view<double, 1>("a\n\x1b")); }),
            path.string() + ": tensor 'a?\?' has dtype F32, expected F64");
}

// As safetensors.torch.save_model writes tied tensors.
TEST(Safetensors, TiedTensorsAreFoundByEveryName) {
  const mha_test::Scratch scratch;
  std::string json = R"({"__metadata__":{"format":"pt","a":"kept","b":"kept","c":"a","d":"d","other":"kept"},)"
                     R"("kept":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                     R"("other":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const auto path = scratch.write("m.safetensors", safetensors_bytes(json, raw<float>({1.25f, -4.f, 3.f})));
  const mha::Safetensors file(path);
  const auto kept = file.view<float, 1>("kept");
  for (const char* const name : {"a", "b"}) {
    EXPECT_TRUE(file.contains(name));
    EXPECT_EQ((file.view<float, 1>(name).data), kept.data);
    EXPECT_EQ((file.copy<float, 1>(name)(1)), -4.f);
    EXPECT_EQ(file.bytes(name).data(), file.bytes("kept").data());
  }
  EXPECT_EQ((file.view<float, 1>("other")(0)), 3.f) << "what is stored is itself";
  for (const char* const name : {"format", "c", "d", "pt"}) EXPECT_FALSE(file.contains(name)) << name;
  EXPECT_EQ(message_of<mha::SafetensorsError>([&] { static_cast<void>(file.info("c")); }),
            path.string() + ": there is no tensor 'c' among the 2 of this file");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"kept", "other"}));
}

TEST(Safetensors, AbsentFileIsTheSameTypeOfError) {
  EXPECT_EQ(message_of<mha::SafetensorsError>([] { mha::Safetensors("/no/such/model.safetensors"); }),
            "cannot open '/no/such/model.safetensors': No such file or directory");
}

}  // namespace
