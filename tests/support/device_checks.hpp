// SPDX-License-Identifier: Apache-2.0
// What is asked of a GPU beyond right numbers, as functions over a Device, so that the host model of one answers first:
//
//   using Backend
//   static auto to(const Tensor<T, Rank>&)       a copy in the backend's memory, of which view() can be written
//   static Tensor<T, Rank> from(const Copy&)
//   static auto keep(const P& policy)            the policy as calls of the backend take it
//   static void fill(void* p, int byte, size_t)  bytes of the backend's memory
//   static mha::cuda::DeviceFacts& facts()       of the device that calls are planned for; check_splits() only
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/cuda/fma_plan.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace device_checks {

using mha::Index;
using mha::Tensor;

struct Sizes {
  Index batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, dim = 64, value_dim = 64;
  std::string text() const {
    const auto n = [](Index x) { return std::to_string(x); };
    return "B " + n(batch) + " Lq " + n(queries) + " Lk " + n(keys) + " H " + n(heads) + "/" + n(kv_heads) + " D " +
           n(dim) + " Dv " + n(value_dim);
  }
  mha::CallShape shape() const { return {batch, heads, queries, keys, keys - queries}; }
};

template <class T, int Rank> Tensor<double, Rank> doubled(const Tensor<T, Rank>& x, Tensor<double, Rank> to) {
  std::transform(x.begin(), x.end(), to.begin(), [](T n) { return support::to_double(n); });
  return to;
}

/// Normal numbers of the host's.
template <class T> struct Inputs {
  Sizes sizes;
  Tensor<T, 4> q, k, v;

  Inputs(const Sizes& s, support::Random& random)
      : sizes(s),
        q(s.batch, s.queries, s.heads, s.dim),
        k(s.batch, s.keys, s.kv_heads, s.dim),
        v(s.batch, s.keys, s.kv_heads, s.value_dim) {
    random.fill(q);
    random.fill(k);
    random.fill(v);
  }
  static Tensor<double, 4> wide(const Tensor<T, 4>& x) {
    return doubled(x, Tensor<double, 4>(x.extent(0), x.extent(1), x.extent(2), x.extent(3)));
  }
};

/// What an output of normal values may be off by, relative to their size: the rounding of the weights and the result,
/// or the sums of the accumulator.
template <class T> double tolerance() {
  return sizeof(T) == 8 ? 1e-11 : sizeof(T) == 4 ? 1e-4 : 8 * support::unit_roundoff<T>();
}

/// The largest difference; infinite where one is NaN and the other is not.
template <class T, int Rank> double distance(const Tensor<T, Rank>& found, const Tensor<double, Rank>& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double a = support::to_double(found.data()[i]), e = expected.data()[i];
    if (a == e || (a != a && e != e)) continue;
    worst = std::fmax(worst, a != a || e != e ? INFINITY : std::fabs(a - e));
  }
  return worst;
}

template <class T, int Rank>
void expect_near(const Tensor<T, Rank>& found, const Tensor<double, Rank>& expected, double bound,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  EXPECT_LE(distance(found, expected), bound) << what;
}

template <class T> struct Result {
  Tensor<T, 4> out;
  Tensor<mha::Accumulator<T>, 3> log_sum_exp;

  explicit Result(const Sizes& s)
      : out(s.batch, s.queries, s.heads, s.value_dim), log_sum_exp(s.batch, s.heads, s.queries) {}
};

/// The reference's answer in double.
template <class T, class... Extra> Result<double> expected(const Inputs<T>& in, const Extra&... extra) {
  Result<double> r(in.sizes);
  mha::attention_into<mha::Reference>(r.out, Inputs<T>::wide(in.q), Inputs<T>::wide(in.k), Inputs<T>::wide(in.v),
                                      extra..., mha::LogSumExp(r.log_sum_exp));
  return r;
}

