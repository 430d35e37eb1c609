// SPDX-License-Identifier: Apache-2.0
// The operator Attention of ONNX (opsets 23, 24 and 25) on top of mha::attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <mha/mha.hpp>

namespace onnx {

using mha::Index;

/// A row-major ONNX tensor: every element type there is fits into double. An input that is not given has no type.
struct Array {
  std::string type;
  std::vector<Index> extent;
  std::vector<double> values;

  bool given() const { return !type.empty(); }
  int rank() const { return static_cast<int>(extent.size()); }
};

struct Inputs {
  Array q{}, k{}, v{}, attn_mask{}, past_key{}, past_value{}, nonpad_kv_seqlen{};
};

struct Outputs {
  Array y{}, present_key{}, present_value{}, qk_matmul_output{};
};

/// The attributes, as ONNX defaults them.
struct Attributes {
  bool is_causal = false;
  Index q_num_heads = 0, kv_num_heads = 0;
  std::optional<double> scale{};
  double softcap = 0;
  int qk_matmul_output_mode = 0;  ///< 0 scaled products, 1 soft-capped, 2 with mask and bias, 3 probabilities
  int softmax_precision = 0;      ///< an element type's number in ONNX
  Index left_window_size = -1, right_window_size = -1;
};

/// Where keys and values are: in tensors, or appended to a cache of this storage, the past before the new ones.
enum class Kept { tensors, contiguous, paged, ring };

namespace detail {

constexpr int double_precision = 11;

inline void require(bool holds, const std::string& sentence) {
  if (!holds) throw std::invalid_argument("Attention: " + sentence);
}

/// f(T{}) for the scalar of an element type's name.
template <class F> auto with_scalar(const std::string& type, F f) {
  if (type == "float16") return f(mha::half{});
  if (type == "bfloat16") return f(mha::bfloat16{});
  if (type == "float64") return f(double{});
  require(type == "float32", "elements of type " + type + " are none of float16, bfloat16, float32, float64");
  return f(float{});
}

template <class T> T to_scalar(double x) { return static_cast<T>(static_cast<mha::Accumulator<T>>(x)); }
template <class T> double to_double(T x) { return static_cast<double>(static_cast<mha::Accumulator<T>>(x)); }

/// A tensor of ONNX as attention takes it: 3-D (B, L, H·D) and 4-D (B, H, L, D) are two orders in memory of one view.
template <class T> struct Heads {
  mha::Tensor<T, 1> data;
  mha::TensorView<T, 4> view;  // (B, L, H, D)
  std::vector<Index> extent;

  Heads(Heads&&) = default;  // a copy's view would be the original's
  Heads& operator=(Heads&&) = default;
  Heads(const char* name, const Array& from, Index heads) : Heads(name, from.extent, heads) {
    for (std::size_t i = 0; i < from.values.size(); ++i) data.data()[i] = to_scalar<T>(from.values[i]);
  }
  Heads(const char* name, std::vector<Index> shape, Index heads) : extent(std::move(shape)) {
    require(extent.size() == 3 || extent.size() == 4,
            std::string(name) + " has " + std::to_string(extent.size()) + " axes, 3 or 4 are wanted");
    data = mha::Tensor<T, 1>(product(extent));
    if (extent.size() == 4) {
      view = mha::view_bhld(data.data(), extent[0], extent[1], extent[2], extent[3]);
    } else {
      require(heads > 0 && extent[2] % heads == 0, std::string(name) + " is " + std::to_string(extent[2]) +
                                                       " wide, which " + std::to_string(heads) +
                                                       " heads do not divide");
      view = mha::view_blhd(data.data(), extent[0], extent[1], heads, extent[2] / heads);
    }
  }

  Array array(const std::string& type) const {
    Array to{type, extent, {}};
    for (const T x : data) {
      to.values.push_back(with_scalar(type, [&](auto s) { return to_double(to_scalar<decltype(s)>(to_double(x))); }));
    }
    return to;
  }
  static Index product(const std::vector<Index>& extents) {
    Index n = 1;
    for (const Index e : extents) n *= e;
    return n;
  }
};

/// past then new along the length, (B, H, P + L, D).
template <class T> Heads<T> concatenated(const char* name, const Array& past, const Heads<T>& now) {
  const Heads<T> before(name, past, 0);
  const auto &a = before.view, &b = now.view;
  require(past.rank() == 4 && a.batch() == b.batch() && a.heads() == b.heads() && a.dim() == b.dim(),
          std::string(name) + " must be (batch, heads, length, head size), all but the length those of the input");
  Heads<T> both(name, std::vector<Index>{b.batch(), b.heads(), a.length() + b.length(), b.dim()}, 0);
  for (Index n = 0; n < b.batch(); ++n)
    for (Index l = 0; l < both.view.length(); ++l)
      for (Index h = 0; h < b.heads(); ++h)
        for (Index d = 0; d < b.dim(); ++d)
          both.view(n, l, h, d) = l < a.length() ? a(n, l, h, d) : b(n, l - a.length(), h, d);
  return both;
}

/// What a cache of any storage gives to a call.
template <class T> struct Cached {
  using Scalar = T;
  std::variant<mha::PagedKv<T>, mha::detail::BlockKv<T, false>, mha::detail::BlockKv<T, true>> source;

  template <class F> auto ask(F f) const { return std::visit(f, source); }
  Index batch() const {
    return ask([](const auto& s) { return s.batch(); });
  }
  Index heads() const {
    return ask([](const auto& s) { return s.heads(); });
  }
  Index dim() const {
    return ask([](const auto& s) { return s.dim(); });
  }
  Index value_dim() const {
    return ask([](const auto& s) { return s.value_dim(); });
  }
  Index keys(Index b) const {
    return ask([&](const auto& s) { return s.keys(b); });
  }
  Index held(Index b, Index k) const {
    return ask([&](const auto& s) { return mha::detail::held(s, b, k); });
  }
  mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    return ask([&](const auto& s) { return s.run(b, g, begin, end); });
  }
};

/// Rows [begin, begin + count) of every sequence.
template <class T> mha::TensorView<const T, 4> rows_of(mha::TensorView<const T, 4> v, Index begin, Index count) {
  v.data += begin * v.stride[1];
  v.extent[1] = count;
  return v;
}

/// f(source) of a cache that has read keys and values (B, past + new, Hkv, ·): the past in steps of as many rows as
/// there are new ones, then those. A ring drops what is further than `left` in front of the first new row.
template <class T, class F>
void with_cache(Kept kept, Index past, Index left, const mha::TensorView<const T, 4>& k,
                const mha::TensorView<const T, 4>& v, const F& f) {
  const Index keys = k.length(), rows = keys - past;
  const auto in = [&](const auto& storage) {
    mha::KvCache<std::remove_cvref_t<decltype(storage)>, T> cache({k.heads(), k.dim(), v.dim()}, storage,
                                                                  {.sequences = k.batch()});
    for (Index b = 0; b < k.batch(); ++b) cache.add();
    for (Index begin = 0, count = 0; begin < past; begin += count) {
      count = std::min(rows, past - begin);
      auto step = cache.step(count);
      step.append(0, rows_of(k, begin, count), rows_of(v, begin, count));
      step.commit();
    }
    auto step = cache.step(rows);
    step.append(0, rows_of(k, past, rows), rows_of(v, past, rows));
    f(Cached<T>{step.source(0)});
  };
  if (kept == Kept::contiguous)
    in(mha::Contiguous{.length = keys});
  else if (kept == Kept::paged)
    in(mha::Paged{.pages = k.batch() * ((keys + 15) / 16), .length = keys, .page = 16});
  else
    in(mha::Ring{.left = std::min(left, past), .rows = rows});
}

/// The mask as a table of four axes, (B, H, Lq, Lk) or 1 each; its rows are filled up with `hidden` to all keys.
template <class T> mha::Tensor<T, 4> pair_table(const Array& mask, Index keys, T hidden) {
  require(mask.rank() >= 1 && mask.rank() <= 4,
          "attn_mask has " + std::to_string(mask.rank()) + " axes, 1 to 4 are wanted");
  Index extent[4] = {1, 1, 1, 1};
  std::copy(mask.extent.begin(), mask.extent.end(), extent + 4 - mask.rank());
  const Index given = extent[3];
  require(given <= keys, "attn_mask has " + std::to_string(given) + " keys but there are only " + std::to_string(keys));
  mha::Tensor<T, 4> table(extent[0], extent[1], extent[2], keys);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(keys), key = i % static_cast<std::size_t>(keys);
    if (key >= static_cast<std::size_t>(given))
      table.data()[i] = hidden;
    else if constexpr (std::is_same_v<T, bool>)
      table.data()[i] = mask.values[row * static_cast<std::size_t>(given) + key] != 0;
    else
      table.data()[i] = to_scalar<T>(mask.values[row * static_cast<std::size_t>(given) + key]);
  }
  return table;
}

