// SPDX-License-Identifier: Apache-2.0
// One conformance case on a backend in a scalar. It includes no Eigen, so that nvcc reads it too.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/first_keys.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "any_policies.hpp"
#include "any_source.hpp"
#include "cases.hpp"
#include "compare.hpp"
#include "kv_copies.hpp"
#include "transport.hpp"

namespace conformance {

/// A mask of a user's own: no tile(), so kernels test it pair by pair.
struct EveryThird {
  MHA_HOST_DEVICE bool operator()(Index, Index h, Index q, Index k) const { return (q + 2 * k + h + 1000) % 3 != 0; }
};

/// A score of a user's own.
struct Distance {
  float slope;
  template <class S> MHA_HOST_DEVICE S operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * static_cast<float>(mha::abs(q - k));
  }
};

/// Another, as a lambda where one can be given: generic ones do not reach a kernel.
#if defined(__CUDACC__)
struct HalvesOrHides {
  template <class S> __host__ __device__ S operator()(S s, Index, Index h, Index, Index k) const {
    return (k + h) % 5 == 0 ? mha::minus_infinity<S>() : s * S(0.5);
  }
};
inline constexpr HalvesOrHides halves_or_hides;
#else
inline constexpr auto halves_or_hides = [](auto s, Index, Index h, Index, Index k) {
  return (k + h) % 5 == 0 ? mha::minus_infinity<decltype(s)>() : s * decltype(s)(0.5);
};
#endif

/// A (B, L, H, D) array in memory that is otherwise poisoned, from `start` on: at 1 nothing may rely on alignment
/// beyond the element's.
template <class T> struct Placed {
  std::vector<T> memory;
  std::ptrdiff_t offset = 0;
  Index extent[4] = {};
  std::ptrdiff_t stride[4] = {};

  Placed(Layout layout, Index start, Index B, Index L, Index H, Index D) : extent{B, L, H, D} {
    const std::ptrdiff_t b = B, l = L, h = H, d = D;
    std::ptrdiff_t size = b * l * h * d;
    const auto strides = [&](std::ptrdiff_t sb, std::ptrdiff_t sl, std::ptrdiff_t sh, std::ptrdiff_t sd) {
      stride[0] = sb;
      stride[1] = sl;
      stride[2] = sh;
      stride[3] = sd;
    };
    switch (layout) {
      case Layout::blhd:
      case Layout::v_in_k:
        strides(l * h * d, h * d, d, 1);
        break;
      case Layout::bhld:
        strides(h * l * d, d, l * d, 1);
        break;
      case Layout::strided:
        strides(l * (h * (d + 3) + 5) + 7, h * (d + 3) + 5, d + 3, 1);
        size = b * stride[0];
        break;
      case Layout::column_major:
        strides(l * h * d, 1, d * l, l);
        break;
      case Layout::reversed:
        strides(l * h * d, -h * d, d, 1);
        offset = l > 0 ? (l - 1) * h * d : 0;
        break;
    }
    offset += start;
    memory.resize(static_cast<std::size_t>(size + start) + 1);
    support::poison_all(memory);
  }

  mha::TensorView<T, 4> view() {
    mha::TensorView<T, 4> v{memory.data() + offset, {}, {}};
    for (int a = 0; a < 4; ++a) {
      v.extent[a] = extent[a];
      v.stride[a] = stride[a];
    }
    return v;
  }
};

template <class View, class F> void for_each_index(const View& v, F&& f) {
  for (Index b = 0; b < v.extent[0]; ++b)
    for (Index l = 0; l < v.extent[1]; ++l)
      for (Index h = 0; h < v.extent[2]; ++h)
        for (Index d = 0; d < v.extent[3]; ++d) f(b, l, h, d);
}

template <class T> void fill(const mha::TensorView<T, 4>& v, support::Random& random) {
  for_each_index(v, [&](Index b, Index l, Index h, Index d) { v(b, l, h, d) = random.rounded<T>(random.normal()); });
}

template <class T> mha::Tensor<double, 4> exact(const mha::TensorView<T, 4>& v) {
  mha::Tensor<double, 4> copy(v.extent[0], v.extent[1], v.extent[2], v.extent[3]);
  for_each_index(v, [&](Index b, Index l, Index h, Index d) { copy(b, l, h, d) = support::to_double(v(b, l, h, d)); });
  return copy;
}

