// SPDX-License-Identifier: Apache-2.0
// One attention call on fresh random data, with everything poisoned that a kernel may neither read nor leave unwritten,
// and what the formula says of it in double, with the bound that the arithmetic of a scalar explains.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <mha/backend/backend.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/prefix.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "any_policies.hpp"
#include "compare.hpp"
#include "gpu_model/inside.hpp"
#include "random.hpp"

namespace support {

using mha::Index;

enum class MaskKind {
  full,
  causal,
  top_left,
  window,
  padding,
  prefix,
  document,
  block_sparse,
  dense,
  sieve,
  both,
  either,
  negated,
  none
};
enum class ScoreKind { soft_cap, alibi, bias, relative, chain, user };

/// A user's mask without tile(), which depends on the head.
struct Sieve {
  bool operator()(Index, Index h, Index q, Index k) const { return (q + 2 * k + h) % 3 != 0; }
};
struct Nothing {
  bool operator()(Index, Index, Index, Index) const { return false; }
};
/// A user's score: falls with the distance at a head's own rate, and hides some pairs.
struct Slopes {
  template <class X> X operator()(X s, Index, Index h, Index q, Index k) const {
    if ((q + k) % 7 == 3) return -std::numeric_limits<X>::infinity();
    return s / 2 - X(0.0625f) * X(h + 1) * X((q - k) % 8);
  }
};

/// What the policies of a call borrow, and they themselves.
struct PolicyData {
  std::vector<std::shared_ptr<const void>> kept;
  std::vector<Index> lengths, ids;
  std::vector<std::uint8_t> map;
  std::unique_ptr<bool[]> table;
  std::vector<float> bias;

