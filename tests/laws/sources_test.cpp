// SPDX-License-Identifier: Apache-2.0
// A row's bits depend on the keys that it sees, not on where a source keeps them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include <mha/systolic.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "kv_copies.hpp"
#include "law.hpp"
#include "scratch.hpp"

namespace {

using laws::at_every_isa;
using laws::Index;
using mha::Tensor;
using mha_test::message_of;

/// Heads and sizes of a call over sequences of these many keys, `queries` rows each.
struct Case {
  std::vector<Index> lengths;
  Index queries, heads = 4, kv_heads = 2, dim = 32, value_dim = 16;

  Index longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  Index batch() const { return static_cast<Index>(lengths.size()); }
};

template <class T, class Stored = T> struct Numbers {
  Tensor<T, 4> q;
  Tensor<Stored, 4> k, v;
  Numbers(support::Random& random, const Case& c)
      : q(c.batch(), c.queries, c.heads, c.dim),
        k(c.batch(), c.longest(), c.kv_heads, c.dim),
        v(c.batch(), c.longest(), c.kv_heads, c.value_dim) {
    random.fill(q);
    random.fill(k);
    random.fill(v);
  }
};

/// Results and log-sum-exps of a call, over poison.
template <class T> struct Result {
  Tensor<T, 4> out;
  Tensor<mha::Accumulator<T>, 3> lse;
};
template <class T, class Kv, class... Extra>
Result<T> run(const Case& c, const Tensor<T, 4>& q, const Kv& kv, Extra&&... extra) {
  Result<T> r{Tensor<T, 4>(c.batch(), c.queries, c.heads, c.value_dim),
              Tensor<mha::Accumulator<T>, 3>(c.batch(), c.heads, c.queries)};
  support::poison_all(r.out);
  support::poison_all(r.lse);
  mha::attention_into(r.out, q, kv, mha::LogSumExp(r.lse), extra...);
  return r;
}
template <class T> void expect_same(const Result<T>& a, const Result<T>& b) {
  EXPECT_EQ(support::differing(a.out, b.out), 0u);
  EXPECT_EQ(support::differing(a.lse, b.lse), 0u);
}

/// One sequence of a call as a call of its own, from tensors.
template <class T, class B, class... Extra>
void expect_rows_of_tensors(const Case& c, const Numbers<T>& n, const Result<T>& got, const B& backend,
                            const Extra&... extra) {
  for (Index b = 0; b < c.batch(); ++b) {
    const Index keys = c.lengths[static_cast<std::size_t>(b)];
    const auto part = [&](const Tensor<T, 4>& t, Index rows) {
      auto v = t.view();
      v.data = v.pointer(b, 0, 0, 0);
      v.extent[0] = 1;
      v.extent[1] = rows;
      return v;
    };
    Tensor<T, 4> out(1, c.queries, c.heads, c.value_dim);
    support::poison_all(out);
    mha::attention_into(out, part(n.q, c.queries), part(n.k, keys), part(n.v, keys), backend, extra...);
    for (Index i = 0; i < c.queries; ++i)
      for (Index h = 0; h < c.heads; ++h)
        for (Index d = 0; d < c.value_dim; ++d)
          ASSERT_EQ(support::bits(got.out(b, i, h, d)), support::bits(out(0, i, h, d)))
              << "sequence " << b << ", query " << i << ", head " << h << ", " << d;
  }
}

template <class T, class B, class... Extra>
void expect_bits_of_contiguous(const Case& c, const B& backend, const Extra&... extra) {
  support::Random random("sources");
  const Numbers<T> n(random, c);
  const mha::ContiguousKv<T> plain{n.k.view(), n.v.view(), {}, c.lengths};
  const auto expected = run(c, n.q, plain, backend, extra...);
  expect_rows_of_tensors(c, n, expected, backend, extra...);
  for (const Index page : {16, 32, 64, 256}) {
    SCOPED_TRACE("pages of " + std::to_string(page));
    const support::PagedCopy<T> pages(random, n.k.view(), n.v.view(), c.lengths, page);
    expect_same(run(c, n.q, pages.source(), backend, extra...), expected);
  }
  SCOPED_TRACE("a ring that holds all");
  const support::RingCopy<T> ring(n.k.view(), n.v.view(), c.lengths, c.longest() + 3, 5);
  expect_same(run(c, n.q, ring.source(), backend, extra...), expected);
}

const Case decoding{{300, 1, 77, 5000}, 1}, chunk{{300, 129, 128}, 67}, odd{{150, 260}, 3, 6, 3, 13, 9};

template <class T> class Sources : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Sources, Scalars);

