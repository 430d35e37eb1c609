// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "every_isa.hpp"
#include "four_bits.hpp"
#include "random.hpp"

namespace {

/// A storage scalar of the user's: 24 bits of a float.
struct Short {
  float value = 0;
  Short() = default;
  explicit Short(float x) : value(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffffff00u)) {}
  operator float() const { return value; }
};

}  // namespace

template <> struct mha::ScalarTraits<Short> { using Accumulator = float; };

namespace {

using mha::DenseWeights;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using Cpu = mha::CpuWith<mha::Serial>;
template <class T> using Packed = mha::detail::cpu::PackedWeights<T>;

/// Three matrices of one depth and one of another; every second has a bias, one is stored transposed.
template <class T> struct Weights {
  Tensor<T, 2> first, second, turned, other;
  Tensor<T, 1> bias, other_bias;

  Weights(Index depth, support::Random& random)
      : first(depth, 50), second(depth, 48), turned(33, depth), other(7, 5), bias(2 * 50), other_bias(5) {
    for (auto* w : {&first, &second, &turned, &other}) random.fill(*w);
    random.fill(bias);
    random.fill(other_bias);
  }
  std::vector<DenseWeights<T>> parts() const {
    return {{first.view(), {bias.data(), {50}, {2}}},
            {second.view(), {}},
            {mha::transposed(turned.view()), {}},
            {other.view(), other_bias.view()}};
  }
};
template <class T> Packed<T> pack(const std::vector<DenseWeights<T>>& parts) {
  return Cpu{}.pack(std::span<const DenseWeights<T>>(parts));
}

template <class T> class PackedProduct : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(PackedProduct, Scalars, );

// Packed once, before the level is lowered.
TYPED_TEST(PackedProduct, IsTheSumOfProductsForEveryRangeOfPartsAtEveryLevel) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("packed");
  for (const Index depth : {0, 1, 40, 300}) {
    const Weights<T> weights(depth, random);
    const auto parts = weights.parts();
    const Packed<T> packed = pack(parts);
    support::at_every_isa([&] {
      for (const Index m : {0, 1, 3, 8, 19, 140})
        for (const auto& [first, count] : {std::pair<Index, Index>{0, 3}, {1, 2}, {2, 1}, {3, 1}}) {
          const Index k = parts[static_cast<std::size_t>(first)].matrix.extent[0];
          Tensor<T, 2> a(m, k);
          random.fill(a);
          std::vector<Tensor<T, 2>> wide;  // results with poison beside them
          std::vector<TensorView<T, 2>> c;
          for (Index i = 0; i < count; ++i) {
            const Index n = parts[static_cast<std::size_t>(first + i)].matrix.extent[1];
            wide.emplace_back(m, 2 * n + 3);
            support::poison_all(wide.back());
          }
          for (Index i = 0; i < count; ++i) {
            auto& to = wide[static_cast<std::size_t>(i)];
            const Index n = parts[static_cast<std::size_t>(first + i)].matrix.extent[1];
            // One result lies with gaps between its columns.
            if (i == 1)
              c.push_back({to.data(), {m, n}, {2 * n + 3, 2}});
            else
              c.push_back({to.data(), {m, n}, {2 * n + 3, 1}});
          }
          mha::Workspace workspace;
          Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, first, c}, workspace);
          for (Index i = 0; i < count; ++i) {
            const auto& part = parts[static_cast<std::size_t>(first + i)];
            const auto& got = c[static_cast<std::size_t>(i)];
            for (Index r = 0; r < m; ++r)
              for (Index j = 0; j < part.matrix.extent[1]; ++j) {
                double sum = part.bias.data == nullptr ? 0 : support::to_double(part.bias(j)),
                       magnitude = std::abs(sum);
                for (Index l = 0; l < k; ++l) {
                  const double term = support::to_double(a(r, l)) * support::to_double(part.matrix(l, j));
                  sum += term;
                  magnitude += std::abs(term);
                }
                ASSERT_NEAR(
                    support::to_double(got(r, j)), sum,
                    (k + 4) * 2 * support::unit_roundoff<A>() * magnitude + 1.1 * support::storage_error<T>(sum))
                    << "part " << first + i << ", " << r << ", " << j << ", depth " << k;
              }
            std::size_t untouched = 0;
            for (const T x : wide[static_cast<std::size_t>(i)])
              untouched += support::bits(x) == support::bits(support::poison<T>()) ? 1u : 0u;
            EXPECT_EQ(untouched, static_cast<std::size_t>(m) * static_cast<std::size_t>(part.matrix.extent[1] + 3));
          }
        }
    });
  }
}

