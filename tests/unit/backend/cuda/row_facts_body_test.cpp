// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/row_facts_body.hpp>
#include <mha/core/tensor.hpp>

#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::cuda::RowFacts;
using mha::cuda::RowFactsShape;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;

constexpr Index batch = 2, heads = 3, queries = 5, value_dim = 40, rows = batch * heads * queries;
constexpr double inf = std::numeric_limits<double>::infinity();

/// Rows of a call of which the first head of the first sequence sees nothing in row 0, and infinity in row 1.
struct Rows {
  mha::Tensor<double, 4> out{batch, queries, heads, value_dim}, d_out{batch, queries, heads, value_dim};
  mha::Tensor<double, 3> d_log_sum_exp{batch, heads, queries};
  std::vector<double> level, sum;
  std::vector<RowFacts<double>> facts = std::vector<RowFacts<double>>(rows);
  std::vector<double> sinks = std::vector<double>(heads, -1);
  std::vector<float> logits{0.5f, -1.f, -std::numeric_limits<float>::infinity()};

  Rows() {
    support::Random random("RowFactsBody");
    random.fill(out);
    random.fill(d_out);
    random.fill(d_log_sum_exp);
    for (Index i = 0; i < rows; ++i) {
      level.push_back(random.normal() * 3);
      sum.push_back(1 + random.below(9));
    }
    level[0] = -inf;
    sum[0] = 0;
    d_out(0, 0, 0, 3) = std::numeric_limits<double>::quiet_NaN();
    level[1] = inf;
  }

  template <class Machine = HostMachine> void run(bool with_sink = true) {
    using Call = mha::AttendCall<double, mha::ContiguousKv<double>, mha::Full, mha::NoScore>;
    mha::cuda::GradientParams<Call> p{};
    p.call.q = d_out.view();
    p.call.shape = {batch, heads, queries, 7};
    p.call.value_dim = value_dim;
    if (with_sink) p.call.sink = mha::Borrowed<float>(logits);
    p.out = out.view();
    p.d_out = d_out.view();
    p.d_log_sum_exp = d_log_sum_exp.view();
    p.level = level.data();
    p.sum = sum.data();
    p.rows = facts.data();
    p.sink = sinks.data();
    p.blocks = {(queries + RowFactsShape::rows - 1) / RowFactsShape::rows, heads, heads * batch};
    support::gpu::launch<Machine>({p.blocks.row_tiles * heads * batch, 1, 1}, RowFactsShape::threads, 0,
                                  [&](Machine& m) { mha::cuda::row_facts_body(m, p); });
    using Sums = mha::cuda::SinkSumShape;
    support::gpu::launch<Machine>({heads, 1, 1}, Sums::threads, Sums::bytes<double>,
                                  [&](Machine& m) { mha::cuda::sink_sum_body(m, p); });
  }

  /// The largest difference from the formulas, of a number beyond 1 relative to it, but of rows 0 and 1.
  double error(bool with_sink = true) const {
    double worst = 0;
    std::vector<double> sink(heads, 0);
    const auto see = [&](double x, double expected) {
      const double off = std::abs(x - expected) / (1 + std::abs(expected));
      if (!(off <= worst) && !std::isnan(worst)) worst = off;
    };
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i) {
          const std::size_t at = static_cast<std::size_t>((b * heads + h) * queries + i);
          if (at < 2) continue;
          double dot = 0;
          for (Index d = 0; d < value_dim; ++d) dot += d_out(b, i, h, d) * out(b, i, h, d);
          const double of_sink = with_sink ? std::exp(double(logits[static_cast<std::size_t>(h)]) - level[at]) : 0;
          const double all = sum[at] + of_sink;
          see(facts[at].level, level[at]);
          see(facts[at].inverse, 1 / all);
          see(facts[at].slope, dot - d_log_sum_exp(b, h, i) * all / sum[at]);
          sink[static_cast<std::size_t>(h)] -= of_sink / all * dot;
        }
    for (Index h = 1; h < heads && with_sink; ++h)
      see(sinks[static_cast<std::size_t>(h)], sink[static_cast<std::size_t>(h)]);
    return worst;
  }
};

TEST(RowFactsBody, TellsWhatTheFormulasSay) {
  Rows r;
  r.run();
  EXPECT_LE(r.error(), 1e-13);
  r.run(false);
  EXPECT_LE(r.error(false), 1e-13);
}

TEST(RowFactsBody, MarksTheRowThatSeesNothingAndSpoilsTheInfiniteOne) {
  Rows r;
  r.run(false);
  EXPECT_EQ(r.facts[0].level, inf);
  EXPECT_EQ(r.facts[0].inverse, 0);
  EXPECT_EQ(r.facts[0].slope, 0);  // whatever stands in d_out
  EXPECT_EQ(r.facts[0].sink, 0);
  EXPECT_TRUE(std::isnan(r.facts[1].level));
}

TEST(RowFactsBody, ChecksOfThisFileNoticeFlaws) {
  Rows r;
  const auto right = [&] {
    r.run<FaultyMachine>();
    return r.error() <= 1e-13;
  };
  EXPECT_EQ(support::gpu::unnoticed(right, {{Flaw::no_sync}, {Flaw::no_shuffle}, {Flaw::other_lane}}),
            std::vector<std::string>{});
}

}  // namespace