TYPED_TEST(Sources, PagesAndRingsGiveTheBitsOfContiguousRows) {
  using T = TypeParam;
  const mha::Cpu three(mha::ThreadPool(3));
  at_every_isa([&] {
    for (const Case& c : {decoding, chunk, odd}) {
      expect_bits_of_contiguous<T>(c, three, mha::Causal{});
      expect_bits_of_contiguous<T>(c, mha::Cpu{}, mha::SlidingWindow{.left = 70}, mha::SoftCap{3.});
    }
  });
}

TYPED_TEST(Sources, SystolicGivesTheBitsOfContiguousRows) {
  using T = TypeParam;
  if constexpr (!std::is_same_v<T, double>) {
    expect_bits_of_contiguous<T>(Case{{300, 1, 77, 520}, 1}, mha::Systolic<>{}, mha::Causal{});
    expect_bits_of_contiguous<T>(chunk, mha::Systolic<>{}, mha::Causal{});
    expect_bits_of_contiguous<T>(odd, mha::Systolic<>{}, mha::SlidingWindow{.left = 70}, mha::SoftCap{3.});
  }
}

/// What a ring has dropped counts as hidden: the bits of a mask that hides it from contiguous rows.
struct Held {
  const support::RingCopy<float>* ring;
  bool operator()(Index b, Index, Index, Index k) const { return ring->holds(b, k); }
};

template <class B> void expect_dropped_are_hidden(const B& backend) {
  support::Random random("dropped");
  for (const Case& c : {Case{{700, 1, 77, 513}, 1}, Case{{300, 129, 128}, 67}, Case{{9000}, 2}}) {
    const Numbers<float> n(random, c);
    for (const Index rows : {7, 64, 150, 300})
      for (const Index first : {0, 4}) {
        const support::RingCopy<float> ring(n.k.view(), n.v.view(), c.lengths, rows, first);
        const mha::ContiguousKv<float> plain{n.k.view(), n.v.view(), {}, c.lengths};
        SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(first) + " first");
        expect_same(run(c, n.q, ring.source(), mha::Causal{}, backend),
                    run(c, n.q, plain, mha::Causal{}, Held{&ring}, backend));
        const auto score = mha::score([](auto s, int, int, int q, int k) { return s * 0.5f + float((q + k) % 3); });
        expect_same(run(c, n.q, ring.source(), score, backend), run(c, n.q, plain, score, Held{&ring}, backend));
        const auto weights = mha::attention_weights(n.q, ring.source(), mha::Causal{}, backend);
        EXPECT_EQ(support::differing(weights, mha::attention_weights(n.q, plain, mha::Causal{}, Held{&ring}, backend)),
                  0u);
      }
  }
}

TEST(Ring, HidesWhatItHasDropped) {
  at_every_isa([] { expect_dropped_are_hidden(mha::Cpu(mha::ThreadPool(3))); });
  expect_dropped_are_hidden(mha::Systolic<>{});
  expect_dropped_are_hidden(mha::Reference{});
}

/// The same where workers pack all heads and share chunks of keys.
template <class T> void expect_workers_to_pack_what_is_held(const Case& c, Index rows) {
  support::Random random("held by workers");
  const Numbers<T> n(random, c);
  const mha::Systolic<> three(mha::ThreadPool(3));
  const support::RingCopy<T> ring(n.k.view(), n.v.view(), c.lengths, rows, 4);
  const mha::ContiguousKv<T> plain{n.k.view(), n.v.view(), {}, c.lengths};
  const auto held = mha::mask([&](Index b, Index, Index, Index k) { return ring.holds(b, k); });
  expect_same(run(c, n.q, ring.source(), mha::Causal{}, three), run(c, n.q, plain, mha::Causal{}, held, three));
}
TEST(Ring, HasWorkersPackWhatItHolds) {
  expect_workers_to_pack_what_is_held<float>({{5000, 700, 1}, 20, 16, 8, 64, 80}, 300);
  expect_workers_to_pack_what_is_held<mha::bfloat16>({{5000, 700, 1}, 20, 16, 8, 64, 80}, 300);
  expect_workers_to_pack_what_is_held<mha::bfloat16>({{14000}, 3, 16, 1, 64, 64}, 9000);
}

