// SPDX-License-Identifier: Apache-2.0
// Attention over a cache has the bits of attention over tensors of the numbers that it stores, in 8 bits and with its
// values in its keys too, whatever has happened to its sequences.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "law.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::SequenceId;
using mha::Tensor;

constexpr Index H = 6, heads = 2, most_rows = 9, longest = 150;

/// The numbers of a row of n that a cache of F stores.
template <class F, class T> void round_row(T* row, Index n) {
  if constexpr (std::is_same_v<F, mha::scaled_int8>) {
    std::vector<F> stored(static_cast<std::size_t>(mha::row_elements<F>(n)));
    std::vector<float> numbers(static_cast<std::size_t>(n));
    mha::quantize_row(row, n, stored.data() + mha::row_lead<F>);
    mha::read_row(stored.data() + mha::row_lead<F>, n, numbers.data());
    std::transform(numbers.begin(), numbers.end(), row, [](float x) { return T(x); });
  }
}

template <class T> struct Text {
  SequenceId id;
  Index length = 0;
  std::vector<T> keys{}, values{};  ///< (length, heads, D) and (length, heads, Dv)

  /// The first rows of another.
  void be(const Text& other, Index rows) {
    keys.assign(other.keys.begin(), other.keys.begin() + other.row(other.keys) * rows);
    values.assign(other.values.begin(), other.values.begin() + other.row(other.values) * rows);
    length = rows;
  }
  void add(std::span<const T> key, std::span<const T> value) {
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
    ++length;
  }

 private:
  std::ptrdiff_t row(const std::vector<T>& rows) const {
    return length > 0 ? static_cast<std::ptrdiff_t>(rows.size()) / length : 0;
  }
};

/// Queries of T over a cache of F, on B; the tensors are of F's numbers in T, which has all their digits.
template <class T, class F, class B, class Storage, class M>
void expect_attention_over_rows(const Storage& storage, const M& mask, const mha::KvShape& shape) {
  support::Random random("stored rows");
  const auto [_, D, Dv, latent] = shape;
  mha::KvCache<Storage, F> cache(shape, storage, {.sequences = 3});
  std::vector<Text<T>> texts{{cache.add()}};
  const mha::Scale scale{0.3};
  for (int round = 0; round < 80; ++round) {
    const auto one = static_cast<std::size_t>(random.below(static_cast<int>(texts.size())));
    const Index back = texts[one].length - std::min(texts[one].length, random.below(5));
    switch (random.below(6)) {
      case 0:
        if (texts.size() == 3 || !cache.can_truncate(texts[one].id, back)) break;
        texts.push_back({cache.fork(texts[one].id, back)});
        texts.back().be(texts[one], back);
        break;
      case 1:
        if (!cache.can_truncate(texts[one].id, back)) break;
        cache.truncate(texts[one].id, back);
        texts[one].be(Text<T>(texts[one]), back);
        break;
      case 2: {
        const auto last = texts.size() - 1;
        if (one == last) break;
        cache.reorder({texts[one].id, texts[last].id}, {0, 0});
        texts[last].be(texts[one], texts[one].length);
        break;
      }
      case 3:
        if (texts.size() == 3) {
          cache.remove(texts[one].id);
          texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(one));
        } else {
          texts.push_back({cache.restore(cache.save(texts[one].id))});
          texts.back().be(texts[one], texts[one].length);
        }
        break;
      default:
        break;
    }
    std::vector<SequenceId> ids;
    std::vector<Index> rows, kept;
    for (const auto& text : texts) {
      ids.push_back(text.id);
      rows.push_back(std::min(random.below(most_rows + 1), longest - text.length));
    }
    auto step = cache.step(ids, rows);
    const Index all = step.offsets().back();
    Tensor<T, 3> q(all, H, D), key(all, heads, D), value(all, heads, Dv);
    random.fill(q);
    random.fill(key);
    random.fill(value);
    if (latent)
      step.append(0, key);
    else
      step.append(0, key, value);
    for (Index i = 0; i < all; ++i)
      for (Index g = 0; g < heads; ++g) {
        round_row<F>(&key(i, g, 0), D);
        round_row<F>(&value(i, g, 0), Dv);
        if (latent) std::copy_n(&key(i, g, 0), Dv, &value(i, g, 0));
      }
    const auto add = [&key, &value](Text<T>& to, Index i) {
      const auto row = [i](const Tensor<T, 3>& of) {
        const auto n = static_cast<std::size_t>(of.extent(1) * of.extent(2));
        return std::span<const T>(of).subspan(static_cast<std::size_t>(i) * n, n);
      };
      to.add(row(key), row(value));
    };
    const auto y = mha::attention(q, step.source(0), mha::Ragged{step.offsets()}, mask, scale, B{});
    for (std::size_t b = 0; b < texts.size(); ++b) {
      const Index begin = step.offsets()[b], n = rows[b];
      Text<T> text = texts[b];
      for (Index i = begin; i < begin + n; ++i) add(text, i);
      if (n == 0) continue;
      const mha::TensorView<const T, 4> queries = mha::view_blhd(std::as_const(q).data() + begin * H * D, 1, n, H, D);
      const auto rows_of = [&](const std::vector<T>& numbers, Index dim) {
        return mha::TensorView<const T, 4>(mha::view_blhd(numbers.data(), 1, text.length, heads, dim));
      };
      const Tensor<T, 4> expected =
          mha::attention(queries, rows_of(text.keys, D), rows_of(text.values, Dv), mask, scale, B{});
      for (std::size_t e = 0; e < expected.size(); ++e)
        ASSERT_EQ(support::bits(y.data()[static_cast<std::size_t>(begin * H * Dv) + e]),
                  support::bits(expected.data()[e]))
            << "round " << round << ", sequence " << b << ", element " << e;
    }
    const bool some = random.chance(0.3);
    const std::vector<Index> offsets(step.offsets().begin(), step.offsets().end());
    for (std::size_t b = 0; b < texts.size(); ++b)
      for (Index i = offsets[b]; i < offsets[b + 1]; ++i)
        if (!some || random.chance(0.6)) {
          kept.push_back(i);
          add(texts[b], i);
        }
    if (some)
      step.commit(kept);
    else
      step.commit();
  }
}

