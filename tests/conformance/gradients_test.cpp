// SPDX-License-Identifier: Apache-2.0
// The backward pass over the covering array: every mask with every score, scale, origin, sink, group and dropout. On
// the reference it is the derivative of the forward pass, which dual numbers know; the other backends are near that.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention_backward.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "run_case.hpp"

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

/// Gradients near those in double: of inputs that T can hold, for logits of this size.
template <class B, class T, class... Extra>
void expect_near(const char* backend, const BackwardCase<double>& exact, double bound, const Extra&... extra) {
  const auto c = exact.template as<T>();
  const auto expected = c.template as<double>().template gradients<mha::Reference>(extra...);
  const auto found = c.template gradients<B>(extra...);
  EXPECT_LE(support::relative_error(found.query, expected.query, 1), bound) << backend << ": query";
  EXPECT_LE(support::relative_error(found.key, expected.key, 1), bound) << backend << ": key";
  EXPECT_LE(support::relative_error(found.value, expected.value, 1), bound) << backend << ": value";
  EXPECT_EQ(found.sink.size(), expected.sink.size());
  EXPECT_LE(support::relative_error(found.sink, expected.sink, 1), bound) << backend << ": sink";
}

void run(const Case& which, support::Random& random) {
  Problem p(which, random);
  BackwardCase<double> c, direction;
  for (BackwardCase<double>* x : {&c, &direction})
    *x = BackwardCase<double>(which.text() + (x == &c ? "" : ", direction"),
                              {p.batch, p.queries, p.keys, p.heads, p.kv_heads, p.head_dim, p.value_dim});
  p.q = c.q;
  p.k = c.k;
  p.v = c.v;
  const conformance::Expected e = conformance::expected(p);
  const double largest = e.magnitude.size() > 0 ? *std::max_element(e.magnitude.begin(), e.magnitude.end()) : 0;
  const double times = (1 + largest) / (1 - p.drops);  // what an exponential and a weight that is kept make of rounding
  const AnyMask mask = conformance::with_masks(p, [](const auto&... masks) {
    return AnyMask::template of<mha::Reference, double>(mha::detail::collect_masks(masks...));
  });
  conformance::with_scores(p, p.bias, [&](const auto&... scores) {
    const auto call = [&](auto&& use) {
      use(mask, scores..., mha::Scale{p.scale}, p.origin_argument(), mha::Sink(p.sink), mha::Dropout{.p = p.drops},
          mha::DropoutSeed{p.seed});
    };
    call([&](const auto&... extra) {
      const auto g = c.gradients<mha::Reference>(extra...);
      const double terms[] = {support::inner(g.query, direction.q), support::inner(g.key, direction.k),
                              support::inner(g.value, direction.v)};
      const double size = 1 + std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]);
      EXPECT_NEAR(terms[0] + terms[1] + terms[2], support::derivative_along(c, direction, extra...),
                  1e-11 * size * times);
      using Cpu = mha::CpuWith<mha::Serial>;
      expect_near<Cpu, double>("Cpu, double", c, times * support::gradient_bound<double>, extra...);
      expect_near<Cpu, float>("Cpu, float", c, times * support::gradient_bound<float>, extra...);
      expect_near<mha::Systolic<>, mha::bfloat16>("Systolic, bfloat16", c,
                                                  times * support::gradient_bound<mha::bfloat16>, extra...);
    });
  });
}

TEST(Conformance, GradientsOfEveryPairOfPoliciesAreTheReferencesDerivative) {
  support::Random random("conformance of gradients");
  std::set<std::string> seen;
  int failed = 0;
  for (Case c : conformance::cases()) {
    // What the backward pass does not know, and sizes that dual numbers are quick at.
    for (const auto factor :
         {conformance::machine, conformance::storage, conformance::layout, conformance::source, conformance::isa})
      c.row[factor] = 0;
    for (const auto factor : {conformance::queries, conformance::keys}) shrink(c, factor, 33);
    for (const auto factor : {conformance::head_dim, conformance::value_dim}) shrink(c, factor, 17);
    if (!seen.insert(c.text()).second || failed >= 10) continue;
    SCOPED_TRACE(c.text());
    support::Random stream(c.text());
    run(c, stream);
    failed += HasFailure() ? 1 : 0;
  }
  EXPECT_GT(seen.size(), 100u);
}

}  // namespace
