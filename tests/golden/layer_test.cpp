// SPDX-License-Identifier: Apache-2.0
// The layer against PyTorch's nn.MultiheadAttention (mha.txt), its weights borrowed (out, in) as checkpoints have them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "golden.hpp"

namespace {

template <class T> std::vector<T> numbers(const golden::Tensor& from) {
  std::vector<T> to;
  for (const double x : from.values) to.push_back(static_cast<T>(x));
  return to;
}
template <class T, int Rank> mha::Tensor<T, Rank> of_rank(const golden::Tensor& from) {
  std::vector<int> e(std::size_t{Rank}, 1);
  std::copy_backward(from.extent.begin(), from.extent.end(), e.end());
  mha::Tensor<T, Rank> to = [&] {
    if constexpr (Rank == 3)
      return mha::Tensor<T, 3>(e[0], e[1], e[2]);
    else
      return mha::Tensor<T, 4>(e[0], e[1], e[2], e[3]);
  }();
  std::transform(from.values.begin(), from.values.end(), to.begin(), [](double x) { return static_cast<T>(x); });
  return to;
}

template <class T> struct Linear {
  std::vector<T> weight, bias;
  int out = 0, in = 0;

  Linear(const golden::Case& c, const std::string& name) {
    const golden::Tensor& w = c.tensor(name + "_weight");
    weight = numbers<T>(w);
    out = w.extent[0];
    in = w.extent[1];
    if (c.has(name + "_bias")) bias = numbers<T>(c.tensor(name + "_bias"));
  }
  mha::TensorView<const T, 2> in_out() const {
    return mha::transposed(mha::view(static_cast<const T*>(weight.data()), out, in));
  }
  mha::TensorView<const T, 1> bias_view() const {
    if (bias.empty()) return {};
    return mha::view(static_cast<const T*>(bias.data()), out);
  }
};

template <class Backend, class T> class CaseCheck {
 public:
  explicit CaseCheck(const golden::Case& c)
      : case_(c),
        x_(of_rank<T, 3>(c.tensor("x"))),
        query_(c, "query"),
        key_(c, "key"),
        value_(c, "value"),
        output_(c, "output") {}

  void check() {
    const bool lengths = case_.has("lengths"), allowed = case_.has("allowed"), bias = case_.has("bias");
    const auto visible_keys = lengths ? numbers<int>(case_.tensor("lengths")) : std::vector<int>{};
    const auto table = allowed ? of_rank<bool, 4>(case_.tensor("allowed")) : mha::Tensor<bool, 4>{};
    const auto added = bias ? of_rank<T, 4>(case_.tensor("bias")) : mha::Tensor<T, 4>{};
    const mha::Padding padding{visible_keys};
    const mha::Dense dense{table};
    const mha::AdditiveBias additive{added};
    if (bias && lengths) return compare(additive, padding);
    if (bias) return compare(additive);
    if (allowed && lengths) return compare(dense, padding);
    if (allowed) return compare(dense);
    if (lengths) return compare(padding);
    compare();
  }

 private:
  template <class... Extras> void compare(const Extras&... extras) {
    mha::MultiHeadAttention<T, Backend> layer({.d_model = query_.in,
                                               .num_heads = static_cast<int>(case_.integer("heads")),
                                               .kv_model = key_.in,
                                               .bias = !query_.bias.empty()});
    layer.borrow({.query = query_.in_out(),
                  .key = key_.in_out(),
                  .value = value_.in_out(),
                  .output = output_.in_out(),
                  .query_bias = query_.bias_view(),
                  .key_bias = key_.bias_view(),
                  .value_bias = value_.bias_view(),
                  .output_bias = output_.bias_view()});
    if (case_.has("memory")) {
      const auto memory = of_rank<T, 3>(case_.tensor("memory"));
      near("out", layer(x_, memory, extras...));
      near_weights(layer, x_, memory, extras...);
    } else {
      near("out", layer(x_, extras...));
      near_weights(layer, x_, extras...);
    }
  }

  template <class Layer, class... Arguments> void near_weights(const Layer& layer, const Arguments&... arguments) {
    if (case_.has("mean_weights"))
      near("mean_weights", layer.mean_attention_weights(arguments...));
    else
      near("weights", layer.attention_weights(arguments...));
  }

  template <int Rank> void near(const char* key, const mha::Tensor<T, Rank>& found) {
    const golden::Tensor& expected = case_.tensor(key);
    for (int a = 0; a < Rank; ++a) ASSERT_EQ(found.extent(a), expected.extent[static_cast<std::size_t>(a)]);
    const double tolerance = std::is_same_v<T, double> ? case_.real("tolerance") : 2e-5;
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found.data()[i], expected.values[i], tolerance) << case_.name << ": " << key << " at " << i;
  }

  const golden::Case& case_;
  const mha::Tensor<T, 3> x_;
  const Linear<T> query_, key_, value_, output_;
};

template <class Backend, class T> struct Machine {
  using B = Backend;
  using Scalar = T;
};
template <class M> class GoldenLayer : public testing::Test {};
using Machines = testing::Types<Machine<mha::Reference, double>, Machine<mha::Cpu, double>, Machine<mha::Cpu, float>>;
TYPED_TEST_SUITE(GoldenLayer, Machines, );

TYPED_TEST(GoldenLayer, MultiheadAttention) {
  const auto cases = golden::read(std::string(MHA_GOLDEN_DIR) + "/mha.txt");
  EXPECT_EQ(cases.size(), 17U) << "a case came or went; say so here";
  for (const golden::Case& c : cases) CaseCheck<typename TypeParam::B, typename TypeParam::Scalar>(c).check();
}

}  // namespace