/// The device's answer, written over poison.
template <class Device, class T, class... Extra> Result<T> answer(const Inputs<T>& in, const Extra&... extra) {
  Result<T> r(in.sizes);
  support::poison_all(r.out);
  support::poison_all(r.log_sum_exp);
  const auto q = Device::to(in.q), k = Device::to(in.k), v = Device::to(in.v);
  auto out = Device::to(r.out);
  auto log_sum_exp = Device::to(r.log_sum_exp);
  typename Device::Backend::Workspace workspace;
  mha::attention_into<typename Device::Backend>(out, q, k, v, extra..., mha::LogSumExp(log_sum_exp), workspace);
  r.out = Device::from(out);
  r.log_sum_exp = Device::from(log_sum_exp);
  return r;
}

template <class T> void expect_near(const Result<T>& found, const Result<double>& expected, const std::string& what) {
  expect_near(found.out, expected.out, 4 * tolerance<T>(), what);
  expect_near(found.log_sum_exp, expected.log_sum_exp, sizeof(T) == 8 ? 1e-10 : 2e-2, what + ", log-sum-exp");
}

/// Rows with `gap` elements between them that begin `start` elements after 16 bytes: all around them, and where nothing
/// has been written, is poison.
template <class Device, class T, int Rank> class Amid {
 public:
  Amid(const std::array<Index, std::size_t{Rank}>& extents, Index gap, Index start) : near_(0) {
    shape_ = {};
    std::ptrdiff_t stride = 1, step = extents.back() + gap;
    for (int a = Rank - 1; a >= 0; --a) {
      shape_.extent[a] = extents[static_cast<std::size_t>(a)];
      shape_.stride[a] = stride;
      stride = a == Rank - 1 ? step : stride * shape_.extent[a];
    }
    first_ = guard + start;
    near_ = Tensor<T, 1>(first_ + static_cast<Index>(stride) + guard);
    support::poison_all(near_);
  }

  /// The host's element.
  template <class... I> T& operator()(I... i) { return near()(i...); }
  /// Rows on the device; from now on what is written here is not seen there.
  mha::TensorView<T, Rank> there() {
    far_ = Device::to(near_);
    auto v = shape_;
    v.data = far_.view().data + first_;
    return v;
  }
  /// The device's rows, and whether all that is around them is as it was.
  Tensor<T, Rank> back(Tensor<T, Rank> to, const std::string& what) {
    Tensor<T, 1> all = Device::from(far_);
    std::vector<bool> inside(all.size());
    auto v = shape_;
    v.data = all.data() + first_;
    std::size_t at = 0;
    for_each(0, 0, [&](std::ptrdiff_t offset) {
      to.data()[at++] = v.data[offset];
      inside[static_cast<std::size_t>(first_ + offset)] = true;
    });
    std::size_t touched = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      touched += !inside[i] && support::bits(all.data()[i]) != support::bits(support::poison<T>());
    EXPECT_EQ(touched, 0u) << what << ": elements around the tensor were written";
    return to;
  }

 private:
  static constexpr Index guard = 4096;

  mha::TensorView<T, Rank> near() {
    auto v = shape_;
    v.data = near_.data() + first_;
    return v;
  }
  template <class F> void for_each(int axis, std::ptrdiff_t offset, F&& f) const {
    if (axis == Rank) return f(offset);
    for (Index i = 0; i < shape_.extent[axis]; ++i) for_each(axis + 1, offset + i * shape_.stride[axis], f);
  }

  mha::TensorView<T, Rank> shape_;
  Index first_ = 0;
  Tensor<T, 1> near_;
  decltype(Device::to(std::declval<const Tensor<T, 1>&>())) far_;
};

