// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include <mha/core/view.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/score_gradient.hpp>

namespace {

using mha::Index;
namespace detail = mha::detail;
using Both = detail::WantedScoreGradients<true, true>;

template <class T = float> struct Line {
  T slope, level;
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return s * level - slope * static_cast<float>(q - k);
  }
};
template <class T> struct Foreign {
  T slope;
  int window;
  template <class S> auto operator()(S s, Index, Index, Index, Index) const { return s * slope; }
};
template <class T> struct Wide {
  T slope;
  double level;
  template <class S> auto operator()(S s, Index, Index, Index, Index) const { return s * slope; }
};
template <class T> struct Pointer {
  T slope;
  std::shared_ptr<T> more;
  template <class S> auto operator()(S s, Index, Index, Index, Index) const { return s * slope; }
};
template <class T> struct Fixed {
  static constexpr bool trainable = false;
  T slope;
  int window;
  template <class S> auto operator()(S s, Index, Index, Index, Index) const { return s * slope; }
};
template <class T> struct None {
  template <class S> auto operator()(S s, Index, Index, Index, Index) const { return s; }
};

TEST(ScoreGradient, TellsTrainedTemplates) {
  EXPECT_TRUE(detail::is_trained_template<Line<float>>());
  EXPECT_TRUE(detail::is_trained_template<Line<double>>());
  EXPECT_TRUE(detail::asks_training<Foreign<float>>());
  EXPECT_FALSE(detail::is_trained_template<Foreign<float>>());
  EXPECT_FALSE(detail::is_trained_template<Foreign<double>>());
  EXPECT_FALSE(detail::is_trained_template<Wide<float>>());
  EXPECT_FALSE(detail::is_trained_template<Wide<double>>() && detail::is_trained_template<Wide<float>>());
  EXPECT_FALSE(detail::is_trained_template<Pointer<double>>());
  EXPECT_FALSE(detail::asks_training<Fixed<float>>());
  EXPECT_FALSE(detail::asks_training<None<float>>());
  EXPECT_FALSE(detail::asks_training<mha::AdditiveBias<float>>());
  EXPECT_FALSE(detail::asks_training<mha::Alibi>());
}

TEST(ScoreGradient, CountsNumbersOfChains) {
  using Bias = mha::AdditiveBias<float>;
  using All = mha::Chain<mha::Chain<Line<>, Bias>, mha::Chain<mha::Alibi, Line<double>>>;
  EXPECT_EQ((detail::Slots<Both, All>::count()), 4);
  EXPECT_EQ((detail::Tables<Both, All>::count()), 1);
  EXPECT_EQ((detail::Slots<detail::WantedScoreGradients<true, false>, All>::count()), 0);
  EXPECT_EQ((detail::Tables<detail::WantedScoreGradients<false, true>, All>::count()), 0);
  EXPECT_EQ((detail::Slots<mha::NoScoreGradients, All>::count()), 0);
}

TEST(ScoreGradient, LiftsEachNumberToItsVariable) {
  // t = cap(level · s − slope · (q − k) + bias), by hand.
  const float table[] = {0.25f};
  const mha::AdditiveBias<float> bias(mha::TensorView<const float, 4>{table, {1, 1, 1, 1}, {}}, mha::Origins(0));
  const Line<> line{0.5f, 2.f};
  const mha::Chain score{mha::Chain{line, bias}, mha::Chain{mha::SoftCap{3.f}, mha::NoScore{}}};
  const double s = 0.4, inner = 2 * s - 0.5 * (5 - 3) + 0.25, t = std::tanh(inner / 3);
  using D = mha::Dual<double, 4>;
  using Wanted = detail::WantedScoreGradients<true, false>;
  const auto lifted = detail::lifted<Both, D>(mha::Chain{line, bias}, 1, 3)(D::variable(s), 0, 0, 5, 3);
  EXPECT_DOUBLE_EQ(lifted.value, inner);
  EXPECT_DOUBLE_EQ(lifted.derivative[0], 2);
  EXPECT_DOUBLE_EQ(lifted.derivative[1], -2);
  EXPECT_DOUBLE_EQ(lifted.derivative[2], s);
  EXPECT_DOUBLE_EQ(lifted.derivative[3], 1);
  const auto only_bias =
      detail::lifted<Wanted, mha::Dual<double, 2>>(score, 1, 1)(mha::Dual<double, 2>::variable(s), 0, 0, 5, 3);
  EXPECT_DOUBLE_EQ(only_bias.value, 3 * t);
  EXPECT_NEAR(only_bias.derivative[0], 2 * (1 - t * t), 1e-15);
  EXPECT_NEAR(only_bias.derivative[1], 1 - t * t, 1e-15);
  // Variables beyond those of the number are constants.
  const auto last =
      detail::lifted<Both, mha::Dual<double, 2>>(line, 0, 2)(mha::Dual<double, 2>::variable(s), 0, 0, 5, 3);
  EXPECT_DOUBLE_EQ(last.derivative[1], s);
}