  template <class P> const P& keep(const P& policy) {
    const auto copy = std::make_shared<const P>(policy);
    kept.push_back(copy);
    return *copy;
  }
};

/// The data and the inside must outlive it.
inline AnyMask make_mask(MaskKind kind, const gpu::Inside& inside, Random& random, PolicyData& data) {
  const mha::CallShape& shape = inside.shape;
  const auto any = [&](const auto& mask) {
    return gpu::any_inside<float>(data.keep(mha::prepared(mask, shape)), inside);
  };
  data.lengths.clear();
  for (Index b = 0; b < shape.batch; ++b) data.lengths.push_back(random.below(shape.keys + 1));
  const mha::SlidingWindow window{std::max<Index>(1, shape.keys / 3), 2};
  const mha::Padding padding{data.lengths};
  switch (kind) {
    case MaskKind::full:
      return any(mha::Full{});
    case MaskKind::causal:
      return any(mha::Causal{});
    case MaskKind::top_left:
      return any(mha::CausalTopLeft{});
    case MaskKind::window:
      return any(window);
    case MaskKind::padding:
      return any(padding);
    case MaskKind::prefix:
      return any(mha::Prefix{data.lengths});
    case MaskKind::document: {
      data.ids.assign(static_cast<std::size_t>(shape.keys), 0);
      for (std::size_t i = 1; i < data.ids.size(); ++i) data.ids[i] = data.ids[i - 1] + random.chance(0.05);
      return any(mha::Document(mha::Borrowed<Index>(data.ids)));
    }
    case MaskKind::block_sparse: {
      constexpr Index block = 16;
      const Index n = (std::max(shape.keys, shape.origin[0] + shape.queries) + block - 1) / block;
      data.map.clear();
      for (Index i = 0; i < shape.heads * n * n; ++i) data.map.push_back(random.chance(0.4));
      return any(mha::BlockSparseView{block, n, n, mha::Borrowed<std::uint8_t>(data.map)});
    }
    case MaskKind::dense: {
      const std::size_t size = static_cast<std::size_t>(shape.queries) * static_cast<std::size_t>(shape.keys);
      data.table = std::make_unique<bool[]>(size);
      for (std::size_t i = 0; i < size; ++i) data.table[i] = random.chance(0.5);
      const mha::TensorView<bool, 2> table = mha::view(data.table.get(), shape.queries, shape.keys);
      return any(mha::Dense(mha::TensorView<bool, 2>(table)));
    }
    case MaskKind::sieve:
      return any(Sieve{});
    case MaskKind::both:
      return any(mha::And{padding, mha::Causal{}});
    case MaskKind::either:
      return any(mha::Or{padding, window});
    case MaskKind::negated:
      return any(mha::Not<mha::SlidingWindow>{window});
    case MaskKind::none:
      return any(Nothing{});
  }
  throw std::logic_error("no such policy");
}

/// A score as a kernel gets it and for the formula in double.
template <class A> struct ScoreTwice {
  AnyScore<A> of_kernel;
  AnyScore<double> exact;
};
template <class A>
ScoreTwice<A> make_score(ScoreKind kind, const gpu::Inside& inside, Random& random, PolicyData& data) {
  const mha::CallShape& shape = inside.shape;
  const auto any = [&](const auto& score) -> ScoreTwice<A> {
    const auto& ready = data.keep(mha::prepared(score, shape));
    return {gpu::any_inside<A>(ready, inside), gpu::any_inside<double>(ready, inside)};
  };
  switch (kind) {
    case ScoreKind::soft_cap:
      return any(mha::SoftCap{2.f});
    case ScoreKind::alibi:
      return any(mha::Alibi{});
    case ScoreKind::bias: {
      data.bias.clear();
      for (Index i = 0; i < shape.heads * shape.queries * shape.keys; ++i)
        data.bias.push_back(random.chance(0.1)   ? -std::numeric_limits<float>::infinity()
                            : random.chance(0.1) ? -1e9f
                                                 : static_cast<float>(random.normal()));
      return any(mha::AdditiveBias(mha::view(data.bias.data(), shape.heads, shape.queries, shape.keys)));
    }
    case ScoreKind::relative: {
      std::vector<float> table;
      for (Index i = 0; i < 8 * shape.heads; ++i) table.push_back(static_cast<float>(random.normal()));
      return any(mha::RelativeBias(table, {.count = 8, .max_distance = 32, .bidirectional = true}));
    }
    case ScoreKind::chain:
      return any(mha::Chain{mha::SoftCap{3.f}, mha::Alibi{}});
    case ScoreKind::user:
      return any(Slopes{});
  }
  throw std::logic_error("no such policy");
}

/// Keys and values in runs of at most `length` rows, as pages would give them.
template <class T> struct ShortRuns : mha::ContiguousKv<T> {
  Index length = 0;  ///< 0: runs as long as they are

  mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    mha::KvRun<T> run = mha::ContiguousKv<T>::run(b, g, begin, end);
    if (length > 0) run.count = std::min(run.count, length - begin % length);
    if (run.count == 1) run.key_stride = run.value_stride = std::ptrdiff_t{1} << 40;  // of no use
    return run;
  }
};

enum class Rows { blhd, bhld, padded, odd, columns };  // columns: q and out are not contiguous along D

/// What a case varies.
struct AttendSizes {
  Index batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, dim = 16, value_dim = 16;
  Rows rows = Rows::blhd;
  bool ragged = false, sink = false, poison_hidden = true;
  Index run = 0;            ///< rows of a run of keys and values; 0: all
  double scale = 0;         ///< 1/√D if 0
  Index origin = -1000000;  ///< Lk − Lq if not given
  double spread = 1;        ///< of the values of q and k

  std::string text() const {
    std::string s = "B " + std::to_string(batch) + " Lq " + std::to_string(queries) + " Lk " + std::to_string(keys) +
                    " heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " D " + std::to_string(dim) +
                    " Dv " + std::to_string(value_dim) + " rows " + std::to_string(static_cast<int>(rows));
    if (ragged) s += " ragged";
    if (run > 0) s += " runs of " + std::to_string(run);
    if (sink) s += " sink";
    if (scale != 0) s += " scale " + std::to_string(scale);
    return s;
  }
};

/// How far a result may be from the exact one, in units of the arithmetic: see AttendCase::check.
struct AttendBound {
  double roundings = 64;       ///< of a weight, in half units in the last place of the accumulator
  double weight_rounding = 0;  ///< relative error of a weight that is stored in less than the accumulator
  double weight_floor = 0;     ///< its absolute error, of weights that are at most 1
};

