// SPDX-License-Identifier: Apache-2.0
// The backward pass over the covering array: every mask with every score, scale, origin, sink, group, instruction set
// and dropout; and over another, every score that is trained in the place of the scores. On the reference it is the
// derivative of the forward pass, which dual numbers know; the other backends are near that.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention_backward.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/core/dual.hpp>
#include <mha/policy/score/alibi_slopes.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "run_case.hpp"
#include "trained_scores.hpp"

namespace {

using conformance::Case;
using conformance::Problem;
using mha::Index;
using support::BackwardCase;
using AnyMask = support::Unprepared<support::AnyMask>;

/// A case with one of the factor's sizes up to `most`.
void shrink(Case& c, conformance::Factor factor, int most) {
  const auto& levels = conformance::factors()[factor].levels;
  std::vector<int> small;
  for (std::size_t i = 0; i < levels.size(); ++i)
    if (std::stoi(levels[i]) <= most) small.push_back(static_cast<int>(i));
  c.row[factor] = small[static_cast<std::size_t>(c.row[factor]) % small.size()];
}

/// A level of a case's instruction sets, until the end of a scope.
class AtLevel {
 public:
  explicit AtLevel(const Case& c) { mha::force_isa(c.at<mha::IsaLevel>(conformance::isa)); }
  ~AtLevel() { mha::force_isa(before_); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  mha::IsaLevel before_ = mha::current_isa();
};

/// Gradients of q, k and v near those in double, for logits of this size. A query that sees one key has the gradient 0,
/// the difference of two sums.
template <class T, class Found, class Expected>
void expect_near(const char* backend, const BackwardCase<T>& c, const Found& found, const Expected& expected,
                 double bound) {
  const double least = 1 + 0.1 * std::sqrt(support::inner(c.d_out, c.d_out));
  EXPECT_LE(support::relative_error(found.query, expected.query, least), bound) << backend << ": query";
  EXPECT_LE(support::relative_error(found.key, expected.key, least), bound) << backend << ": key";
  EXPECT_LE(support::relative_error(found.value, expected.value, least), bound) << backend << ": value";
  EXPECT_EQ(found.sink.size(), expected.sink.size());
  EXPECT_LE(support::relative_error(found.sink, expected.sink, 1), bound) << backend << ": sink";
}
/// The same of inputs that T can hold.
template <class B, class T, class... Extra>
void expect_near_reference(const char* backend, const BackwardCase<double>& exact, double bound,
                           const Extra&... extra) {
  const auto c = exact.template as<T>();
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  expect_near(backend, c, c.template gradients<B>(extra...), expected, bound);
}

/// ⟨d_out, out⟩ by the Reference, q, k and v moved by `step` along a direction.
template <class... Extra>
double moved_loss(const BackwardCase<double>& c, const BackwardCase<double>& direction, double step,
                  const Extra&... extra) {
  BackwardCase<double> moved = c;
  const auto move = [&](auto& x, const auto& along) {
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] += step * along.data()[i];
  };
  move(moved.q, direction.q);
  move(moved.k, direction.k);
  move(moved.v, direction.v);
  return support::inner(c.d_out, mha::attention<mha::Reference>(moved.q, moved.k, moved.v, extra...));
}
constexpr double step = 1e-6;  // of central differences

/// What a case's calls are made of.
struct Inputs {
  Problem problem;
  BackwardCase<double> c, direction;
  double times = 0;  ///< what an exponential and a weight that is kept make of rounding
  AnyMask mask;

  Inputs(const Case& which, support::Random& random) : Inputs(which, Problem(which, random)) {}

  /// f(mask, what else a call is given but for scores…).
  template <class F> void call(F&& f) const {
    f(mask, mha::Scale{problem.scale}, problem.origin_argument(), mha::Sink(problem.sink),
      mha::Dropout{.p = problem.drops}, mha::DropoutSeed{problem.seed});
  }

