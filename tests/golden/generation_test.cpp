// SPDX-License-Identifier: Apache-2.0
// The attention layers of decoders that read a text step by step, against Hugging Face transformers with its own cache
// (generation.txt): GPT-2 and LLaMA, and Mistral, Gemma 2 and 3 and gpt-oss beyond their windows.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "golden.hpp"
#include "golden_scaling.hpp"

namespace {

using golden::Case;
using mha::Index;

const std::vector<Case>& all_cases() {
  static const std::vector<Case> all = golden::read(MHA_GOLDEN_DIR "/generation.txt");
  return all;
}

template <class T> std::vector<T> numbers(const Case& c, const std::string& key) {
  const std::vector<double>& values = c.tensor(key).values;
  std::vector<T> to(values.size());
  std::transform(values.begin(), values.end(), to.begin(), [](double x) { return static_cast<T>(x); });
  return to;
}

mha::Config config_of(const Case& c) {
  const auto heads = static_cast<Index>(c.integer("heads"));
  return {.d_model = c.tensor("query_weight").extent[1],
          .num_heads = heads,
          .num_kv_heads = static_cast<Index>(c.integer("kv_heads", heads)),
          .head_dim = static_cast<Index>(c.integer("head_dim")),
          .bias = c.has("query_bias"),
          .scale = c.real("scale")};
}

// The policies of a case, each made from its numbers.
template <class Policy> Policy policy_of(const Case& c);
template <> mha::SlidingWindow policy_of(const Case& c) {
  constexpr long long everything = std::numeric_limits<Index>::max() / 2;
  return {.left = static_cast<Index>(c.integer("window_left", everything))};
}
using Rotary = mha::Rotary<mha::Halves, mha::AnyScaling>;
template <> Rotary policy_of(const Case& c) { return {.base = c.real("base"), .scaling = golden::scaling_of(c)}; }
template <> mha::SoftCap policy_of(const Case& c) { return {.cap = static_cast<float>(c.real("softcap"))}; }
template <> mha::QkNorm policy_of(const Case& c) { return {.eps = c.real("eps")}; }
template <> mha::Sink policy_of(const Case& c) { return mha::Sink(numbers<float>(c, "sinks")); }

/// A layer with the weights of its case.
template <class T, class... Policies> struct Layer {
  const Case& expected;
  const std::vector<T> x = numbers<T>(expected, "x");  // (L, E)
  mha::MultiHeadAttention<T, mha::Cpu, mha::GroupedQuery<mha::Dynamic>, Policies...> attention{
      config_of(expected), policy_of<Policies>(expected)...};

  explicit Layer(const Case& c) : expected(c) {
    attention.borrow({.query = in_out("query_weight"),
                      .key = in_out("key_weight"),
                      .value = in_out("value_weight"),
                      .output = in_out("output_weight"),
                      .query_bias = row("query_bias"),
                      .key_bias = row("key_bias"),
                      .value_bias = row("value_bias"),
                      .output_bias = row("output_bias"),
                      .query_norm = row("query_norm"),
                      .key_norm = row("key_norm")});
  }
  Layer(const Layer&) = delete;

  Index width() const { return expected.tensor("x").extent[1]; }

 private:
  mha::TensorView<const T, 2> in_out(const std::string& name) {
    const std::vector<int>& e = expected.tensor(name).extent;
    return mha::transposed(mha::view(kept(name), e[0], e[1]));
  }
  mha::TensorView<const T, 1> row(const std::string& name) {
    if (!expected.has(name)) return {};
    return mha::view(kept(name), expected.tensor(name).extent[0]);
  }
  const T* kept(const std::string& name) { return (weights_[name] = numbers<T>(expected, name)).data(); }

  std::map<std::string, std::vector<T>> weights_;
};

/// The largest error of layers that read their rows through one cache in steps of so many rows.
template <class Storage, class Layers>
double worst_error(const Layers& layers, const Storage& storage, const std::vector<Index>& steps) {
  auto cache = mha::make_cache(layers.front().attention, storage, {.layers = static_cast<Index>(layers.size())});
  const mha::SequenceId text = cache.add();
  mha::Workspace workspace;
  double worst = 0;
  Index begin = 0;
  for (const Index rows : steps) {
    auto step = cache.step(text, rows);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto& layer = layers[i];
      const Index width = layer.width();
      const auto y = layer.attention(mha::view(layer.x.data() + begin * width, rows, width),
                                     step[static_cast<Index>(i)], workspace);
      const double* const wanted = layer.expected.tensor("out").values.data() + begin * width;
      for (std::size_t n = 0; n < y.size(); ++n)
        worst = support::maximum(worst, std::abs(static_cast<double>(y.data()[n]) - wanted[n]));
    }
    step.commit();
    begin += rows;
  }
  EXPECT_EQ(begin, layers.front().expected.tensor("x").extent[0]);
  return worst;
}

template <class T, class... Policies> void check_model(const std::string& name) {
  SCOPED_TRACE(name);
  std::deque<Layer<T, Policies...>> layers, windowed;
  for (const Case& c : all_cases()) {
    if (!c.has("model") || c.text("model") != name) continue;
    layers.emplace_back(c);
    if (c.has("window_left")) windowed.emplace_back(c);
  }
  ASSERT_EQ(layers.size(), 2U);
  const Case& c = layers.front().expected;
  const auto given = numbers<Index>(c, "steps");
  const Index length = c.tensor("x").extent[0], longest = *std::ranges::max_element(given);
  const double tolerance = sizeof(T) == sizeof(float) ? 5e-5 : c.real("tolerance");
  for (const auto& steps : {given, std::vector<Index>(static_cast<std::size_t>(length), 1)}) {
    EXPECT_LE(worst_error(layers, mha::Contiguous{.length = length}, steps), tolerance);
    EXPECT_LE(worst_error(layers, mha::Paged{.pages = 2, .length = length, .page = 16}, steps), tolerance);
    if (windowed.empty()) continue;
    const auto left = static_cast<Index>(windowed.front().expected.integer("window_left"));
    ASSERT_LT(left + longest, length) << "no ring would drop anything";
    EXPECT_LE(worst_error(windowed, mha::Ring{.left = left, .rows = longest}, steps), tolerance);
  }
}

template <class T> void check_models() {
  using mha::SlidingWindow;
  check_model<T, SlidingWindow>("gpt2");
  check_model<T, SlidingWindow, Rotary>("llama");
  check_model<T, SlidingWindow, Rotary>("mistral");
  check_model<T, SlidingWindow, Rotary, mha::SoftCap>("gemma2");
  check_model<T, SlidingWindow, Rotary, mha::QkNorm>("gemma3");
  check_model<T, SlidingWindow, Rotary, mha::Sink>("gpt_oss");
}
TEST(GoldenGeneration, LayersReadStepByStepAsTransformersInDouble) { check_models<double>(); }
TEST(GoldenGeneration, LayersReadStepByStepAsTransformersInFloat) { check_models<float>(); }

}  // namespace