/// Elements (B, L, H, D) somewhere in a vector that is poison elsewhere.
template <class T> struct Placed {
  std::vector<T> memory;
  mha::TensorView<T, 4> view;

  void place(Index b, Index l, Index h, Index d, Rows rows) {
    const std::ptrdiff_t guard = 64;  // elements: a multiple of 16 bytes
    std::ptrdiff_t pad = rows == Rows::padded ? 16 : rows == Rows::odd ? 3 : 0;
    const std::ptrdiff_t row = d + pad, length = std::max<Index>(l, 1), high = std::max<Index>(h, 1);
    std::ptrdiff_t stride[4] = {length * high * row, high * row, row, 1};
    if (rows == Rows::bhld) stride[1] = row, stride[2] = length * row;
    if (rows == Rows::columns) stride[3] = length, stride[1] = 1, stride[2] = length * row;
    memory.assign(static_cast<std::size_t>(b * length * high * row + 2 * guard + 16), T{});
    poison_all(memory);
    T* first = memory.data() + guard;
    while (reinterpret_cast<std::uintptr_t>(first) % 16 != 0) ++first;
    if (rows == Rows::odd) ++first;
    view = {first, {b, l, h, d}, {stride[0], stride[1], stride[2], stride[3]}};
  }
};

/// Whether every row of a view is whole 16-byte packs at a multiple of 16 bytes.
template <class T> bool packs(const mha::TensorView<T, 4>& v) {
  constexpr std::ptrdiff_t width = 16 / static_cast<std::ptrdiff_t>(sizeof(T));
  return v.stride[3] == 1 && v.extent[3] % width == 0 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 &&
         v.stride[0] % width == 0 && v.stride[1] % width == 0 && v.stride[2] % width == 0;
}

