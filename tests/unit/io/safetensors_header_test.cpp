// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <time.h>

#include <mha/io/safetensors_header.hpp>

#include "scratch.hpp"

namespace {

using mha_test::message_of;
using mha_test::safetensors_bytes;

std::span<const std::byte> as_bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

std::string fault(const std::string& file) {
  return message_of<mha::SafetensorsError>([&] { mha::detail::read_safetensors_header("m", as_bytes(file)); });
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + '}';
}

/// One tensor 'a' over `bytes` bytes of data.
std::string with(const std::string& dtype, const std::string& shape, const std::string& offsets, std::size_t bytes) {
  return safetensors_bytes('{' + tensor("a", dtype, shape, offsets) + '}', std::string(bytes, '\0'));
}

TEST(SafetensorsHeader, ReadsWhatTheFileSays) {
  const std::string json = "{" + tensor("a", "F32", "[2, 2]", "[0, 16]") + "," + tensor("b", "BOOL", "[]", "[16, 17]") +
                           R"(,"__metadata__":{"k":"v"}})";
  const std::string file = safetensors_bytes(json, std::string(17, 'x'));
  const auto header = mha::detail::read_safetensors_header("m", as_bytes(file));
  EXPECT_EQ(header.data_begin, 8 + json.size());
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors.at("a").dtype, "F32");
  EXPECT_EQ(header.tensors.at("a").shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_EQ(header.tensors.at("b").begin, 16u);
  EXPECT_EQ(header.tensors.at("b").end, 17u);
  EXPECT_EQ(header.metadata.at("k"), "v");
}

// Also those that no view has: the other tensors of the file can be read.
TEST(SafetensorsHeader, KnowsTheSizeOfEveryDtypeOfWholeBytes) {
  const auto bytes = [](const std::string& dtype) {
    for (const int size : {1, 2, 4, 8})
      if (fault(with(dtype, "[1]", "[0," + std::to_string(size) + "]", static_cast<std::size_t>(size))).empty())
        return size;
    return 0;
  };
  for (const char* const dtype : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
    EXPECT_EQ(bytes(dtype), 1) << dtype;
  for (const char* const dtype : {"U16", "I16", "F16", "BF16"}) EXPECT_EQ(bytes(dtype), 2) << dtype;
  for (const char* const dtype : {"U32", "I32", "F32"}) EXPECT_EQ(bytes(dtype), 4) << dtype;
  for (const char* const dtype : {"U64", "I64", "F64", "C64"}) EXPECT_EQ(bytes(dtype), 8) << dtype;
  for (const char* const dtype : {"", "F8", "F8_", "F8_E4M", "F9_E4M3", "E4M3", "F8_E4M3FNUZX"})
    EXPECT_EQ(bytes(dtype), 0) << dtype;
}

TEST(SafetensorsHeader, TruncatedFilesSayHowFarTheyGo) {
  EXPECT_EQ(fault(""), "m: the file is truncated: it has 0 bytes, fewer than the 8 of the header length");
  EXPECT_EQ(fault("1234567"), "m: the file is truncated: it has 7 bytes, fewer than the 8 of the header length");
  EXPECT_EQ(fault(safetensors_bytes("{}    ", "").substr(0, 10)),
            "m: the header length is 6 bytes, but only 2 follow in the file (is it truncated?)");
  EXPECT_EQ(fault(with("F32", "[4]", "[0,16]", 12)),
            "m: tensor 'a' ends at byte 16 of the data, but the file holds only 12 (is it truncated?)");
}

TEST(SafetensorsHeader, HeaderLengthBeyondTheLimitIsRefused) {
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  EXPECT_EQ(fault(huge),
            "m: the header length is 18446744073709551615 bytes, more than the format's limit of 100000000");
  const std::string just_above("\x01\xe1\xf5\x05\0\0\0\0{}", 10);
  EXPECT_EQ(fault(just_above), "m: the header length is 100000001 bytes, more than the format's limit of 100000000");
}

TEST(SafetensorsHeader, OtherFormatsAreRecognised) {
  const auto other = [](std::string_view first) { return fault(std::string(first) + "some more bytes"); };
  const std::string begin = "m: this is not a safetensors file, it seems to be ";
  EXPECT_EQ(
      other("PK\x03\x04\x14"),
      begin + "a zip archive, as torch.save writes (.bin, .pt, .pth): convert it with safetensors.torch.save_file");
  EXPECT_EQ(
      other("\x80\x02\x8a\x0al\xfc\x9c"),
      begin + "a Python pickle, as old versions of torch.save write: convert it with safetensors.torch.save_file");
  EXPECT_EQ(other("version https://git-lfs.github.com/spec/v1\noid sha256:"),
            begin + "a Git LFS pointer, not the file itself: fetch that with git lfs pull");
  EXPECT_EQ(other("{\"metadata\": {\"total_size\": 1}}"),
            begin + "JSON, such as the index of a checkpoint in several files: open that with mha::Checkpoint");
  EXPECT_EQ(other("<!DOCTYPE html>"), begin + "HTML or XML, such as the page of a failed download");
  EXPECT_EQ(other("GGUF\3"), begin + "a GGUF file");
  EXPECT_EQ(other("\x89HDF\r\n\x1a\n"), begin + "an HDF5 file");
  // Header lengths whose low byte is one of those.
  for (const std::size_t length : {std::size_t{'{'}, std::size_t{0x80}, std::size_t{'<'}}) {
    std::string json = "{}";
    json.resize(length, ' ');
    EXPECT_EQ(fault(safetensors_bytes(json, "")), "");
    EXPECT_NE(fault(safetensors_bytes(json, "").substr(0, 50)).find("is it truncated?"), std::string::npos);
  }
}

TEST(SafetensorsHeader, MalformedJsonIsRefused) {
  EXPECT_EQ(fault(safetensors_bytes("{\"a\":", "")), "m: the header is not valid JSON at its byte 6");
  EXPECT_EQ(fault(safetensors_bytes("{\"a\":5}", "")), "m: tensor 'a' is not described by an object");
  EXPECT_EQ(fault(safetensors_bytes("{\"\xff\":5}", "")), "m: the header is not valid JSON at its byte 3");
  EXPECT_EQ(fault(safetensors_bytes("{\"__metadata__\":{\"k\":1}}", "")), "m: __metadata__ 'k' is not a string");
  EXPECT_EQ(fault(safetensors_bytes("{\"__metadata__\":3}", "")), "m: __metadata__ is not an object");
  EXPECT_EQ(fault(safetensors_bytes("{\"__metadata__\":{\"k\":{}}}", "")), "m: __metadata__ 'k' is not a string");
}

TEST(SafetensorsHeader, BeginsWithABraceAndEndsInSpaces) {
  const auto json = [](const std::string& text) { return fault(safetensors_bytes(text, "")); };
  for (const char* const text : {"", "[1]", " {}", "\xef\xbb\xbf{}", "5", "null", "[[["})
    EXPECT_EQ(json(text), "m: the header does not begin with '{'") << text;
  EXPECT_EQ(json("{}  "), "");
  EXPECT_EQ(json("{ \"__metadata__\" :\n\t{ } }"), "");
  EXPECT_EQ(json("{} \n"), "m: the header is padded at its byte 4 with something else than spaces");
  EXPECT_EQ(json("{} {}"), "m: the header is not valid JSON at its byte 4");
  EXPECT_EQ(json(std::string("{}\0", 3)), "m: the header is not valid JSON at its byte 3");
  EXPECT_EQ(json(std::string("{}\0 anything", 12)), "m: the header is not valid JSON at its byte 3");
  EXPECT_EQ(json(std::string("{\"\0\":5}", 7)), "m: the header is not valid JSON at its byte 3");
}

TEST(SafetensorsHeader, NoNameStandsTwice) {
  const auto json = [](const std::string& text) { return fault(safetensors_bytes(text, "xx")); };
  EXPECT_EQ(json("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("a", "U8", "[1]", "[1,2]") + "}"),
            "m: the header names tensor 'a' twice");
  EXPECT_EQ(json(R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
            "m: tensor 'a' has dtype twice");
  EXPECT_EQ(json(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2],"shape":[2]}})"),
            "m: tensor 'a' has shape twice");
  EXPECT_EQ(json(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1],"d\u0061ta_offsets":[0,2]}})"),
            "m: tensor 'a' has data_offsets twice");
  EXPECT_EQ(json(R"({"__metadata__":{"k":"1","l":"2","k":"3"}})"), "m: __metadata__ has 'k' twice");
  EXPECT_EQ(json(R"({"__metadata__":{},"__metadata__":{}})"), "m: the header has __metadata__ twice");
}