TYPED_TEST(PackedProduct, GivesTheBitsOfTheUnpackedProduct) {
  using T = TypeParam;
  support::Random random("packed bits");
  const Weights<T> weights(530, random);
  const auto parts = weights.parts();
  const Packed<T> packed = pack(parts);
  support::at_every_isa([&] {
    for (const Index m : {1, 5, 131})
      for (const Index part : {0, 1, 2}) {
        const auto& w = parts[static_cast<std::size_t>(part)];
        Tensor<T, 2> a(m, 530), once(m, w.matrix.extent[1]), each(m, w.matrix.extent[1]);
        random.fill(a);
        mha::Workspace workspace;
        const TensorView<T, 2> to[] = {once.view()};
        Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, part, to}, workspace);
        Cpu{}.gemm(mha::GemmCall<T>{std::as_const(a).view(), w.matrix, w.bias, each.view()}, workspace);
        EXPECT_EQ(support::differing(once, each), 0u) << m << " rows, part " << part;
      }
  });
}

TYPED_TEST(PackedProduct, TakesTheMemoryOfItsPanels) {
  using T = TypeParam;
  support::Random random("packed bytes");
  const Weights<T> weights(40, random);
  const std::size_t columns = mha::detail::cpu::panel_columns<T>, panels = (50 + columns - 1) / columns;
  const std::vector<DenseWeights<T>> one = {weights.parts()[0]}, plain = {{weights.first.view(), {}}};
  EXPECT_EQ(pack(plain).bytes(), panels * columns * 40 * sizeof(T));
  EXPECT_EQ(pack(one).bytes(), panels * columns * (40 * sizeof(T) + sizeof(mha::Accumulator<T>)));
  EXPECT_EQ(pack(std::vector<DenseWeights<T>>{}).bytes(), 0u);
}

TYPED_TEST(PackedProduct, UnpacksItsMatricesAtEveryLevel) {
  using T = TypeParam;
  support::Random random("unpacked");
  const Weights<T> weights(37, random);
  const auto parts = weights.parts();
  const Packed<T> packed = pack(parts);
  const auto expect = [&]<class U>(U) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const auto& matrix = parts[part].matrix;
      Tensor<U, 2> to(matrix.extent[0], matrix.extent[1]);
      support::poison_all(to);
      Cpu{}.unpack(packed, static_cast<Index>(part), to.view());
      for (Index k = 0; k < to.extent(0); ++k)
        for (Index j = 0; j < to.extent(1); ++j) ASSERT_EQ(to(k, j), static_cast<U>(matrix(k, j))) << part;
    }
  };
  support::at_every_isa([&] {
    expect(T{});
    expect(mha::Accumulator<T>{});
  });
}

TYPED_TEST(PackedProduct, OutlivesTheMatricesAndMoves) {
  using T = TypeParam;
  support::Random random("packed moves");
  Tensor<T, 2> a(2, 20), c(2, 48), expected(2, 48);
  random.fill(a);
  mha::Workspace workspace;
  Packed<T> packed = [&] {
    Tensor<T, 2> gone(20, 48);
    random.fill(gone);
    Cpu{}.gemm(mha::GemmCall<T>{std::as_const(a).view(), std::as_const(gone).view(), {}, expected.view()}, workspace);
    const std::vector<DenseWeights<T>> parts = {{gone.view(), {}}};
    Packed<T> made = pack(parts);
    support::poison_all(gone);
    return made;
  }();
  const Packed<T> moved = std::move(packed);
  const TensorView<T, 2> to[] = {c.view()};
  Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), moved, 0, to}, workspace);
  EXPECT_EQ(support::differing(c, expected), 0u);
}

/// A user's activation.
struct Wavy {
  template <class S> S operator()(const S& x) const { return mha::max(x, -0.5) * mha::erf(x + S(0.25)); }
};

/// F, or the F of a pair, in double.
template <class F> double activated(const F& f, double gate, double x) {
  if constexpr (mha::detail::is_gated<F>)
    return f.activation(gate) * x;
  else
    return f(x);
}