/// Outputs, the gaps between their rows, scratch and cache slots past the length are poison: nothing of it is read, and
/// nothing but the outputs is written.
template <class Device, class T, class M>
void check_guards(const Sizes& s, Index start, support::Random& random, const M& mask) {
  const std::string what = s.text() + " from element " + std::to_string(start);
  const Inputs<T> in(s, random);
  const Index gap = start == 0 ? Index{16 / sizeof(T)} : 3, slots = s.keys + 70;
  Amid<Device, T, 4> q({s.batch, s.queries, s.heads, s.dim}, gap, start),
      k({s.batch, slots, s.kv_heads, s.dim}, gap, start), v({s.batch, slots, s.kv_heads, s.value_dim}, gap, start),
      out({s.batch, s.queries, s.heads, s.value_dim}, gap, start);
  Amid<Device, mha::Accumulator<T>, 3> log_sum_exp({s.batch, s.heads, s.queries}, 0, start);
  const auto put = [](const Tensor<T, 4>& from, auto& to) {
    for (Index b = 0; b < from.extent(0); ++b)
      for (Index l = 0; l < from.extent(1); ++l)
        for (Index h = 0; h < from.extent(2); ++h)
          for (Index d = 0; d < from.extent(3); ++d) to(b, l, h, d) = from(b, l, h, d);
  };
  put(in.q, q), put(in.k, k), put(in.v, v);
  const auto first_slots = [&](auto view) {
    view.extent[1] = s.keys;
    return view;
  };
  typename Device::Backend::Workspace workspace;
  {
    auto frame = workspace.frame();
    constexpr std::size_t scratch = std::size_t{1} << 22;
    Device::fill(frame.template take<std::byte>(scratch), 0xff, scratch);
  }
  mha::attention_into<typename Device::Backend>(out.there(), q.there(), first_slots(k.there()), first_slots(v.there()),
                                                mask, mha::LogSumExp(log_sum_exp.there()), workspace);
  Result<T> r(s);
  r.out = out.back(std::move(r.out), what);
  r.log_sum_exp = log_sum_exp.back(std::move(r.log_sum_exp), what + ", log-sum-exp");
  expect_near(r, expected(in, mask), what);
}

/// Attention as separate operations in T compute it: logits, weights and results are each rounded to T.
template <class T, class M> Tensor<double, 4> in_separate_operations(const Inputs<T>& in, const M& mask) {
  const Sizes& s = in.sizes;
  const auto ready = mha::prepared(mask, s.shape());
  const auto rounded = [](double x) { return support::to_double(support::Random::rounded<T>(x)); };
  Tensor<double, 4> out(s.batch, s.queries, s.heads, s.value_dim);
  std::vector<double> row(static_cast<std::size_t>(s.keys));
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < s.queries; ++i) {
        const Index g = h / (s.heads / s.kv_heads);
        double top = -INFINITY, sum = 0;
        for (Index k = 0; k < s.keys; ++k) {
          double& x = row[static_cast<std::size_t>(k)] = -INFINITY;
          if (!ready(b, h, s.keys - s.queries + i, k)) continue;
          double dot = 0;
          for (Index d = 0; d < s.dim; ++d)
            dot += support::to_double(in.q(b, i, h, d)) * support::to_double(in.k(b, k, g, d));
          x = rounded(dot / std::sqrt(double(s.dim)));
          top = std::fmax(top, x);
        }
        for (double& x : row) sum += x = x == -INFINITY ? 0 : std::exp(x - top);
        for (Index d = 0; d < s.value_dim; ++d) {
          double value = 0;
          for (Index k = 0; k < s.keys; ++k)
            value +=
                sum == 0 ? 0 : rounded(row[static_cast<std::size_t>(k)] / sum) * support::to_double(in.v(b, k, g, d));
          out(b, i, h, d) = rounded(value);
        }
      }
  return out;
}

/// Inputs with rare large numbers, N(0, 1) + N(0, 100) · Bernoulli(0.001): the error is at most twice that of separate
/// operations in T.
template <class Device, class T, class M> void check_outliers(const Sizes& s, support::Random& random, const M& mask) {
  Inputs<T> in(s, random);
  for (Tensor<T, 4>* const t : {&in.q, &in.k, &in.v})
    for (T& x : *t)
      if (random.chance(0.001)) x = support::Random::rounded<T>(support::to_double(x) + 10 * random.normal());
  const Tensor<double, 4> exact = expected(in, mask).out;
  const double separate = distance(in_separate_operations(in, mask), exact);
  EXPECT_LE(distance(answer<Device>(in, mask).out, exact), 2 * separate) << s.text();
}