/// A ring that counts what it is asked.
template <class T> struct CountedRing : mha::RingKv<T> {
  static inline std::atomic<int> asked = 0;
  Index held(Index b, Index k) const {
    ++asked;
    return mha::RingKv<T>::held(b, k);
  }
  mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    ++asked;
    return mha::RingKv<T>::run(b, g, begin, end);
  }
};

/// Questions and memory of a call on a ring of 300 rows that has been given more and more.
template <class T, class B> void expect_costs_of_a_ring(const B& backend, const Case& c, int most) {
  support::Random random("endless");
  const Numbers<T> n(random, c);
  Tensor<T, 4> k(1, 300, c.kv_heads, c.dim), v(1, 300, c.kv_heads, c.value_dim);
  random.fill(k);
  random.fill(v);
  const auto asked_at = [&](Index length, mha::Workspace& workspace) {
    const std::vector<Index> lengths{length};
    CountedRing<T>::asked = 0;
    run(c, n.q, CountedRing<T>{{k.view(), v.view(), lengths, 4}}, mha::Causal{}, backend, workspace);
    return CountedRing<T>::asked.load();
  };
  mha::Workspace workspace, late;
  // Full blocks and chunks begin at other places of the ring: a few more or less.
  const int asked = asked_at(1000000, late);
  EXPECT_LE(asked, 2 * asked_at(10000, workspace));
  EXPECT_LE(asked, most);
  const int allocations = workspace.allocations();
  for (const Index length : {1, 100, 4095, 4097, 4400, 1000000, 1000300}) asked_at(length, workspace);
  EXPECT_EQ(workspace.allocations(), allocations) << "of " << workspace.bytes() << " bytes";
  // As much as the first call of some early position takes: in blocks, whose ends may be too small for what comes next.
  std::size_t early = 0;
  for (const Index length : {4097, 4400, 10000}) {
    mha::Workspace first;
    asked_at(length, first);
    early = std::max(early, first.bytes());
  }
  EXPECT_LE(late.bytes(), early);
}

TEST(Ring, CostsTheSameHoweverLongItHasBeen) {
  const Case one{{1}, 1}, many{{1}, 40, 16, 8, 64, 80};
  expect_costs_of_a_ring<float>(mha::CpuWith<mha::Serial>{}, one, 200);
  using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;
  expect_costs_of_a_ring<float>(Systolic{}, one, 400);
  expect_costs_of_a_ring<mha::bfloat16>(Systolic{}, one, 400);
  const mha::Systolic<> three(mha::ThreadPool(3));
  expect_costs_of_a_ring<float>(three, many, 2000);
  expect_costs_of_a_ring<mha::bfloat16>(three, many, 2000);
}

/// Every third position is there: no source of the library's.
struct Thirds : mha::ContiguousKv<float> {
  Index held(Index, Index k) const { return (k + 2) / 3 * 3; }
  mha::KvRun<float> run(Index b, Index g, Index begin, Index) const {
    return ContiguousKv::run(b, g, begin, begin + 1);
  }
};

TEST(Sources, OfTheUsersOwnMayDropAnyPositions) {
  support::Random random("thirds");
  const Case c{{400, 3}, 9};
  Numbers<float> n(random, c);
  const mha::ContiguousKv<float> plain{n.k.view(), n.v.view(), {}, c.lengths};
  const Thirds thirds{plain};
  const auto third = mha::mask([](int, int, int, int k) { return k % 3 == 0; });
  expect_same(run(c, n.q, thirds, mha::Causal{}), run(c, n.q, plain, mha::Causal{}, third));
  expect_same(run(c, n.q, thirds, mha::Causal{}, mha::Systolic<>{}),
              run(c, n.q, plain, mha::Causal{}, third, mha::Systolic<>{}));
  const auto by_eigen = run(c, n.q, thirds, mha::Causal{}, mha::EigenCpu{});
  const auto exact = run(c, n.q, thirds, mha::Causal{}, mha::Reference{});
  EXPECT_LT(support::largest_difference(by_eigen.out, exact.out), 1e-5);
}