/// Sums in double and the sums of their terms' magnitudes.
template <class T> struct Sums {
  Tensor<double, 2> sum, magnitude;
  Sums(const Tensor<T, 2>& a, const DenseWeights<T>& w)
      : sum(a.extent(0), w.matrix.extent[1]), magnitude(a.extent(0), w.matrix.extent[1]) {
    for (Index i = 0; i < sum.extent(0); ++i)
      for (Index j = 0; j < sum.extent(1); ++j) {
        double s = w.bias.data == nullptr ? 0 : support::to_double(w.bias(j)), size = std::abs(s);
        for (Index k = 0; k < a.extent(1); ++k) {
          const double term = support::to_double(a(i, k)) * support::to_double(w.matrix(k, j));
          s += term;
          size += std::abs(term);
        }
        sum(i, j) = s;
        magnitude(i, j) = size;
      }
  }
};

/// How a result lies and what is added to it.
enum class Residual { none, rows, turned, itself };
struct Layout {
  bool gaps;  ///< between its columns
  Residual residual;
};

template <class T, class F, class Threads>
void expect_epilogue(support::Random& random, const mha::CpuWith<Threads>& cpu, Index m, Index k, Index n, F f,
                     Layout layout) {
  using A = mha::Accumulator<T>;
  Tensor<T, 2> gate(k, n), up(n, k), a(m, k);
  Tensor<T, 1> bias(n);
  random.fill(gate), random.fill(up), random.fill(a), random.fill(bias);
  for (auto* w : {&gate, &up})
    for (T& x : *w) x = static_cast<T>(static_cast<A>(x) / std::sqrt(static_cast<A>(k)));
  const std::vector<DenseWeights<T>> parts = {{gate.view(), bias.view()}, {mha::transposed(up.view()), {}}};
  const Packed<T> packed = cpu.pack(std::span<const DenseWeights<T>>(parts));
  constexpr bool gated = mha::detail::is_gated<F>;
  const Sums<T> first(a, parts[0]), second(a, parts[1]);

  const Index apart = layout.gaps ? 2 : 1, width = apart * n + 3;
  Tensor<T, 2> wide(m, width), own(m, 2 * n), turned(n, m);
  support::poison_all(wide);
  random.fill(own), random.fill(turned);
  const TensorView<T, 2> c{wide.data(), {m, n}, {width, apart}};
  TensorView<const T, 2> residual{};
  if (layout.residual == Residual::rows) residual = {own.data() + n, {m, n}, {2 * n, 1}};
  if (layout.residual == Residual::turned) residual = mha::transposed(std::as_const(turned).view());
  if (layout.residual == Residual::itself) residual = c;
  Tensor<double, 2> added(m, n);
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      if (layout.residual == Residual::itself) c(i, j) = own(i, j);
      added(i, j) = residual.data == nullptr ? 0 : support::to_double(residual(i, j));
    }

  mha::Workspace workspace;
  const TensorView<T, 2> to[] = {c};
  // Without a gate the second part alone, or the first.
  const Index part = gated ? 0 : n % 2;
  cpu.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, part, to},
           mha::Epilogue<T, F>{f, residual}, workspace);
  const Sums<T>& x = gated || part == 1 ? second : first;
  const double unit = (k + 40) * 2 * support::unit_roundoff<A>();
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      const double exact = activated(f, first.sum(i, j), x.sum(i, j)) + added(i, j);
      const double error = 1.5 * (1 + x.magnitude(i, j)) * (gated ? 1 + first.magnitude(i, j) : 1);
      ASSERT_NEAR(support::to_double(c(i, j)), exact,
                  unit * (error + std::abs(added(i, j))) + 1.1 * support::storage_error<T>(exact))
          << i << ", " << j << " of " << m << " x " << k << " x " << n;
    }
  std::size_t untouched = 0;
  for (const T y : wide) untouched += support::bits(y) == support::bits(support::poison<T>()) ? 1u : 0u;
  EXPECT_EQ(untouched, static_cast<std::size_t>(m) * static_cast<std::size_t>(width - n));
}