struct Own {
  template <class T> T operator()(T s, Index, Index, Index, Index) const { return mha::exp(s); }
  template <class T> T derivative(T s, T t, Index, Index, Index, Index) const { return 7 * t + s; }
};

TEST(ScoreGradient, TakesAScoresOwnDerivative) {
  const auto t = detail::lifted<mha::NoScoreGradients, mha::Dual<double>>(mha::Chain{Own{}, mha::SoftCap{9.f}}, 0, 0)(
      mha::Dual<double>::variable(0.5), 0, 0, 0, 0);
  const double e = std::exp(0.5), cap = std::tanh(e / 9);
  EXPECT_NEAR(t.derivative[0], (7 * e + 0.5) * (1 - cap * cap), 1e-13);
}

/// A number that a score sums itself, in any span, and one in the host's alone.
template <int Which> struct Summed {
  float number = 1;
  std::span<float> numbers() { return {&number, 1}; }
  std::span<const float> numbers() const { return {&number, 1}; }
  template <class T> T operator()(T s, Index, Index, Index, Index) const { return s + number; }
  template <class G, class T> void accumulate(G gradient, T dt, T, Index, Index, Index, Index) const {
    gradient[0] += Which * dt;
  }
};
struct OnHostAlone : Summed<9> {
  template <class T> void accumulate(std::span<double> gradient, T dt, T, Index, Index, Index, Index) const {
    gradient[0] += double(dt);
  }
};

TEST(ScoreGradient, TellsWhatAccumulatesOnADevice) {
  using Wanted = detail::WantedScoreGradients<false, true>;
  EXPECT_TRUE((detail::all_accumulate_on_device<Wanted, Summed<1>>()));
  EXPECT_TRUE((detail::all_accumulate_on_device<Wanted, Line<>>()));
  EXPECT_FALSE((detail::all_accumulate_on_device<Wanted, OnHostAlone>()));
  EXPECT_FALSE((detail::all_accumulate_on_device<Wanted, mha::Chain<Summed<1>, OnHostAlone>>()));
  EXPECT_FALSE((detail::all_accumulate_on_device<Wanted, mha::Chain<OnHostAlone, Line<>>>()));
  EXPECT_TRUE((detail::all_accumulate_on_device<mha::NoScoreGradients, OnHostAlone>()));
}

TEST(ScoreGradient, FindsThePartsThatAccumulate) {
  using Wanted = detail::WantedScoreGradients<false, true>;
  const mha::Chain score{mha::Chain{Line<>{1, 2}, Summed<1>{}},
                         mha::Chain{Summed<2>{}, mha::Chain{Line<>{}, Summed<3>{}}}};
  EXPECT_EQ(&(detail::accumulating_part<Wanted, 0>(score)), &score.first.second);
  EXPECT_EQ(&(detail::accumulating_part<Wanted, 1>(score)), &score.second.first);
  EXPECT_EQ(&(detail::accumulating_part<Wanted, 2>(score)), &score.second.second.second);
  using OfSecond = detail::WantedOfChain<false, false, true>;
  EXPECT_EQ(&(detail::accumulating_part<OfSecond, 0>(score)), &score.second.first);
}

TEST(DeviceSpan, HasTheElementsThatItIsGiven) {
  double numbers[] = {1, 2, 3};
  const detail::DeviceSpan<double> span{numbers, 3};
  span[1] += 5;
  EXPECT_EQ(numbers[1], 7);
  EXPECT_EQ(span.data(), +numbers);
  EXPECT_EQ(span.size(), 3u);
  EXPECT_FALSE(span.empty());
  EXPECT_TRUE((detail::DeviceSpan<double>{numbers, 0}.empty()));
}

TEST(TableGradient, AddsOrSetsElements) {
  double sums[6] = {};
  detail::TableGradient<float, double> table{sums, nullptr, {0, 3, 0, 1}, mha::Origins(10)};
  EXPECT_EQ(table.at(7, 1, 12, 2), 5);
  table.add(5, 1.5f);
  table.add(5, 2.f);
  EXPECT_EQ(sums[5], 3.5);
  float elements[2] = {};
  table.elements = elements;
  table.add(1, 1.5f);
  table.add(1, 2.f);
  EXPECT_EQ(elements[1], 2.f);
}

}  // namespace
