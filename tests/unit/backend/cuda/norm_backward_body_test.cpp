// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/norm_backward_body.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::cuda::NormShape;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;
using support::gpu::Order;

/// Rows, their gradients by the body and, in double, by the formula.
template <class A> struct Backward {
  Index rows, width;
  bool centred;
  Tensor<A, 2> z, dy, dz;
  std::vector<A> weight;
  std::vector<mha::NormRowFacts<A>> facts;

  Backward(support::Random& random, Index m, Index e, bool is_centred)
      : rows(m), width(e), centred(is_centred), z(m, e), dy(m, e), dz(m, e) {
    random.fill(z), random.fill(dy);
    for (Index j = 0; j < e; ++j) weight.push_back(A(random.normal()));
    poison();
  }
  void poison() {
    support::poison_all(dz);
    const A no = support::poison<A>();
    facts.assign(static_cast<std::size_t>(rows), {{no, no, no}, no});
  }
  template <class Machine = HostMachine> void run(Order order = {}) {
    const mha::cuda::NormBackwardParams<A> params{
        {z.view(), dy.view(), dz.view(), weight.data(), nullptr, nullptr, A(1e-3), centred}, facts.data()};
    support::gpu::launch<Machine>(
        {(rows + NormShape::rows - 1) / NormShape::rows, 1, 1}, NormShape::threads, 0,
        [&](Machine& m) { mha::cuda::norm_backward_body(m, params); }, order);
  }
  bool is_zero(Index i) const {
    bool zero = true;
    for (Index j = 0; j < width; ++j) zero = zero && dy(i, j) == A(0);
    return zero;
  }
  /// The largest error, relative to 1 and the number, of dz and of the rows' normed numbers.
  double error() const {
    double worst = 0;
    const auto see = [&](double given, double exact) {
      worst = support::maximum(worst, std::fabs(given - exact) / (1 + std::fabs(exact)));
    };
    for (Index i = 0; i < rows; ++i) {
      const auto& known = facts[static_cast<std::size_t>(i)];
      const bool zero = is_zero(i);
      see(double(known.counts), zero ? 0 : 1);
      double mean = 0, square = 0, along = 0, level = 0;
      for (Index j = 0; j < width; ++j) mean += centred ? double(z(i, j)) / width : 0;
      for (Index j = 0; j < width; ++j) square += (double(z(i, j)) - mean) * (double(z(i, j)) - mean) / width;
      const double inverse = 1 / std::sqrt(square + 1e-3);
      const auto normed = [&](Index j) { return (double(z(i, j)) - mean) * inverse; };
      const auto g = [&](Index j) { return double(dy(i, j)) * double(weight[static_cast<std::size_t>(j)]); };
      for (Index j = 0; j < width; ++j) along += g(j) * normed(j) / width, level += centred ? g(j) / width : 0;
      for (Index j = 0; j < width; ++j) {
        see(double(dz(i, j)), zero ? 0 : (g(j) - level - normed(j) * along) * inverse);
        if (!zero) see(double(known.moments.normed(z(i, j))), normed(j));
      }
    }
    return worst;
  }
};

template <class A> void expect_formula(const char* name, double bound) {
  support::Random random(name);
  for (const Index width : {2, 31, 32, 33, 64, 257})
    for (const bool centred : {false, true}) {
      SCOPED_TRACE(std::to_string(width) + (centred ? ", centred" : ""));
      Backward<A> b(random, 1 + random.below(11), width, centred);
      b.run();
      EXPECT_LE(b.error(), bound);
      const auto before = b.dz;
      b.poison();
      b.run({Order::shuffled, 5});
      EXPECT_EQ(support::differing(b.dz, before), 0u);
    }
}

TEST(NormBackwardBody, IsTheFormulaInDouble) { expect_formula<double>("norm backward body double", 1e-11); }
TEST(NormBackwardBody, IsTheFormulaInFloat) { expect_formula<float>("norm backward body float", 1e-3); }

TEST(NormBackwardBody, ARowOfZerosCountsNothingAndANanSpoilsItsRowAlone) {
  support::Random random("norm backward rows");
  Backward<float> b(random, 6, 70, true);
  for (Index j = 0; j < 70; ++j) b.dy(2, j) = 0, b.z(2, j) = std::nanf("");
  b.dy(4, 69) = std::nanf("");
  b.run();
  for (Index i = 0; i < 6; ++i)
    for (Index j = 0; j < 70; ++j) EXPECT_EQ(std::isnan(b.dz(i, j)), i == 4) << i;
  for (Index j = 0; j < 70; ++j) EXPECT_EQ(b.dz(2, j), 0);
  EXPECT_EQ(b.facts[2].counts, 0);
  EXPECT_EQ(b.facts[4].counts, 1);
}

TEST(NormBackwardBody, ChecksOfThisFileNoticeFlaws) {
  support::Random random("norm backward flaws");
  Backward<double> b(random, 7, 100, true);
  const auto right = [&] {
    b.poison();
    b.run<FaultyMachine>();
    return b.error() <= 1e-11;
  };
  EXPECT_EQ(support::gpu::unnoticed(right, {{Flaw::no_shuffle}, {Flaw::other_lane}}), std::vector<std::string>{});
}

/// Notes the grid.
struct Launcher {
  Index grid = -1;
  template <class Kernel, class Params>
  void launch(mha::cuda::BlockIndex blocks, mha::cuda::Shared bytes, const Params&) {
    grid = blocks.x;
    EXPECT_EQ(bytes, 0);
    EXPECT_EQ(Kernel::threads, NormShape::threads);
  }
};

TEST(NormBackwardBody, IsLaunchedForAllRows) {
  const auto grid = [&](Index rows) {
    mha::NormBackwardCall<float> call;
    call.z = {nullptr, {rows, 8}, {8, 1}};
    Launcher launcher;
    mha::cuda::normalize_backward(call, static_cast<mha::NormRowFacts<float>*>(nullptr), launcher);
    return launcher.grid;
  };
  EXPECT_EQ(grid(15), 4);
  EXPECT_EQ(grid(4), 1);
  EXPECT_EQ(grid(0), -1);
}

}  // namespace
