// SPDX-License-Identifier: Apache-2.0
// A cache whose values are in its keys: attention over it has the bits of attention over the rows and a copy of the
// values, whatever has happened to its sequences.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::SequenceId;
using mha::Tensor;

constexpr Index H = 6, heads = 2, D = 40, Dv = 24, most_rows = 9, longest = 150;

template <class T> struct Text {
  SequenceId id;
  std::vector<T> rows;  ///< (length, heads, D)

  Index length() const { return static_cast<Index>(rows.size()) / (heads * D); }
  void resize(Index length) { rows.resize(static_cast<std::size_t>(length) * heads * D); }
  void add(const T* row) { rows.insert(rows.end(), row, row + heads * D); }
  mha::TensorView<const T, 4> keys() const { return mha::view_blhd(rows.data(), 1, length(), heads, D); }
};

template <class T, class B, class Storage, class M>
void expect_attention_over_rows(const Storage& storage, const M& mask) {
  support::Random random("latent cache");
  mha::KvCache<Storage, T> cache({.heads = heads, .dim = D, .value_dim = Dv, .values_in_keys = true}, storage,
                                 {.sequences = 3});
  std::vector<Text<T>> texts{{cache.add(), {}}};
  const mha::Scale scale{0.3};
  for (int round = 0; round < 80; ++round) {
    const auto one = static_cast<std::size_t>(random.below(static_cast<int>(texts.size())));
    const Index back = texts[one].length() - std::min(texts[one].length(), random.below(5));
    switch (random.below(6)) {
      case 0:
        if (texts.size() == 3 || !cache.can_truncate(texts[one].id, back)) break;
        texts.push_back({cache.fork(texts[one].id, back), texts[one].rows});
        texts.back().resize(back);
        break;
      case 1:
        if (!cache.can_truncate(texts[one].id, back)) break;
        cache.truncate(texts[one].id, back);
        texts[one].resize(back);
        break;
      case 2: {
        const auto last = texts.size() - 1;
        if (one == last) break;
        cache.reorder({texts[one].id, texts[last].id}, {0, 0});
        texts[last].rows = texts[one].rows;
        break;
      }
      case 3:
        if (texts.size() == 3) {
          cache.remove(texts[one].id);
          texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(one));
        } else {
          texts.push_back({cache.restore(cache.save(texts[one].id)), texts[one].rows});
        }
        break;
      default:
        break;
    }
    std::vector<SequenceId> ids;
    std::vector<Index> rows, kept;
    for (const auto& text : texts) {
      ids.push_back(text.id);
      rows.push_back(std::min(random.below(most_rows + 1), longest - text.length()));
    }
    auto step = cache.step(ids, rows);
    const Index all = step.offsets().back();
    Tensor<T, 3> q(all, H, D), key(all, heads, D);
    random.fill(q);
    random.fill(key);
    step.append(0, key);
    const auto y = mha::attention(q, step.source(0), mha::Ragged{step.offsets()}, mask, scale, B{});
    for (std::size_t b = 0; b < texts.size(); ++b) {
      const Index begin = step.offsets()[b], n = rows[b];
      Text<T> text = texts[b];
      for (Index i = begin; i < begin + n; ++i) text.add(&key(i, 0, 0));
      if (n == 0) continue;
      const mha::TensorView<const T, 4> queries = mha::view_blhd(std::as_const(q).data() + begin * H * D, 1, n, H, D);
      Tensor<T, 4> values(1, text.length(), heads, Dv);
      for (Index j = 0; j < text.length(); ++j)
        for (Index g = 0; g < heads; ++g) std::copy_n(&text.keys()(0, j, g, 0), Dv, &values(0, j, g, 0));
      const Tensor<T, 4> expected = mha::attention(queries, text.keys(), values, mask, scale, B{});
      for (std::size_t e = 0; e < expected.size(); ++e)
        ASSERT_EQ(support::bits(y.data()[static_cast<std::size_t>(begin) * H * Dv + e]),
                  support::bits(expected.data()[e]))
            << "round " << round << ", sequence " << b << ", element " << e;
    }
    const bool some = random.chance(0.3);
    const std::vector<Index> offsets(step.offsets().begin(), step.offsets().end());
    for (std::size_t b = 0; b < texts.size(); ++b)
      for (Index i = offsets[b]; i < offsets[b + 1]; ++i)
        if (!some || random.chance(0.6)) {
          kept.push_back(i);
          texts[b].add(&key(i, 0, 0));
        }
    if (some)
      step.commit(kept);
    else
      step.commit();
  }
}

template <class T, class B> void expect_attention_over_rows() {
  expect_attention_over_rows<T, B>(mha::Contiguous{.length = longest}, mha::Causal{});
  expect_attention_over_rows<T, B>(mha::Paged{.pages = 32, .length = 160, .page = 16}, mha::Causal{});
  expect_attention_over_rows<T, B>(mha::Ring{.left = 20, .rows = most_rows}, mha::SlidingWindow{.left = 20});
}

TEST(LatentCache, HasTheBitsOfItsRowsOnCpu) {
  expect_attention_over_rows<float, mha::Cpu>();
  expect_attention_over_rows<mha::bfloat16, mha::Cpu>();
}
TEST(LatentCache, HasTheBitsOfItsRowsOnReference) {
  expect_attention_over_rows<float, mha::Reference>();
  expect_attention_over_rows<mha::bfloat16, mha::Reference>();
}
TEST(LatentCache, HasTheBitsOfItsRowsOnSystolic) {
  expect_attention_over_rows<float, mha::Systolic<>>();
  expect_attention_over_rows<mha::bfloat16, mha::Systolic<>>();
}

}  // namespace
