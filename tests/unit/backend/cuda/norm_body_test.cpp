// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/norm_body.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::NormCall;
using mha::Tensor;
using mha::TensorView;
using mha::cuda::NormShape;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;
using support::gpu::Order;

template <class Machine = HostMachine, class T> void run_body(const NormCall<T>& call, Order order = {}) {
  const Index rows = call.x.extent[0] * call.x.extent[1];
  support::gpu::launch<Machine>(
      {(rows + NormShape::rows - 1) / NormShape::rows, 1, 1}, NormShape::threads, 0,
      [&](Machine& m) { mha::cuda::norm_body(m, call); }, order);
}

/// Rows with weights, what they become by the body and, in double, by the formula.
template <class T> struct Norm {
  using A = mha::Accumulator<T>;
  Index batch, length, width;
  Tensor<T, 3> x, residual, y, sum;
  std::vector<A> weight, bias;
  bool centred;

  Norm(support::Random& random, Index b, Index l, Index e, bool is_centred, double offset)
      : batch(b), length(l), width(e), x(b, l, e), residual(b, l, e), y(b, l, e), sum(b, l, e), centred(is_centred) {
    for (T& v : x) v = T(A(random.normal() + offset));
    random.fill(residual);
    for (Index j = 0; j < e; ++j) {
      weight.push_back(A(random.normal()));
      bias.push_back(A(random.normal()));
    }
    support::poison_all(y), support::poison_all(sum);
  }
  NormCall<T> call(bool adds, bool keeps) {
    NormCall<T> c{x.view(), {}, y.view(), {}, weight.data(), bias.data(), A(1e-5), centred};
    if (adds) c.residual = residual.view();
    if (keeps) c.sum = sum.view();
    return c;
  }
  /// The largest error of y, relative to 1 and the number, if x was `before`.
  double error(bool adds, const Tensor<T, 3>& before) const {
    double worst = 0;
    for (Index b = 0; b < batch; ++b)
      for (Index l = 0; l < length; ++l) {
        std::vector<double> z;
        for (Index j = 0; j < width; ++j)
          z.push_back(support::to_double(before(b, l, j)) + (adds ? support::to_double(residual(b, l, j)) : 0));
        double mean = 0, square = 0;
        for (const double v : z) mean += centred ? v / width : 0;
        for (const double v : z) square += (v - mean) * (v - mean) / width;
        for (Index j = 0; j < width; ++j) {
          const auto at = static_cast<std::size_t>(j);
          const double exact = (z[at] - mean) / std::sqrt(square + 1e-5) * double(weight[at]) + double(bias[at]);
          worst = support::maximum(worst, std::fabs(support::to_double(y(b, l, j)) - exact) / (1 + std::fabs(exact)));
        }
      }
    return worst;
  }
};

template <class T> void expect_formula(const char* name, double bound) {
  support::Random random(name);
  for (const Index width : {1, 2, 31, 32, 33, 64, 257})
    for (const bool centred : {false, true})
      for (const bool adds : {false, true}) {
        SCOPED_TRACE(std::to_string(width) + (centred ? ", centred" : "") + (adds ? ", with a residual" : ""));
        Norm<T> n(random, 2, 1 + random.below(5), width, centred, 0);
        run_body(n.call(adds, adds));
        EXPECT_LE(n.error(adds, n.x), bound);
        for (std::size_t i = 0; adds && i < n.x.size(); ++i) {
          using A = mha::Accumulator<T>;
          EXPECT_EQ(support::bits(n.sum.data()[i]), support::bits(T(A(n.x.data()[i]) + A(n.residual.data()[i]))));
        }
        // The same bits in any order of blocks, and over x and the residual.
        const Tensor<T, 3> apart = n.y, before = n.x;
        NormCall<T> call = n.call(adds, adds);
        call.y = n.x.view();
        if (adds) call.sum = n.residual.view();
        run_body(call, {Order::shuffled, 7});
        EXPECT_EQ(support::differing(n.x, apart), 0u);
        EXPECT_TRUE(!adds || support::differing(n.residual, n.sum) == 0);
      }
}