/// A call in T, with a score or none.
enum class Scores { none, one };
template <class T, Scores scores = Scores::none> class AttendCase {
 public:
  using Scalar = T;
  using A = mha::Accumulator<T>;
  static constexpr bool has_score = scores == Scores::one;
  using Call = mha::AttendCall<T, ShortRuns<T>, AnyMask, std::conditional_t<has_score, AnyScore<A>, mha::NoScore>>;

  AttendCase(Random& random, const AttendSizes& sizes, MaskKind mask, ScoreKind score = ScoreKind::user)
      : sizes_(sizes) {
    mha::CallShape shape{sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.keys - sizes.queries};
    if (sizes.origin != -1000000) shape.origin = sizes.origin;
    Index all_queries = sizes.queries, all_keys = sizes.keys, batch = sizes.batch;
    if (sizes.ragged) {
      q_offsets_ = {0};
      k_offsets_ = {0};
      for (Index b = 0; b < sizes.batch; ++b) {  // one is as long as the call says, others shorter, perhaps empty
        const Index queries = b == 0 ? sizes.queries : random.below(sizes.queries + 1);
        const Index keys = b + 1 == sizes.batch ? sizes.keys : random.below(sizes.keys + 1);
        q_offsets_.push_back(q_offsets_.back() + queries);
        k_offsets_.push_back(k_offsets_.back() + keys);
        origins_.push_back(sizes.origin != -1000000 ? sizes.origin : keys - queries);
      }
      shape.origin = mha::Origins(origins_.data());
      shape.query_offsets = q_offsets_.data();
      all_queries = q_offsets_.back();
      all_keys = k_offsets_.back();
      batch = 1;
    }
    q_.place(batch, all_queries, sizes.heads, sizes.dim, sizes.rows);
    const Rows kv_rows = sizes.rows == Rows::columns ? Rows::odd : sizes.rows;
    k_.place(batch, all_keys, sizes.kv_heads, sizes.dim, kv_rows);
    v_.place(batch, all_keys, sizes.kv_heads, sizes.value_dim, kv_rows);
    out_.place(batch, all_queries, sizes.heads, sizes.value_dim, sizes.rows);
    lse_ = mha::Tensor<A, 3>(batch, sizes.heads, std::max<Index>(all_queries, 1));
    fill(random, q_.view, sizes.spread);
    fill(random, k_.view, sizes.spread);
    fill(random, v_.view, 1);
    for (Index h = 0; h < sizes.heads; ++h) sinks_.push_back(static_cast<float>(random.normal() + 1));

    inside_ = {shape, sizes.ragged ? q_offsets_.data() : nullptr, sizes.ragged ? k_offsets_.data() : nullptr};
    const AnyMask any_mask = make_mask(mask, inside_, random, data_);
    const auto make_call = [&](const auto& any_score) {
      call_ = std::make_unique<Call>(
          Call{q_.view, {{k_.view, v_.view}, sizes.run}, any_mask, any_score, out_.view, lse_.view(), shape});
    };
    if constexpr (has_score) {
      const ScoreTwice<A> any_score = make_score<A>(score, inside_, random, data_);
      make_call(any_score.of_kernel);
      exact_score_ = any_score.exact;
    } else {
      make_call(mha::NoScore{});
    }
    call_->kv_heads = sizes.kv_heads;
    call_->head_dim = sizes.dim;
    call_->value_dim = sizes.value_dim;
    call_->scale = static_cast<A>(sizes.scale != 0 ? sizes.scale : 1 / std::sqrt(double(sizes.dim)));
    if (sizes.ragged) {
      call_->q_offsets = q_offsets_.data();
      call_->kv.offsets = k_offsets_;
    }
    if (sizes.sink) call_->sink = {sinks_.data(), sizes.heads};
    if (sizes.poison_hidden) poison_hidden();
    reset();
  }
  AttendCase(const AttendCase&) = delete;
  AttendCase& operator=(const AttendCase&) = delete;

  Call& call() { return *call_; }
  const AttendSizes& sizes() const { return sizes_; }
  mha::TensorView<T, 4> keys() const { return k_.view; }
  mha::TensorView<T, 4> values() const { return v_.view; }
  const std::vector<T>& output_memory() const { return out_.memory; }
  bool packed() const { return packs(q_.view) && packs(k_.view) && packs(v_.view) && packs(out_.view); }

  /// Poisons what a kernel writes.
  void reset() {
    poison_all(out_.memory);
    poison_all(lse_);
  }

  /// Compares outputs and log-sum-exps with the formula in double.
  ///
  /// A logit is off by at most δ = (D + 8)·u·scale·Σ|q·k| + 12·u of a logit before and after its score, so a weight by
  /// a factor within 1 ± (2δ + roundings·u + weight_rounding), and a sum of n terms by n·u of Σ|w·v|: the errors of
  /// numerator and denominator add. Scores must not be steeper than 1.
  void check(Worst& worst, AttendBound bound = {}) const {
    const double u = unit_roundoff<A>();
    const Call& call = *call_;
    std::vector<double> logit;
    std::vector<char> visible;
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index h = 0; h < call.shape.heads; ++h)
        for (Index i = 0; i < call.queries(b); ++i) {
          const std::string place =
              sizes_.text() + " at b " + std::to_string(b) + " h " + std::to_string(h) + " i " + std::to_string(i);
          const Index keys = call.keys(b), position = call.position(b, i);
          logit.assign(static_cast<std::size_t>(keys), 0);
          visible.assign(static_cast<std::size_t>(keys), 0);
          double top = -std::numeric_limits<double>::infinity(), off = 0;
          bool some = false;
          for (Index k = 0; k < keys; ++k) {
            const std::size_t at = static_cast<std::size_t>(k);
            if (!call.mask(b, h, position, k)) continue;
            const T* const key = call.kv.run(b, call.kv_head(h), k, keys).key;
            double dot = 0, size = 0;
            for (Index d = 0; d < call.head_dim; ++d) {
              const double x = to_double(call.query(b, i, h)[d * call.q.stride[3]]) * to_double(key[d]);
              dot += x;
              size += std::abs(x);
            }
            const double scaled = double(call.scale) * dot;
            logit[at] = exact_score_ ? (*exact_score_)(scaled, b, h, position, k) : scaled;
            visible[at] = !(logit[at] == -std::numeric_limits<double>::infinity());
            if (!visible[at]) continue;
            some = true;
            top = logit[at] > top ? logit[at] : top;
            const double error = (call.head_dim + 8) * u * std::abs(double(call.scale)) * size +
                                 12 * u * (std::abs(scaled) + std::abs(logit[at]));
            off = error > off ? error : off;
          }
          double sum = 0;
          for (std::size_t k = 0; k < logit.size(); ++k)
            if (visible[k]) sum += logit[k] = std::exp(logit[k] - top);
          const double log_sum_exp = some ? top + std::log(sum) : -std::numeric_limits<double>::infinity();
          double denominator = sum;
          if (call.sink.size > 0) denominator += std::exp(double(call.sink[h]) - top);
          const double relative = 2 * (2 * off + bound.roundings * u + bound.weight_rounding) + 2 * (keys + 8) * u;
          if (call.log_sum_exp.data != nullptr)
            worst.see(double(call.row_log_sum_exp(b, h, i)), log_sum_exp,
                      relative + 4 * u * (1 + std::abs(log_sum_exp)), place + " log-sum-exp");
          for (Index d = 0; d < call.value_dim; ++d) {
            double expected = 0, size = 0, values = 0;
            for (Index k = 0; k < keys; ++k)
              if (visible[static_cast<std::size_t>(k)]) {
                const double x = logit[static_cast<std::size_t>(k)] / denominator *
                                 to_double(call.kv.run(b, call.kv_head(h), k, keys).value[d]);
                expected += x;
                size += std::abs(x);
                values += std::abs(to_double(call.kv.run(b, call.kv_head(h), k, keys).value[d]));
              }
            worst.see(to_double(call.output(b, i, h)[d * call.out.stride[3]]), expected,
                      relative * size + bound.weight_floor * values +
                          storage_error<T>(std::abs(expected) + relative * size) + 1e-36,
                      place + " d " + std::to_string(d));
          }
        }
  }

  /// How many elements outside the outputs were written.
  std::size_t spilled() const {
    std::vector<T> memory = out_.memory;
    const T* const base = out_.memory.data();
    const auto& v = out_.view;
    for (Index b = 0; b < v.extent[0]; ++b)
      for (Index l = 0; l < v.extent[1]; ++l)
        for (Index h = 0; h < v.extent[2]; ++h)
          for (Index d = 0; d < v.extent[3]; ++d)
            memory[static_cast<std::size_t>(v.pointer(b, l, h, d) - base)] = poison<T>();
    std::size_t n = 0;
    for (const T& x : memory) n += bits(x) != bits(poison<T>());
    return n;
  }

 private:
  static void fill(Random& random, const mha::TensorView<T, 4>& v, double spread) {
    for (Index b = 0; b < v.extent[0]; ++b)
      for (Index l = 0; l < v.extent[1]; ++l)
        for (Index h = 0; h < v.extent[2]; ++h)
          for (Index d = 0; d < v.extent[3]; ++d) v(b, l, h, d) = Random::rounded<T>(spread * random.normal());
  }

  /// NaN and infinities in the keys that no query of their group sees, and −∞ after them.
  void poison_hidden() {
    const Call& call = *call_;
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index g = 0; g < call.kv_heads; ++g)
        for (Index k = 0; k < call.keys(b); ++k) {
          bool seen = false;
          for (Index h = 0; h < call.shape.heads && !seen; ++h)
            for (Index i = 0; call.kv_head(h) == g && i < call.queries(b) && !seen; ++i)
              seen = call.mask(b, h, call.position(b, i), k);
          if (seen) continue;
          const Index sequence = sizes_.ragged ? 0 : b,
                      row = sizes_.ragged ? k_offsets_[static_cast<std::size_t>(b)] + k : k;
          const T bad = k % 2 == 0 ? poison<T>() : T(std::numeric_limits<float>::infinity());
          for (Index d = 0; d < call.head_dim; ++d) k_.view(sequence, row, g, d) = bad;
          for (Index d = 0; d < call.value_dim; ++d) v_.view(sequence, row, g, d) = bad;
        }
  }

  AttendSizes sizes_;
  std::vector<Index> q_offsets_, k_offsets_, origins_;
  std::vector<float> sinks_;
  Placed<T> q_, k_, v_, out_;
  mha::Tensor<A, 3> lse_;
  PolicyData data_;
  gpu::Inside inside_;
  std::optional<AnyScore<double>> exact_score_;
  std::unique_ptr<Call> call_;
};

}  // namespace support