/// One mask of two, in one type.
template <class A, class B> struct Either {
  static constexpr mha::Role role = mha::Role::mask;
  A a;
  B b;
  bool first;

  MHA_HOST_DEVICE bool operator()(Index n, Index h, Index q, Index k) const {
    return first ? a(n, h, q, k) : b(n, h, q, k);
  }
  MHA_HOST_DEVICE mha::TileVisibility tile(Index n, Index h, Index q0, Index q1, Index k0, Index k1) const {
    return first ? mha::tile(a, n, h, q0, q1, k0, k1) : mha::tile(b, n, h, q0, q1, k0, k1);
  }
  auto prepared(const mha::CallShape& s) const {
    using Ready =
        Either<std::remove_const_t<decltype(mha::prepared(a, s))>, std::remove_const_t<decltype(mha::prepared(b, s))>>;
    return Ready{mha::prepared(a, s), mha::prepared(b, s), first};
  }
  template <class F> Either with_data(F&& f) const { return {mha::with_data(a, f), mha::with_data(b, f), first}; }
};
template <class M> M one_of(int, const M& mask) { return mask; }
template <class A, class B, class... More> auto one_of(int which, const A& mask, const B& next, const More&... more) {
  const auto rest = one_of(which - 1, next, more...);
  return Either<A, std::remove_const_t<decltype(rest)>>{mask, rest, which == 0};
}

/// Every shipped mask with its data, and Dense with a table of one's own as the last.
struct Masks {
  static constexpr int count = 10;
  static constexpr const char* const names[count] = {"Full",     "Causal",     "CausalTopLeft", "SlidingWindow",
                                                     "Padding",  "Document",   "Prefix",        "BlockSparse",
                                                     "composed", "LeftPadding"};
  std::vector<Index> lengths, ids;
  mha::BlockSparse blocks;

  Masks(const Sizes& s, support::Random& random) : blocks(map(s, random)) {
    for (Index b = 0; b < s.batch; ++b) lengths.push_back(random.below(s.keys + 1));
    for (Index k = 0; k < s.keys; ++k) ids.push_back(k == 0 ? 0 : ids.back() + (random.chance(0.05) ? 1 : 0));
  }
  template <class Keep> auto at(int which, const Tensor<bool, 4>& table, const Keep& keep) const {
    const mha::SlidingWindow window{.left = 20, .right = 3};
    return one_of(which, mha::Full{}, mha::Causal{}, mha::CausalTopLeft{}, window, keep(mha::Padding{lengths}),
                  keep(mha::Document{mha::Borrowed<Index>(ids)}), keep(mha::Prefix{lengths}), keep(blocks),
                  mha::Or{mha::And{mha::Causal{}, mha::Not<mha::SlidingWindow>{window}}, keep(mha::Padding{lengths})},
                  keep(mha::LeftPadding{lengths}), keep(mha::Dense(table)));
  }