TEST(SafetensorsHeader, OtherMembersAreRefused) {
  for (const char* const value : {"5", "{}", "[[1]]", "null"})
    EXPECT_EQ(fault(safetensors_bytes(
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":)" + std::string(value) + "}}", "x")),
              "m: tensor 'a' has 'stride', expected dtype, shape and data_offsets only");
}

TEST(SafetensorsHeader, MissingOrMistypedMembersAreRefused) {
  const auto entry = [](const std::string& members) {
    return fault(safetensors_bytes("{\"a\":{" + members + "}}", std::string(4, '\0')));
  };
  EXPECT_EQ(entry(R"("shape":[1],"data_offsets":[0,4])"), "m: tensor 'a' has no dtype");
  EXPECT_EQ(entry(R"("dtype":"F32","data_offsets":[0,4])"), "m: tensor 'a' has no shape");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1])"), "m: tensor 'a' has no data_offsets");
  EXPECT_EQ(entry(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"), "m: tensor 'a' has a dtype that is not a string");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), "m: tensor 'a' has a shape that is not a list");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,2,4])"),
            "m: tensor 'a' has 3 data_offsets, expected 2");
  EXPECT_EQ(fault(with("F31", "[1]", "[0,4]", 4)), "m: tensor 'a' has the unknown dtype 'F31'");
}

