// SPDX-License-Identifier: Apache-2.0
// Laws that hold on every backend, each a function of the backend and of inputs that are worth trying there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <mha/policy/score/alibi.hpp>

#include "call.hpp"

namespace laws {

/// Offsets (B + 1) of sequences of these lengths.
inline std::vector<Index> offsets_of(const std::vector<Index>& lengths) {
  std::vector<Index> offsets{0};
  for (const Index n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

/// Sequences one after another.
struct Sequences {
  std::vector<Index> query_lengths, key_lengths = query_lengths;
  std::vector<Index> q_offsets = offsets_of(query_lengths), k_offsets = offsets_of(key_lengths);

  Index batch() const { return static_cast<Index>(query_lengths.size()); }
  Index queries(Index b) const { return query_lengths[static_cast<std::size_t>(b)]; }
  Index keys(Index b) const { return key_lengths[static_cast<std::size_t>(b)]; }
  Index q_first(Index b) const { return q_offsets[static_cast<std::size_t>(b)]; }
  Index k_first(Index b) const { return k_offsets[static_cast<std::size_t>(b)]; }
  Index longest() const { return *std::max_element(key_lengths.begin(), key_lengths.end()); }
  mha::Ragged ragged() const { return {q_offsets, k_offsets}; }
};

/// The sequences of a ragged call have the bits of alone(b, q, k, v), calls of their own.
template <class T, class Alone>
void expect_rows_of_each(const Sequences& r, const Inputs<T>& in, const Result<T>& many, const std::string& name,
                         Alone&& alone) {
  for (Index b = 0; b < r.batch(); ++b) {
    if (r.queries(b) == 0) continue;
    const auto one = alone(b, rows(in.q, r.q_first(b), r.queries(b)), rows(in.k, r.k_first(b), r.keys(b)),
                           rows(in.v, r.k_first(b), r.keys(b)));
    for (Index i = 0; i < r.queries(b); ++i)
      for (Index h = 0; h < in.q.extent(2); ++h)
        ASSERT_TRUE(same_row(one, 0, i, many, 0, r.q_first(b) + i, h))
            << name << ", sequence " << b << ", row " << i << ", head " << h;
  }
}

/// The same of a causal call, where the last queries meet the last keys and where the first queries stand at
/// `positions`.
template <class B, class T>
void expect_causal_rows_of_each(const Sequences& r, const Inputs<T>& in, const std::vector<Index>& positions) {
  expect_rows_of_each(r, in, attend<B>(in, mha::Causal{}, r.ragged()), "last queries",
                      [](Index, const auto&... qkv) { return attend<B>(qkv..., mha::Causal{}); });
  expect_rows_of_each(r, in, attend<B>(in, mha::Causal{}, r.ragged(), mha::Origin{positions}), "placed queries",
                      [&](Index b, const auto&... qkv) {
                        const mha::Origin origin{positions[static_cast<std::size_t>(b)]};
                        return attend<B>(qkv..., mha::Causal{}, origin);
                      });
}

/// A step of one token, with its keys as they are then, has the bits of its row of the prompt.
template <class B, class T> void expect_steps_of_a_prompt(const Inputs<T>& in, std::span<const Index> lengths) {
  const auto prompt = attend<B>(in, mha::Causal{}, mha::Alibi{});
  for (const Index length : lengths) {
    const auto step =
        attend<B>(rows(in.q, length - 1, 1), rows(in.k, 0, length), rows(in.v, 0, length), mha::Causal{}, mha::Alibi{});
    for (Index h = 0; h < in.q.extent(2); ++h)
      EXPECT_TRUE(same_row(step, 0, 0, prompt, 0, length - 1, h)) << "after " << length << " tokens";
  }
}

/// What comes after a position changes no causal row up to there, and the next one.
template <class B, class T>
void expect_no_future(const Sizes& sizes, support::Random& random, std::span<const Index> positions) {
  const Inputs<T> in(sizes, random), other(sizes, random);
  const auto before = attend<B>(in, mha::Causal{});
  for (const Index now : positions) {
    Inputs<T> changed = in;
    const auto change = [&](mha::Tensor<T, 4>& to, const mha::Tensor<T, 4>& from) {
      for (Index b = 0; b < to.extent(0); ++b)
        for (Index l = now + 1; l < to.extent(1); ++l)
          for (Index h = 0; h < to.extent(2); ++h)
            for (Index d = 0; d < to.extent(3); ++d) to(b, l, h, d) = from(b, l, h, d);
    };
    change(changed.q, other.q);
    change(changed.k, other.k);
    change(changed.v, other.v);
    const auto after = attend<B>(changed, mha::Causal{});
    for (Index b = 0; b < sizes.batch; ++b)
      for (Index h = 0; h < sizes.heads; ++h) {
        for (Index i = 0; i <= now; ++i)
          EXPECT_TRUE(same_row(after, b, i, before, b, i, h)) << "row " << i << " before " << now;
        EXPECT_FALSE(same_row(after, b, now + 1, before, b, now + 1, h)) << "row " << now + 1;
      }
  }
}

/// A NaN in one query makes its row NaN and no other.
template <class B, class T> void expect_nan_in_one_row(const Inputs<T>& clean, Index row, Index head) {
  Inputs<T> in = clean;
  in.q(0, row, head, 2) = T(std::numeric_limits<float>::quiet_NaN());
  const auto before = attend<B>(clean), after = attend<B>(in);
  for (Index i = 0; i < in.q.extent(1); ++i)
    for (Index h = 0; h < in.q.extent(2); ++h)
      if (i == row && h == head)
        for (Index d = 0; d < in.v.extent(3); ++d) EXPECT_TRUE(std::isnan(support::to_double(after.out(0, i, h, d))));
      else
        EXPECT_TRUE(same_row(after, 0, i, before, 0, i, h)) << "row " << i;
}

}  // namespace laws