 private:
  static mha::BlockSparse map(const Sizes& s, support::Random& random) {
    constexpr Index block = 24;
    const Index n = (s.keys + block - 1) / block;
    std::vector<std::uint8_t> bits(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
    for (auto& bit : bits) bit = random.chance(0.6);
    return mha::BlockSparse({.block = block, .query_blocks = n, .key_blocks = n}, bits);
  }
};

inline constexpr auto same = [](const auto& policy) { return policy; };
template <class Device> constexpr auto keep = [](const auto& policy) { return Device::keep(policy); };

/// Every mask gives the bits of a Dense one with the same pairs, and both what the reference gives.
template <class Device, class T> void check_masks(const Sizes& s, support::Random& random) {
  const Inputs<T> in(s, random);
  const Masks masks(s, random);
  for (int which = 0; which < Masks::count; ++which) {
    const std::string what = std::string(Masks::names[which]) + ", " + s.text();
    Tensor<bool, 4> table(s.batch, s.heads, s.queries, s.keys);
    const auto here = masks.at(which, table, same);
    const auto ready = mha::prepared(here, s.shape());
    for (Index b = 0; b < s.batch; ++b)
      for (Index h = 0; h < s.heads; ++h)
        for (Index q = 0; q < s.queries; ++q)
          for (Index k = 0; k < s.keys; ++k) table(b, h, q, k) = ready(b, h, s.keys - s.queries + q, k);
    const Result<T> itself = answer<Device>(in, masks.at(which, table, keep<Device>));
    const Result<T> dense = answer<Device>(in, masks.at(Masks::count, table, keep<Device>));
    expect_near(itself, expected(in, here), what);
    EXPECT_EQ(support::differing(itself.out, dense.out), 0u) << what;
    EXPECT_EQ(support::differing(itself.log_sum_exp, dense.log_sum_exp), 0u) << what;
  }
}

/// A few queries whose keys are shared out to 2, 3, … blocks, as many as there are keys for, agree with one block's
/// answer; each count twice, with the same bits. There are two key/value heads or more, so that one multiprocessor
/// splits nothing.
template <class Device, class T, class Make>
void check_splits(const Sizes& s, support::Random& random, const Make& make) {
  const Inputs<T> in(s, random);
  struct Restored {
    mha::cuda::DeviceFacts before = Device::facts();
    ~Restored() { Device::facts() = before; }
  } const restored;
  const mha::cuda::CallFacts call{s.shape(), s.kv_heads, s.dim, s.value_dim, mha::cuda::RowLayout::aligned};
  const auto splits = [&] { return mha::cuda::few_plan<T>(call, Device::facts()).splits; };
  Index& multiprocessors = Device::facts().multiprocessors;
  const Index groups = s.batch * s.kv_heads;
  const auto here = make(same);
  const auto mask = make(keep<Device>);
  multiprocessors = 1 << 20;
  const Index most = splits();
  EXPECT_GT(most, 3);
  multiprocessors = 1;
  ASSERT_EQ(splits(), 1);
  const Result<T> together = answer<Device>(in, mask);
  expect_near(together, expected(in, here), s.text());
  Inputs<T> sizes_of_values = in;
  for (T& x : sizes_of_values.v) x = support::Random::rounded<T>(std::fabs(support::to_double(x)));
  const Tensor<double, 4> spread = expected(sizes_of_values, here).out;  // Σ weight · |value|
  for (Index count = 2; count <= most; ++count) {
    for (multiprocessors = 1; splits() < count && multiprocessors <= groups * most;) ++multiprocessors;
    ASSERT_EQ(splits(), count);
    const Result<T> apart = answer<Device>(in, mask), again = answer<Device>(in, mask);
    const std::string what = s.text() + " in " + std::to_string(count) + " parts";
    EXPECT_EQ(support::differing(apart.out, again.out), 0u) << what;
    EXPECT_EQ(support::differing(apart.log_sum_exp, again.log_sum_exp), 0u) << what;
    double worst = 0;
    for (std::size_t i = 0; i < apart.out.size(); ++i) {
      const double x = support::to_double(apart.out.data()[i]), y = support::to_double(together.out.data()[i]);
      const double size = std::fabs(y) + spread.data()[i];  // weights are rounded, and the result
      worst = support::maximum(worst, std::fabs(x - y) / (2 * support::unit_roundoff<T>() * size + 1e-6));
    }
    EXPECT_LE(worst, 1) << what;
    EXPECT_LE(support::largest_difference(apart.log_sum_exp, together.log_sum_exp), 1e-5) << what;
  }
}

}  // namespace device_checks