TYPED_TEST(PackedProduct, EndsWithItsEpilogue) {
  using T = TypeParam;
  support::Random random("epilogue");
  support::at_every_isa([&] {
    for (const Index m : {1, 5, 33, 200}) {
      const Index k = 250 + random.below(60), n = 40 + random.below(30);
      expect_epilogue<T>(random, Cpu{}, m, k, n, mha::Gelu{}, {false, Residual::none});
      expect_epilogue<T>(random, Cpu{}, m, k, n + 1, mha::Identity{}, {false, Residual::rows});
      expect_epilogue<T>(random, Cpu{}, m, k, n, mha::Identity{}, {false, Residual::itself});
      expect_epilogue<T>(random, Cpu{}, m, k, n + 1, Wavy{}, {true, Residual::itself});
      expect_epilogue<T>(random, Cpu{}, m, k, n, Wavy{}, {false, Residual::turned});
      expect_epilogue<T>(random, Cpu{}, m, k, n, mha::SwiGlu{}, {false, Residual::none});
      expect_epilogue<T>(random, Cpu{}, m, k, n + 1, mha::SwiGlu{}, {false, Residual::itself});
      expect_epilogue<T>(random, Cpu{}, m, k, n + 1, mha::Gated<Wavy>{}, {true, Residual::turned});
      expect_epilogue<T>(random, Cpu{}, m, 0, n, mha::Gated<mha::Identity>{}, {false, Residual::rows});
    }
  });
}

// Several groups of panels, and panels side by side for one row.
TYPED_TEST(PackedProduct, EndsWithItsEpilogueWhereverAGroupEnds) {
  using T = TypeParam;
  support::Random random("wide epilogue");
  for (const Index m : {1, 7, 130}) {
    const Index n = 1200 + random.below(300);
    expect_epilogue<T>(random, Cpu{}, m, 20, n, mha::SwiGlu{}, {false, Residual::rows});
    expect_epilogue<T>(random, Cpu{}, m, 20, n, mha::GeluTanh{}, {false, Residual::rows});
  }
}

/// Rows [first, first + m) of one problem, by a backend of its own.
template <class T, class F, class Threads>
Tensor<T, 2> rows_of(const mha::CpuWith<Threads>& cpu, const Packed<T>& packed, const Tensor<T, 2>& a,
                     const Tensor<T, 2>& residual, F f, Index first, Index m, bool into_residual) {
  const Index n = residual.extent(1), k = a.extent(1);
  Tensor<T, 2> c(m, n);
  support::poison_all(c);
  TensorView<const T, 2> added{&residual.view()(first, 0), {m, n}, {n, 1}};
  if (into_residual) {
    std::copy_n(added.data, c.size(), c.data());
    added = std::as_const(c).view();
  }
  mha::Workspace workspace;
  const TensorView<T, 2> to[] = {c.view()};
  cpu.gemm(mha::PackedGemmCall<T, Packed<T>>{{&a.view()(first, 0), {m, k}, {k, 1}}, packed, 0, to},
           mha::Epilogue<T, F>{f, added}, workspace);
  return c;
}

template <class T, class F> void expect_same_bits(F f) {
  support::Random random("epilogue bits");
  const Index m = 200, k = 270, n = 210;
  Tensor<T, 2> a(m, k), gate(k, n), up(k, n), residual(m, n);
  random.fill(a), random.fill(gate), random.fill(up), random.fill(residual);
  const std::vector<DenseWeights<T>> parts = {{gate.view(), {}}, {up.view(), {}}};
  const Packed<T> packed = pack(parts);
  const auto whole = rows_of(Cpu{}, packed, a, residual, f, 0, m, false);
  const mha::CpuWith<mha::ThreadPool> threads(mha::ThreadPool(3));
  EXPECT_EQ(support::differing(rows_of(threads, packed, a, residual, f, 0, m, false), whole), 0u) << "threads";
  EXPECT_EQ(support::differing(rows_of(threads, packed, a, residual, f, 0, m, true), whole), 0u) << "in place";
  for (const Index few : {1, 5, 33}) {
    const Index first = random.below(m - few);
    const auto some = rows_of(Cpu{}, packed, a, residual, f, first, few, few == 5);
    std::size_t differing = 0;
    for (Index i = 0; i < few; ++i)
      for (Index j = 0; j < n; ++j)
        differing += support::bits(some(i, j)) == support::bits(whole(first + i, j)) ? 0u : 1u;
    EXPECT_EQ(differing, 0u) << few << " rows";
  }
}