 private:
  Inputs(const Case& which, Problem p)
      : problem(std::move(p)),
        c(which.text(), sizes()),
        direction(which.text() + ", direction", sizes()),
        mask(conformance::with_masks(problem, [](const auto&... masks) {
          return AnyMask::template of<mha::Reference, double>(mha::detail::collect_masks(masks...));
        })) {
    problem.q = c.q;
    problem.k = c.k;
    problem.v = c.v;
    const conformance::Expected e = conformance::expected(problem);
    const double largest = e.magnitude.size() > 0 ? *std::max_element(e.magnitude.begin(), e.magnitude.end()) : 0;
    times = (1 + largest) / (1 - static_cast<double>(problem.drops));
  }
  support::BackwardSizes sizes() const {
    const Problem& p = problem;
    return {p.batch, p.queries, p.keys, p.heads, p.kv_heads, p.head_dim, p.value_dim};
  }
};

using Cpu = mha::CpuWith<mha::Serial>;
using EigenCpu = mha::EigenCpuWith<mha::Serial>;

void run(const Case& which, support::Random& random) {
  const Inputs in(which, random);
  const auto &c = in.c, &direction = in.direction;
  const double times = in.times;
  conformance::with_scores(in.problem, in.problem.bias, [&](const auto&... scores) {
    in.call([&](const auto&... others) {
      const auto with = [&](auto&& use) { use(others..., scores...); };
      with([&](const auto&... extra) {
        const auto g = c.gradients<mha::Reference>(extra...);
        const double terms[] = {support::inner(g.query, direction.q), support::inner(g.key, direction.k),
                                support::inner(g.value, direction.v)};
        const double sum = terms[0] + terms[1] + terms[2];
        const double size = 1 + std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]);
        EXPECT_NEAR(sum, support::derivative_along(c, direction, extra...), 1e-11 * size * times);
        const double up = moved_loss(c, direction, step, extra...), down = moved_loss(c, direction, -step, extra...);
        EXPECT_NEAR(sum, (up - down) / (2 * step), 1e-6 * size * times);
        const AtLevel level(which);
        expect_near_reference<Cpu, double>("Cpu, double", c, times * support::gradient_bound<double>, extra...);
        expect_near_reference<Cpu, float>("Cpu, float", c, times * support::gradient_bound<float>, extra...);
        expect_near_reference<Cpu, mha::bfloat16>("Cpu, bfloat16", c, times * support::gradient_bound<mha::bfloat16>,
                                                  extra...);
        expect_near_reference<Cpu, mha::half>("Cpu, half", c, times * support::gradient_bound<mha::half>, extra...);
        expect_near_reference<EigenCpu, float>("EigenCpu, float", c, times * support::gradient_bound<float>, extra...);
        expect_near_reference<mha::Systolic<>, mha::bfloat16>("Systolic, bfloat16", c,
                                                              times * support::gradient_bound<mha::bfloat16>, extra...);
      });
    });
  });
}

/// A case with what the backward pass does not know left out, and sizes that dual numbers are quick at.
void simplify(Case& c) {
  for (const auto factor : {conformance::machine, conformance::storage, conformance::layout, conformance::source})
    c.row[factor] = 0;
  for (const auto factor : {conformance::queries, conformance::keys}) shrink(c, factor, 33);
  for (const auto factor : {conformance::head_dim, conformance::value_dim}) shrink(c, factor, 17);
}

TEST(Conformance, GradientsOfEveryPairOfPoliciesAreTheReferencesDerivative) {
  support::Random random("conformance of gradients");
  std::set<std::string> seen;
  int failed = 0;
  for (Case c : conformance::cases()) {
    simplify(c);
    if (!seen.insert(c.text()).second || failed >= 10) continue;
    SCOPED_TRACE(c.text());
    support::Random stream(c.text());
    run(c, stream);
    failed += HasFailure() ? 1 : 0;
  }
  EXPECT_GT(seen.size(), 100u);
}

/// Numbers on a line: θ + ε δ in dual numbers, else θ + step δ.
struct Line {
  std::vector<double> at, along;
  double step = 0;

