// SPDX-License-Identifier: Apache-2.0
// Recorded calls over sources by the CUDA backend's kernels on the host model: what they leave on a tape, and their
// gradients, against the reference in double.
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "any_source.hpp"
#include "kernels.hpp"
#include "kv_copies.hpp"

namespace {

using mha::Index;
using mha::Reference;
using support::BackwardCase;
using support::BackwardSizes;
using support::gpu::gradient_error;
using Model = support::gpu::BackwardModel<>;

template <class T> class SimulatedSources : public testing::Test {};
using Scalars = testing::Types<float, mha::bfloat16>;
TYPED_TEST_SUITE(SimulatedSources, Scalars);

const std::vector<Index> lengths{90, 5, 64};

/// Keys and values of a ring and the same rows in tensors, whose mask hides what the ring has dropped.
template <class T> struct Rings {
  BackwardCase<T> c;
  support::RingCopy<T> ring;

  Rings(const std::string& name, Index queries, Index first)
      : c(name, {3, queries, 90, 4, 2, 16, 24}), ring(c.k.view(), c.v.view(), lengths, 37, first) {}

  support::AnySource<T> source() const { return support::AnySource<T>(ring.source()); }
  mha::ContiguousKv<T> rows() const { return {c.k.view(), c.v.view(), {}, lengths}; }
  auto mask() const {
    return mha::mask([this](Index b, Index, Index, Index k) { return ring.holds(b, k); });
  }
};

template <class B, class T, class Kv, class... Extra>
auto gradients(const BackwardCase<T>& c, const Kv& source, mha::AttentionTape<T, B>& tape, const Extra&... extra) {
  const auto out = mha::attention<B>(c.q, source, extra..., mha::record(tape));
  EXPECT_EQ(support::differing(out, mha::attention<B>(c.q, source, extra...)), 0u) << "a tape changes no bit";
  return mha::attention_backward(c.d_out, c.q, source, out, tape, extra...);
}

/// Without a score the scale of calls over tensors is folded, which has other bits.
constexpr support::gpu::SameLogit same;

/// Few queries, whose keys blocks share, and many.
TYPED_TEST(SimulatedSources, KeepTheRowsOfTheKeysThatAreHeld) {
  using T = TypeParam;
  for (const Index queries : {2, 70})
    for (const Index first : {0, 4}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, the first " + std::to_string(first) + " keys are kept");
      const Rings<T> n("simulated ring", queries, first);
      mha::AttentionTape<T, Model> of_ring, of_rows;
      const auto found = gradients<Model>(n.c, n.source(), of_ring, mha::Causal{}, same);
      static_cast<void>(gradients<Model>(n.c, n.rows(), of_rows, n.mask(), mha::Causal{}, same));
      int seen = 0;
      for (Index row = 0; row < 3 * 4 * queries; ++row) {
        ASSERT_EQ(of_ring.level()[row], of_rows.level()[row]) << "row " << row;
        ASSERT_EQ(of_ring.sum()[row], of_rows.sum()[row]) << "row " << row;
        seen += of_ring.sum()[row] > 0 ? 1 : 0;
      }
      EXPECT_GE(seen, 2 * 4 * queries - 4 * 70) << "rows that see a key";
      const auto wide = n.c.template as<double>();
      mha::AttentionTape<double, Reference> tape;
      const mha::ContiguousKv<double> rows{wide.k.view(), wide.v.view(), {}, lengths};
      const auto expected = gradients<Reference>(wide, rows, tape, n.mask(), mha::Causal{}, same);
      EXPECT_LE(gradient_error<T>(found, expected), 1);
    }
}

/// Queries that stand before all that is held see nothing: their rows say so, and have no gradients.
TYPED_TEST(SimulatedSources, RowsWhoseKeysAreAllGoneAreEmpty) {
  using T = TypeParam;
  constexpr Index queries = 3;
  const Rings<T> n("simulated ring, gone", queries, 0);
  mha::AttentionTape<T, Model> tape;
  const auto g = gradients<Model>(n.c, n.source(), tape, mha::CausalTopLeft{});
  for (const Index b : {0, 1, 2})
    for (Index h = 0; h < 4; ++h)
      for (Index q = 0; q < queries; ++q) {
        const Index row = (b * 4 + h) * queries + q;
        const bool sees = b == 1;  // of five keys all are there
        EXPECT_EQ(tape.sum()[row] > 0, sees) << "row " << row;
        EXPECT_EQ(std::isinf(tape.level()[row]), !sees) << "row " << row;
        if (sees) continue;
        for (Index d = 0; d < 16; ++d) ASSERT_EQ(support::to_double(g.query(b, q, h, d)), 0);
      }
}

TYPED_TEST(SimulatedSources, PagesHaveTheGradientsOfTheirRows) {
  using T = TypeParam;
  const BackwardCase<T> c("simulated pages", {3, 9, 90, 4, 2, 16, 24});
  const auto wide = c.template as<double>();
  support::Random random("simulated pages' places");
  const support::PagedCopy<T> pages(random, c.k.view(), c.v.view(), lengths, 16);
  mha::AttentionTape<T, Model> tape;
  mha::AttentionTape<double, Reference> tape_here;
  const mha::ContiguousKv<double> rows{wide.k.view(), wide.v.view(), {}, lengths};
  const auto found = gradients<Model>(c, support::AnySource<T>(pages.source()), tape, mha::Causal{}, mha::SoftCap{3.f});
  const auto expected = gradients<Reference>(wide, rows, tape_here, mha::Causal{}, mha::SoftCap{3.f});
  EXPECT_LE(gradient_error<T>(found, expected), 1);
}

}  // namespace