TYPED_TEST(PackedProduct, EpilogueGivesTheSameBitsForAnyRowsAndThreads) {
  using T = TypeParam;
  support::at_every_isa([] {
    expect_same_bits<T>(mha::Identity{});
    expect_same_bits<T>(mha::Gelu{});
    expect_same_bits<T>(Wavy{});
    expect_same_bits<T>(mha::SwiGlu{});
  });
}

TYPED_TEST(PackedProduct, WithoutAnEpilogueIsTheSameProduct) {
  using T = TypeParam;
  support::Random random("no epilogue");
  Tensor<T, 2> a(33, 300), w(300, 70), plain(33, 70), none(33, 70);
  random.fill(a), random.fill(w);
  const Packed<T> packed = pack(std::vector<DenseWeights<T>>{{w.view(), {}}});
  mha::Workspace workspace;
  const TensorView<T, 2> to_plain[] = {plain.view()}, to_none[] = {none.view()};
  Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, 0, to_plain}, workspace);
  Cpu{}.gemm(mha::PackedGemmCall<T, Packed<T>>{std::as_const(a).view(), packed, 0, to_none}, mha::Epilogue<T>{},
             workspace);
  EXPECT_EQ(support::differing(plain, none), 0u);
}

/// Rows of float by weights of W, several groups of panels of them, as by the same numbers in float.
template <class W> void expect_the_bits_of_wide_weights() {
  support::Random random("narrow weights");
  const Index k = 256 + random.below(300), n = 1152 + random.below(300);
  Tensor<W, 2> gate(k, n), up(k, n);
  Tensor<W, 1> bias(n);
  random.fill(gate), random.fill(up), random.fill(bias);
  const auto wide = [](const auto& from, auto to) {
    for (std::size_t i = 0; i < from.size(); ++i) to.data()[i] = float(from.data()[i]);
    return to;
  };
  const auto wide_gate = wide(gate, Tensor<float, 2>(k, n)), wide_up = wide(up, Tensor<float, 2>(k, n));
  const auto wide_bias = wide(bias, Tensor<float, 1>(n));
  const Packed<W> narrow = pack(std::vector<DenseWeights<W>>{{gate.view(), bias.view()}, {up.view(), {}}});
  const Packed<float> same =
      pack(std::vector<DenseWeights<float>>{{wide_gate.view(), wide_bias.view()}, {wide_up.view(), {}}});
  EXPECT_LT(narrow.bytes(), 0.51 * double(same.bytes()));
  const mha::CpuWith<mha::ThreadPool> threads(mha::ThreadPool(3));
  support::at_every_isa([&] {
    for (const Index m : {1, 7, 32, 33, 150}) {
      Tensor<float, 2> a(m, k), c(m, n), d(m, n), expected(m, n), other(m, n);
      random.fill(a);
      mha::Workspace workspace;
      const auto rows = std::as_const(a).view();
      support::poison_all(c), support::poison_all(d);
      const TensorView<float, 2> both[] = {c.view(), d.view()}, wanted[] = {expected.view(), other.view()};
      Cpu{}.gemm(mha::PackedGemmCall<float, Packed<float>>{rows, same, 0, wanted}, workspace);
      threads.gemm(mha::PackedGemmCall<float, Packed<W>>{rows, narrow, 0, both}, workspace);
      EXPECT_EQ(support::differing(c, expected) + support::differing(d, other), 0u) << m << " rows";
      support::poison_all(c);
      const mha::Epilogue<float, mha::SwiGlu> epilogue{{}, std::as_const(other).view()};
      Cpu{}.gemm(mha::PackedGemmCall<float, Packed<W>>{rows, narrow, 0, {both, 1}}, epilogue, workspace);
      threads.gemm(mha::PackedGemmCall<float, Packed<float>>{rows, same, 0, {wanted, 1}}, epilogue, workspace);
      EXPECT_EQ(support::differing(c, expected), 0u) << m << " rows, gated";
    }
  });
}

TEST(PackedProductOf, WeightsInSixteenBitsGivesTheBitsOfWideOnes) {
  expect_the_bits_of_wide_weights<mha::bfloat16>();
  expect_the_bits_of_wide_weights<mha::half>();
}