/// Keys stored in 16 bits under float: the bits of the same keys in float.
template <class Stored> void expect_bits_of_widened() {
  support::Random random("stored");
  for (const Case& c : {Case{{300, 1, 77}, 1}, Case{{150, 260}, 40, 6, 3, 13, 9}}) {
    const Numbers<float, Stored> n(random, c);
    Numbers<float> wide(random, c);
    wide.q = n.q;
    std::copy(n.k.begin(), n.k.end(), wide.k.begin());
    std::copy(n.v.begin(), n.v.end(), wide.v.begin());
    const support::PagedCopy<Stored> pages(random, n.k.view(), n.v.view(), c.lengths, 16);
    const mha::ContiguousKv<float> plain{wide.k.view(), wide.v.view(), {}, c.lengths};
    at_every_isa([&] {
      expect_same(run(c, n.q, pages.source(), mha::Causal{}), run(c, wide.q, plain, mha::Causal{}));
      EXPECT_EQ(support::differing(mha::attention_weights(n.q, pages.source()), mha::attention_weights(wide.q, plain)),
                0u);
    });
    expect_same(run(c, n.q, pages.source(), mha::Reference{}), run(c, wide.q, plain, mha::Reference{}));
    expect_same(run(c, n.q, pages.source(), mha::EigenCpu{}),
                run(c, wide.q, support::PagedCopy<float>(random, wide.k.view(), wide.v.view(), c.lengths, 16).source(),
                    mha::EigenCpu{}));
    expect_same(run(c, n.q, pages.source(), mha::Systolic<>{}), run(c, wide.q, plain, mha::Systolic<>{}));
  }
}
TEST(Sources, MayStoreOtherScalarsThanTheCalls) {
  expect_bits_of_widened<mha::half>();
  expect_bits_of_widened<mha::bfloat16>();
}

/// Rows in 8 bits of a user's own, keys of all heads before values, at odd addresses.
struct OwnEightBits {
  using Scalar = mha::scaled_int8;
  Case c;
  std::vector<std::vector<mha::scaled_int8>> sequences;

  OwnEightBits(const Case& of, const Tensor<mha::scaled_int8, 4>& k, const Tensor<mha::scaled_int8, 4>& v) : c(of) {
    for (Index b = 0; b < c.batch(); ++b) {
      std::vector<mha::scaled_int8> rows(1, support::eight_bits(77));
      for (Index j = 0; j < keys(b); ++j)
        for (const auto* t : {&k, &v})
          rows.insert(rows.end(), &(*t)(b, j, 0, 0), &(*t)(b, j, 0, 0) + t->extent(2) * t->extent(3));
      sequences.push_back(rows);
    }
  }
  Index batch() const { return c.batch(); }
  Index heads() const { return c.kv_heads; }
  Index dim() const { return c.dim; }
  Index value_dim() const { return c.value_dim; }
  Index keys(Index b) const { return c.lengths[static_cast<std::size_t>(b)]; }
  mha::KvRun<mha::scaled_int8> run(Index b, Index g, Index begin, Index end) const {
    const Index k = mha::row_elements<Scalar>(c.dim), v = mha::row_elements<Scalar>(c.value_dim);
    const std::ptrdiff_t apart = std::ptrdiff_t{heads()} * (k + v);
    const Scalar* const row = sequences[static_cast<std::size_t>(b)].data() + 1 + begin * apart + 4;
    return {row + std::ptrdiff_t{g} * k, row + std::ptrdiff_t{heads()} * k + std::ptrdiff_t{g} * v, apart, apart,
            std::min(end - begin, Index{7})};
  }
};

