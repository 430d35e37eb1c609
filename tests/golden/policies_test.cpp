// SPDX-License-Identifier: Apache-2.0
// Positions, relative biases, sinks and whole decoder layers against Hugging Face transformers (policies.txt).
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "golden.hpp"
#include "golden_scaling.hpp"
#include "golden_tensor.hpp"

namespace {

using golden::tensor;
using mha::Index;

/// The cases of the file that have this key.
std::vector<golden::Case> cases_with(const char* key) {
  std::vector<golden::Case> found;
  for (golden::Case& c : golden::read(MHA_GOLDEN_DIR "/policies.txt"))
    if (c.has(key)) found.push_back(std::move(c));
  return found;
}

/// What a case accepts; single precision gets a bound of its own.
template <class T> double tolerance(const golden::Case& c) {
  return sizeof(T) == sizeof(float) ? 3e-5 : c.real("tolerance");
}

template <class T, int Rank> void expect_out(const golden::Case& c, const mha::Tensor<T, Rank>& out) {
  const golden::Tensor& wanted = c.tensor("out");
  ASSERT_EQ(out.size(), wanted.values.size());
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(static_cast<double>(out.data()[i]) - wanted.values[i]);
    worst = support::maximum(worst, error);
  }
  EXPECT_LE(worst, tolerance<T>(c)) << c.name;
}

mha::RelativeBuckets buckets_of(const golden::Case& c) {
  return {.count = static_cast<Index>(c.integer("count")),
          .max_distance = static_cast<Index>(c.integer("max_distance")),
          .bidirectional = c.integer("bidirectional") != 0};
}

/// f(rotary) with the case's pairing and frequencies.
template <class Pairing, class F> void with_rotary(const golden::Case& c, F&& f) {
  const double base = c.real("base");
  const auto dims = static_cast<Index>(c.integer("dims", 0));
  if (!c.has("scaling")) return f(mha::Rotary<Pairing>{.base = base, .dims = dims});
  f(mha::Rotary<Pairing, mha::AnyScaling>{.base = base, .dims = dims, .scaling = golden::scaling_of(c)});
}

template <class T> void check_positions() {
  const auto cases = cases_with("pairing");
  ASSERT_FALSE(cases.empty());
  for (const golden::Case& c : cases) {
    auto x = tensor<T, 4>(c.tensor("x"));  // (B, H, L, D)
    const auto view = mha::view_bhld(x.data(), x.extent(0), x.extent(1), x.extent(2), x.extent(3));
    const auto turn = [&](const auto& rotary) {
      rotary.check(x.extent(3));
      rotary.template apply<T>(view, static_cast<Index>(c.integer("first")));
    };
    if (c.text("pairing") == "halves")
      with_rotary<mha::Halves>(c, turn);
    else
      with_rotary<mha::Interleaved>(c, turn);
    expect_out(c, x);
  }
}
TEST(GoldenPolicies, RotaryTurnsAsLlamaAndGptJ) {
  check_positions<double>();
  check_positions<float>();
}

TEST(GoldenPolicies, RelativeBucketsAreT5s) {
  const auto cases = cases_with("buckets");
  ASSERT_FALSE(cases.empty());
  for (const golden::Case& c : cases) {
    const auto furthest = static_cast<Index>(c.integer("furthest"));
    const golden::Tensor& wanted = c.tensor("buckets");
    const auto buckets = buckets_of(c);
    for (Index distance = -furthest; distance <= furthest; ++distance)
      EXPECT_EQ(buckets.bucket(0, distance), wanted.values.at(static_cast<std::size_t>(distance + furthest)))
          << c.name << ", distance " << distance;
  }
}

template <class B, class T> void check_sinks() {
  const auto cases = cases_with("sinks");
  ASSERT_FALSE(cases.empty());
  for (const golden::Case& c : cases) {
    const auto q = tensor<T, 4>(c.tensor("q")), k = tensor<T, 4>(c.tensor("k")), v = tensor<T, 4>(c.tensor("v"));
    const auto heads_first = [](const mha::Tensor<T, 4>& t) {
      return mha::view_bhld(t.data(), t.extent(0), t.extent(1), t.extent(2), t.extent(3));
    };
    const auto logits = tensor<float, 1>(c.tensor("sinks"));
    const mha::Sink sink(std::vector<float>(logits.begin(), logits.end()));
    const auto out = [&](const auto& mask) {
      mha::Tensor<T, 4> to(q.extent(0), q.extent(1), q.extent(2), v.extent(3));
      mha::attention_into<B>(mha::view_bhld(to.data(), to.extent(0), to.extent(1), to.extent(2), to.extent(3)),
                             heads_first(q), heads_first(k), heads_first(v), sink, mask, mha::Scale{c.real("scale")});
      return to;
    };
    expect_out(c, c.has("causal") ? out(mha::Causal{}) : out(mha::Full{}));
  }
}
TEST(GoldenPolicies, SinksAreGptOsss) {
  check_sinks<mha::Reference, double>();
  check_sinks<mha::Cpu, double>();
  check_sinks<mha::Cpu, float>();
}