/// f(masks...) with the library's policies of the case.
template <class F> auto with_masks(const Problem& p, F&& f) {
  const mha::SlidingWindow window{.left = p.left, .right = p.right};
  const mha::Padding padding{p.lengths};
  switch (p.which.at<MaskKind>(mask)) {
    case MaskKind::full:
      return f();
    case MaskKind::causal:
      return f(mha::Causal{});
    case MaskKind::top_left:
      return f(mha::CausalTopLeft{});
    case MaskKind::window:
      return f(window);
    case MaskKind::padding:
      return f(padding);
    case MaskKind::left_padding:
      return f(mha::LeftPadding{p.lengths});
    case MaskKind::prefix:
      return f(mha::Prefix{p.lengths});
    case MaskKind::first_keys:
      return f(mha::FirstKeys{.count = p.left});
    case MaskKind::document:
      return f(mha::Document{p.ids});
    case MaskKind::block_sparse:
      return f(mha::BlockSparse({p.block, p.query_blocks(), p.key_blocks()}, p.map));
    case MaskKind::dense:
      return f(mha::Dense(p.table));
    case MaskKind::functor:
      return f(EveryThird{});
    case MaskKind::both:
      return f(mha::Causal{} && padding);
    case MaskKind::either:
      return f(window || mha::CausalTopLeft{});
    case MaskKind::negated:
      return f(!window);
    case MaskKind::composed:
      return f((mha::Causal{} && padding) || !mha::mask(EveryThird{}));
    case MaskKind::two:
      return f(window, EveryThird{});
  }
  throw std::logic_error("no such mask");
}

/// f(scores...) with the library's policies of the case.
template <class T, class F> auto with_scores(const Problem& p, const mha::Tensor<T, 3>& bias, F&& f) {
  const mha::SoftCap soft_cap{.cap = p.cap};
  switch (p.which.at<ScoreKind>(score)) {
    case ScoreKind::none:
      return f();
    case ScoreKind::soft_cap:
      return f(soft_cap);
    case ScoreKind::alibi:
      return f(mha::Alibi{});
    case ScoreKind::bias:
      return f(mha::AdditiveBias(bias));
    case ScoreKind::relative:
      return f(mha::RelativeBias(p.relative, {.count = 8, .max_distance = 20, .bidirectional = true}));
    case ScoreKind::chain:
      return f(mha::Chain{soft_cap, mha::AdditiveBias(bias)});
    case ScoreKind::two:
      return f(mha::Alibi{}, soft_cap);
    case ScoreKind::functor:
      return f(Distance{.slope = p.slope});
    case ScoreKind::lambda:
      return f(halves_or_hides);
  }
  throw std::logic_error("no such score");
}

/// What a row of weights may be off by, relative to a weight; the log-sum-exp by the same, absolutely.
///
/// With u = unit roundoff of the accumulator: a logit is off by at most δ = (D + 16)·u·magnitude (Higham's γ_D for the
/// dot product, 16 for scale, score and the product with log2 e); the softmax then by e^(2δ) − 1; the exponential and
/// the sums over Lk keys, rescaled every block, by (2·Lk + 32)·u. The oracle's own error is that with double's u.
template <class T> double row_bound(const Problem& p, double magnitude) {
  const double u = support::unit_roundoff<mha::Accumulator<T>>() + support::unit_roundoff<double>();
  return std::expm1(2 * (p.head_dim + 16) * u * magnitude) + (2 * p.keys + 32) * u;
}

/// Weights below this are allowed to vanish: the smallest normal number of the accumulator.
template <class T> double vanishing() { return static_cast<double>(std::numeric_limits<mha::Accumulator<T>>::min()); }

/// A backend whose weights are rounded to the storage scalar says `static constexpr bool weights_in_storage = true`.
template <class B>
concept WeightsInStorage = B::weights_in_storage;

template <class B, class T>
void compare(const Problem& p, const Expected& e, const mha::TensorView<T, 4>& out,
             const mha::Tensor<mha::Accumulator<T>, 3>& log_sum_exp) {
  double rounded = 0, lost = vanishing<T>();  // of a weight: relative to it, and where it is tiny
  if constexpr (WeightsInStorage<B>) {
    rounded = support::unit_roundoff<T>();
    if (std::is_same_v<T, mha::half>) lost = 0x1p-25;
  }
  support::Worst worst_out, worst_lse;
  for (Index b = 0; b < p.batch; ++b)
    for (Index h = 0; h < p.heads; ++h)
      for (Index i = 0; i < p.queries; ++i) {
        const double relative = row_bound<T>(p, e.magnitude(b, h, i)), lse = e.log_sum_exp(b, h, i);
        worst_lse.see(support::to_double(log_sum_exp(b, h, i)), lse,
                      relative + 4 * support::unit_roundoff<mha::Accumulator<T>>() * std::abs(lse), {b, i, h});
        for (Index d = 0; d < p.value_dim; ++d) {
          const double value = e.out(b, i, h, d);
          worst_out.see(support::to_double(out(b, i, h, d)), value,
                        (relative + rounded + p.keys * lost) * e.largest_value + support::storage_error<T>(value),
                        {b, i, h});
        }
      }
  EXPECT_LE(worst_out.error(), 1) << "output at (b, i, h) = " << worst_out.text();
  EXPECT_LE(worst_lse.error(), 1) << "log-sum-exp at (b, i, h) = " << worst_lse.text();
}

