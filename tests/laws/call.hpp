// SPDX-License-Identifier: Apache-2.0
// What the law tests of every backend share: random calls with poisoned outputs, wherever the backend computes.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>

#include "any_policies.hpp"
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

/// An output for these inputs, poisoned.
template <class T>
Result<T> poisoned_result(const mha::TensorView<const T, 4>& q, const mha::TensorView<const T, 4>& v) {
  Result<T> r{mha::Tensor<T, 4>(q.batch(), q.length(), q.heads(), v.dim()),
              mha::Tensor<mha::Accumulator<T>, 3>(q.batch(), q.heads(), q.length())};
  support::poison_all(r.out);
  support::poison_all(r.log_sum_exp);
  return r;
}

/// Attention on the host with arguments as they are.
template <class B, class T, class... Extra>
Result<T> attend_host(const mha::TensorView<const T, 4>& q, const mha::TensorView<const T, 4>& k,
                      const mha::TensorView<const T, 4>& v, Extra&&... extra) {
  Result<T> r = poisoned_result(q, v);
  mha::attention_into<B>(r.out, q, k, v, extra..., mha::LogSumExp(r.log_sum_exp));
  return r;
}

/// The same elsewhere, and back.
template <class B, class T, class... Extra>
Result<T> attend_there(const mha::TensorView<const T, 4>& q, const mha::TensorView<const T, 4>& k,
                       const mha::TensorView<const T, 4>& v, Extra&&... extra) {
  Result<T> r = poisoned_result(q, v);
  auto pq = packed(q), pk = packed(k), pv = packed(v);
  auto q_there = support::transported<B>(pq), k_there = support::transported<B>(pk),
       v_there = support::transported<B>(pv), out = support::transported<B>(r.out);
  auto log_sum_exp = support::transported<B>(r.log_sum_exp);
  mha::attention_into<B>(out.there(r.out.view()), q_there.there(pq.view()), k_there.there(pk.view()),
                         v_there.there(pv.view()), support::Transport<B>::policy(extra)...,
                         mha::LogSumExp(log_sum_exp.there(r.log_sum_exp.view())));
  out.fetch();
  log_sum_exp.fetch();
  return r;
}

using Mask = support::Unprepared<support::AnyMask>;
template <class T> using Score = support::Unprepared<support::AnyScore<mha::Accumulator<T>>>;

/// A policy of the host without its type.
template <class Any, class P> Any erased(const P& policy) {
  if constexpr (std::is_same_v<P, Any>)
    return policy;
  else
    return Any::template of<mha::CpuWith<mha::Serial>, float>(policy);
}

/// A sink, or none.
struct PerhapsSink {
  static constexpr mha::Role role = mha::Role::sink;
  static constexpr const char* name = "PerhapsSink";
  std::optional<mha::Sink> sink;

  explicit PerhapsSink(const mha::NoSink&) {}
  explicit PerhapsSink(const mha::Sink& given) : sink(given) {}
  mha::Borrowed<float> logits(Index heads) const { return sink ? sink->logits(heads) : mha::Borrowed<float>(); }
};

/// A call's arguments without the types of its policies. Mask and score are null where there are none, because kernels
/// are others there.
template <class B, class T> struct Arguments {
  const Mask* mask;
  const Score<T>* score;
  PerhapsSink sink;
  mha::detail::CallOptions<mha::Accumulator<T>> options;
  typename B::Workspace* workspace;
  const B* backend;
};

/// The positions of the first queries where a ragged call gives none: the last query meets the last key.
inline std::vector<Index> last_positions(const mha::Ragged& ragged) {
  const auto &q = ragged.query_offsets, &k = ragged.keys();
  std::vector<Index> first;
  for (Index b = 0; b + 1 < q.size; ++b) first.push_back(k[b + 1] - k[b] - (q[b + 1] - q[b]));
  return first;
}