TEST(SafetensorsHeader, ImpossibleShapesAreRefused) {
  EXPECT_EQ(fault(with("F32", "[-1]", "[0,4]", 4)),
            "m: tensor 'a' has the value -1 in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[null]", "[0,4]", 4)),
            "m: tensor 'a' has the value of type null in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[1]", "[0,true]", 4)),
            "m: tensor 'a' has the value of type boolean in its data_offsets, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[1.5]", "[0,4]", 4)),
            "m: tensor 'a' has the value 1.5 in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[[[1]]]", "[0,4]", 4)),
            "m: tensor 'a' has the value of type array in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(
      fault(with("F32", "[1]", "[0,99999999999999999999]", 4)),
      "m: tensor 'a' has the value 99999999999999999999 in its data_offsets, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[1e999]", "[0,4]", 4)),
            "m: tensor 'a' has the value 1e999 in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[1]", "[-0,4]", 4)),
            "m: tensor 'a' has the value -0 in its data_offsets, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(safetensors_bytes(R"({"__metadata__":{"k":1e999}})", "")), "m: __metadata__ 'k' is not a string");
  EXPECT_EQ(fault(safetensors_bytes("{\"a\":-1e999}", "")), "m: tensor 'a' is not described by an object");
  // 2^62 floats are 2^64 bytes, which would wrap to 0.
  EXPECT_EQ(fault(with("F32", "[4611686018427387904]", "[0,0]", 0)),
            "m: tensor 'a' has shape (4611686018427387904), more elements than 64 bits can count");
  EXPECT_EQ(fault(with("F32", "[4294967296,4294967296]", "[0,0]", 0)),
            "m: tensor 'a' has shape (4294967296, 4294967296), more elements than 64 bits can count");
  EXPECT_EQ(fault(with("F32", "[2,3]", "[0,20]", 20)),
            "m: tensor 'a' has shape (2, 3) and dtype F32, which is 24 bytes, but its data_offsets span 20");
}

