// SPDX-License-Identifier: Apache-2.0
// What the law tests of every backend share: random calls with poisoned outputs, wherever the backend computes.
#pragma once

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <mha/attention.hpp>

#include "compare.hpp"
#include "random.hpp"
#include "transport.hpp"

namespace laws {

using mha::Index;

struct Sizes {
  Index batch = 2, heads = 2, kv_heads = 2, queries = 33, keys = 150, head_dim = 12, value_dim = 10;
};

template <class T> struct Inputs {
  mha::Tensor<T, 4> q, k, v;  // (B, L, H, D)

  Inputs(const Sizes& s, support::Random& random)
      : q(s.batch, s.queries, s.heads, s.head_dim),
        k(s.batch, s.keys, s.kv_heads, s.head_dim),
        v(s.batch, s.keys, s.kv_heads, s.value_dim) {
    random.fill(q);
    random.fill(k);
    random.fill(v);
  }
};

template <class T> struct Result {
  mha::Tensor<T, 4> out;                            // (B, Lq, Hq, Dv)
  mha::Tensor<mha::Accumulator<T>, 3> log_sum_exp;  // (B, Hq, Lq)
};

/// The elements of a view, row-major.
template <class T> mha::Tensor<T, 4> packed(const mha::TensorView<const T, 4>& v) {
  mha::Tensor<T, 4> to(v.batch(), v.length(), v.heads(), v.dim());
  for (Index b = 0; b < v.batch(); ++b)
    for (Index l = 0; l < v.length(); ++l)
      for (Index h = 0; h < v.heads(); ++h)
        for (Index d = 0; d < v.dim(); ++d) to(b, l, h, d) = v(b, l, h, d);
  return to;
}

/// Attention into poisoned memory.
template <class B, mha::AttentionTensor Q, mha::AttentionTensor K, mha::AttentionTensor V, class... Extra>
auto attend(const Q& q, const K& k, const V& v, Extra&&... extra) {
  using T = mha::ScalarOf<Q>;
  const auto q4 = mha::detail::read_heads(q), k4 = mha::detail::read_heads(k), v4 = mha::detail::read_heads(v);
  Result<T> r{mha::Tensor<T, 4>(q4.batch(), q4.length(), q4.heads(), v4.dim()),
              mha::Tensor<mha::Accumulator<T>, 3>(q4.batch(), q4.heads(), q4.length())};
  support::poison_all(r.out);
  support::poison_all(r.log_sum_exp);
  if constexpr (mha::detail::computes_on_host<B>) {
    mha::attention_into<B>(r.out, q, k, v, extra..., mha::LogSumExp(r.log_sum_exp));
  } else {
    auto pq = packed(q4), pk = packed(k4), pv = packed(v4);
    auto q_there = support::transported<B>(pq), k_there = support::transported<B>(pk),
         v_there = support::transported<B>(pv), out = support::transported<B>(r.out);
    auto log_sum_exp = support::transported<B>(r.log_sum_exp);
    mha::attention_into<B>(out.there(r.out.view()), q_there.there(pq.view()), k_there.there(pk.view()),
                           v_there.there(pv.view()), support::Transport<B>::policy(extra)...,
                           mha::LogSumExp(log_sum_exp.there(r.log_sum_exp.view())));
    out.fetch();
    log_sum_exp.fetch();
  }
  return r;
}
template <class B, class T, class... Extra> Result<T> attend(const Inputs<T>& in, Extra&&... extra) {
  return attend<B>(in.q, in.k, in.v, extra...);
}

template <class T> void expect_same_bits(const Result<T>& a, const Result<T>& b, const std::string& what) {
  EXPECT_EQ(support::differing(a.out, b.out), 0u) << what << ": output";
  EXPECT_EQ(support::differing(a.log_sum_exp, b.log_sum_exp), 0u) << what << ": log-sum-exp";
}

/// Whether row i of head h in sequence b has the same bits in both, output and log-sum-exp.
template <class T>
bool same_row(const Result<T>& a, Index b, Index i, const Result<T>& other, Index other_b, Index other_i, Index h) {
  for (Index d = 0; d < a.out.extent(3); ++d)
    if (support::bits(a.out(b, i, h, d)) != support::bits(other.out(other_b, other_i, h, d))) return false;
  return support::bits(a.log_sum_exp(b, h, i)) == support::bits(other.log_sum_exp(other_b, h, other_i));
}

/// Rows [first, first + count) of a (B, L, H, D) tensor, in place.
template <class T>
mha::TensorView<const T, 4> rows(const mha::Tensor<T, 4>& t, Index first, Index count, Index batch_first = 0,
                                 Index batches = -1) {
  mha::TensorView<const T, 4> v = t.view();
  v.data += first * v.stride[1] + batch_first * v.stride[0];
  v.extent[1] = count;
  if (batches >= 0) v.extent[0] = batches;
  return v;
}

/// A mask of a user's own, without tile().
struct Strided {
  MHA_HOST_DEVICE bool operator()(Index, Index h, Index q, Index k) const {
    return k <= q + 4 && (q + k + h + 600) % 3 != 0;
  }
};

}  // namespace laws