/// A policy that an attribute or an input switches on; off, a mask shows every pair and a score changes nothing.
template <class P> struct When {
  static constexpr mha::Role role = mha::role_of<P>();
  static constexpr bool borrows = mha::Borrows<P>;
  bool on;
  P policy;

  bool operator()(Index b, Index h, Index q, Index k) const requires(role == mha::Role::mask) {
    return !on || policy(b, h, q, k);
  }
  mha::TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) const
      requires(role == mha::Role::mask) {
    return on ? mha::tile(policy, b, h, q_begin, q_end, k_begin, k_end) : mha::TileVisibility::full;
  }
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const requires(role == mha::Role::score) {
    return on ? policy(s, b, h, q, k) : s;
  }
  When prepared(const mha::CallShape& shape) const { return on ? When{true, mha::prepared(policy, shape)} : *this; }
};
template <class P> When(bool, P) -> When<P>;

/// A mask over positions of which the queries of sequence b stand by[b] further on.
template <class M> struct Moved {
  static constexpr mha::Role role = mha::Role::mask;
  static constexpr bool borrows = true;
  M mask;
  mha::Borrowed<Index> by;

  bool operator()(Index b, Index h, Index q, Index k) const { return mask(b, h, q + by[b], k); }
  mha::TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) const {
    return mha::tile(mask, b, h, q_begin + by[b], q_end + by[b], k_begin, k_end);
  }
  Moved prepared(const mha::CallShape& shape) const { return {mha::prepared(mask, shape), by}; }
};
template <class M> Moved(M, mha::Borrowed<Index>) -> Moved<M>;