/// Head sizes that fill registers and the kernels' steps, and others.
template <class T, class F, class B> void expect_attention_over_rows(bool latent) {
  for (mha::KvShape shape : {mha::KvShape{heads, 40, 24}, mha::KvShape{heads, 64, 32}}) {
    shape.values_in_keys = latent;
    SCOPED_TRACE("head size " + std::to_string(shape.dim) + (latent ? ", values in keys" : ", keys and values"));
    expect_attention_over_rows<T, F, B>(mha::Contiguous{.length = longest}, mha::Causal{}, shape);
    expect_attention_over_rows<T, F, B>(mha::Paged{.pages = 32, .length = 160, .page = 16}, mha::Causal{}, shape);
    expect_attention_over_rows<T, F, B>(mha::Ring{.left = 20, .rows = most_rows}, mha::SlidingWindow{.left = 20},
                                        shape);
  }
}

TEST(LatentCache, HasTheBitsOfItsRowsOnCpu) {
  expect_attention_over_rows<float, float, mha::Cpu>(true);
  expect_attention_over_rows<mha::bfloat16, mha::bfloat16, mha::Cpu>(true);
}
TEST(LatentCache, HasTheBitsOfItsRowsOnReference) {
  expect_attention_over_rows<float, float, mha::Reference>(true);
  expect_attention_over_rows<mha::bfloat16, mha::bfloat16, mha::Reference>(true);
}
TEST(LatentCache, HasTheBitsOfItsRowsOnSystolic) {
  expect_attention_over_rows<float, float, mha::Systolic<>>(true);
  expect_attention_over_rows<mha::bfloat16, mha::bfloat16, mha::Systolic<>>(true);
}

template <class B> void expect_eight_bits() {
  for (const bool latent : {false, true}) expect_attention_over_rows<float, mha::scaled_int8, B>(latent);
}
TEST(EightBitCache, HasTheBitsOfItsNumbersOnCpu) { laws::at_every_isa(expect_eight_bits<mha::Cpu>); }
TEST(EightBitCache, HasTheBitsOfItsNumbersOnReference) { expect_eight_bits<mha::Reference>(); }
TEST(EightBitCache, HasTheBitsOfItsNumbersOnSystolic) { expect_eight_bits<mha::Systolic<>>(); }

}  // namespace