/// The weights of a layer as its checkpoint has them, (out, in).
template <class T> class Checkpoint {
 public:
  explicit Checkpoint(const golden::Case& c)
      : query_(matrix(c, "query")), key_(matrix(c, "key")), value_(matrix(c, "value")), output_(matrix(c, "output")) {
    for (const char* name : {"query_bias", "key_bias", "value_bias", "output_bias", "query_norm", "key_norm"})
      vectors_.push_back(c.has(name) ? tensor<T, 1>(c.tensor(name)) : mha::Tensor<T, 1>());
  }

  mha::BorrowedWeights<T> weights() const {
    return {.query = in_out(query_),
            .key = in_out(key_),
            .value = in_out(value_),
            .output = in_out(output_),
            .query_bias = vectors_[0].view(),
            .key_bias = vectors_[1].view(),
            .value_bias = vectors_[2].view(),
            .output_bias = vectors_[3].view(),
            .query_norm = vectors_[4].view(),
            .key_norm = vectors_[5].view()};
  }
  mha::Config config(const golden::Case& c) const {
    const auto heads = static_cast<Index>(c.integer("heads"));
    return {.d_model = query_.extent(1),
            .num_heads = heads,
            .num_kv_heads = static_cast<Index>(c.integer("kv_heads", heads)),
            .head_dim = static_cast<Index>(c.integer("head_dim")),
            .bias = c.has("query_bias")};
  }

 private:
  static mha::Tensor<T, 2> matrix(const golden::Case& c, const std::string& name) {
    return tensor<T, 2>(c.tensor(name + "_weight"));
  }
  static mha::TensorView<const T, 2> in_out(const mha::Tensor<T, 2>& out_in) { return mha::transposed(out_in.view()); }

  mha::Tensor<T, 2> query_, key_, value_, output_;
  std::vector<mha::Tensor<T, 1>> vectors_;
};

template <class B, class T> void check_t5() {
  const auto cases = cases_with("table");
  ASSERT_FALSE(cases.empty());
  for (const golden::Case& c : cases) {
    const Checkpoint<T> checkpoint(c);
    const auto table = tensor<float, 2>(c.tensor("table"));
    const mha::RelativeBias bias(std::vector<float>(table.begin(), table.end()), buckets_of(c));
    auto config = checkpoint.config(c);
    config.scale = 1;
    mha::MultiHeadAttention<T, B, mha::RelativeBias> layer(config, bias);
    layer.borrow(checkpoint.weights());
    const auto x = tensor<T, 3>(c.tensor("x"));
    expect_out(c, c.integer("bidirectional") != 0 ? layer(x) : layer(x, mha::Causal{}));
  }
}
TEST(GoldenPolicies, ALayerWithRelativeBiasIsT5s) {
  check_t5<mha::Reference, double>();
  check_t5<mha::Cpu, double>();
  check_t5<mha::Cpu, float>();
}

template <class B, class T> void check_decoders() {
  const auto cases = cases_with("kv_heads");
  ASSERT_FALSE(cases.empty());
  for (const golden::Case& c : cases) {
    const Checkpoint<T> checkpoint(c);
    const auto x = tensor<T, 3>(c.tensor("x"));
    const auto run = [&](auto& layer) {
      layer.borrow(checkpoint.weights());
      expect_out(c, layer(x));
    };
    with_rotary<mha::Halves>(c, [&](const auto& rotary) {
      using Heads = mha::GroupedQuery<mha::Dynamic>;
      using Position = std::remove_cvref_t<decltype(rotary)>;
      const auto config = checkpoint.config(c);
      if (c.has("query_norm")) {
        mha::MultiHeadAttention<T, B, Heads, mha::Causal, mha::QkNorm, Position> layer(
            config, mha::QkNorm{.eps = c.real("eps")}, rotary);
        run(layer);
      } else {
        mha::MultiHeadAttention<T, B, Heads, mha::Causal, Position> layer(config, rotary);
        run(layer);
      }
    });
  }
}
TEST(GoldenPolicies, DecoderLayersAreLlamasAndQwens) {
  check_decoders<mha::Reference, double>();
  check_decoders<mha::Cpu, double>();
  check_decoders<mha::Cpu, float>();
}

TEST(GoldenPolicies, EveryCaseIsOfAKindThatIsTested) {
  std::size_t tested = 0;
  for (const char* key : {"pairing", "buckets", "sinks", "table", "kv_heads"}) tested += cases_with(key).size();
  EXPECT_EQ(tested, golden::read(MHA_GOLDEN_DIR "/policies.txt").size());
  EXPECT_EQ(tested, 29u) << "a case came or went; say so here";
}

}  // namespace
