// SPDX-License-Identifier: Apache-2.0
// attention() against PyTorch's scaled_dot_product_attention and flex_attention (sdpa.txt, scores.txt).
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "golden.hpp"

namespace {

/// (…, …) of a file as a Tensor of rank 4: missing leading axes have extent 1.
template <class T> mha::Tensor<T, 4> rank4(const golden::Tensor& from) {
  std::vector<int> e(4, 1);
  std::copy_backward(from.extent.begin(), from.extent.end(), e.end());
  mha::Tensor<T, 4> to(e[0], e[1], e[2], e[3]);
  std::transform(from.values.begin(), from.values.end(), to.begin(), [](double x) { return static_cast<T>(x); });
  return to;
}

/// The policies a case asks for, by the keys it has; the file is free to name any combination that is listed here.
std::string policies_of(const golden::Case& c) {
  std::string names;
  for (const char* key : {"causal_top_left", "allowed", "causal", "window_left", "softcap", "alibi", "bias"})
    if (c.has(key)) names += (names.empty() ? "" : " ") + std::string(key);
  return names;
}

template <class Backend, class T> class CaseCheck {
 public:
  explicit CaseCheck(const golden::Case& c)
      : case_(c), q_(rank4<T>(c.tensor("q"))), k_(rank4<T>(c.tensor("k"))), v_(rank4<T>(c.tensor("v"))) {}

  void check() {
    const std::string names = policies_of(case_);
    const auto softcap = [&] { return mha::SoftCap{static_cast<float>(case_.real("softcap"))}; };
    const auto window = [&] {
      return mha::SlidingWindow{.left = static_cast<int>(case_.integer("window_left")),
                                .right = static_cast<int>(case_.integer("window_right"))};
    };
    const mha::Causal causal;
    const mha::Alibi alibi;
    if (names.empty()) return compare();
    if (names == "causal_top_left") return compare(mha::CausalTopLeft{});
    if (names == "allowed") {
      const auto allowed = rank4<bool>(case_.tensor("allowed"));
      return compare(mha::Dense{allowed});
    }
    if (names == "bias") {
      const auto bias = rank4<T>(case_.tensor("bias"));
      return compare(mha::AdditiveBias{bias});
    }
    if (names == "causal") return compare(causal);
    if (names == "window_left") return compare(window());
    if (names == "causal window_left") return compare(causal, window());
    if (names == "softcap") return compare(softcap());
    if (names == "causal softcap") return compare(softcap(), causal);
    if (names == "alibi") return compare(alibi);
    if (names == "causal alibi") return compare(alibi, causal);
    if (names == "window_left alibi") return compare(window(), alibi);
    if (names == "causal softcap alibi") return compare(causal, softcap(), alibi);
    if (names == "window_left softcap bias") {
      const auto bias = rank4<T>(case_.tensor("bias"));
      return compare(softcap(), window(), mha::AdditiveBias{bias});
    }
    FAIL() << case_.name << " has the keys '" << names << "', which no line of this test maps to policies";
  }

 private:
  template <class... Policies> void compare(const Policies&... policies) {
    const auto with_scale = [&](auto&&... rest) {
      return case_.has("scale") ? mha::attention<Backend>(rest..., mha::Scale{case_.real("scale")})
                                : mha::attention<Backend>(rest...);
    };
    const auto view = [](const mha::Tensor<T, 4>& t) {
      return mha::view_bhld(t.data(), t.extent(0), t.extent(1), t.extent(2), t.extent(3));
    };
    mha::Tensor<T, 3> lse(q_.extent(0), q_.extent(1), q_.extent(2));
    const auto out = with_scale(view(q_), view(k_), view(v_), policies..., mha::LogSumExp{lse});
    compare(out, lse);
  }

  void compare(const mha::Tensor<T, 4>& out, const mha::Tensor<T, 3>& lse) {
    const int batch = q_.extent(0), heads = q_.extent(1), length = q_.extent(2), dim = v_.extent(3);
    const auto expected = rank4<double>(case_.tensor("out"));
    const golden::Tensor& expected_lse = case_.tensor("lse");
    ASSERT_EQ(expected.extent(3), dim);
    ASSERT_EQ(expected_lse.values.size(), lse.size());

    std::size_t row = 0;
    for (int b = 0; b < batch; ++b)
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < length; ++i, ++row) {
          const double row_lse = expected_lse.values[row];
          const bool empty = row_lse == -std::numeric_limits<double>::infinity();
          const std::string at = case_.name + " (" + policies_of(case_) + ") at batch " + std::to_string(b) +
                                 ", head " + std::to_string(h) + ", row " + std::to_string(i);
          if (empty)
            EXPECT_EQ(lse(b, h, i), -std::numeric_limits<T>::infinity()) << at;
          else
            EXPECT_NEAR(lse(b, h, i), row_lse, tolerance(row_lse)) << at;
          for (int d = 0; d < dim; ++d) {
            if (empty)
              EXPECT_EQ(out(b, i, h, d), T(0)) << at;
            else
              EXPECT_NEAR(out(b, i, h, d), expected(b, h, i, d), tolerance(row_lse)) << at << ", column " << d;
          }
        }
  }