  /// Numbers of so few bits that float holds their products with a distance, and a direction.
  Line(std::size_t count, support::Random& random, double low, double high) : at(count), along(count) {
    for (double& x : at) x = std::round(random.uniform(low, high) * 1024) / 1024;
    for (double& x : along) x = random.normal();
  }
  template <class S> S of(std::size_t i) const {
    if constexpr (std::is_same_v<S, mha::Dual<double>>) {
      S x(at[i]);
      x.derivative[0] = along[i];
      return x;
    } else {
      return static_cast<S>(at[i] + step * along[i]);
    }
  }
  template <class To> void copy_to(To&& to) const {
    for (std::size_t i = 0; i < at.size(); ++i) to[i] = static_cast<std::remove_cvref_t<decltype(to[i])>>(at[i]);
  }
};

// The scores that are trained. Each is a score itself, its formula written a second time over numbers on a line;
// score() is the library's, or the user's, for a call in T, and numbers() what its gradient has.

struct Slopes {
  static constexpr double error = 1e-7;  // its gradient is float
  Line line;
  Slopes(const Problem& p, support::Random& random) : line(static_cast<std::size_t>(p.heads), random, 0.01, 0.5) {}

  template <class S> S operator()(S s, Index, Index h, Index q, Index k) const {
    return s - line.of<S>(static_cast<std::size_t>(h)) * static_cast<double>(std::abs(q - k));
  }
  template <class T> mha::AlibiSlopes score() const {
    return mha::AlibiSlopes(std::vector<float>(line.at.begin(), line.at.end()));
  }
  static std::span<const float> numbers(const mha::AlibiSlopes& g) { return g.numbers(); }
};

struct Functor {
  static constexpr double error = 0;
  Line line;
  Functor(const Problem&, support::Random& random) : line(2, random, 0.05, 0.5) {}

  template <class S> S operator()(S s, Index, Index h, Index q, Index k) const {
    return s * 0.5 + line.of<S>(1) * mha::tanh(s) - line.of<S>(0) * (0.25 * (1 + h) * std::abs(q - k));
  }
  template <class T> auto score() const {
    using A = mha::Accumulator<T>;
    return support::BentScore<A>{static_cast<A>(line.at[0]), static_cast<A>(line.at[1])};
  }
  template <class A> static std::array<A, 2> numbers(const support::BentScore<A>& g) { return {g.slope, g.bend}; }
};

struct Table {
  static constexpr double error = 0;
  using Score = support::TableScore<12>;
  Line line;
  Table(const Problem&, support::Random& random) : line(12, random, -1, 1) {}

  template <class S> S operator()(S s, Index, Index h, Index q, Index k) const {
    return s + line.of<S>(Score::at(h, q, k));
  }
  template <class T> Score score() const {
    Score table;
    line.copy_to(table.table);
    return table;
  }
  static std::span<const double> numbers(const Score& g) { return g.table; }
};

struct Cap {
  static constexpr double error = 1e-7;  // its gradient is float
  Line line;
  Cap(const Problem&, support::Random& random) : line(1, random, 0.7, 3) {}

  template <class S> S operator()(S s, Index, Index, Index, Index) const {
    return line.of<S>(0) * mha::tanh(s / line.of<S>(0));
  }
  template <class T> mha::SoftCap score() const { return {.cap = static_cast<float>(line.at[0])}; }
  static std::array<float, 1> numbers(const mha::SoftCap& g) { return {g.cap}; }
};

/// A table that repeats some of its axes, with pairs that it hides.
struct Bias {
  static constexpr double error = 0;
  Index extent[4];
  std::vector<Index> origins;
  Line line;
  mha::Tensor<double, 4> table;