template <class Backend, class T> Outputs attend(const Inputs& in, const Attributes& at, Kept kept) {
  using A = mha::Accumulator<T>;
  const int mode = at.qk_matmul_output_mode;
  require(mode >= 0 && mode <= 3, "qk_matmul_output_mode is " + std::to_string(mode) + ", not 0 to 3");
  const Heads<T> q("Q", in.q, at.q_num_heads);
  Heads<T> k("K", in.k, at.kv_num_heads), v("V", in.v, at.kv_num_heads);
  require(q.extent.size() == k.extent.size() && q.extent.size() == v.extent.size(), "Q, K and V differ in rank");
  require(in.past_key.given() == in.past_value.given(), "past_key and past_value must be given together");
  require(!in.past_key.given() || !in.nonpad_kv_seqlen.given(), "nonpad_kv_seqlen goes without past_key");
  const Index past = in.past_key.given() && in.past_key.rank() == 4 ? in.past_key.extent[2] : 0;
  if (in.past_key.given()) {
    k = concatenated("past_key", in.past_key, k);
    v = concatenated("past_value", in.past_value, v);
  }
  const Index batch = q.view.batch(), heads = q.view.heads(), queries = q.view.length(), keys = k.view.length();

  std::vector<Index> lengths(static_cast<std::size_t>(batch), keys), moves(static_cast<std::size_t>(batch), 0);
  if (in.nonpad_kv_seqlen.given()) {
    const auto& given = in.nonpad_kv_seqlen.values;
    require(given.size() == lengths.size(), "nonpad_kv_seqlen has " + std::to_string(given.size()) +
                                                " elements for a batch of " + std::to_string(batch));
    for (std::size_t b = 0; b < given.size(); ++b) {
      lengths[b] = static_cast<Index>(given[b]);
      moves[b] = lengths[b] - queries;
    }
  }
  const bool boolean = in.attn_mask.type == "bool", additive = in.attn_mask.given() && !boolean;
  const auto shown = boolean ? pair_table(in.attn_mask, keys, false) : mha::Tensor<bool, 4>();
  const auto added = additive ? pair_table(in.attn_mask, keys, to_scalar<T>(-std::numeric_limits<double>::infinity()))
                              : mha::Tensor<T, 4>();

  require(at.left_window_size >= -1 && at.right_window_size >= -1,
          "the window reaches " + std::to_string(at.left_window_size) + " to the left and " +
              std::to_string(at.right_window_size) + " to the right, the least is -1, no bound");
  constexpr Index unbounded = std::numeric_limits<Index>::max() / 2;
  const Index left = at.left_window_size < 0 ? unbounded : at.left_window_size;
  const Index right = at.right_window_size < 0 ? unbounded : at.right_window_size;
  const mha::And mask{
      Moved{mha::And{When{at.is_causal, mha::Causal{}},
                     When{left < unbounded || right < unbounded, mha::SlidingWindow{.left = left, .right = right}}},
            mha::Borrowed<Index>(moves)},
      mha::And{When{in.nonpad_kv_seqlen.given(), mha::Padding{lengths}}, When{boolean, mha::Dense(shown)}}};
  const When cap{at.softcap > 0, mha::SoftCap{static_cast<float>(at.softcap)}};
  const When bias{additive, mha::AdditiveBias(added)};
  const mha::Scale scale{at.scale.value_or(1 / std::sqrt(static_cast<double>(q.view.dim())))};
  const mha::Origin origin{past};

  std::vector<Index> y_extent = q.extent;
  y_extent.back() = q.extent.size() == 3 ? heads * v.view.dim() : v.view.dim();
  const Heads<T> y("Y", y_extent, heads);
  mha::Tensor<A, 4> pairs(batch, heads, queries, keys);
  const auto weights_of = [&](const auto& of) {
    if (mode == 3) pairs = mha::attention_weights<Backend>(q.view, of, mask, cap, bias, scale, origin);
  };
  if (kept == Kept::tensors) {
    mha::attention_into<Backend>(y.view, q.view, k.view, v.view, mask, cap, bias, scale, origin);
    weights_of(k.view);
  } else {
    with_cache<T>(kept, past, left, k.view, v.view, [&](const Cached<T>& source) {
      mha::attention_into<Backend>(y.view, q.view, source, mask, cap, bias, scale, origin);
      weights_of(source);
      for (Index b = 0; b < batch; ++b)  // what it holds is what is present
        for (Index h = 0; h < k.view.heads(); ++h)
          for (Index j = source.held(b, 0); j < keys; j = source.held(b, j + 1)) {
            const mha::KvRun<T> row = source.run(b, h, j, j + 1);
            for (Index d = 0; d < k.view.dim(); ++d) k.view(b, j, h, d) = row.key[d];
            for (Index d = 0; d < v.view.dim(); ++d) v.view(b, j, h, d) = row.value[d];
          }
    });
  }
  if (mode != 3) {
    // The library never returns logits, so the product is written out here, and its own policies applied to it.
    const mha::CallShape shape{batch, heads, queries, keys, past};
    const auto ready_mask = mha::prepared(mask, shape);
    const auto ready_cap = mha::prepared(cap, shape);
    const auto ready_bias = mha::prepared(bias, shape);
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i)
          for (Index j = 0; j < keys; ++j) {
            A s(0);
            for (Index d = 0; d < q.view.dim(); ++d)
              s += A(q.view(b, i, h, d)) * A(k.view(b, j, h / (heads / k.view.heads()), d));
            s *= static_cast<A>(scale.value);
            if (mode >= 1) s = ready_cap(s, b, h, past + i, j);
            if (mode == 2)
              s = ready_mask(b, h, past + i, j) ? ready_bias(s, b, h, past + i, j) : mha::minus_infinity<A>();
            pairs(b, h, i, j) = s;
          }
  }
  Heads<T> qk("qk_matmul_output", std::vector<Index>{batch, heads, queries, keys}, 0);
  std::transform(pairs.begin(), pairs.end(), qk.data.begin(), [](A x) { return static_cast<T>(x); });
  Outputs out{y.array(in.q.type), {}, {}, qk.array(in.q.type)};
  if (in.past_key.given()) {
    out.present_key = k.array(in.k.type);
    out.present_value = v.array(in.v.type);
  }
  return out;
}

}  // namespace detail

