// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <mha/backend/cuda/forward_body.hpp>
#include <mha/backend/cuda/plan.hpp>
#include <mha/core/workspace.hpp>
#include <mha/launch.hpp>
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
#include "random.hpp"

namespace {

using namespace mha;
using cuda::ForwardShape;
using cuda::RowLayout;
using support::Random;
using support::gpu::Fault;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::HostMachine;

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

using Shape64 = ForwardShape<64, 64, 128, 64, 4, RowLayout::aligned>;
using Any64 = ForwardShape<64, 64, 128, 64, 4, RowLayout::any>;
/// The shape for small tests: one strip of 16 rows a warp, queries in registers, short key tiles.
using Small = ForwardShape<64, 64, 32, 32, 2, RowLayout::aligned>;

/// Runs the body by blocks on the host model.
template <class Machine, class Shape, class Call>
support::gpu::Counters run(const Call& call, support::gpu::Order order = {}) {
  cuda::ForwardParams<Call> params{call, {}};
  const Index row_tiles = (call.shape.queries + Shape::rows - 1) / Shape::rows,
              all = call.shape.batch * call.shape.heads;
  params.blocks = {row_tiles, call.shape.heads, all, std::min<Index>(all, 2)};
  return support::gpu::launch<Machine>(
      {row_tiles * all, 1, 1}, Shape::threads, Shape::shared_bytes,
      [&](Machine& m) { cuda::forward_body<Machine, Shape>(m, params); }, order);
}

template <class Shape, class T, class M, class S = NoScore>
void check(Problem<T>& problem, const M& mask, const std::string& name, const S& score = {}) {
  SCOPED_TRACE(name);
  problem.with_call(mask, score, [&](const auto& call) {
    const auto count = run<HostMachine, Shape>(call);
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

TEST(ForwardBody, TakesEveryShippedShape) {
  Random random("shapes");
  for (int i = 0; i < cuda::ForwardShapes::size; ++i)
    with_shape(cuda::ForwardShapes{}, i, [&](auto shape) {
      using Shape = decltype(shape);
      const bool any = Shape::layout == RowLayout::any;
      check_head_sizes<Shape, bfloat16>(Shape::head_dim - (any ? 3 : 0), Shape::value_dim - (any ? 5 : 0), random);
    });
}

TEST(ForwardBody, PadsHeadSizesBetween) {
  Random random("padding");
  check_head_sizes<Shape64, bfloat16>(40, 40, random);
  check_head_sizes<Shape64, half>(48, 64, random);
  check_head_sizes<ForwardShape<96, 96, 128, 32, 4, RowLayout::aligned>, bfloat16>(72, 80, random);
  check_head_sizes<Any64, half>(37, 41, random);
  check_head_sizes<Any64, half>(1, 1, random);
}

TEST(ForwardBody, TakesOddLengths) {
  Random random("lengths");
  for (const Index queries : {1, 17, 31, 32, 65})
    for (const Index keys : {1, 15, 32, 33, 64, 97}) {
      const Sizes sizes{.queries = queries, .keys = keys, .heads = 2, .kv_heads = 2};
      const std::string name = std::to_string(queries) + " x " + std::to_string(keys);
      check<Small, bfloat16>(sizes, Full{}, random, "full " + name);
      check<Small, bfloat16>(sizes, Causal{}, random, "causal " + name);
    }
  check<Small, bfloat16>(Sizes{.queries = 3, .keys = 0}, Full{}, random, "no keys");
}

TEST(ForwardBody, GroupsQueryHeads) {
  Random random("groups");
  for (const auto& [heads, kv_heads] : {std::pair{6, 2}, {4, 4}, {4, 1}, {7, 1}})
    check<Small, bfloat16>(Sizes{.batch = 2, .queries = 20, .keys = 45, .heads = heads, .kv_heads = kv_heads}, Causal{},
                           random, std::to_string(heads) + " over " + std::to_string(kv_heads));
}

TEST(ForwardBody, AppliesEveryMask) {
  Random random("masks");
  const Sizes sizes{.batch = 2, .queries = 70, .keys = 100, .heads = 4, .kv_heads = 2};
  Problem<bfloat16> problem(sizes, random);
  check<Small>(problem, CausalTopLeft{}, "CausalTopLeft");
  check<Small>(problem, SlidingWindow{.left = 20}, "SlidingWindow");
  check<Small>(problem, SlidingWindow{.left = 3, .right = 40}, "SlidingWindow both ways");
  const std::vector<Index> lengths{37, 64}, prefixes{50, 0};
  check<Small>(problem, Padding{Borrowed<Index>(lengths)}, "Padding");
  check<Small>(problem, Prefix{Borrowed<Index>(prefixes)}, "Prefix");
  std::vector<Index> ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Index>(i % 100 / 23);
  check<Small>(problem, Document(Borrowed<Index>(ids)), "Document");
  std::vector<std::uint8_t> blocks(4 * 7 * 7);
  for (auto& x : blocks) x = random.chance(0.5);
  check<Small>(problem, BlockSparse({.block = 16, .query_blocks = 7, .key_blocks = 7}, blocks), "BlockSparse");
  const auto table = std::make_unique<bool[]>(4 * 70 * 100);
  for (int i = 0; i < 4 * 70 * 100; ++i) table[static_cast<std::size_t>(i)] = i / 100 % 7 != 0 && random.chance(0.3);
  const auto dense = view(static_cast<const bool*>(table.get()), 4, 70, 100);
  check<Small>(problem, Dense(dense), "Dense");
  check<Small>(problem, Sieve{}, "functor");
  check<Small>(problem, And{Causal{}, Sieve{}}, "And");
  check<Small>(problem, Causal{} && Padding{Borrowed<Index>(lengths)}, "And of tiles");
  check<Small>(problem, Or{SlidingWindow{.left = 9}, Padding{Borrowed<Index>(prefixes)}}, "Or");
  check<Small>(problem, !Causal{}, "Not");
  check<Small>(problem, Not{Full{}}, "nothing");
}

TEST(ForwardBody, AppliesEveryScore) {
  Random random("scores");
  const Sizes sizes{.batch = 2, .queries = 40, .keys = 70, .heads = 4, .kv_heads = 2};
  Problem<bfloat16> problem(sizes, random);
  check<Small>(problem, Causal{}, "SoftCap", SoftCap{.cap = 2.f});
  check<Small>(problem, Causal{}, "Alibi", Alibi{});
  std::vector<float> bias(4 * 40 * 70);
  for (auto& x : bias)
    x = random.chance(0.2) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.normal());
  const auto table = view(static_cast<const float*>(bias.data()), 4, 40, 70);
  check<Small>(problem, Full{}, "AdditiveBias", AdditiveBias(table));
  check<Small>(problem, And{Causal{}, Sieve{}}, "AdditiveBias under a mask", AdditiveBias(table));
  std::vector<float> learned(32 * 4);
  random.fill(learned);
  check<Small>(problem, Full{}, "RelativeBias", RelativeBias(learned));
  check<Small>(problem, Full{}, "functor", Far{.slope = 0.25f});
  check<Small>(problem, Causal{}, "Chain", Chain{SoftCap{.cap = 3.f}, Far{.slope = 0.5f}});
  for (auto& x : bias) x = -1e9f;
  check<Small>(problem, Causal{}, "a large finite bias is a number", AdditiveBias(table));
  for (auto& x : bias) x = -std::numeric_limits<float>::infinity();
  check<Small>(problem, Causal{}, "a bias that hides everything", AdditiveBias(table));
}

TEST(ForwardBody, TakesAnyScale) {
  Random random("scales");
  for (const double scale : {0.5, 0.0, -0.3, 1e-40, 3.0})
    check<Small, bfloat16>(Sizes{.queries = 40, .keys = 70, .scale = scale}, Causal{}, random,
                           "scale " + std::to_string(scale));
  check<Small, bfloat16>(Sizes{.queries = 40, .keys = 70, .scale = -0.3}, Causal{}, random, "negative before a score",
                         SoftCap{.cap = 5.f});
}

TEST(ForwardBody, AddsSinksToDenominators) {
  Random random("sinks");
  const float inf = std::numeric_limits<float>::infinity();
  const Sizes sizes{.queries = 40, .keys = 30, .heads = 4, .kv_heads = 2, .sink = {0.5f, -inf, 90.f, -3.f}};
  check<Small, bfloat16>(sizes, Causal{}, random, "folded");
  check<Small, bfloat16>(sizes, Causal{}, random, "with a score", SoftCap{.cap = 3.f});
}

TEST(ForwardBody, TakesRaggedBatches) {
  Random random("ragged");
  check<Small, bfloat16>(Sizes{.batch = 4, .queries = 70, .heads = 4, .kv_heads = 2, .q_offsets = {0, 33, 33, 40, 110}},
                         Causal{}, random, "self");
  check<Small, bfloat16>(Sizes{.batch = 3,
                               .queries = 40,
                               .heads = 2,
                               .kv_heads = 2,
                               .q_offsets = {0, 40, 45, 50},
                               .k_offsets = {0, 3, 3, 80}},
                         Full{}, random, "cross");
}

TEST(ForwardBody, TakesKeysInShortRuns) {
  Random random("runs");
  for (const Index length : {1, 4, 16, 128}) {
    Problem<bfloat16> problem(Sizes{.batch = 2, .queries = 40, .keys = 75, .heads = 4, .kv_heads = 2}, random);
    problem.with_call(Causal{}, NoScore{}, [&](const auto& call) {
      AttendCall<bfloat16, ShortRuns<bfloat16>, support::AnyMask, NoScore> paged{
          call.q, {call.kv, length}, call.mask, {}, call.out, call.log_sum_exp, call.shape};
      paged.kv_heads = call.kv_heads, paged.head_dim = call.head_dim, paged.value_dim = call.value_dim;
      paged.scale = call.scale;
      run<HostMachine, Small>(paged);
      expect_attended(paged, "runs of " + std::to_string(length));
    });
  }
}

TEST(ForwardBody, TakesAnyStrides) {
  Random random("strides");
  const Sizes plain{.batch = 2, .queries = 40, .keys = 75, .heads = 4, .kv_heads = 2};
  Sizes sizes = plain;
  sizes.heads_first = true;
  check<Small, bfloat16>(sizes, Causal{}, random, "heads first");
  sizes.gap = 24;
  check<Small, bfloat16>(sizes, Causal{}, random, "rows apart");
  sizes = plain;
  sizes.queries = 140;
  sizes.shift = 1;
  check<Any64, half>(sizes, Causal{}, random, "a base on two bytes");
  sizes.gap = 3;
  check<Any64, half>(sizes, Causal{}, random, "odd rows");
  sizes.spread = 2;
  check<Any64, half>(sizes, Causal{}, random, "apart along D");
}

TEST(ForwardBody, KeepsPoisonHidden) {
  Random random("poison");
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float poison : {nan, inf, -inf}) {
    Problem<bfloat16> problem(Sizes{.batch = 2, .queries = 64, .keys = 100, .heads = 4, .kv_heads = 2}, random);
    for (const Index k : {36, 50, 77, 99})  // each is hidden from the queries before it
      for (Index d = 0; d < 64; ++d) {
        problem.k.view(0, k, 1, d) = bfloat16(poison);
        if (d % 9 == 0) problem.v.view(1, k, 0, d) = bfloat16(d % 18 == 0 ? poison : -poison);
      }
    check<Small>(problem, Causal{}, "causal");
    check<Small>(problem, Sieve{}, "functor");
    check<Small>(problem, Full{}, "hidden by a score", HidesByScore{});
    const std::vector<Index> lengths{36, 36};
    check<Small>(problem, Padding{Borrowed<Index>(lengths)}, "padding hides all of it");
  }
  Problem<half> problem(Sizes{.queries = 140, .keys = 140}, random);
  for (Index d = 0; d < 64; d += 7) problem.v.view(0, 130, 0, d) = half(d % 2 == 0 ? nan : inf);
  check<Shape64>(problem, Causal{}, "half");
}

TEST(ForwardBody, LeavesNaNOfVisiblePairs) {
  Random random("visible NaN");
  Problem<bfloat16> problem(Sizes{.queries = 40, .keys = 64}, random);
  for (auto& x : {&problem.q.view(0, 3, 1, 5), &problem.v.view(0, 2, 0, 7), &problem.k.view(0, 50, 0, 0)})
    *x = bfloat16(std::numeric_limits<float>::quiet_NaN());
  check<Small>(problem, Causal{}, "causal");
  check<Small>(problem, Full{}, "full");
}

TEST(ForwardBody, FollowsARisingMaximum) {
  Random random("rising");
  Problem<bfloat16> problem(Sizes{.queries = 40, .keys = 200}, random);
  problem.q.fill([&](auto...) { return bfloat16(1.f + static_cast<float>(random.uniform(0, 0.1))); });
  problem.k.fill([&](Index, Index k, Index, Index) {  // logits up to 800, and as small, from tile to tile
    return bfloat16(static_cast<float>((k % 64 < 32 ? 200 - k : k - 200) * random.uniform(0.4, 0.5)));
  });
  check<Small>(problem, Full{}, "full");
  check<Small>(problem, Causal{}, "causal");
  check<Small>(problem, Full{}, "under a score", Far{.slope = 1.f});
}

TEST(ForwardBody, KeepsOutliersInBounds) {
  Random random("outliers");
  Problem<bfloat16> problem(Sizes{.queries = 140, .keys = 200, .heads = 2, .kv_heads = 2}, random);
  const auto outlier = [&](auto...) {
    return bfloat16(static_cast<float>(random.normal() + (random.chance(0.001) ? 10 * random.normal() : 0)));
  };
  problem.q.fill(outlier), problem.k.fill(outlier), problem.v.fill(outlier);
  check<Shape64>(problem, Causal{}, "outliers");
}

TEST(ForwardBody, DependsOnNeitherBlocksNorBatch) {
  Random random("bits");
  Problem<bfloat16> problem(Sizes{.batch = 3, .queries = 70, .keys = 90, .heads = 4, .kv_heads = 2}, random);
  problem.with_call(Causal{}, NoScore{}, [&](auto call) {
    run<HostMachine, Small>(call);
    const auto out = problem.out.memory;
    const auto lse = problem.lse;
    for (const std::uint32_t seed : {1u, 2u}) {
      support::poison_all(problem.out.memory);
      run<HostMachine, Small>(call, {support::gpu::Order::shuffled, seed});
      EXPECT_EQ(support::differing(problem.out.memory, out), 0u);
      EXPECT_EQ(support::differing(problem.lse, lse), 0u);
    }
    support::poison_all(problem.out.memory);
    call.shape.batch = 1;
    call.log_sum_exp.data = nullptr;
    run<HostMachine, Small>(call);
    for (Index l = 0; l < 70; ++l)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 64; ++d) {
          const auto at = static_cast<std::size_t>(problem.out.view.pointer(0, l, h, d) - problem.out.memory.data());
          ASSERT_EQ(problem.out.memory[at].bits, out[at].bits);
        }
  });
}

TEST(ForwardBody, WritesNothingBesideItsRows) {
  Random random("guard");
  for (const bool aligned : {true, false}) {
    Sizes sizes{.batch = 2, .queries = 37, .keys = 20, .heads = 2, .kv_heads = 2, .dim = 40, .gap = aligned ? 16 : 3};
    Problem<bfloat16> problem(sizes, random);
    const auto before = problem.out.memory;
    aligned ? check<Small>(problem, Full{}, "aligned") : check<Any64>(problem, Full{}, "any");
    auto wiped = problem.out.memory;
    Memory4<bfloat16>& out = problem.out;
    for (Index b = 0; b < 2; ++b)
      for (Index l = 0; l < 37; ++l)
        for (Index h = 0; h < 2; ++h)
          for (Index d = 0; d < 40; ++d)
            wiped[static_cast<std::size_t>(out.view.pointer(b, l, h, d) - out.memory.data())] =
                support::poison<bfloat16>();
    EXPECT_EQ(support::differing(wiped, before), 0u);
  }
}

/// Whether a call on the machine with one thing wrong comes out right.
template <class Shape, class T, class M> bool right_on_faulty(Problem<T>& problem, const M& mask) {
  bool right = true;
  problem.with_call(mask, NoScore{}, [&](const auto& call) {
    support::poison_all(problem.out.memory);
    support::poison_all(problem.lse);
    const auto count = run<FaultyMachine, Shape>(call);
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

/// Plants flaws in the machine under a call of a whole row tile over four key tiles, the last cut, with a hidden NaN.
template <class Shape> void check_flaws(const char* name) {
  SCOPED_TRACE(name);
  Random random(name);
  Problem<bfloat16> problem(Sizes{.queries = Shape::rows, .keys = 120, .heads = 2, .kv_heads = 2, .dim = 40}, random);
  problem.v.view(0, 100, 0, 3) = bfloat16(std::numeric_limits<float>::quiet_NaN());
  // Other places of keys and values alone: the order of queries and keys alike is nothing to a dot product.
  const auto missed = support::gpu::unnoticed([&] { return right_on_faulty<Shape>(problem, Causal{}); },
                                              {{Flaw::no_sync},
                                               {Flaw::no_sync_warp},
                                               {Flaw::no_commit},
                                               {Flaw::no_wait},
                                               {Flaw::shorter_wait},
                                               {Flaw::no_zero_fill},
                                               {Flaw::swapped_a},
                                               {Flaw::swapped_b},
                                               {Flaw::swapped_d},
                                               {Flaw::no_transpose},
                                               {Flaw::transpose},
                                               {Flaw::other_place, -1, Shape::head_bytes},
                                               {Flaw::other_lane},
                                               {Flaw::no_shuffle},
                                               {Flaw::swapped_pack},
                                               {Flaw::vote_false},
                                               {Flaw::lane_absent}});
  for (const std::string& flaw : missed) ADD_FAILURE() << "unnoticed: " << flaw;
}

TEST(ForwardBody, EveryFlawIsSeen) {
  check_flaws<Small>("queries in registers");
  check_flaws<ForwardShape<64, 64, 64, 32, 2, RowLayout::aligned>>("queries in shared memory");
}

}  // namespace