  Bias(const Problem& p, support::Random& random) : Bias(p, random.below(16), random) {}
  Bias(const Problem& p, int repeated, support::Random& random)
      : extent{p.batch, p.heads, p.queries, p.keys}, origins(p.origins), line(size(repeated), random, -2, 2) {
    table = mha::Tensor<double, 4>(extent[0], extent[1], extent[2], extent[3]);
    for (std::size_t i = 0; i < table.size(); ++i)
      if (random.chance(0.1)) {
        line.at[i] = -std::numeric_limits<double>::infinity();
        line.along[i] = 0;
      }
    line.copy_to(table.data());
  }
  template <class S> S operator()(S s, Index b, Index h, Index q, Index k) const {
    const Index at[4] = {b, h, q - origins[static_cast<std::size_t>(b)], k};
    std::size_t i = 0;
    for (int a = 0; a < 4; ++a)
      i = i * static_cast<std::size_t>(extent[a]) + static_cast<std::size_t>(extent[a] == 1 ? 0 : at[a]);
    return std::isinf(line.at[i]) ? mha::minus_infinity<S>() : s + line.of<S>(i);
  }
  template <class T> mha::AdditiveBias<double> score() const { return mha::AdditiveBias(table); }

 private:
  std::size_t size(int repeated) {
    std::size_t n = 1;
    for (int a = 0; a < 4; ++a) {
      if ((repeated >> a & 1) != 0) extent[a] = 1;
      n *= static_cast<std::size_t>(extent[a]);
    }
    return n;
  }
};

struct Relative {
  static constexpr double error = 1e-7;  // its gradient is float
  mha::RelativeBuckets buckets{.count = 8, .max_distance = 12};
  std::size_t heads;
  Line line;
  Relative(const Problem& p, support::Random& random)
      : heads(static_cast<std::size_t>(p.heads)), line(8 * heads, random, -1, 1) {}

  template <class S> S operator()(S s, Index, Index h, Index q, Index k) const {
    return s + line.of<S>(static_cast<std::size_t>(buckets.bucket(q, k)) * heads + static_cast<std::size_t>(h));
  }
  template <class T> mha::RelativeBias score() const {
    return mha::RelativeBias(std::vector<float>(line.at.begin(), line.at.end()), buckets);
  }
  static std::span<const float> numbers(const mha::RelativeBias& g) { return g.numbers(); }
};

template <class T> struct TrainedGradients {
  mha::Tensor<T, 4> query, key, value;
  mha::Tensor<mha::Accumulator<T>, 1> sink;
  std::vector<double> numbers;
};

template <class B, class T, class Kind, class... Extra>
TrainedGradients<T> trained_gradients(const BackwardCase<T>& c, const Kind& kind, const Extra&... extra) {
  using A = mha::Accumulator<T>;
  const auto score = kind.template score<T>();
  mha::AttentionTape<T, B> tape;
  const auto out = mha::attention<B>(c.q, c.k, c.v, extra..., score, mha::record(tape));
  TrainedGradients<T> g{c.q, c.k, c.v, mha::Tensor<A, 1>(c.q.extent(2)), {}};
  support::poison_all(g.query);
  support::poison_all(g.key);
  support::poison_all(g.value);
  support::poison_all(g.sink);
  const auto run = [&](const auto& to) {
    mha::attention_backward_into({g.query, g.key, g.value}, c.d_out, c.q, c.k, c.v, out, tape, extra..., score,
                                 mha::SinkGradient(g.sink), to);
  };
  if constexpr (std::is_same_v<Kind, Bias>) {
    mha::Tensor<A, 4> to(kind.extent[0], kind.extent[1], kind.extent[2], kind.extent[3]);
    support::poison_all(to);
    run(mha::BiasGradient(to));
    g.numbers.assign(to.begin(), to.end());
  } else {
    auto to = score;  // other numbers than its gradient's
    run(mha::ScoreGradient(to));
    const auto numbers = Kind::numbers(to);
    g.numbers.assign(numbers.begin(), numbers.end());
  }
  return g;
}

