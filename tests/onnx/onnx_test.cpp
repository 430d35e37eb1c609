// SPDX-License-Identifier: Apache-2.0
// The cases of the package onnx, over tensors and through every storage of a cache. They are in the folder
// MHA_ONNX_DIR; where there is none they are skipped, under CI that is a failure. MHA_ONNX_CASES says how many there
// must be: 64, those of 1.22.0, if it is not set.
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention.hpp"
#include "compare.hpp"
#include "golden.hpp"

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

onnx::Array array(const golden::Case& c, const std::string& key) {
  if (!c.has(key)) return {};
  const golden::Tensor& t = c.tensor(key);
  return {c.text(key + ".type"), t.extent, t.values};
}

onnx::Inputs inputs(const golden::Case& c) {
  return {array(c, "Q"),
          array(c, "K"),
          array(c, "V"),
          array(c, "attn_mask"),
          array(c, "past_key"),
          array(c, "past_value"),
          array(c, "nonpad_kv_seqlen")};
}

onnx::Attributes attributes(const golden::Case& c) {
  onnx::Attributes at;
  at.is_causal = c.integer("is_causal", 0) != 0;
  at.q_num_heads = static_cast<int>(c.integer("q_num_heads", 0));
  at.kv_num_heads = static_cast<int>(c.integer("kv_num_heads", 0));
  if (c.has("scale")) at.scale = c.real("scale");
  at.softcap = c.real("softcap", 0);
  at.qk_matmul_output_mode = static_cast<int>(c.integer("qk_matmul_output_mode", 0));
  at.softmax_precision = static_cast<int>(c.integer("softmax_precision", 0));
  at.left_window_size = static_cast<int>(c.integer("left_window_size", -1));
  at.right_window_size = static_cast<int>(c.integer("right_window_size", -1));
  return at;
}

/// Allowed relative error of an element type; the absolute one is a hundredth of it.
double tolerance(const std::string& type) {
  if (type == "bfloat16") return 2e-2;
  return type == "float16" ? 1e-2 : 1e-3;
}

void compare(const char* name, const onnx::Array& got, const onnx::Array& expected) {
  EXPECT_EQ(got.type, expected.type) << name;
  ASSERT_EQ(got.extent, expected.extent) << name;
  const double bound = tolerance(expected.type);
  support::Worst worst;
  for (std::size_t i = 0; i < expected.values.size(); ++i)
    worst.see(got.values[i], expected.values[i], bound * (0.01 + std::abs(expected.values[i])),
              std::string(name) + "[" + std::to_string(i) + "]");
  EXPECT_LE(worst.error(), 1) << worst.text();
}

using onnx::Kept;
constexpr Kept everywhere[] = {Kept::tensors, Kept::contiguous, Kept::paged, Kept::ring};
const char* text(Kept kept) {
  constexpr const char* texts[] = {"in tensors", "in a contiguous cache", "in a paged cache", "in a ring"};
  return texts[static_cast<std::size_t>(kept)];
}

template <class Backend> void check(const golden::Case& c, Kept kept) {
  const onnx::Outputs got = onnx::attention<Backend>(inputs(c), attributes(c), kept);
  compare("Y", got.y, array(c, "Y"));
  if (c.has("present_key")) compare("present_key", got.present_key, array(c, "present_key"));
  if (c.has("present_value")) compare("present_value", got.present_value, array(c, "present_value"));
  if (c.has("qk_matmul_output")) compare("qk_matmul_output", got.qk_matmul_output, array(c, "qk_matmul_output"));
}

template <class Backend> class OnnxCases : public ::testing::Test {};
using Backends = ::testing::Types<mha::Cpu, mha::Reference>;
TYPED_TEST_SUITE(OnnxCases, Backends, );

TYPED_TEST(OnnxCases, AllPass) {
  const std::string folder = variable("MHA_ONNX_DIR");
  if (folder.empty() || !std::filesystem::is_directory(folder)) {
    const std::string sentence =
        "MHA_ONNX_DIR ('" + folder + "') is no folder: run tests/onnx/fetch.sh to test with the cases of ONNX";
    if (variable("CI") == "true") FAIL() << sentence;
    GTEST_SKIP() << sentence;
  }
  const std::string wanted = variable("MHA_ONNX_CASES");
  int run = 0, with_past = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    for (const golden::Case& c : golden::read(file.path())) {
      for (const Kept kept : everywhere) {
        SCOPED_TRACE(c.name + ", " + text(kept));
        EXPECT_NO_THROW(check<TypeParam>(c, kept));
      }
      ++run;
      with_past += c.has("past_key") ? 1 : 0;
    }
  }
  EXPECT_EQ(run, wanted.empty() ? 64 : std::stoi(wanted));
  EXPECT_GE(with_past, wanted.empty() ? 19 : 0);
}

