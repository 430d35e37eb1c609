// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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

TEST(SafetensorsHeader, MalformedJsonIsRefused) {
  EXPECT_EQ(fault(safetensors_bytes("{\"a\":", "")), "m: the header is not valid JSON at its byte 6");
  EXPECT_EQ(fault(safetensors_bytes("", "")), "m: the header is not valid JSON at its byte 1");
  EXPECT_EQ(fault(safetensors_bytes("[1]", "")), "m: the header is JSON, but of type array, not an object");
  EXPECT_EQ(fault(safetensors_bytes("{\"a\":5}", "")), "m: tensor 'a' is not described by an object");
  EXPECT_EQ(fault(safetensors_bytes("{\"\xff\":5}", "")), "m: the header is not valid JSON at its byte 3");
  EXPECT_EQ(fault(safetensors_bytes("{\"__metadata__\":{\"k\":1}}", "")), "m: __metadata__ 'k' is not a string");
  EXPECT_EQ(fault(safetensors_bytes("{\"__metadata__\":3}", "")), "m: __metadata__ is not an object");
  const std::string twice = "{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("a", "U8", "[1]", "[1,2]") + "}";
  EXPECT_EQ(fault(safetensors_bytes(twice, "xx")), "m: the header names tensor 'a' twice");
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
  EXPECT_EQ(fault(with("F32", "[1.5]", "[0,4]", 4)),
            "m: tensor 'a' has the value 1.5 in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[[[1]]]", "[0,4]", 4)),
            "m: tensor 'a' has the value of type array in its shape, expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(fault(with("F32", "[1]", "[0,99999999999999999999]", 4)),
            "m: tensor 'a' has the value 1e+20 in its data_offsets, expected an integer from 0 to 2^64 - 1");
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