template <class Kind> void run_trained(const Case& which, support::Random& random) {
  const Inputs in(which, random);
  const auto &c = in.c, &direction = in.direction;
  const Kind kind(in.problem, random);
  const auto& along = kind.line.along;
  // What a number's gradient is a sum of: d_out times what a pair's logit changes by.
  const double reach = 1 + 0.25 * std::max(in.problem.queries, in.problem.keys);
  const double least = 1 + (std::is_same_v<Kind, Slopes> || std::is_same_v<Kind, Functor> ? reach : 1.) *
                               std::sqrt(support::inner(c.d_out, c.d_out));
  in.call([&](const auto&... extra) {
    const auto g = trained_gradients<mha::Reference>(c, kind, extra...);
    double of_numbers = 0, size = 1, stored = 0;
    ASSERT_EQ(g.numbers.size(), along.size());
    for (std::size_t i = 0; i < along.size(); ++i) {
      of_numbers += g.numbers[i] * along[i];
      stored += Kind::error * std::abs(g.numbers[i] * along[i]);
    }
    double sum = of_numbers;
    size += std::abs(of_numbers);
    for (const double term : {support::inner(g.query, direction.q), support::inner(g.key, direction.k),
                              support::inner(g.value, direction.v)}) {
      sum += term;
      size += std::abs(term);
    }
    const double tolerance = (size + least) * in.times;
    EXPECT_NEAR(sum, support::derivative_along(c, direction, extra..., kind), 1e-11 * tolerance + stored);
    const auto moved = [&](double by) {
      Kind there = kind;
      there.line.step = by;
      return moved_loss(c, direction, by, extra..., there);
    };
    EXPECT_NEAR(sum, (moved(step) - moved(-step)) / (2 * step), 1e-6 * tolerance + stored);
    // The numbers alone, which are few beside q, k and v.
    BackwardCase<double> still = direction;
    for (auto* x : {&still.q, &still.k, &still.v}) std::fill(x->begin(), x->end(), 0.);
    EXPECT_NEAR(of_numbers, support::derivative_along(c, still, extra..., kind), 1e-11 * tolerance + stored);

    const AtLevel level(which);
    const auto near = [&]<class B, class T>(const char* backend, const B&, T) {
      const auto narrow = c.template as<T>();
      const auto expected = trained_gradients<mha::Reference>(narrow.template as<double>(), kind, extra...);
      const auto found = trained_gradients<B>(narrow, kind, extra...);
      const double bound = in.times * support::gradient_bound<T>;
      expect_near(backend, narrow, found, expected, bound);
      EXPECT_LE(support::relative_error(found.numbers, expected.numbers, least), bound + Kind::error)
          << backend << ": numbers";
    };
    near("Cpu, double", Cpu{}, double{});
    near("Cpu, float", Cpu{}, float{});
    near("EigenCpu, float", EigenCpu{}, float{});
    near("Systolic, bfloat16", mha::Systolic<>{}, mha::bfloat16{});
  });
}

TEST(Conformance, GradientsOfTrainedScoresAreTheReferencesDerivativeWithEveryPolicy) {
  constexpr void (*run_kind[])(const Case&, support::Random&) = {run_trained<Slopes>, run_trained<Functor>,
                                                                 run_trained<Table>,  run_trained<Cap>,
                                                                 run_trained<Bias>,   run_trained<Relative>};
  static const char* const names[] = {"slopes", "functor", "table", "cap", "bias", "relative bias"};
  support::Random random("conformance of trained scores");
  std::vector<int> levels(conformance::factors().size(), 1);
  for (const auto factor : {conformance::groups, conformance::mask, conformance::scale, conformance::isa,
                            conformance::origin, conformance::sink, conformance::dropout})
    levels[factor] = static_cast<int>(conformance::factors()[factor].levels.size());
  levels[conformance::score] = static_cast<int>(std::size(run_kind));
  int failed = 0;
  for (const auto& row : support::covering_array(levels, random, [](const auto&) { return true; })) {
    Case c{row};
    const auto kind = static_cast<std::size_t>(std::exchange(c.row[conformance::score], 0));
    for (const auto factor : {conformance::queries, conformance::keys, conformance::head_dim, conformance::value_dim})
      c.row[factor] = random.below(static_cast<int>(conformance::factors()[factor].levels.size()));
    simplify(c);
    const std::string text = c.text() + ", trained " + names[kind];
    SCOPED_TRACE(text);
    support::Random stream(text);
    run_kind[kind](c, stream);
    failed += HasFailure() ? 1 : 0;
    if (failed >= 10) break;
  }
}

}  // namespace