template <class B> void expect_bits_of_eight_bits(const Case& c, const B& backend) {
  support::Random random("stored in 8 bits");
  Numbers<float> wide(random, c);
  const auto k = support::in_eight_bits(wide.k), v = support::in_eight_bits(wide.v);
  const mha::ContiguousKv<float> plain{wide.k.view(), wide.v.view(), {}, c.lengths};
  const mha::ContiguousKv<mha::scaled_int8> rows{support::numbers_of(k), support::numbers_of(v), {}, c.lengths};
  const support::PagedCopy<mha::scaled_int8> pages(random, k.view(), v.view(), c.lengths, 16);
  const support::RingCopy<mha::scaled_int8> ring(k.view(), v.view(), c.lengths, 70, 3);
  const support::RingCopy<float> wide_ring(wide.k.view(), wide.v.view(), c.lengths, 70, 3);
  const auto expected = run(c, wide.q, plain, backend, mha::Causal{});
  expect_same(run(c, wide.q, rows, backend, mha::Causal{}), expected);
  expect_same(run(c, wide.q, pages.source(), backend, mha::Causal{}), expected);
  expect_same(run(c, wide.q, OwnEightBits(c, k, v), backend, mha::Causal{}), expected);
  expect_same(run(c, wide.q, ring.source(), backend, mha::Causal{}),
              run(c, wide.q, wide_ring.source(), backend, mha::Causal{}));
  for (const auto& weights : {mha::attention_weights(wide.q, pages.source(), backend),
                              mha::attention_weights(wide.q, OwnEightBits(c, k, v), backend)})
    EXPECT_EQ(support::differing(weights, mha::attention_weights(wide.q, plain, backend)), 0u);
}
TEST(Sources, InEightBitsHaveTheBitsOfTheirNumbers) {
  for (const Case& c : {Case{{300, 1, 77}, 1}, Case{{150, 260}, 40, 6, 3, 13, 9}, Case{{90, 200}, 2, 4, 1, 64, 128},
                        Case{{100}, 9, 8, 8, 96, 1}, Case{{130, 100}, 16, 16, 1, 128, 64}}) {
    at_every_isa([&] { expect_bits_of_eight_bits(c, mha::Cpu{}); });
    expect_bits_of_eight_bits(c, mha::Reference{});
    expect_bits_of_eight_bits(c, mha::Systolic<>{});
  }
}
TEST(Sources, InEightBitsAreReadByEigen) {
  support::Random random("stored in 8 bits for Eigen");
  const Case c{{150, 260}, 40, 6, 3, 13, 9};
  Numbers<float> n(random, c);
  const auto k = support::in_eight_bits(n.k), v = support::in_eight_bits(n.v);
  const mha::ContiguousKv<mha::scaled_int8> rows{support::numbers_of(k), support::numbers_of(v), {}, c.lengths};
  EXPECT_LT(
      support::largest_difference(run(c, n.q, rows, mha::EigenCpu{}).out, run(c, n.q, rows, mha::Reference{}).out),
      1e-5);
  EXPECT_LT(support::largest_difference(mha::attention_weights(n.q, rows, mha::EigenCpu{}),
                                        mha::attention_weights(n.q, rows, mha::Reference{})),
            1e-5);
}

// A row that is NaN does nothing where a mask hides it, and shows where it is seen.
template <class B> void expect_a_hidden_nan_row_to_do_nothing(const B& backend) {
  support::Random random("hidden rows of 8 bits");
  for (const Case& c : {Case{{80}, 1, 4, 2, 64, 32}, Case{{80}, 40, 4, 2, 13, 9}}) {
    Numbers<float> n(random, c);
    const auto hidden = mha::mask([](int, int, int, int key) { return key != 33; });
    for (const float special : {0.0f, NAN, INFINITY}) {
      auto wide_k = n.k, wide_v = n.v;
      wide_k(0, 33, 1, 2) = special;
      wide_v(0, 33, 0, 1) = special;
      const auto k = support::in_eight_bits(wide_k), v = support::in_eight_bits(wide_v);
      const mha::ContiguousKv<mha::scaled_int8> rows{support::numbers_of(k), support::numbers_of(v), {}, c.lengths};
      auto clean_k = wide_k, clean_v = wide_v;
      for (Index g = 0; g < 2; ++g) {
        std::fill_n(&clean_k(0, 33, g, 0), c.dim, 0.0f);
        std::fill_n(&clean_v(0, 33, g, 0), c.value_dim, 0.0f);
      }
      const mha::ContiguousKv<float> clean{clean_k.view(), clean_v.view(), {}, c.lengths};
      expect_same(run(c, n.q, rows, hidden, backend), run(c, n.q, clean, hidden, backend));
      if (special == 0.0f) continue;
      const auto seen = run(c, n.q, rows, backend);
      for (const float x : seen.out) EXPECT_TRUE(std::isnan(x)) << "of a head's NaN value or key";
    }
  }
}
TEST(Sources, InEightBitsHideRowsThatAreNaN) {
  at_every_isa([] { expect_a_hidden_nan_row_to_do_nothing(mha::Cpu{}); });
  expect_a_hidden_nan_row_to_do_nothing(mha::Reference{});
  expect_a_hidden_nan_row_to_do_nothing(mha::Systolic<>{});
}