template <class T>
void compare_weights(const Problem& p, const Expected& e, const mha::Tensor<mha::Accumulator<T>, 4>& weights) {
  support::Worst worst;
  for_each_index(e.weights.view(), [&](Index b, Index h, Index i, Index k) {
    const double w = e.weights(b, h, i, k);
    worst.see(support::to_double(weights(b, h, i, k)), w,
              w == 0 ? 0 : row_bound<T>(p, e.magnitude(b, h, i)) * w + vanishing<T>(), {b, h, i, k});
  });
  EXPECT_LE(worst.error(), 1) << "weight at (b, h, i, k) = " << worst.text();
}

using support::PolicyTypes;

/// Runs a case on a backend as it is.
template <class B, class T, PolicyTypes types = PolicyTypes::any>
void run_once(const Case& which, support::Random& random, Index start = 1) {
  using A = mha::Accumulator<T>;
  using Carry = support::Transport<B>;
  Problem p(which, random);
  const Layout layout = which.at<Layout>(conformance::layout);
  const auto placed = [&](Index length, Index heads, Index dim) {
    return Placed<T>(layout, start, p.batch, length, heads, dim);
  };
  Placed<T> q = placed(p.queries, p.heads, p.head_dim), out = placed(p.queries, p.heads, p.value_dim);
  const Index wide = std::max(p.head_dim, p.value_dim);
  Placed<T> k = placed(p.keys, p.kv_heads, layout == Layout::v_in_k ? wide : p.head_dim);
  Placed<T> v = placed(p.keys, p.kv_heads, p.value_dim);
  auto k_view = k.view(), v_view = v.view();
  if (layout == Layout::v_in_k) {
    v_view = k.view();
    v_view.extent[3] = p.value_dim;
    fill(k_view, random);
    k_view.data += wide - p.head_dim;
    k_view.extent[3] = p.head_dim;
  } else {
    fill(k_view, random);
    fill(v_view, random);
  }
  fill(q.view(), random);
  mha::Tensor<T, 3> bias(p.bias.extent(0), p.queries, p.keys);
  for (std::size_t i = 0; i < bias.size(); ++i) {
    bias.data()[i] = random.rounded<T>(p.bias.data()[i]);
    p.bias.data()[i] = support::to_double(bias.data()[i]);
  }
  p.q = exact(q.view());
  p.k = exact(k_view);
  p.v = exact(v_view);
  const Expected e = expected(p);

  const mha::IsaLevel before = mha::current_isa();
  mha::force_isa(which.at<mha::IsaLevel>(isa));
  static typename B::Workspace workspace;
  support::poison<B>(workspace);
  mha::Tensor<A, 3> log_sum_exp(p.batch, p.heads, p.queries);
  support::poison_all(log_sum_exp);
  auto q_memory = support::transported<B>(q.memory), k_memory = support::transported<B>(k.memory),
       v_memory = support::transported<B>(v.memory), out_memory = support::transported<B>(out.memory);
  auto lse_memory = support::transported<B>(log_sum_exp);
  const auto q_there = q_memory.there(q.view()), k_there = k_memory.there(k_view),
             v_there = layout == Layout::v_in_k ? k_memory.there(v_view) : v_memory.there(v_view),
             out_there = out_memory.there(out.view());
  const mha::LogSumExp lse_there(lse_memory.there(log_sum_exp.view()));
  const std::vector<Index> lengths(static_cast<std::size_t>(p.batch), p.keys);
  const auto kind = which.at<SourceKind>(conformance::source);
  support::PagedCopy<T> pages(random, k_view, v_view, lengths, p.page);
  support::RingCopy<T> ring(k_view, v_view, lengths, p.ring, p.pinned);
  auto &cached_k = kind == SourceKind::ring ? ring.key : pages.key,
       &cached_v = kind == SourceKind::ring ? ring.value : pages.value;
  auto cached_k_memory = support::transported<B>(cached_k), cached_v_memory = support::transported<B>(cached_v);
  const auto cached_k_there = cached_k_memory.there(cached_k.view()),
             cached_v_there = cached_v_memory.there(cached_v.view());
  using Source = support::AnySource<T>;
  const Source source = kind == SourceKind::ring
                            ? Source(mha::RingKv<T>{cached_k_there, cached_v_there, ring.lengths, ring.first})
                            : Source(mha::PagedKv<T>{cached_k_there, cached_v_there, pages.table, pages.lengths});
  /// The call over tensors or over a source.
  const auto attend = [&](auto&&... extra) {
    if (kind == SourceKind::tensors)
      mha::attention_into<B>(out_there, q_there, k_there, v_there, extra...);
    else
      mha::attention_into<B>(out_there, q_there, source, extra...);
  };
  mha::Tensor<A, 4> weights;
  const auto weights_of = [&](auto&&... extra) {
    weights = kind == SourceKind::tensors ? Carry::fetched(mha::attention_weights<B>(q_there, k_there, extra...))
                                          : Carry::fetched(mha::attention_weights<B>(q_there, source, extra...));
  };
  const auto explicitly = [&](const auto&... policies) {
    const mha::Scale scaled{p.scale};
    const mha::Origin at = p.origin_argument();
    const mha::Sink sink(p.sink);
    const auto& sinks = Carry::policy(sink);
    const mha::Dropout drops{.p = p.drops};
    const mha::DropoutSeed seed{p.seed};
    attend(scaled, policies..., at, sinks, lse_there, drops, seed, workspace);
    weights_of(workspace, sinks, policies..., seed, drops, at, scaled);
  };
  if constexpr (types == PolicyTypes::own) {
    const auto call = [&](const auto&... policies) { explicitly(Carry::policy(policies)...); };
    if (which.at<ScoreKind>(conformance::score) == ScoreKind::none)
      with_masks(p, call);
    else
      with_scores(p, bias, call);
  } else {
    using AnyMask = support::Unprepared<support::AnyMask>;
    using AnyScore = support::Unprepared<support::AnyScore<A>>;
    const AnyMask mask = with_masks(p, [](const auto&... masks) {
      return AnyMask::template of<B, T>(Carry::policy(mha::detail::collect_masks(masks...)));
    });
    const auto score = with_scores(p, bias, [](const auto&... scores) -> std::optional<AnyScore> {
      if constexpr (sizeof...(scores) == 0)
        return {};
      else
        return AnyScore::template of<B, T>(Carry::policy(mha::detail::collect_scores(scores...)));
    });
    const bool defaults = which.at<ScaleKind>(conformance::scale) == ScaleKind::standard &&
                          which.at<OriginKind>(conformance::origin) == OriginKind::standard &&
                          which.at<SinkKind>(conformance::sink) == SinkKind::none &&
                          which.at<DropoutKind>(conformance::dropout) == DropoutKind::none;
    const auto by_default = [&](const auto&... policies) {
      attend(policies..., lse_there, workspace);
      weights_of(policies..., workspace);
    };
    const auto call = [&](const auto&... policies) { defaults ? by_default(policies...) : explicitly(policies...); };
    score ? call(mask, *score) : call(mask);
  }
  mha::force_isa(before);
  out_memory.fetch();
  lse_memory.fetch();

  compare<B, T>(p, e, out.view(), log_sum_exp);
  compare_weights<T>(p, e, weights);
  std::size_t kept = 0;
  for (const T x : out.memory)
    if (support::bits(x) == support::bits(support::poison<T>())) ++kept;
  EXPECT_EQ(kept, out.memory.size() - static_cast<std::size_t>(out.view().size()))
      << "memory beside the output changed";
}

/// Runs a case on a backend; one with dropout, for which some backends take other kernels, without it first.
template <class B, class T, PolicyTypes types = PolicyTypes::any>
void run_on(const Case& which, support::Random& random, Index start = 1) {
  Case kept = which;
  kept.row[dropout] = static_cast<int>(DropoutKind::none);
  if (which.at<DropoutKind>(dropout) == DropoutKind::none) return run_once<B, T, types>(kept, random, start);
  support::Random again = random;
  run_once<B, T, types>(kept, again, start);
  run_once<B, T, types>(which, random, start);
}

}  // namespace conformance