template <class B, class T>
Result<T> attend_erased(const mha::TensorView<const T, 4>& q, const mha::TensorView<const T, 4>& k,
                        const mha::TensorView<const T, 4>& v, const Arguments<B, T>& a) {
  const mha::Scale scale{a.options.scale.value_or(1 / std::sqrt(double(q.dim())))};
  const mha::DropoutSeed seed = a.options.dropout_seed.value_or(mha::DropoutSeed{0});
  const mha::Dropout dropout{.p = a.options.dropout_seed ? static_cast<float>(a.options.dropout) : 0.f};
  const auto run = [&](const auto&... policies) {
    if (a.options.ragged) {
      const std::vector<Index> last = last_positions(*a.options.ragged);
      const mha::Origin origin = a.options.origin.value_or(mha::Origin(last));
      return attend_host<B>(q, k, v, policies..., a.sink, scale, *a.options.ragged, origin, dropout, seed, *a.workspace,
                            *a.backend);
    }
    const mha::Origin origin = a.options.origin.value_or(mha::Origin(k.length() - q.length()));
    return attend_host<B>(q, k, v, policies..., a.sink, scale, origin, dropout, seed, *a.workspace, *a.backend);
  };
  if (a.score != nullptr) return run(a.mask != nullptr ? *a.mask : erased<Mask>(mha::Full{}), *a.score);
  return a.mask != nullptr ? run(*a.mask) : run();
}

/// Whether attend_erased() on B in T is compiled once for all laws: see law.hpp.
template <class B, class T> inline constexpr bool compiled_once = false;

using support::PolicyTypes;

/// Attention into poisoned memory. Where that is compiled once, policies lose their types, unless the law is about
/// their own code.
template <class B, PolicyTypes types = PolicyTypes::any, mha::AttentionTensor Q, mha::AttentionTensor K,
          mha::AttentionTensor V, class... Extra>
auto attend(const Q& q, const K& k, const V& v, Extra&&... extra) {
  using T = mha::ScalarOf<Q>;
  const auto q4 = mha::detail::read_heads(q), k4 = mha::detail::read_heads(k), v4 = mha::detail::read_heads(v);
  if constexpr (!mha::detail::computes_on_host<B>) {
    return attend_there<B>(q4, k4, v4, extra...);
  } else if constexpr (types == PolicyTypes::own || !compiled_once<B, T>) {
    return attend_host<B>(q4, k4, v4, extra...);
  } else {
    using A = mha::Accumulator<T>;
    const auto options = mha::detail::collect_options<A>(extra...);
    const PerhapsSink sink(mha::detail::collect_sink(mha::NoSink{}, extra...));
    typename B::Workspace own;
    auto& workspace = mha::detail::workspace_or(own, extra...);
    const B& backend = mha::detail::call_backend<B>(extra...);
    const auto mask = mha::detail::collect_masks(extra...);
    const auto score = mha::detail::collect_scores(extra...);
    constexpr bool masked = !std::is_same_v<decltype(mask), const mha::Full>;
    constexpr bool scored = !std::is_same_v<decltype(score), const mha::NoScore>;
    const auto with_mask = [&](const Score<T>* any_score) {
      if constexpr (masked) {
        const Mask any_mask = erased<Mask>(mask);
        return attend_erased<B, T>(q4, k4, v4, {&any_mask, any_score, sink, options, &workspace, &backend});
      } else {
        return attend_erased<B, T>(q4, k4, v4, {nullptr, any_score, sink, options, &workspace, &backend});
      }
    };
    if constexpr (scored) {
      const auto any_score = erased<Score<T>>(score);
      return with_mask(&any_score);
    } else {
      return with_mask(nullptr);
    }
  }
}
template <class B, PolicyTypes types = PolicyTypes::any, class T, class... Extra>
Result<T> attend(const Inputs<T>& in, Extra&&... extra) {
  return attend<B, types>(in.q, in.k, in.v, extra...);
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
