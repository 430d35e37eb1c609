// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/layer/explain.hpp>
#include <mha/layer/policies.hpp>
#include <mha/mha.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

namespace {

using mha::Index;
using Policies = mha::detail::PoliciesByRole<mha::SoftCap>;

struct Unnamed {
  bool operator()(int, int, int, int) const { return true; }
};
struct Named : Unnamed {
  static constexpr const char* name = "every second key";
};

TEST(ExplainLayer, PutsPoliciesInWords) {
  using mha::detail::InWords;
  using Either = mha::Or<Unnamed, mha::Prefix>;
  EXPECT_EQ(InWords<mha::Full>::text(), "Full");
  EXPECT_EQ((InWords<mha::And<mha::And<mha::Causal, Named>, Either>>::text()),
            "Causal and every second key and (functor or Prefix)");
  EXPECT_EQ(InWords<mha::Not<Either>>::text(), "not (functor or Prefix)");
  EXPECT_EQ((InWords<mha::Not<mha::And<mha::Causal, mha::Not<mha::Dense>>>>::text()), "not (Causal and not Dense)");
  EXPECT_EQ((InWords<mha::And<mha::Not<mha::And<mha::Causal, Named>>, mha::Prefix>>::text()),
            "not (Causal and every second key) and Prefix");
  EXPECT_EQ((InWords<mha::Chain<mha::SoftCap, mha::Chain<mha::Alibi, mha::AdditiveBias<float>>>>::text()),
            "SoftCap, then Alibi, then AdditiveBias");
  EXPECT_EQ(InWords<decltype(mha::mask([](int, int, int, int) { return true; }))>::text(), "functor");
}

TEST(ExplainLayer, SaysHowPositionsEnter) {
  using mha::Halves, mha::Interleaved, mha::Rotary, mha::detail::position_in_words;
  EXPECT_EQ(position_in_words(mha::NoPosition{}), "NoPosition");
  EXPECT_EQ(position_in_words(Rotary<Halves>{}), "Rotary<Halves> of base 10000");
  EXPECT_EQ(position_in_words(Rotary<Interleaved>{.base = 1e6, .dims = 16}),
            "Rotary<Interleaved> of base 1000000 in 16 dims");
  const mha::YarnScaling yarn{.factor = 4, .original_length = 32768};
  EXPECT_EQ(position_in_words(Rotary<Halves, mha::YarnScaling>{.scaling = yarn}),
            "Rotary<Halves, YarnScaling> of base 10000");
  using Any = Rotary<Halves, mha::AnyScaling>;
  EXPECT_EQ(position_in_words(Any{.scaling = yarn}), "Rotary<Halves, YarnScaling> of base 10000");
  EXPECT_EQ(position_in_words(Any{}), "Rotary<Halves> of base 10000");
}

TEST(ExplainLayer, SaysHowHeadsShareKeys) {
  using mha::detail::heads_of;
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 8}), "8 query heads with a key/value head each");
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 2}), "8 query heads share 2 key/value heads");
  EXPECT_EQ(heads_of({.num_heads = 8, .num_kv_heads = 1}), "8 query heads share 1 key/value head");
  EXPECT_EQ(heads_of({.num_heads = 1, .num_kv_heads = 1}), "1 query head with 1 key/value head");
}

TEST(ExplainLayer, SaysWhichProjectionsAddABias) {
  using mha::detail::biases_of;
  EXPECT_EQ(biases_of({}, true), "none");
  EXPECT_EQ(biases_of({.bias = true}, true), "query, key, value, output");
  EXPECT_EQ(biases_of({.bias = true}, false), "query, key, value");
  EXPECT_EQ(biases_of({.bias = true, .key_bias = false}, true), "query, value, output");
  EXPECT_EQ(biases_of({.output_bias = true}, true), "output");
}

TEST(ExplainLayer, SaysOneFactALine) {
  const mha::Config c{.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3};
  mha::Cost cost;
  cost.projection = {5, 1e9, 101};
  cost.score = {0, 2e9, 102};
  cost.value = {0, 1e9, 103};
  cost.output = {7, 5e8, 104};
  cost.visible_pairs = 60;
  cost.activation_elements = 1000;
  const mha::CallShape shape{.batch = 2, .heads = 4, .queries = 5, .keys = 10, .origin = 5};
  EXPECT_EQ((mha::detail::explain_layer<float, mha::And<mha::Causal, mha::Padding>, Policies>(
                mha::Reference{}, c, {}, cost, shape, {"float, owned", "", 100})),
            "heads:       4 query heads share 2 key/value heads, head_dim 2, value_dim 3\n"
            "weights:     12 float, owned\n"
            "biases:      none\n"
            "mask:        Causal and Padding\n"
            "score:       SoftCap\n"
            "sink:        none\n"
            "policies:    FusedProjection, NoNorm, NoPosition, ConcatHeads, LinearOutput\n"
            "projections: 1 GFLOP, 101 bytes\n"
            "attention:   3 GFLOP, 205 bytes\n"
            "visible:     60 of 100 pairs of each head\n"
            "output:      500 MFLOP, 104 bytes\n"
            "kernel:      " +
                mha::Reference{}.explain<float>({shape, 2, 2, 3}) +
                "\n"
                "workspace:   4000 bytes for Q, K, V and the heads\n");
}