/// Queries one after another over sequences of a source: decoding and a prompt's chunk in one call.
TEST(Sources, ServeRaggedQueries) {
  support::Random random("ragged over pages");
  const Case c{{300, 64, 77}, 1};
  const Numbers<float> n(random, c);
  const std::vector<Index> offsets{0, 1, 41, 42};
  Tensor<float, 3> q(42, c.heads, c.dim), out(42, c.heads, c.value_dim);
  random.fill(q);
  support::poison_all(out);
  const support::PagedCopy<float> pages(random, n.k.view(), n.v.view(), c.lengths, 32);
  mha::attention_into(out, q, pages.source(), mha::Ragged{offsets}, mha::Causal{});
  for (Index b = 0; b < 3; ++b) {
    const auto at = static_cast<std::size_t>(b);
    const Index first = offsets[at], rows = offsets[at + 1] - first, keys = c.lengths[at];
    const auto cut = [](auto v, Index begin, Index count) {
      v.data = v.pointer(begin, 0, 0);
      v.extent[0] = count;
      return v;
    };
    const auto of_sequence = [&](const Tensor<float, 4>& t) {
      const auto v = t.view();
      return mha::TensorView<const float, 3>{
          v.pointer(b, 0, 0, 0), {keys, v.extent[2], v.extent[3]}, {v.stride[1], v.stride[2], 1}};
    };
    const auto alone = mha::attention(cut(q.view(), first, rows), of_sequence(n.k), of_sequence(n.v), mha::Causal{});
    for (Index i = 0; i < rows; ++i)
      for (Index h = 0; h < c.heads; ++h)
        for (Index d = 0; d < c.value_dim; ++d)
          ASSERT_EQ(support::bits(out(first + i, h, d)), support::bits(alone(i, h, d))) << b << ", " << i;
  }
}

TEST(Sources, RefuseWhatDoesNotFitTheCall) {
  const Tensor<float, 4> q(2, 3, 4, 8), k(2, 20, 2, 8), three(3, 20, 2, 8), wide(2, 20, 2, 9), heads(2, 20, 3, 8);
  const std::vector<Index> two{20, 7}, of_three{1, 2, 3}, offsets{0, 1, 3};
  const auto refusal = [&](const auto& queries, const auto& kv, const auto&... extra) {
    return message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention(queries, kv, extra...)); });
  };
  const auto ring = [](const Tensor<float, 4>& rows, const std::vector<Index>& lengths) {
    return mha::RingKv<float>{rows.view(), rows.view(), lengths};
  };
  EXPECT_EQ(refusal(q, ring(k, two)), "");
  EXPECT_EQ(refusal(q, ring(three, of_three)), "attention: q has batch 2 but the source has batch 3");
  EXPECT_EQ(refusal(q, ring(wide, two)), "attention: q has head size 8 but the source has head size 9");
  EXPECT_EQ(refusal(q, ring(heads, two)), "attention: the source has 3 heads, which does not divide q's 4");
  const Tensor<float, 3> packed(3, 4, 8);
  EXPECT_EQ(refusal(packed, ring(k, two), mha::Ragged{offsets}), "");
  EXPECT_EQ(refusal(packed, ring(k, two), mha::Ragged{offsets, offsets}),
            "attention: Ragged has 3 key offsets, but the lengths of the keys are the source's own: give the query "
            "offsets alone");
  EXPECT_EQ(refusal(packed, ring(three, of_three), mha::Ragged{offsets}),
            "attention: q has batch 2 but the source has batch 3");
  EXPECT_EQ(
      refusal(q, ring(k, two), mha::LeftPadding{two}),
      "LeftPadding: the sequences have different numbers of keys, or may have in steps of a recordable cache, so that "
      "no position is in front of all");
  const std::vector<Index> table{0, 1};
  const mha::PagedKv<float> far{k.view(), k.view(), mha::Borrowed<Index>(table.data(), 2, mha::Memory::device), two};
  const Tensor<float, 4> pool(2, 32, 2, 8);
  EXPECT_EQ(refusal(q, mha::PagedKv<float>{pool.view(), pool.view(), far.table, two}),
            "attention: the source borrows device memory, but the backend computes on the host");
}

}  // namespace
