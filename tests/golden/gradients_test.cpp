// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, of its policies and of whole layers against PyTorch's (gradients.txt).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "golden.hpp"
#include "golden_tensor.hpp"

namespace {

using golden::tensor;
using mha::Index;

template <class Backend, class T> struct Machine {
  using B = Backend;
  using Scalar = T;
};
template <class M> class GoldenGradients : public testing::Test {};
using Machines = testing::Types<Machine<mha::Reference, double>, Machine<mha::Cpu, double>, Machine<mha::Cpu, float>>;
TYPED_TEST_SUITE(GoldenGradients, Machines, );

/// The cases of the file that have this key.
std::vector<golden::Case> cases_with(const char* key) {
  std::vector<golden::Case> found;
  for (golden::Case& c : golden::read(MHA_GOLDEN_DIR "/gradients.txt"))
    if (c.has(key)) found.push_back(std::move(c));
  return found;
}

std::vector<float> floats(const golden::Tensor& from) { return {from.values.begin(), from.values.end()}; }

/// Of numbers that the gradient's own size measures, with a bound for each precision.
template <class T, class Found>
void expect_near(const golden::Case& c, const std::string& key, const Found& found,
                 double bound = sizeof(T) == sizeof(float) ? 2e-5 : 1e-9) {
  const std::vector<double>& wanted = c.tensor(key).values;
  ASSERT_EQ(found.size(), wanted.size()) << c.name << ": " << key;
  double size = 1, worst = 0;
  for (const double x : wanted) size = std::max(size, std::abs(x));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    worst = support::maximum(worst, std::abs(static_cast<double>(found.data()[i]) - wanted[i]));
  EXPECT_LE(worst, bound * size) << c.name << ": " << key;
}
/// Parameters that the library has in float have their gradients in float, too: of a double's sums a rounding.
template <class T>
void expect_near_in_float(const golden::Case& c, const std::string& key, const std::vector<float>& found) {
  expect_near<T>(c, key, found, sizeof(T) == sizeof(float) ? 2e-5 : std::numeric_limits<float>::epsilon());
}

template <class B, class T> class AttentionCheck {
 public:
  explicit AttentionCheck(const golden::Case& c)
      : case_(c), q_(tensor("q")), k_(tensor("k")), v_(tensor("v")), d_out_(tensor("dout")) {}

  void check() const {
    const std::string& mask = case_.text("mask");
    if (mask == "full")
      check_masked(mha::Full{});
    else if (mask == "causal")
      check_masked(mha::Causal{});
    else if (mask == "window")
      check_masked(mha::SlidingWindow{.left = 2});
    else
      FAIL() << case_.name << " has the mask '" << mask << "', which no line of this test maps to a type";
  }

 private:
  mha::Tensor<T, 4> tensor(const char* key) const { return golden::tensor<T, 4>(case_.tensor(key)); }

  template <class Mask> void check_masked(const Mask& mask) const {
    if (case_.has("cap")) {
      mha::SoftCap given{static_cast<float>(case_.tensor("cap").values[0])}, to{1};
      if (case_.has("bias"))
        check_bias(mask, given, mha::ScoreGradient(to));
      else
        check_gradients(mask, given, mha::ScoreGradient(to));
      expect_near_in_float<T>(case_, "dcap", {to.cap});
    } else if (case_.has("bias")) {
      check_bias(mask);
    } else if (case_.has("slopes")) {
      mha::AlibiSlopes to({});
      check_gradients(mask, mha::AlibiSlopes(floats(case_.tensor("slopes"))), mha::ScoreGradient(to));
      expect_near_in_float<T>(case_, "dslopes", to.per_head());
    } else if (case_.has("table")) {
      const mha::RelativeBuckets buckets{.count = case_.tensor("table").extent[0], .max_distance = 6};
      mha::RelativeBias to({});
      check_gradients(mask, mha::RelativeBias(floats(case_.tensor("table")), buckets), mha::ScoreGradient(to));
      expect_near_in_float<T>(case_, "dtable", to.table());
    } else if (case_.has("sinks")) {
      mha::Tensor<mha::Accumulator<T>, 1> to(q_.extent(2));
      support::poison_all(to);
      check_gradients(mask, mha::Sink(floats(case_.tensor("sinks"))), mha::SinkGradient(to));
      expect_near<T>(case_, "dsinks", to);
    } else {
      check_gradients(mask);
    }
  }

  template <class Mask, class... Extra> void check_bias(const Mask& mask, const Extra&... extra) const {
    const auto bias = tensor("bias");
    mha::Tensor<T, 4> to(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
    support::poison_all(to);
    check_gradients(mask, extra..., mha::AdditiveBias{bias}, mha::BiasGradient(to));
    expect_near<T>(case_, "dbias", to);
  }

  /// The policies, the gradients that are asked for among them.
  template <class... Extra> void check_gradients(const Extra&... extra) const {
    mha::AttentionTape<T, B> tape;
    const auto out = forward(tape, extra...);
    expect_near<T>(case_, "out", out);
    auto d_q = q_, d_k = k_, d_v = v_;
    for (auto* to : {&d_q, &d_k, &d_v}) support::poison_all(*to);
    mha::attention_backward_into({d_q, d_k, d_v}, d_out_, q_, k_, v_, out, tape, extra...);
    expect_near<T>(case_, "dq", d_q);
    expect_near<T>(case_, "dk", d_k);
    expect_near<T>(case_, "dv", d_v);
  }
  /// The forward call takes the policies only.
  template <class... Extra> mha::Tensor<T, 4> forward(mha::AttentionTape<T, B>& tape, const Extra&... extra) const {
    const auto policy = []<class P>(const P& p) {
      if constexpr (mha::detail::PolicyArgument<P>)
        return std::tuple<const P&>(p);
      else
        return std::tuple<>();
    };
    return std::apply([&](const auto&... p) { return mha::attention<B>(q_, k_, v_, p..., mha::record(tape)); },
                      std::tuple_cat(policy(extra)...));
  }

  const golden::Case& case_;
  const mha::Tensor<T, 4> q_, k_, v_, d_out_;
};

TYPED_TEST(GoldenGradients, OfAttentionAndItsPolicies) {
  const auto cases = cases_with("mask");
  EXPECT_EQ(cases.size(), 16u) << "a case came or went; say so here";
  for (const golden::Case& c : cases) AttentionCheck<typename TypeParam::B, typename TypeParam::Scalar>(c).check();
}

/// A matrix of a checkpoint, (out, in), and rows of it as the library has them, (in, out).
template <class T> struct Matrix {
  mha::Tensor<T, 2> out_in;
  Matrix(const golden::Case& c, const std::string& key) : out_in(tensor<T, 2>(c.tensor(key))) {}
  mha::TensorView<const T, 2> rows(Index first, Index count) const {
    return mha::transposed(mha::view(&out_in(first, 0), count, out_in.extent(1)));
  }
  mha::TensorView<const T, 2> in_out() const { return rows(0, out_in.extent(0)); }
};

/// The gradients of matrices as the checkpoint has these, one below the other.
template <class A> std::vector<A> as_out_in(std::initializer_list<mha::TensorView<const A, 2>> parts) {
  std::vector<A> all;
  for (const auto& part : parts)
    for (Index o = 0; o < part.extent[1]; ++o)
      for (Index i = 0; i < part.extent[0]; ++i) all.push_back(part(i, o));
  return all;
}
/// The numbers of vectors, and of heads' vectors, one after another.
template <class A, class... Views> std::vector<A> joined(const Views&... parts) {
  std::vector<A> all;
  const auto append = [&](const auto& part) {
    if constexpr (std::remove_cvref_t<decltype(part)>::rank == 1) {
      for (Index i = 0; i < part.extent[0]; ++i) all.push_back(part(i));
    } else {
      for (Index h = 0; h < part.extent[0]; ++h)
        for (Index i = 0; i < part.extent[1]; ++i) all.push_back(part(h, i));
    }
  };
  (append(parts), ...);
  return all;
}

/// Checks what a call and its backward pass give but for the parameters, whose gradients it returns.
template <class T, class Layer> auto layer_gradients(const golden::Case& c, const Layer& layer) {
  const auto x = tensor<T, 3>(c.tensor("x")), dy = tensor<T, 3>(c.tensor("dout"));
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  auto dx = x;
  if (c.has("memory")) {
    const auto memory = tensor<T, 3>(c.tensor("memory"));
    auto d_memory = memory;
    expect_near<T>(c, "out", layer(x, memory, tape));
    support::poison_all(dx);
    support::poison_all(d_memory);
    layer.backward(dy, tape, gradients, mha::into(dx), mha::memory_into(d_memory));
    expect_near<T>(c, "dmemory", d_memory);
  } else {
    expect_near<T>(c, "out", layer(x, tape));
    support::poison_all(dx);
    layer.backward(dy, tape, gradients, mha::into(dx));
  }
  expect_near<T>(c, "dx", dx);
  return gradients;
}

TYPED_TEST(GoldenGradients, OfMultiheadAttention) {
  using T = typename TypeParam::Scalar;
  using A = mha::Accumulator<T>;
  std::vector<golden::Case> cases = cases_with("heads");
  std::erase_if(cases, [](const golden::Case& c) { return c.has("kv_heads"); });
  EXPECT_EQ(cases.size(), 3u) << "a case came or went; say so here";
  for (const golden::Case& c : cases) {
    const bool fused = c.has("in_weight"), bias = c.has("in_bias");
    const Matrix<T> q(c, fused ? "in_weight" : "query_weight"), k(c, fused ? "in_weight" : "key_weight"),
        v(c, fused ? "in_weight" : "value_weight"), o(c, "output_weight");
    const Index e = o.out_in.extent(0);
    const auto in_bias = bias ? tensor<T, 1>(c.tensor("in_bias")) : mha::Tensor<T, 1>();
    const auto out_bias = bias ? tensor<T, 1>(c.tensor("output_bias")) : mha::Tensor<T, 1>();
    const auto part = [&](Index i) {
      return bias ? mha::view(in_bias.data() + i * e, e) : mha::TensorView<const T, 1>{};
    };
    mha::MultiHeadAttention<T, typename TypeParam::B> layer({.d_model = e,
                                                             .num_heads = static_cast<Index>(c.integer("heads")),
                                                             .kv_model = k.out_in.extent(1),
                                                             .bias = bias});
    layer.borrow({.query = q.rows(0, e),
                  .key = k.rows(fused ? e : 0, e),
                  .value = v.rows(fused ? 2 * e : 0, e),
                  .output = o.in_out(),
                  .query_bias = part(0),
                  .key_bias = part(1),
                  .value_bias = part(2),
                  .output_bias = out_bias.view()});
    const auto g = layer_gradients<T>(c, layer);
    const auto matrix = [](const auto& projection) { return mha::TensorView<const A, 2>(projection.matrix()); };
    if (fused) {
      expect_near<T>(c, "din_weight", as_out_in<A>({matrix(g.query), matrix(g.key), matrix(g.value)}));
    } else {
      expect_near<T>(c, "dquery_weight", as_out_in<A>({matrix(g.query)}));
      expect_near<T>(c, "dkey_weight", as_out_in<A>({matrix(g.key)}));
      expect_near<T>(c, "dvalue_weight", as_out_in<A>({matrix(g.value)}));
    }
    expect_near<T>(c, "doutput_weight", as_out_in<A>({g.output.weight}));
    if (bias) {
      expect_near<T>(c, "din_bias", joined<A>(g.query.bias, g.key.bias, g.value.bias));
      expect_near<T>(c, "doutput_bias", joined<A>(g.output.bias));
    }
  }
}

TYPED_TEST(GoldenGradients, OfDecoderLayers) {
  using T = typename TypeParam::Scalar;
  using B = typename TypeParam::B;
  using A = mha::Accumulator<T>;
  const auto cases = cases_with("kv_heads");
  EXPECT_EQ(cases.size(), 2u) << "a case came or went; say so here";
  for (const golden::Case& c : cases) {
    const Matrix<T> q(c, "query_weight"), k(c, "key_weight"), v(c, "value_weight"), o(c, "output_weight");
    const mha::Config config{.d_model = q.out_in.extent(1),
                             .num_heads = static_cast<Index>(c.integer("heads")),
                             .num_kv_heads = static_cast<Index>(c.integer("kv_heads")),
                             .head_dim = static_cast<Index>(c.integer("head_dim"))};
    const auto check = [&](auto& layer) {
      const bool normed = c.has("query_norm");
      const auto norm = [&](const char* key) { return normed ? tensor<T, 1>(c.tensor(key)) : mha::Tensor<T, 1>(); };
      const auto query_norm = norm("query_norm"), key_norm = norm("key_norm");
      layer.borrow({.query = q.in_out(),
                    .key = k.in_out(),
                    .value = v.in_out(),
                    .output = o.in_out(),
                    .query_norm = query_norm.view(),
                    .key_norm = key_norm.view()});
      const auto g = layer_gradients<T>(c, layer);
      const auto matrix = [](const auto& projection) { return mha::TensorView<const A, 2>(projection.matrix()); };
      expect_near<T>(c, "dquery_weight", as_out_in<A>({matrix(g.query)}));
      expect_near<T>(c, "dkey_weight", as_out_in<A>({matrix(g.key)}));
      expect_near<T>(c, "dvalue_weight", as_out_in<A>({matrix(g.value)}));
      expect_near<T>(c, "doutput_weight", as_out_in<A>({g.output.weight}));
      if (normed) {
        expect_near<T>(c, "dquery_norm", joined<A>(g.query_norm));
        expect_near<T>(c, "dkey_norm", joined<A>(g.key_norm));
      }
    };
    using Heads = mha::GroupedQuery<mha::Dynamic>;
    if (c.has("query_norm")) {
      mha::MultiHeadAttention<T, B, Heads, mha::Causal, mha::QkNorm, mha::Rotary<>> layer(
          config, mha::QkNorm{.eps = c.real("eps")});
      check(layer);
    } else {
      mha::MultiHeadAttention<T, B, Heads, mha::Causal, mha::Rotary<>> layer(config);
      check(layer);
    }
  }
}

TEST(GoldenGradientsFile, HasOnlyCasesThatAreTested) {
  EXPECT_EQ(cases_with("mask").size() + cases_with("heads").size(),
            golden::read(MHA_GOLDEN_DIR "/gradients.txt").size());
}

}  // namespace