TEST(SafetensorsHeader, OffsetsMustCoverTheDataExactlyOnce) {
  const auto two = [](const std::string& first, const std::string& second, std::size_t bytes) {
    return fault(safetensors_bytes("{" + first + "," + second + "}", std::string(bytes, '\0')));
  };
  EXPECT_EQ(fault(with("F32", "[1]", "[4,0]", 4)), "m: tensor 'a' begins at byte 4 of the data, after its end at 0");
  EXPECT_EQ(two(tensor("a", "F32", "[2]", "[0,8]"), tensor("b", "F32", "[1]", "[4,8]"), 8),
            "m: tensor 'b' begins at byte 4 of the data and overlaps tensor 'a', which ends at 8");
  EXPECT_EQ(two(tensor("a", "F32", "[1]", "[0,4]"), tensor("b", "F32", "[1]", "[8,12]"), 12),
            "m: tensor 'b' begins at byte 8 of the data, which leaves a gap after byte 4");
  EXPECT_EQ(fault(with("F32", "[1]", "[4,8]", 8)),
            "m: tensor 'a' begins at byte 4 of the data, which leaves a gap after byte 0");
  EXPECT_EQ(fault(with("F32", "[1]", "[0,4]", 6)), "m: the tensors cover 4 bytes of data, but the file holds 6");
}

TEST(SafetensorsHeader, MessagesStayOneLine) {
  EXPECT_EQ(fault(safetensors_bytes("{\"a\\n\\u001b[2J\":5}", "")), "m: tensor 'a??[2J' is not described by an object");
}

TEST(SafetensorsHeader, MessagesHaveNoControlsInUtf8) {
  const auto shown = [](const std::string& name) {
    const std::string text = fault(safetensors_bytes("{\"" + name + "\":5}", "")), begin = "m: tensor '";
    return text.substr(begin.size(), text.find("' is not") - begin.size());
  };
  for (const char* const control :
       {"\xc2\x80", "\xc2\x85", "\xc2\x9b", "\xc2\x9f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"})
    EXPECT_EQ(shown(std::string("a") + control + "b"), "a?b");
  EXPECT_EQ(shown("\\u0085\\u202e\\u007f"), "\?\?\?");
  for (const char* const other :
       {"\u00a0", "\u00bf", "\u00c2", "\u00e2", "\u2027", "\u202f", "\u2065", "\u206a", "\u20a8", "\u2128", "\u4e2d"})
    EXPECT_EQ(shown(other), other);
}

