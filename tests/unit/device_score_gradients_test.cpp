// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/device_score_gradients.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "score_gradient_case.hpp"

namespace {

using mha::Index;

/// A backend that sums the gradients of scores itself: by loops over all pairs, after those of the Reference.
struct OwnSums : mha::Reference {
  static constexpr bool sums_scores = true;

  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const mha::AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace& workspace) const {
    using A = mha::Accumulator<T>;
    using Sum = mha::LongSum<A>;
    const auto& shape = call.forward.shape;
    // As the Reference wants it: sums that are 0 at first, in the order of the score's parts.
    auto own = call;
    const std::size_t heads = static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.heads);
    std::vector<Sum> slots(heads * static_cast<std::size_t>(call.score.count), Sum(0));
    own.score.slots = slots.data();
    const auto distances = mha::RelativeBias::distances_of(shape);
    const Index first = distances.least;
    const std::ptrdiff_t all = distances.count;
    std::vector<Sum> by_distance(heads * static_cast<std::size_t>(all), Sum(0));
    std::vector<Sum> of_bias(heads * static_cast<std::size_t>(shape.queries) * static_cast<std::size_t>(shape.keys),
                             Sum(0));
    const std::ptrdiff_t keys = shape.keys, pairs = keys * shape.queries;
    auto& distances_to = own.score.tables[Wanted::bias ? 1 : 0];
    distances_to = {by_distance.data() - first, nullptr, {shape.heads * all, all, -1, 1}, mha::Origins(0)};
    if (Wanted::bias)
      own.score.tables[0] = {of_bias.data(), nullptr, {shape.heads * pairs, pairs, keys, 1}, shape.origin};
    mha::Reference::attend_backward(own, workspace);
    std::copy(slots.begin(), slots.end(), call.score.slots);
    const auto& bias = call.score.bias;
    const auto& table = call.score.tables[0];
    const auto each = [&](auto&& f) {
      for (Index b = 0; b < shape.batch; ++b)
        for (Index h = 0; h < shape.heads; ++h) f(b, h);
    };
    const auto pair = [&](auto&& f) {
      each([&](Index b, Index h) {
        for (Index q = 0; q < shape.queries; ++q)
          for (Index k = 0; k < shape.keys; ++k)
            f(bias.elements[b * bias.stride[0] + h * bias.stride[1] + q * bias.stride[2] + k * bias.stride[3]],
              of_bias[static_cast<std::size_t>((b * shape.heads + h) * pairs + q * keys + k)]);
      });
    };
    if (Wanted::bias) {
      pair([](A& to, Sum) { to = 0; });
      pair([](A& to, Sum x) { to += static_cast<A>(x); });
    }
    if (table.sums == nullptr) return;  // no table
    each([&](Index b, Index h) {
      for (std::ptrdiff_t i = 0; i < table.count; ++i) table.sums[table.at(b, h, 0, table.least + Index(i))] = 0;
      for (std::ptrdiff_t i = 0; i < all; ++i) {
        const Index at = first + static_cast<Index>(i), last = table.least + static_cast<Index>(table.count) - 1;
        const Index inside = at < table.least ? table.least : at > last ? last : at;
        table.sums[table.at(b, h, 0, inside)] += distances_to.sums[distances_to.at(b, h, 0, at)];
      }
    });
  }
};

const mha::Chain score{mha::RelativeBias(std::vector<float>(16, 0.25f), {8, 9, true}), mha::AlibiSlopes({0.5f, 0.25f})};

TEST(DeviceScoreGradients, AreThoseThatTheBackendHasSummed) {
  const support::BackwardSizes n{2, 21, 30, 2, 1, 4, 4};
  const support::BackwardCase<float> c("own sums", n);
  for (const int axes : {0, 1, 7, 15}) {
    const auto bias = support::repeated_bias<float>("own sums", n, axes);
    const auto expected = support::score_gradients<mha::Reference, float>(c, bias, score, mha::Causal{});
    const auto found = support::score_gradients<OwnSums, float>(c, bias, score, mha::Causal{});
    EXPECT_LE(support::relative_error(found.bias, expected.bias, 1), 1e-5);
    EXPECT_LE(support::relative_error(found.numbers, expected.numbers, 1), 1e-6);
    EXPECT_TRUE((support::adds_bias_gradient<OwnSums, float>(c, bias, score, mha::Causal{}))) << axes;
  }
}