/// ONNX Attention over tensors, or over a cache that has read the past and then K and V; with all outputs, asked for or
/// not; present_key and present_value only with a past.
///
/// Formula   Y = softmax(softcap(scale · Q Kᵀ) + attn_mask) V over past and new keys, hidden pairs at −∞
/// Shapes    Q (B, Hq, Lq, D)  K (B, Hkv, L, D)  V (B, Hkv, L, Dv)  Y (B, Hq, Lq, Dv); or (B, length, heads · size)
/// Units     mask true = attend; query i stands at i + offset: the past's length, nonpad_kv_seqlen − Lq, or 0
/// Numerics  in Q's scalar, accumulated in float; in double for that softmax_precision and for mixed types; a
///           softmax_precision below float is met by float
/// Errors    std::invalid_argument if the inputs do not fit together
template <class Backend> Outputs attention(const Inputs& in, const Attributes& at, Kept kept = Kept::tensors) {
  const auto same_type = [&](const Array& a) { return !a.given() || a.type == "bool" || a.type == in.q.type; };
  const bool uniform = same_type(in.k) && same_type(in.v) && same_type(in.attn_mask) && same_type(in.past_key) &&
                       same_type(in.past_value) && at.softmax_precision != detail::double_precision;
  return detail::with_scalar(uniform ? in.q.type : "float64",
                             [&](auto s) { return detail::attend<Backend, decltype(s)>(in, at, kept); });
}

}  // namespace onnx