/// Matrices of one depth, rounded to Q, as the same numbers packed in float.
template <class Q, class W> void expect_the_bits_of_rounded_weights() {
  support::Random random("rounded weights");
  for (const Index depth : {1, 31, 33, 255, 256, 257, 600}) {
    const Weights<W> weights(depth, random);
    const auto parts = weights.parts();
    const auto packed = Cpu{}.quantize<Q>(std::span<const DenseWeights<W>>(parts));
    std::vector<Tensor<float, 2>> rounded;
    std::vector<Tensor<float, 1>> biases;
    std::vector<DenseWeights<float>> in_float;
    for (const auto& part : parts) {
      rounded.push_back(support::rounded_weights<Q, float>(part.matrix));
      biases.emplace_back(part.bias.data == nullptr ? 0 : part.bias.extent[0]);
      for (Index j = 0; j < biases.back().extent(0); ++j) biases.back()(j) = static_cast<float>(part.bias(j));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) in_float.push_back({std::as_const(rounded[i]).view(), {}});
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (parts[i].bias.data != nullptr) in_float[i].bias = std::as_const(biases[i]).view();
    const Packed<float> same = pack(in_float);
    support::at_every_isa([&] {
      for (std::size_t part = 0; part < parts.size(); ++part) {
        Tensor<float, 2> to(rounded[part].extent(0), rounded[part].extent(1));
        support::poison_all(to);
        Cpu{}.unpack(packed, static_cast<Index>(part), to.view());
        ASSERT_EQ(support::differing(to, rounded[part]), 0u) << "part " << part << ", depth " << depth;
      }
      for (const Index m : {1, 7, 9, 17, 40, 140})
        for (const auto& [first, count] : {std::pair<Index, Index>{0, 3}, {1, 2}, {2, 1}, {3, 1}}) {
          Tensor<float, 2> a(m, parts[static_cast<std::size_t>(first)].matrix.extent[0]);
          random.fill(a);
          std::vector<Tensor<float, 2>> results, expected;
          std::vector<TensorView<float, 2>> c, wanted;
          for (Index i = 0; i < count; ++i) {
            const Index n = parts[static_cast<std::size_t>(first + i)].matrix.extent[1];
            results.emplace_back(m, n), expected.emplace_back(m, n);
            support::poison_all(results.back());
          }
          for (auto& r : results) c.push_back(r.view());
          for (auto& r : expected) wanted.push_back(r.view());
          mha::Workspace workspace;
          using Integers = Packed<Q>;
          Cpu{}.gemm(mha::PackedGemmCall<float, Integers>{std::as_const(a).view(), packed, first, c}, workspace);
          Cpu{}.gemm(mha::PackedGemmCall<float, Packed<float>>{std::as_const(a).view(), same, first, wanted},
                     workspace);
          for (std::size_t i = 0; i < results.size(); ++i)
            ASSERT_EQ(support::differing(results[i], expected[i]), 0u)
                << "part " << i << " from " << first << ", rows " << m << ", depth " << depth;
        }
    });
  }
}

TEST(PackedProductOf, WeightsInEightBitsGivesTheBitsOfRoundedOnes) {
  expect_the_bits_of_rounded_weights<mha::scaled_int8, float>();
  expect_the_bits_of_rounded_weights<mha::scaled_int8, mha::half>();
  expect_the_bits_of_rounded_weights<mha::scaled_int8, mha::bfloat16>();
}
TEST(PackedProductOf, WeightsInFourBitsGivesTheBitsOfRoundedOnes) {
  expect_the_bits_of_rounded_weights<mha::scaled_int4, float>();
  expect_the_bits_of_rounded_weights<mha::scaled_int4, mha::half>();
  expect_the_bits_of_rounded_weights<mha::scaled_int4, mha::bfloat16>();
}

template <class Q> void expect_bytes(Index in) {
  const Tensor<float, 2> matrix(in, 50);
  const Tensor<float, 1> bias(50);
  const DenseWeights<float> plain[] = {{matrix.view(), {}}}, biased[] = {{matrix.view(), bias.view()}};
  const std::size_t bytes = support::rounded_bytes<Q>(in, 50);
  EXPECT_EQ(Cpu{}.quantize<Q>(std::span<const DenseWeights<float>>(plain)).bytes(), bytes) << in;
  EXPECT_EQ(Cpu{}.quantize<Q>(std::span<const DenseWeights<float>>(biased)).bytes(), bytes + 2 * 48 * 4) << in;
}
TEST(PackedProductOf, RoundedWeightsTakesTheMemoryOfItsPanels) {
  EXPECT_EQ(support::rounded_bytes<mha::scaled_int8>(300, 50), 2u * 48 * (300 + 2 * 4));
  EXPECT_EQ(support::rounded_bytes<mha::scaled_int4>(301, 50), 2u * 48 * (151 + 10 * 2));
  for (const Index in : {1, 31, 32, 33, 255, 256, 257, 300}) {
    expect_bytes<mha::scaled_int8>(in);
    expect_bytes<mha::scaled_int4>(in);
  }
}