/// A layer takes them too, of its own score and of the call's.
TEST(DeviceScoreGradients, AreThoseOfALayer) {
  support::Random random("own sums of a layer");
  mha::Tensor<float, 3> x(2, 13, 8), dy(2, 13, 8);
  random.fill(x), random.fill(dy);
  const auto numbers = [&]<class B>(const B&) {
    mha::MultiHeadAttention<float, B, mha::Causal, std::remove_const_t<decltype(score)>> layer(
        {.d_model = 8, .num_heads = 2}, score);
    layer.initialize(mha::XavierUniform{.seed = 1});
    auto tape = layer.tape();
    auto gradients = layer.gradients();
    support::BentScore<> of_call{0.25f, 1.f};
    std::vector<double> all;
    for (int step = 0; step < 2; ++step) {
      static_cast<void>(layer(x, tape, of_call));
      static_cast<void>(layer.backward(dy, tape, gradients, mha::ScoreGradient(of_call)));
    }
    for (const auto& of : {support::numbers_of(gradients.score), support::numbers_of(of_call)})
      all.insert(all.end(), of.begin(), of.end());
    return all;
  };
  const auto found = numbers(OwnSums{}), expected = numbers(mha::Reference{});
  EXPECT_LE(support::relative_error(found, expected, 1), 1e-5);
  EXPECT_GT(support::relative_error(found, std::vector<double>(found.size()), 1), 0.1);
}

/// Numbers that a score sums itself stand behind the others of a head.
TEST(DeviceScoreGradients, HaveThoseOfAScoreThatAccumulates) {
  const support::BackwardCase<float> c("own sums that accumulate", {2, 21, 30, 2, 1, 4, 4});
  const mha::Chain mixed{support::TableScore<5>{{0.5, -1, 0.25, 0, 1}},
                         mha::Chain{mha::AlibiSlopes({0.5f, 0.25f}), support::TableScore<3>{{1, 2, 3}}}};
  const auto expected = support::score_gradient<mha::Reference>(c, mixed, mha::Causal{});
  EXPECT_EQ(expected.size(), 5u + 2 + 3);
  EXPECT_EQ(support::score_gradient<OwnSums>(c, mixed, mha::Causal{}), expected);
}

/// Gradients are written to a copy of the score.
struct Sharing {
  float* of;
  std::span<float> numbers() const { return {of, 2}; }
  template <class S> S operator()(S s, Index, Index, Index, Index) const { return s + of[0]; }
  template <class G, class S> void accumulate(G gradient, S dt, S, Index, Index, Index, Index) const {
    gradient[0] += dt;
  }
};
TEST(DeviceScoreGradients, RefuseAScoreWhoseCopiesShareItsNumbers) {
  float shared[] = {1, 2};
  const Sharing sharing{shared};
  const support::BackwardCase<float> c("own sums shared", {1, 3, 3, 1, 1, 4, 4});
  const std::string said = support::message_of([&] { static_cast<void>(c.gradients<OwnSums>(sharing)); });
  EXPECT_NE(said.find("a copy of the score shares the memory of its 2 numbers()"), std::string::npos) << said;
}

TEST(DeviceScoreGradients, ATableByDistanceReachesAsFarAsItsBucketsAndTheCall) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  using Wanted = mha::detail::WantedScoreGradients<false, true>;
  const auto table = [&](Index queries, Index keys, Index reach) {
    const mha::RelativeBias bias(std::vector<float>(16, 0.f), {8, reach, true});
    const mha::CallShape shape{1, 2, queries, keys, mha::Origins(keys - queries)};
    using Head = mha::RelativeBias::OfHead;
    return mha::detail::DeviceScoreGradients<float, Wanted, Head, mha::RelativeBias, OwnSums>("call", OwnSums{}, bias,
                                                                                              shape, frame)
        .to.tables[0];
  };
  EXPECT_EQ(table(40, 40, 9).least, -9);
  EXPECT_EQ(table(40, 40, 9).count, 19);
  EXPECT_EQ(table(3, 5, 9).least, -4);
  EXPECT_EQ(table(3, 5, 9).count, 4 + 3);
}

TEST(RoundedTable, RoundsEachElementToItsPlace) {
  const std::vector<float> from{1.5f, 2.0009765625f, 3, 4, 5, 6};
  mha::Tensor<mha::half, 4> to(1, 3, 1, 2);
  const mha::detail::RoundedTable<float, mha::half> items{3, 2, 1, from.data(), to.view()};
  mha::detail::run_serially(items);
  EXPECT_EQ(static_cast<float>(to(0, 0, 0, 1)), 2.f);
  EXPECT_EQ(static_cast<float>(to(0, 2, 0, 0)), 5.f);
  const mha::detail::RoundedTable<float, mha::half> more{3, 2, 1, from.data(), to.view(), true};
  mha::detail::run_serially(more);
  EXPECT_EQ(static_cast<float>(to(0, 0, 0, 1)), 4.f);
  EXPECT_EQ(static_cast<float>(to(0, 2, 0, 0)), 10.f);
}

}  // namespace
