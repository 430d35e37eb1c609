// SPDX-License-Identifier: Apache-2.0
// Calls of the bodies of attention on tensor cores, run on the host model and compared with loops in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <mha/backend/cuda/forward_body.hpp>
#include <mha/backend/cuda/plan.hpp>
#include <mha/backend/cuda/warpgroup_body.hpp>
#include <mha/checked_call.hpp>
#include <mha/core/workspace.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>

#include "compare.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/inside.hpp"
#include "gpu_model/launch.hpp"
#include "gpu_model/warpgroup_machine.hpp"
#include "random.hpp"

namespace forward_checks {

using namespace mha;
using support::Random;

/// Users' functors, without tile().
struct Sieve {
  bool operator()(int, int h, int q, int k) const { return (q + 2 * k + h) % 3 != 0; }
};
struct Far {
  float slope;
  template <class T> T operator()(T s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};
/// Hides pairs by −∞.
struct HidesByScore {
  template <class T> T operator()(T s, int, int, int q, int k) const {
    return (q + k) % 4 == 0 ? -std::numeric_limits<T>::infinity() : s;
  }
};

/// Sizes of a call and how its rows lie.
struct Sizes {
  Index batch = 1, queries = 33, keys = 70, heads = 2, kv_heads = 1, dim = 64, value_dim = 0;
  bool heads_first = false;
  std::ptrdiff_t shift = 0;   ///< of the first element, in elements
  std::ptrdiff_t gap = 0;     ///< unused elements behind each row
  std::ptrdiff_t spread = 1;  ///< stride along D of q and out
  std::optional<double> scale = {};
  std::optional<Index> origin = {};
  std::vector<float> sink = {};
  std::vector<Index> q_offsets = {}, k_offsets = {};
};

/// A tensor whose memory holds poison wherever no element lies.
template <class T> struct Memory4 {
  std::vector<T> memory;
  TensorView<T, 4> view;

  Memory4(Index b, Index l, Index h, Index d, const Sizes& sizes, std::ptrdiff_t spread) {
    const std::ptrdiff_t row = d * spread + sizes.gap;
    view = {nullptr, {b, l, h, d}, {row * l * h, row * h, row, spread}};
    if (sizes.heads_first) view.stride[1] = row, view.stride[2] = row * l;
    memory.assign(static_cast<std::size_t>(sizes.shift + row * b * l * h + 8), support::poison<T>());
    view.data = memory.data() + sizes.shift;
  }
  template <class F> void fill(F&& f) {
    for (Index b = 0; b < view.extent[0]; ++b)
      for (Index l = 0; l < view.extent[1]; ++l)
        for (Index h = 0; h < view.extent[2]; ++h)
          for (Index d = 0; d < view.extent[3]; ++d) view(b, l, h, d) = f(b, l, h, d);
  }
};

/// Keys and values in runs of at most `length` rows, as pages would give them.
template <class T> struct ShortRuns : ContiguousKv<T> {
  Index length = 1;

  bool rows_aligned() const { return true; }
  KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    KvRun<T> run = ContiguousKv<T>::run(b, g, begin, end);
    run.count = std::min(run.count, length - begin % length);
    if (run.count == 1) run.key_stride = run.value_stride = std::ptrdiff_t{1} << 40;  // of no use
    return run;
  }
};

/// What attention is in double, row by row.
///
/// Numerics  a plain implementation in 16 bits rounds its weights and its result: an error of at most
///           u (|out| + Σ weight · |v|), u the unit roundoff. The kernel rounds the same two, its float arithmetic far
///           below; twice that much is the limit, so what is measured should stay near half.
template <class Call> void expect_attended(const Call& call, const std::string& name) {
  using T = typename Call::Scalar;
  constexpr double u = support::unit_roundoff<T>(), inf = std::numeric_limits<double>::infinity();
  support::Worst out, lse;
  for (Index b = 0; b < call.shape.batch; ++b)
    for (Index h = 0; h < call.shape.heads; ++h)
      for (Index i = 0; i < call.queries(b); ++i) {
        const std::string place =
            name + " (" + std::to_string(b) + "," + std::to_string(i) + "," + std::to_string(h) + ")";
        const Index g = call.kv_head(h), keys = call.keys(b), q = call.position(b, i);
        const T* const query = call.query(b, i, h);
        std::vector<double> logit(static_cast<std::size_t>(keys), -inf);
        double top = -inf, sum = 0, most = 0;
        bool any = false;
        for (Index k = 0; k < keys; ++k) {
          if (!call.mask(b, h, q, k)) continue;
          const T* const key = call.kv.run(b, g, k, k + 1).key;
          double dot = 0;
          for (Index d = 0; d < call.head_dim; ++d)
            dot += double(float(query[d * call.q.stride[3]])) * double(float(key[d]));
          double& x = logit[static_cast<std::size_t>(k)];
          x = double(call.score(static_cast<float>(double(call.scale) * dot), b, h, q, k));
          any = any || !(x == -inf);
          top = std::max(top, x);
        }
        for (double& x : logit) {
          const bool hidden = x == -inf;
          x = hidden ? -1 : std::exp(x - top);
          if (!hidden) sum += x;
        }
        const double denominator = call.sink.size == 0 ? sum : sum + std::exp(double(call.sink[h]) - top);
        if (call.log_sum_exp.data != nullptr) {
          const double expected = any ? top + std::log(sum) : -inf;
          lse.see(double(call.row_log_sum_exp(b, h, i)), expected, 2e-5 * (1 + std::abs(expected)), place);
        }
        for (Index d = 0; d < call.value_dim; ++d) {
          double y = 0, size = 0;
          for (Index k = 0; k < keys; ++k) {
            const double weight = logit[static_cast<std::size_t>(k)] / denominator;
            if (logit[static_cast<std::size_t>(k)] < 0) continue;
            const double term = weight * double(float(call.kv.run(b, g, k, k + 1).value[d]));
            y += term;
            size += std::abs(term);
            most = std::max(most, std::abs(term / weight));
          }
          // Below the normal numbers: a half is off by up to 2⁻²⁵, weights of 2⁻¹²⁶ and less count as 0.
          const double tiny = std::is_same_v<T, half> ? 0x1p-25 * (1 + keys * most) : 0x1p-120;
          out.see(double(float(call.output(b, i, h)[d * call.out.stride[3]])), y, 2 * (u * (std::abs(y) + size) + tiny),
                  place + "[" + std::to_string(d) + "]");
        }
      }
  EXPECT_LE(out.error(), 1) << out.text();
  EXPECT_LE(lse.error(), 1) << lse.text();
}

/// A call over memory of its own.
template <class T> class Problem {
 public:
  Sizes sizes;
  Memory4<T> q, k, v, out;
  std::vector<float> lse;

  Problem(const Sizes& s, Random& random)
      : sizes(with_value_dim(s)),
        q(rows_batch(), rows(s.q_offsets, s.queries), s.heads, s.dim, s, s.spread),
        k(rows_batch(), rows(key_offsets(), s.keys), s.kv_heads, s.dim, s, 1),
        v(rows_batch(), rows(key_offsets(), s.keys), s.kv_heads, sizes.value_dim, s, 1),
        out(rows_batch(), rows(s.q_offsets, s.queries), s.heads, sizes.value_dim, s, s.spread),
        lse(static_cast<std::size_t>(out.view.extent[0]) * static_cast<std::size_t>(out.view.extent[1]) *
                static_cast<std::size_t>(s.heads),
            support::poison<float>()) {
    const auto normal = [&](auto...) { return Random::rounded<T>(random.normal()); };
    q.fill(normal), k.fill(normal), v.fill(normal);
  }

  /// use(call), the policies prepared and wrapped; with NoScore the scale stays folded.
  template <class M, class S, class F> void with_call(const M& mask, const S& score, F&& use) {
    Workspace workspace;
    auto frame = workspace.frame();
    mha::detail::CallOptions<float> options;
    options.scale = sizes.scale;
    if (sizes.origin) options.origin = mha::Origin(*sizes.origin);
    if (!sizes.q_offsets.empty())
      options.ragged = Ragged{Borrowed<Index>(sizes.q_offsets), Borrowed<Index>(key_offsets())};
    const LogSumExp<float> to(view(lse.data(), out.view.extent[0], sizes.heads, out.view.extent[1]));
    options.log_sum_exp = to.to;
    const TensorView<const T, 4> cq = q.view, ck = k.view, cv = v.view;
    const auto kv = mha::detail::kv_of("attention", cq, ck, cv, options.ragged);
    const auto plain =
        mha::detail::attend_call<T>("attention", out.view, cq, kv, mask, score, NoSink{}, options, frame);
    support::gpu::with_guarded_policies(plain, [&](auto call) {
      call.sink = Borrowed<float>(sizes.sink);
      use(call);
    });
  }

 private:
  static Sizes with_value_dim(Sizes s) {
    if (s.value_dim == 0) s.value_dim = s.dim;
    return s;
  }
  Index rows_batch() const { return sizes.q_offsets.empty() ? sizes.batch : 1; }
  const std::vector<Index>& key_offsets() const { return sizes.k_offsets.empty() ? sizes.q_offsets : sizes.k_offsets; }
  static Index rows(const std::vector<Index>& offsets, Index length) {
    return offsets.empty() ? length : offsets.back();
  }
};

/// The machine that a shape's body runs on.
template <class Shape>
using MachineOf =
    std::conditional_t<(Shape::warpgroups > 0), support::gpu::WarpgroupHostMachine, support::gpu::HostMachine>;

/// Runs the body by blocks on the host model.
template <class Machine, class Shape, class Call>
support::gpu::Counters run(const Call& call, support::gpu::Order order = {}) {
  cuda::ForwardParams<Call> params{call, {}};
  const Index row_tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows,
              all = call.shape.batch * call.shape.heads;
  params.blocks = {row_tiles, call.shape.heads, all, std::min<Index>(all, 2)};
  return support::gpu::launch<Machine>(
      {row_tiles * all, 1, 1}, Shape::threads, Shape::shared_bytes,
      [&](Machine& m) {
        if constexpr (Shape::warpgroups > 0)
          cuda::warpgroup_body<Machine, Shape>(m, params);
        else
          cuda::forward_body<Machine, Shape>(m, params);
      },
      order);
}

template <class Shape, class T, class M, class S = NoScore>
void check(Problem<T>& problem, const M& mask, const std::string& name, const S& score = {}) {
  SCOPED_TRACE(name);
  problem.with_call(mask, score, [&](const auto& call) {
    const auto count = run<MachineOf<Shape>, Shape>(call);
    EXPECT_EQ(count.bank_conflicts, 0);
    expect_attended(call, name);
  });
}
template <class Shape, class T, class M, class S = NoScore>
void check(const Sizes& sizes, const M& mask, Random& random, const std::string& name, const S& score = {}) {
  Problem<T> problem(sizes, random);
  check<Shape>(problem, mask, name, score);
}

template <class Shape, class T> void check_head_sizes(Index dim, Index value_dim, Random& random) {
  const Sizes sizes{.batch = 1,
                    .queries = Shape::rows + 13,
                    .keys = 2 * Shape::keys + 19,
                    .heads = 2,
                    .kv_heads = 2,
                    .dim = dim,
                    .value_dim = value_dim};
  check<Shape, T>(sizes, Causal{}, random, std::to_string(dim) + "/" + std::to_string(value_dim));
}

/// A call writes its rows, and no other byte of the output's memory.
template <class Shape, class T> void check_guard_bands(Problem<T>& problem) {
  const auto before = problem.out.memory;
  check<Shape>(problem, Full{}, "guard bands");
  auto wiped = problem.out.memory;
  const TensorView<T, 4>& out = problem.out.view;
  for (Index b = 0; b < out.extent[0]; ++b)
    for (Index l = 0; l < out.extent[1]; ++l)
      for (Index h = 0; h < out.extent[2]; ++h)
        for (Index d = 0; d < out.extent[3]; ++d)
          wiped[static_cast<std::size_t>(out.pointer(b, l, h, d) - problem.out.memory.data())] = support::poison<T>();
  EXPECT_EQ(support::differing(wiped, before), 0u);
}

/// Whether a call on the machine with one thing wrong comes out right.
template <class Shape, class T, class M> bool right_on_faulty(Problem<T>& problem, const M& mask) {
  bool right = true;
  problem.with_call(mask, NoScore{}, [&](const auto& call) {
    support::poison_all(problem.out.memory);
    support::poison_all(problem.lse);
    const auto count = run<support::gpu::FaultyMachine, Shape>(call);
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter intercept(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      expect_attended(call, "faulty");
    }
    right = failures.size() == 0 && count.bank_conflicts == 0;
  });
  return right;
}

/// Plants flaws in the machine under a call of a whole row tile over six key tiles, the last cut, with hidden NaN.
template <class Shape> void check_flaws(const char* name, std::initializer_list<support::gpu::Seed> flaws) {
  SCOPED_TRACE(name);
  Random random(name);
  constexpr Index keys = 6 * Shape::keys - 8;
  Problem<bfloat16> problem(Sizes{.queries = Shape::rows, .keys = keys, .heads = 2, .kv_heads = 2, .dim = 40}, random);
  // In each tile that hides pairs of such a head, in columns of their own; the other head has none.
  for (const Index t : {4, 5, 6})
    problem.v.view(0, t < 6 ? t * Shape::keys - 2 : keys - 20, 0, t) =
        bfloat16(std::numeric_limits<float>::quiet_NaN());
  const auto missed = support::gpu::unnoticed([&] { return right_on_faulty<Shape>(problem, Causal{}); }, flaws);
  for (const std::string& flaw : missed) ADD_FAILURE() << "unnoticed: " << flaw;
}

}  // namespace forward_checks