// Of a step of a cache: what the cache stores, and the kernels of the longest and of the shortest sequence.
TEST(ExplainLayer, SaysWhatACacheStoresAndEveryKernel) {
  const mha::CallShape shape{.batch = 3, .heads = 4, .queries = 5, .keys = 10, .origin = 5, .fewest_queries = 1};
  const auto text = mha::detail::explain_layer<float, mha::Causal, Policies>(
      mha::Reference{}, {.num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .value_dim = 3}, {}, {}, shape,
      {"float", "Paged, 7 pages", 70});
  const std::string kernel = mha::Reference{}.explain<float>({shape, 2, 2, 3});
  mha::CallShape one = shape;
  one.queries = 1;
  EXPECT_NE(text.find("\nvisible:     0 of 70 pairs of each head\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\ncache:       Paged, 7 pages\nkernel:      of 5 rows: " + kernel +
                      "\nkernel:      of 1 row: " + mha::Reference{}.explain<float>({one, 2, 2, 3}) + "\nworkspace: "),
            std::string::npos)
      << text;
}

// The storage of keys and the number of rows choose the kernel, and dropout.
TEST(ExplainLayer, NamesTheKernelOfADecodeStep) {
  const mha::IsaLevel best = mha::best_isa();
  if (best == mha::IsaLevel::baseline) GTEST_SKIP() << "the baseline may have no kernels of few rows";
  const mha::IsaLevel before = mha::current_isa();
  mha::force_isa(best);
  const mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>> layer({.d_model = 256, .num_heads = 4});
  const mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>, mha::Dropout> dropping(
      {.d_model = 256, .num_heads = 4}, mha::Dropout{.p = 0.1f});
  auto cache = mha::make_cache<mha::bfloat16>(layer, mha::Contiguous{.length = 200}, {.sequences = 2});
  cache.add();
  cache.add();
  const auto lines_with = [](const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  const std::string few = " of few rows, tiles of 1 query x 128 keys",
                    seed = "\nkernel:      with a DropoutSeed: Cpu: ";
  {
    const auto step = cache.step(1);
    const std::string text = layer.explain(step[0]), other = dropping.explain(step[0]);
    EXPECT_NE(text.find("bfloat16 widened as it is read, kernel " + std::string(mha::to_string(best)) + few),
              std::string::npos)
        << text;
    EXPECT_EQ(lines_with(text, seed), 0) << text;
    EXPECT_EQ(lines_with(other, few), 1) << other;
    EXPECT_EQ(lines_with(other, seed), 1) << other;
    EXPECT_GT(other.find("bfloat16 widened block by block"), other.find(seed)) << other;
  }
  {
    const Index rows[] = {100, 1};
    const auto step = cache.step(cache.ids(), rows);
    const std::string text = layer.explain(step[0]);
    EXPECT_EQ(lines_with(text, "bfloat16 widened block by block"), 1) << text;
    EXPECT_EQ(lines_with(text, few), 1) << text;
    EXPECT_GT(text.find(few), text.find("\nkernel:      of 1 row: ")) << text;
  }
  {
    const Index rows[] = {100, 2};
    const auto step = cache.step(cache.ids(), rows);
    const std::string text = layer.explain(step[0]);
    EXPECT_EQ(lines_with(text, "kernel:      of 2 rows: "), 1) << text;
  }
  const std::string prompt = dropping.explain(1, 100, 100);
  EXPECT_EQ(lines_with(prompt, " of few rows"), 0) << prompt;
  EXPECT_EQ(lines_with(prompt, seed), 0) << "one kernel: " << prompt;
  mha::force_isa(before);
}

template <class T = float> struct Slope {
  T by;
  template <class S> auto operator()(S s, mha::Index, mha::Index, mha::Index q, mha::Index k) const {
    return s - by * float(mha::abs(q - k));
  }
};
template <class T = float> struct ConstantSlope : Slope<T> { static constexpr bool trainable = false; };
template <class T = float> struct UnassignableSlope {
  const T by;
  template <class S> auto operator()(S s, mha::Index, mha::Index, mha::Index q, mha::Index k) const {
    return s - by * float(mha::abs(q - k));
  }
};
struct PlainSlope : Slope<float> {};
template <class T, int N> struct SizedSlope : Slope<T> {};

/// A score of one's own with a table.
struct Counted {
  std::vector<float> by;
  template <class S> auto operator()(S s, mha::Index, mha::Index, mha::Index, mha::Index k) const {
    return s + by[std::size_t(k) % 4];
  }
  std::span<float> numbers() { return by; }
  std::span<const float> numbers() const { return by; }
  template <class G, class S> void accumulate(G gradient, S dt, S, int, int, int, int k) const {
    gradient[std::size_t(k) % 4] += double(dt);
  }
};
/// The same in the host's spans alone.
struct CountedInSpans : Counted {
  template <class S> void accumulate(std::span<double> gradient, S dt, S, int, int, int, int k) const {
    gradient[std::size_t(k) % 4] += double(dt);
  }
};
struct Summing : mha::Reference {
  static constexpr bool sums_scores = true;
};
struct Forgetting {
  static constexpr mha::Memory memory = mha::Memory::device;
};

TEST(TrainingInWords, SaysWhatIsTrainedOfAScoreAndWhyNot) {
  using mha::detail::training_in_words;
  const std::string constant = "trained:     none of the score: ", see = " (see mha/policy/score.hpp)\n";
  EXPECT_EQ((training_in_words<mha::Cpu, float>(mha::NoScore{})), "");
  EXPECT_EQ((training_in_words<mha::Cpu, float>(Slope<>{1})), "trained:     1 numbers of the score\n");
  EXPECT_EQ((training_in_words<mha::Cpu, float>(mha::AlibiSlopes({1.f, 2.f}))),
            "trained:     2 numbers of the score\n");
  EXPECT_EQ((training_in_words<mha::Cpu, float>(mha::Chain{mha::AlibiSlopes({1.f, 2.f}), Slope<>{1}})),
            "trained:     3 numbers of the score\n");
  EXPECT_EQ((training_in_words<mha::Cpu, float>(UnassignableSlope<>{1})),
            constant + "a score of this type cannot be assigned" + see);
  EXPECT_EQ((training_in_words<mha::Cpu, float>(mha::Chain{mha::Alibi{}, UnassignableSlope<>{1}})),
            constant + "a score of this type cannot be assigned" + see);
  EXPECT_EQ((training_in_words<mha::Cpu, float>(mha::SoftCap{2.f})),
            constant + "attention_backward() has their gradients if it is asked" + see);
  EXPECT_EQ((training_in_words<mha::Cpu, float>(ConstantSlope<>{{1}})), constant + "it declines to be trained" + see);
  EXPECT_EQ((training_in_words<mha::Cpu, float>(PlainSlope{{1}})),
            constant + "one that is trained is a class template over its scalar alone, or has accumulate()" + see);
  EXPECT_EQ((training_in_words<mha::Cpu, float>(SizedSlope<float, 1>{{1}})),
            (training_in_words<mha::Cpu, float>(PlainSlope{{1}})));
  const mha::MultiHeadAttention<float, mha::Cpu, PlainSlope> layer({.d_model = 4, .num_heads = 2}, PlainSlope{{1}});
  EXPECT_NE(layer.explain_backward(1, 3, 3).find(constant), std::string::npos);
  const std::vector<int> lengths{3};
  EXPECT_EQ(layer.explain_backward(1, 5, 5, mha::Padding{lengths})
                .find("mask:        Padding\nscore:       functor\nvisible:     15 of 25 "),
            0u)
      << layer.explain_backward(1, 5, 5, mha::Padding{lengths});
}

// A device with sums of its own has another span for accumulate(), and one without them has no gradients of scores.
TEST(TrainingInWords, SaysWhatABackendDoesNotTrain) {
  using mha::detail::training_in_words;
  const std::string none = "trained:     none of the score: ", see = " (see mha/policy/score.hpp)\n";
  const Counted counted{{1, 2, 3, 4}};
  EXPECT_EQ((training_in_words<mha::Cpu, float>(counted)), "trained:     4 numbers of the score\n");
  EXPECT_EQ((training_in_words<Summing, float>(counted)), "trained:     4 numbers of the score\n");
  const CountedInSpans in_spans{counted};
  EXPECT_EQ((training_in_words<mha::Cpu, float>(in_spans)), "trained:     4 numbers of the score\n");
  EXPECT_EQ((training_in_words<Summing, float>(in_spans)), none + "accumulate() takes no span of a device" + see);
  EXPECT_EQ((training_in_words<Summing, float>(Slope<>{1})), "trained:     1 numbers of the score\n");
  EXPECT_EQ((training_in_words<Forgetting, float>(Slope<>{1})), none + "this backend has no gradients of scores" + see);
}

}  // namespace