// What the cases of 1.22.0 leave out, on numbers that can be checked by hand: one head of size 1.

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// One value per position, all queries and keys 0, so that a row of Y is the mean of the values that it sees.
onnx::Inputs means(mha::Index queries, const std::vector<double>& values, mha::Index batch = 1) {
  const auto keys = static_cast<mha::Index>(values.size()) / batch;
  const auto zeros = [&](mha::Index n) { return std::vector<double>(static_cast<std::size_t>(batch * n), 0.0); };
  return {.q = {"float32", {batch, 1, queries, 1}, zeros(queries)},
          .k = {"float32", {batch, 1, keys, 1}, zeros(keys)},
          .v = {"float32", {batch, 1, keys, 1}, values}};
}

void expect_values(const onnx::Array& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.values.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::isinf(expected[i]))
      EXPECT_EQ(got.values[i], expected[i]) << i;
    else
      EXPECT_NEAR(got.values[i], expected[i], 1e-6) << i;
}

template <class Backend> class OnnxAttention : public ::testing::Test {};
TYPED_TEST_SUITE(OnnxAttention, Backends, );

TYPED_TEST(OnnxAttention, RowsWithoutKeysAreZero) {
  onnx::Inputs in = means(2, {1, 3});
  in.attn_mask = {"bool", {2, 2}, {1, 1, 0, 0}};
  const auto got = onnx::attention<TypeParam>(in, {.is_causal = true, .qk_matmul_output_mode = 3});
  expect_values(got.y, {1, 0});
  expect_values(got.qk_matmul_output, {1, 0, 0, 0});
}

TYPED_TEST(OnnxAttention, ExternalCacheHasAnOffsetForEachSequence) {
  onnx::Inputs in = means(2, {1, nan, nan, 1, 2, 4}, 2);
  in.nonpad_kv_seqlen = {"int64", {2}, {1, 3}};
  expect_values(onnx::attention<TypeParam>(in, {.is_causal = true}).y, {0, 1, 1.5, 7.0 / 3});
  expect_values(onnx::attention<TypeParam>(in, {}).y, {1, 1, 7.0 / 3, 7.0 / 3});
  in = means(2, {5});
  in.nonpad_kv_seqlen = {"int64", {1}, {1}};
  expect_values(onnx::attention<TypeParam>(in, {.is_causal = true}).y, {0, 5});
}

TYPED_TEST(OnnxAttention, KeysBeyondAShortMaskAreHidden) {
  onnx::Inputs in = means(1, {1, 3, nan});
  in.attn_mask = {"bool", {2}, {1, 1}};
  expect_values(onnx::attention<TypeParam>(in, {}).y, {2});
  in.attn_mask = {"float32", {1, 1}, {0.5}};
  expect_values(onnx::attention<TypeParam>(in, {}).y, {1});
}

TYPED_TEST(OnnxAttention, WindowsReachBothWaysFromTheOffset) {
  onnx::Inputs in = means(2, {2, 3});
  in.past_key = {"float32", {1, 1, 1, 1}, {0}};
  in.past_value = {"float32", {1, 1, 1, 1}, {1}};
  for (const Kept kept : everywhere) {
    SCOPED_TRACE(text(kept));
    const auto y = [&](const onnx::Attributes& at) { return onnx::attention<TypeParam>(in, at, kept).y; };
    expect_values(y({.left_window_size = 0}), {2.5, 3});
    expect_values(y({.right_window_size = 0}), {1.5, 2});
    expect_values(y({.left_window_size = 1, .right_window_size = 1}), {2, 2.5});
    const auto got =
        onnx::attention<TypeParam>(in, {.is_causal = true, .left_window_size = 1, .right_window_size = 1}, kept);
    expect_values(got.y, {1.5, 2.5});
    expect_values(got.present_value, {1, 2, 3});
  }
}