  /// float: a logit is off by some units in its last place, and so is every weight, relatively.
  double tolerance(double row_lse) const {
    const double exact = case_.real("tolerance");
    return std::is_same_v<T, double> ? exact : std::max(exact, 4e-6 * (4 + std::abs(row_lse)));
  }

  const golden::Case& case_;
  const mha::Tensor<T, 4> q_, k_, v_;
};

template <class Backend, class T> struct Machine {
  using B = Backend;
  using Scalar = T;
};

template <class M> class GoldenAttention : public testing::Test {
 protected:
  void check_file(const char* name, std::size_t count) {
    const auto cases = golden::read(std::string(MHA_GOLDEN_DIR) + "/" + name);
    EXPECT_EQ(cases.size(), count) << name << ": a case came or went; say so here";
    for (const golden::Case& c : cases) CaseCheck<typename M::B, typename M::Scalar>(c).check();
  }
};
using Machines = testing::Types<Machine<mha::Reference, double>, Machine<mha::Cpu, double>, Machine<mha::Cpu, float>>;
TYPED_TEST_SUITE(GoldenAttention, Machines, );

TYPED_TEST(GoldenAttention, ScaledDotProductAttention) { this->check_file("sdpa.txt", 29); }

TYPED_TEST(GoldenAttention, ScoresAndWindows) { this->check_file("scores.txt", 20); }

// In float −1e9 + s is −1e9 for every small s: such a row is visible and uniform, neither hidden nor NaN.
TEST(GoldenAttentionInFloat, ALargeFiniteBiasIsANumber) {
  const auto cases = golden::read(std::string(MHA_GOLDEN_DIR) + "/sdpa.txt");
  const auto found =
      std::find_if(cases.begin(), cases.end(), [](const golden::Case& c) { return c.name == "bias_large_finite"; });
  ASSERT_NE(found, cases.end());
  const auto q = rank4<float>(found->tensor("q")), k = rank4<float>(found->tensor("k")),
             v = rank4<float>(found->tensor("v")), bias = rank4<float>(found->tensor("bias"));
  const int heads = q.extent(1), lq = q.extent(2), lk = k.extent(2), dim = q.extent(3);
  const auto out =
      mha::attention(mha::view_bhld(q.data(), 1, heads, lq, dim), mha::view_bhld(k.data(), 1, heads, lk, dim),
                     mha::view_bhld(v.data(), 1, heads, lk, dim), mha::AdditiveBias{bias});
  const int row = 1;
  ASSERT_EQ(bias(0, 0, row, 0), -1e9f);
  for (int h = 0; h < heads; ++h)
    for (int d = 0; d < dim; ++d) {
      double mean = 0;
      for (int j = 0; j < lk; ++j) mean += double(v(0, h, j, d)) / lk;
      EXPECT_NEAR(out(0, row, h, d), mean, 1e-6);
    }
}

}  // namespace
