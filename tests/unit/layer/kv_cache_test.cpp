// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/kv_cache.hpp>

#include "cache_picture.hpp"
#include "far_backend.hpp"
#include "message_of.hpp"

namespace {

using mha::CacheSizes;
using mha::Contiguous;
using mha::Index;
using mha::KvCache;
using mha::KvShape;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;
using support::message_of;
using support::write;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 2;
constexpr KvShape shape{heads, dim, value_dim};
constexpr CacheSizes sizes{.layers = layers, .sequences = 5};

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

TEST(KvCache, SavedSequencesGoFromStorageToStorage) {
  KvCache<Contiguous, float> contiguous(shape, Contiguous{.length = 40}, sizes);
  KvCache<Paged, float> paged(shape, Paged{.pages = 3, .length = 64, .page = 16}, sizes);
  KvCache<Ring, float> ring(shape, Ring{.left = 8, .rows = 4}, sizes), small(shape, Ring{.left = 3, .rows = 4}, sizes);
  const SequenceId a = contiguous.add();
  for (int i = 0; i < 10; ++i) write(contiguous, a, 3, float(i));  // length 30
  const auto saved = contiguous.save(a);
  const auto from_pages = paged.save(paged.restore(saved));
  EXPECT_EQ(from_pages, saved);
  const SequenceId r = ring.restore(saved);
  EXPECT_EQ(ring.length(r), 30);
  EXPECT_EQ(ring.oldest(r), 18);
  const auto from_ring = ring.save(r);
  EXPECT_LT(from_ring.size(), saved.size());
  EXPECT_EQ(small.length(small.restore(from_ring)), 30);
  const auto refused = [](auto& cache, const auto& bytes) {
    const Index before = cache.sequences();
    const std::string sentence = message_of([&] { static_cast<void>(cache.restore(bytes)); });
    EXPECT_EQ(cache.sequences(), before);
    return sentence;
  };
  EXPECT_EQ(refused(contiguous, from_ring),
            "restore: the saved sequence is without positions 0 to 17, but this cache keeps all");
  EXPECT_EQ(refused(paged, from_ring),
            "restore: the saved sequence is without positions 0 to 17, but this cache keeps all");
  const auto from_small = small.save(small.restore(from_ring));
  EXPECT_EQ(
      refused(ring, from_small),
      "restore: the saved sequence is without positions 0 to 22, but this Ring keeps the first 0 and those from 22 "
      "on");
  KvCache<Contiguous, float> shorter(shape, Contiguous{.length = 29}, sizes);
  EXPECT_EQ(refused(shorter, saved), "restore: the saved sequence has length 30, the cache's limit is 29");
  EXPECT_EQ(refused(paged, saved), "cache: the step needs 2 pages of 16 positions, 1 of 3 are free") << "two are taken";
  KvCache<Contiguous, mha::bfloat16> narrow(shape, Contiguous{.length = 40}, sizes);
  EXPECT_EQ(refused(narrow, saved), "restore: the sequence was saved in another scalar, the cache stores bfloat16");
  KvCache<Contiguous, float> wide({heads, dim + 1, value_dim}, Contiguous{.length = 40}, sizes);
  EXPECT_EQ(refused(wide, saved), "restore: the saved sequence has head size 3 but the cache has head size 4");
  KvCache<Contiguous, float> deep(shape, Contiguous{.length = 40}, {.layers = layers + 1, .sequences = 1});
  EXPECT_EQ(refused(deep, saved), "restore: the saved sequence has layers 2 but the cache has layers 3");
  for (std::size_t n = 0; n < saved.size(); n += 7)
    EXPECT_NE(refused(contiguous, std::vector(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(n))), "");
  auto other = saved;
  other[7] = std::byte{'2'};
  EXPECT_EQ(refused(contiguous, other), "restore: the bytes are no saved sequence, or one of another version of mha");
}

TEST(KvCache, SavedSequencesGoFromMachineToMachine) {
  KvCache<Contiguous, float> here(shape, Contiguous{.length = 40}, sizes);
  KvCache<Paged, float, support::Far> far(shape, Paged{.pages = 3, .length = 64, .page = 16}, sizes);
  const SequenceId a = here.add(), empty = here.add();
  for (int i = 0; i < 7; ++i) write(here, a, 3, float(i));
  EXPECT_EQ(far.save(far.restore(here.save(a))), here.save(a));
  EXPECT_EQ(far.length(far.restore(here.save(empty))), 0);
}

TEST(KvCache, StoresOtherScalarsOfTheSameAccumulator) {
  KvCache<Contiguous, mha::bfloat16> cache(shape, Contiguous{.length = 4}, {.layers = 1, .sequences = 1});
  EXPECT_EQ(cache.bytes(), at(4 * heads * (dim + value_dim) * 2));
  const SequenceId a = cache.add();
  auto step = cache.step(a, 1);
  Tensor<float, 3> key(1, heads, dim), value(1, heads, value_dim);
  std::fill(key.begin(), key.end(), 1.00390625f);  // halfway between two of bfloat16: to the even one
  std::fill(value.begin(), value.end(), 3.0f);
  step.append(0, key, value);
  const auto run = step.source(0).run(0, 1, 0, 1);
  EXPECT_EQ(float(run.key[2]), 1.0f);
  EXPECT_EQ(float(run.value[1]), 3.0f);
}

// Keys and values may each come in one sequence of rows or in one for each of the step.
TEST(KvCache, AppendsRowsOfEitherForm) {
  for (const int form : {0, 1, 2, 3}) {
    KvCache<Contiguous, float> cache({1, 2, 1}, Contiguous{.length = 4}, {.sequences = 2});
    cache.add();
    cache.add();
    // Rows two apart, so that a wrong sequence is another number.
    Tensor<float, 5> memory(2, 2, 2, 1, 2);
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 2; ++i) memory(b, i, 0, 0, 0) = memory(b, i, 0, 0, 1) = static_cast<float>(10 * b + i);
    const auto batch = [&](Index d) {
      return mha::TensorView<const float, 4>{memory.data(), {2, 2, 1, d}, {8, 4, 2, 1}};
    };
    const auto rows = [&](Index d) { return mha::TensorView<const float, 3>{memory.data(), {4, 1, d}, {4, 2, 1}}; };
    auto step = cache.step(2);
    if (form == 0) step.append(0, batch(2), batch(1));
    if (form == 1) step.append(0, batch(2), rows(1));
    if (form == 2) step.append(0, rows(2), batch(1));
    if (form == 3) step.append(0, rows(2), rows(1));
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 2; ++i) {
        const auto run = step.source(0).run(b, 0, i, i + 1);
        EXPECT_EQ(*run.key, static_cast<float>(10 * b + i)) << "form " << form;
        EXPECT_EQ(*run.value, static_cast<float>(10 * b + i)) << "form " << form;
      }
  }
}