// Three of the five positions fit into the ring: a row of it is the mean of two values.
TYPED_TEST(OnnxAttention, ARingDropsThePastThatTheWindowHides) {
  onnx::Inputs in = means(2, {8, 16});
  in.past_key = {"float32", {1, 1, 3, 1}, {nan, 0, 0}};
  in.past_value = {"float32", {1, 1, 3, 1}, {nan, 2, 4}};
  const onnx::Attributes at{.is_causal = true, .left_window_size = 1};
  for (const Kept kept : everywhere) {
    SCOPED_TRACE(text(kept));
    expect_values(onnx::attention<TypeParam>(in, at, kept).y, {6, 12});
  }
}

TYPED_TEST(OnnxAttention, OutputModesShowEachStep) {
  onnx::Inputs in = means(1, {1, 2});
  in.q.values = {2};
  in.k.values = {3, 5};
  in.attn_mask = {"float32", {1, 1, 1, 2}, {0.25, -inf}};
  onnx::Attributes at{.scale = 0.5, .softcap = 2};
  const auto shown = [&](int mode) {
    at.qk_matmul_output_mode = mode;
    return onnx::attention<TypeParam>(in, at).qk_matmul_output;
  };
  const double capped = 2 * std::tanh(1.5);
  expect_values(shown(0), {3, 5});
  expect_values(shown(1), {capped, 2 * std::tanh(2.5)});
  expect_values(shown(2), {capped + 0.25, -inf});
  expect_values(shown(3), {1, 0});
}

TYPED_TEST(OnnxAttention, GroupsOfHeadsShareAKey) {
  const onnx::Inputs in{.q = {"float32", {1, 4, 1, 1}, {1, 2, 3, 4}},
                        .k = {"float32", {1, 2, 1, 1}, {10, 20}},
                        .v = {"float32", {1, 2, 1, 1}, {5, 6}}};
  const auto got = onnx::attention<TypeParam>(in, {});
  expect_values(got.qk_matmul_output, {10, 20, 60, 80});
  expect_values(got.y, {5, 5, 6, 6});
}

TYPED_TEST(OnnxAttention, ComputesInDoubleWhereAsked) {
  onnx::Inputs in = means(1, {1, 2});
  in.q.values = {1e20};
  in.k.values = {1e20, -1e20};
  expect_values(onnx::attention<TypeParam>(in, {.softmax_precision = 11}).y, {1});  // the product overflows a float
  in = means(1, {1e300, -1e300});
  in.v.type = "float64";
  const auto mixed = onnx::attention<TypeParam>(in, {});
  EXPECT_EQ(mixed.y.type, "float32");
  expect_values(mixed.y, {0});
}

TYPED_TEST(OnnxAttention, RefusesInputsThatDoNotFit) {
  const auto sentence = [](const onnx::Inputs& in, const onnx::Attributes& at) -> std::string {
    try {
      onnx::attention<TypeParam>(in, at);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const onnx::Inputs good = means(1, {1, 2});
  onnx::Inputs in = good;
  EXPECT_EQ(sentence(good, {.qk_matmul_output_mode = 4}), "Attention: qk_matmul_output_mode is 4, not 0 to 3");
  EXPECT_EQ(sentence(good, {.left_window_size = -2}),
            "Attention: the window reaches -2 to the left and -1 to the right, the least is -1, no bound");
  in.past_key = {"float32", {1, 1, 1, 1}, {0}};
  EXPECT_EQ(sentence(in, {}), "Attention: past_key and past_value must be given together");
  in.past_value = in.past_key;
  in.nonpad_kv_seqlen = {"int64", {1}, {2}};
  EXPECT_EQ(sentence(in, {}), "Attention: nonpad_kv_seqlen goes without past_key");
  in = good;
  in.nonpad_kv_seqlen = {"int64", {2}, {2, 2}};
  EXPECT_EQ(sentence(in, {}), "Attention: nonpad_kv_seqlen has 2 elements for a batch of 1");
  in = good;
  in.attn_mask = {"bool", {3}, {1, 1, 1}};
  EXPECT_EQ(sentence(in, {}), "Attention: attn_mask has 3 keys but there are only 2");
  in = good;
  in.q = {"float32", {1, 1, 3}, {0, 0, 0}};
  EXPECT_EQ(sentence(in, {}), "Attention: Q is 3 wide, which 0 heads do not divide");
  EXPECT_EQ(sentence(in, {.q_num_heads = 3}), "Attention: Q, K and V differ in rank");
  in.q.type = "int32";
  in.k.type = in.v.type = in.q.type;
  EXPECT_EQ(sentence(in, {}), "Attention: elements of type int32 are none of float16, bfloat16, float32, float64");
}

}  // namespace