TEST(NormBody, IsTheFormulaInDouble) { expect_formula<double>("norm body double", 1e-13); }
TEST(NormBody, IsTheFormulaInFloat) { expect_formula<float>("norm body float", 3e-5); }
TEST(NormBody, IsTheFormulaInBfloat16) { expect_formula<mha::bfloat16>("norm body bfloat16", 0x1p-7); }

TEST(NormBody, KeepsTheDigitsOfRowsFarFromZero) {
  support::Random random("far rows");
  Norm<float> n(random, 1, 6, 300, true, 65536);
  run_body(n.call(false, false));
  EXPECT_LE(n.error(false, n.x), 1e-3);
  for (float& v : n.x) v = 12345.678f;
  run_body(n.call(false, false));
  for (Index l = 0; l < 6; ++l)
    for (Index j = 0; j < 300; ++j) EXPECT_EQ(n.y(0, l, j), n.bias[static_cast<std::size_t>(j)]) << "equal numbers";
}

TEST(NormBody, ReadsAndWritesAnyStrides) {
  support::Random random("norm strides");
  Norm<float> n(random, 2, 3, 40, true, 0);
  run_body(n.call(false, false));
  // (L, E, B) with a gap behind each row.
  Tensor<float, 3> there(3, 41, 2), to(3, 41, 2);
  support::poison_all(there), support::poison_all(to);
  const auto lay = [](auto* data) {
    return TensorView<std::remove_pointer_t<decltype(data)>, 3>{data, {2, 3, 40}, {1, 82, 2}};
  };
  const auto x = lay(there.data()), y = lay(to.data());
  for (Index b = 0; b < 2; ++b)
    for (Index l = 0; l < 3; ++l)
      for (Index j = 0; j < 40; ++j) x(b, l, j) = n.x(b, l, j);
  NormCall<float> call = n.call(false, false);
  call.x = x;
  call.y = y;
  run_body(call);
  for (Index b = 0; b < 2; ++b)
    for (Index l = 0; l < 3; ++l) {
      for (Index j = 0; j < 40; ++j) EXPECT_EQ(y(b, l, j), n.y(b, l, j));
      EXPECT_EQ(support::bits(to(l, 40, b)), support::bits(support::poison<float>()));
    }
}

TEST(NormBody, ANanSpoilsItsRowAlone) {
  support::Random random("norm nan");
  Norm<float> n(random, 1, 5, 50, true, 0);
  run_body(n.call(false, false));
  const Tensor<float, 3> clean = n.y;
  n.x(0, 2, 33) = std::nanf("");
  run_body(n.call(false, false));
  for (Index l = 0; l < 5; ++l)
    for (Index j = 0; j < 50; ++j)
      if (l == 2)
        EXPECT_TRUE(std::isnan(n.y(0, l, j)));
      else
        EXPECT_EQ(n.y(0, l, j), clean(0, l, j));
}

TEST(NormBody, ChecksOfThisFileNoticeFlaws) {
  support::Random random("norm flaws");
  Norm<double> n(random, 1, 7, 100, true, 0);
  const auto right = [&] {
    run_body<FaultyMachine>(n.call(true, false));
    return n.error(true, n.x) <= 1e-13;
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

TEST(NormBody, IsLaunchedForAllRows) {
  NormCall<float> call;
  const auto grid = [&](Index batch, Index length) {
    call.x = {nullptr, {batch, length, 8}, {1, 1, 1}};
    Launcher launcher;
    mha::cuda::normalize(call, launcher);
    return launcher.grid;
  };
  EXPECT_EQ(grid(3, 5), 4);
  EXPECT_EQ(grid(1, 4), 1);
  EXPECT_EQ(grid(0, 4), -1);
  EXPECT_EQ(grid(1 << 16, 1 << 16), 1 << 30);
}

}  // namespace