TEST(SafetensorsHeader, MessagesAreShort) {
  const std::string name(1'000'000, 'n'), ones(1'000'000, '1');
  EXPECT_EQ(fault(safetensors_bytes("{\"" + name + "\":5}", "")),
            "m: tensor '" + std::string(200, 'n') + "...' is not described by an object");
  EXPECT_LT(fault(with("F32", "[" + ones + "]", "[0,4]", 4)).size(), 400u);
  EXPECT_LT(fault(with(name, "[1]", "[0,4]", 4)).size(), 400u);
  std::string shape = "[2";
  for (int axis = 1; axis < 100'000; ++axis) shape += ",1";
  EXPECT_EQ(fault(with("F32", shape + "]", "[0,4]", 4)),
            "m: tensor 'a' has shape (2, 1, 1, 1, 1, 1, 1, 1, ...) and dtype F32, which is 8 bytes, but its "
            "data_offsets span 4");
  // Cut between characters, not within one.
  std::string umlauts = "n";
  for (int i = 0; i < 200; ++i) umlauts += "\u00e4";
  EXPECT_EQ(fault(safetensors_bytes("{\"" + umlauts + "\":5}", "")),
            "m: tensor '" + umlauts.substr(0, 199) + "...' is not described by an object");
}

/// A file of so many tensors of one byte.
std::string file_of(int count) {
  std::string json = "{";
  for (int i = 0; i < count; ++i)
    json += (i > 0 ? "," : "") + tensor("layer." + std::to_string(i) + ".weight", "U8", "[1]",
                                        "[" + std::to_string(i) + "," + std::to_string(i + 1) + "]");
  return safetensors_bytes(json + "}", std::string(static_cast<std::size_t>(count), 'x'));
}

/// Processor time of this thread, whatever else the machine does.
double seconds_to_read(const std::string& file) {
  const auto now = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double begin = now();
  EXPECT_FALSE(mha::detail::read_safetensors_header("m", as_bytes(file)).tensors.empty());
  return now() - begin;
}

TEST(SafetensorsHeader, ManyTensorsTakeLinearTime) {
  // Four times as many take four times as long, sixteen times where time grows with the square.
  const std::string some = file_of(5'000), many = file_of(20'000);
  double least = 16;
  for (int attempt = 0; attempt < 5 && least >= 8; ++attempt)
    least = std::min(least, seconds_to_read(many) / seconds_to_read(some));
  EXPECT_LT(least, 8);
}

TEST(SafetensorsHeader, NestingIsRefusedWhereItBegins) {
  // What follows is no JSON: who reads on would say so.
  const std::string open(1'000, '[');
  EXPECT_EQ(fault(safetensors_bytes(R"({"a":{"dtype":"F32","shape":[)" + open, "")),
            "m: tensor 'a' has the value of type array in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(safetensors_bytes(R"({"a":)" + open, "")), "m: tensor 'a' is not described by an object");
  EXPECT_EQ(fault(safetensors_bytes(R"({"a":{"dtype":)" + open, "")), "m: tensor 'a' has a dtype that is not a string");
  EXPECT_EQ(fault(safetensors_bytes(R"({"a":{"shape":{"b":)" + open, "")),
            "m: tensor 'a' has a shape that is not a list");
  EXPECT_EQ(fault(safetensors_bytes(R"({"__metadata__":)" + open, "")), "m: __metadata__ is not an object");
  EXPECT_EQ(fault(safetensors_bytes(R"({"__metadata__":{"k":)" + open, "")), "m: __metadata__ 'k' is not a string");
}

TEST(SafetensorsHeader, DeepNestingIsOnlyAFault) {
  const std::string deep = "{\"a\":{\"dtype\":\"F32\",\"shape\":[" + std::string(1'000'000, '[') +
                           std::string(1'000'000, ']') + "],\"data_offsets\":[0,4]}}";
  EXPECT_EQ(fault(safetensors_bytes(deep, "1234")),
            "m: tensor 'a' has the value of type array in its shape, expected an integer from 0 to 2^64 - 1");
}

TEST(SafetensorsHeader, DamagedBytesGiveAFaultOrAConsistentHeader) {
  const std::string good =
      safetensors_bytes("{" + tensor("a", "F32", "[2,2]", "[0,16]") + "," + tensor("b", "F16", "[3]", "[16,22]") + "}",
                        std::string(22, 'x'));
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int faults = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int flips = 0; flips < 1 + round % 3; ++flips) bad[random() % bad.size()] = static_cast<char>(random() & 0xff);
    if (round % 5 == 0) bad.resize(random() % bad.size());
    try {
      const auto header = mha::detail::read_safetensors_header("m", as_bytes(bad));
      for (const auto& [name, info] : header.tensors) EXPECT_LE(header.data_begin + info.end, bad.size()) << name;
    } catch (const mha::SafetensorsError&) {
      ++faults;
    }
  }
  EXPECT_GT(faults, 500);
}

}  // namespace