// After going back, and after a restore, a Ring's source shows nothing that was written over.
TEST(KvCache, ARingsSourceHidesWhatIsGone) {
  KvCache<Ring, float> cache({1, 1, 1}, Ring{.left = 2, .rows = 3}, {.sequences = 2});
  const SequenceId a = cache.add();
  Tensor<float, 3> row(1, 1, 1);
  const auto append = [&](SequenceId id, float number) {
    auto step = cache.step(id, 1);
    row(0, 0, 0) = number;
    step.append(0, row, row);
    step.commit();
  };
  for (int i = 0; i < 10; ++i) append(a, float(i));
  cache.truncate(a, 7);
  append(a, 7);
  EXPECT_EQ(cache.oldest(a), 5);
  const auto shown = [&](SequenceId id) {
    const auto step = cache.step(id, 0);
    const auto source = step.source(0);
    std::vector<float> all;
    for (Index p = source.held(0, 0); p < source.keys(0); p = source.held(0, p + 1))
      all.push_back(*source.run(0, 0, p, p + 1).key);
    return all;
  };
  EXPECT_EQ(shown(a), (std::vector<float>{5, 6, 7}));
  KvCache<Ring, float> wide({1, 1, 1}, Ring{.left = 2, .rows = 9}, {.sequences = 1});
  const SequenceId b = wide.restore(cache.save(a));
  const auto step = wide.step(b, 0);
  EXPECT_EQ(step.source(0).held(0, 0), 5);
}

TEST(KvCache, AnEndedStepIsNotTakenForTheNext) {
  KvCache<Contiguous, float> cache(shape, Contiguous{.length = 8}, sizes);
  const SequenceId a = cache.add();
  const mha::Config config{.d_model = 6, .num_heads = 2, .num_kv_heads = 2, .head_dim = 3, .value_dim = 2};
  const auto old = [&] {
    const auto step = cache.step(a, 1);
    return step[0];
  }();
  const auto step = cache.step(a, 1);
  EXPECT_EQ(message_of([&] { old.check(config, 1, 1, 1); }), "layer: the step has ended");
  step[0].check(config, 1, 1, 1);
}

}  // namespace