/// A column with the numbers of every byte, at every place of a pair and next to every other column.
TEST(PackedProductOf, WeightsInFourBitsHasEveryByte) {
  constexpr Index depth = 34, columns = 256;  // the first row makes the scale
  Tensor<float, 2> matrix(depth, columns);
  for (Index j = 0; j < columns; ++j) {
    const int low = j % 16 - 8, high = j / 16 - 8;
    matrix(0, j) = -8, matrix(32, j) = -8;
    for (Index k = 1; k < depth; ++k)
      if (k != 32) matrix(k, j) = static_cast<float>(k % 2 == 0 ? low : high);
  }
  const DenseWeights<float> parts[] = {{matrix.view(), {}}};
  const auto packed = Cpu{}.quantize<mha::scaled_int4>(std::span<const DenseWeights<float>>(parts));
  support::at_every_isa([&] {
    Tensor<float, 2> to(depth, columns);
    Cpu{}.unpack(packed, 0, to.view());
    for (Index k = 0; k < depth; ++k)
      for (Index j = 0; j < columns; ++j) ASSERT_EQ(to(k, j), matrix(k, j)) << k << ", " << j;
  });
}

TEST(PackedProductOf, AnEpilogueIsFusedForEveryActivation) {
  static_assert(mha::FusesEpilogue<Cpu, float, mha::Gelu> && mha::FusesEpilogue<Cpu, mha::half, mha::Identity>);
  static_assert(mha::FusesEpilogue<Cpu, double, mha::SwiGlu> && mha::FusesEpilogue<mha::Cpu, mha::bfloat16, Wavy>);
}

TEST(PackedProductOf, AStorageScalarOfTheUsers) {
  support::Random random("packed user scalar");
  Tensor<Short, 2> a(9, 40), b(40, 50), c(9, 50);
  Tensor<float, 2> af(9, 40), bf(40, 50), cf(9, 50);
  for (std::size_t i = 0; i < a.size(); ++i) af.data()[i] = a.data()[i] = Short(static_cast<float>(random.normal()));
  for (std::size_t i = 0; i < b.size(); ++i) bf.data()[i] = b.data()[i] = Short(static_cast<float>(random.normal()));
  const Packed<Short> packed = pack(std::vector<DenseWeights<Short>>{{b.view(), {}}});
  const Packed<float> packed_float = pack(std::vector<DenseWeights<float>>{{bf.view(), {}}});
  support::at_every_isa([&] {
    mha::Workspace workspace;
    const TensorView<Short, 2> to[] = {c.view()};
    const TensorView<float, 2> to_float[] = {cf.view()};
    Cpu{}.gemm(mha::PackedGemmCall<Short, Packed<Short>>{std::as_const(a).view(), packed, 0, to}, workspace);
    Cpu{}.gemm(mha::PackedGemmCall<float, Packed<float>>{std::as_const(af).view(), packed_float, 0, to_float},
               workspace);
    for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(float(c.data()[i]), float(Short(cf.data()[i])));
  });
}

/// Counts how often it is asked.
struct Counted : mha::Serial {
  static inline int runs = 0;
  template <class F> void run(Index tasks, F&& f) const {
    ++runs;
    mha::Serial::run(tasks, f);
  }
};

// A program whose layers are small starts no threads.
TEST(PackedWeightsOf, ASmallLayerAreMadeInTheCallingThread) {
  const Tensor<float, 2> small(64, 64), large(512, 1024);
  const DenseWeights<float> parts[] = {{small.view(), {}}, {large.view(), {}}};
  Counted::runs = 0;
  mha::CpuWith<Counted>{}.pack(std::span<const DenseWeights<float>>(parts, 1));
  EXPECT_EQ(Counted::runs, 0);
  mha::CpuWith<Counted>{}.pack(std::span<const DenseWeights<float>>(parts));
  EXPECT_EQ(Counted::runs, 1);
}

}  // namespace
