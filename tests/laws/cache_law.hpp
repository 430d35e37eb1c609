// SPDX-License-Identifier: Apache-2.0
// One row, one answer: texts that are read through a cache in every way that there is, compared bit for bit with what
// they give in one piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <mha/systolic.hpp>

#include "law.hpp"
#include "units.hpp"

namespace laws::cached {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;

constexpr Index E = 24;
inline const mha::Config config{
    .d_model = E, .num_heads = 4, .num_kv_heads = 2, .head_dim = 12, .value_dim = 8, .bias = true};

template <class T> Tensor<T, 2> random_rows(Index rows, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Tensor<T, 2> x(rows, E);
  for (T& e : x) e = T(normal(random));
  return x;
}
template <class T> mha::TensorView<const T, 2> rows_of(const Tensor<T, 2>& x, Index begin, Index end) {
  return mha::view(&x(begin, 0), end - begin, E);
}
template <class T> bool same_bits(const T* a, const T* b) { return std::memcmp(a, b, E * sizeof(T)) == 0; }

/// Three texts of different lengths.
template <class T> std::vector<Tensor<T, 2>> random_texts(Index longest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Tensor<T, 2>> texts;
  for (const Index n : {longest, longest - 7, longest / 2}) texts.push_back(random_rows<T>(n, random));
  return texts;
}

/// What a text gives by layer(x), and in one step of a Contiguous cache that stores F.
struct ByTheCall {
  template <class Layer, class T> Tensor<T, 2> operator()(const Layer& layer, const Tensor<T, 2>& text) const {
    return layer(text);
  }
};
template <class F> struct InOneStep {
  template <class Layer, class T> Tensor<T, 2> operator()(const Layer& layer, const Tensor<T, 2>& text) const {
    auto cache = mha::make_cache<F>(layer, Contiguous{.length = text.extent(0)});
    cache.add();
    return layer.prefill(text, cache);
  }
};

/// That a cache of the law serves at a time.
constexpr Index most_sequences = 6;

/// A multiple of the positions whose tiles lie together, so that every row is a sequence's.
inline Index in_whole_tiles(Index length, Index page = 1) {
  const Index whole = std::max(page, mha::detail::systolic::key_block);
  return (length + whole - 1) / whole * whole;
}
/// Pages for all sequences at once.
inline Paged pages_of(Index page, Index length) {
  const Index longest = in_whole_tiles(length, page);
  return {.pages = most_sequences * (longest / page), .length = longest, .page = page};
}

template <class Cache> Index free_pages(const Cache& cache) {
  if constexpr (requires { cache.free_pages(); })
    return cache.free_pages();
  else
    return 0;
}

/// How many rows fill all that a sequence may be given of a cache's memory.
inline Index rows_to_fill(const Contiguous& s) { return s.length; }
inline Index rows_to_fill(const Paged& s) { return s.length; }
inline Index rows_to_fill(const Ring& s) {
  return s.first + s.left + 2 * s.rows + 3 * 256;  // and tiles, in blocks of up to 256 positions, which go round apart
}

/// Fills all of a cache's memory, every page and tile, with NaN, and has it forget that.
template <class Cache> void poison(Cache& cache) {
  using F = std::conditional_t<std::is_same_v<typename Cache::Scalar, mha::scaled_int8>, float,
                               typename Cache::Scalar>;  // rows of which are NaN in 8 bits too
  if constexpr (requires { cache.free_pages(); }) {
    const Paged& s = cache.storage();
    ASSERT_EQ(s.length, in_whole_tiles(s.length, s.page)) << "the end of a sequence's last page stays clean";
  }
  std::vector<SequenceId> all;
  for (Index i = 0; i < cache.max_sequences(); ++i) all.push_back(cache.add());
  for (const SequenceId id : all) {
    Index left = rows_to_fill(cache.storage());
    if constexpr (requires { cache.free_pages(); }) left = std::min(left, cache.free_pages() * cache.storage().page);
    for (Index n = 0; left > 0; left -= n) {
      n = std::min(left, cache.max_rows());
      auto step = cache.step(id, n);
      Tensor<F, 3> key(n, cache.shape().heads, cache.shape().dim),
          value(n, cache.shape().heads, cache.shape().value_dim);
      std::fill(key.begin(), key.end(), F(std::numeric_limits<float>::quiet_NaN()));
      std::fill(value.begin(), value.end(), F(std::numeric_limits<float>::quiet_NaN()));
      for (Index layer = 0; layer < cache.layers(); ++layer) step.append(layer, key, value);
      step.commit();
    }
  }
  EXPECT_EQ(free_pages(cache), 0) << "pages that no sequence can have stay clean";
  for (const SequenceId id : all) cache.remove(id);
}

/// The sequences of a test, each of which reads a text, and what comes out of a cache.
template <class Layer, class Cache> class Run {
 public:
  using T = typename Layer::Scalar;
  struct Sequence {
    SequenceId id;
    std::size_t text;
    Index done;
  };

  template <class Whole>
  Run(const Layer& layer, Cache& cache, const std::vector<Tensor<T, 2>>& texts, const Whole& whole)
      : layer_(layer), cache_(cache), texts_(texts) {
    for (std::size_t text = 0; text < texts.size(); ++text) {
      whole_.push_back(whole(layer, texts[text]));
      sequences.push_back({cache_.add(), text, 0});
    }
  }

  std::vector<Sequence> sequences;

  /// Rows for sequences in one ragged step, each compared bit for bit.
  void step(const std::vector<std::size_t>& who, const std::vector<Index>& rows, bool commit = true) {
    std::vector<SequenceId> ids;
    Index all = 0;
    for (std::size_t i = 0; i < who.size(); ++i) {
      ids.push_back(sequences[who[i]].id);
      all += rows[i];
    }
    Tensor<T, 2> x(all, E), y(all, E);
    Index at = 0;
    for (std::size_t i = 0; i < who.size(); ++i)
      for (Index n = 0; n < rows[i]; ++n, ++at)
        std::copy_n(&texts_[sequences[who[i]].text](sequences[who[i]].done + n, 0), E, &x(at, 0));
    std::fill(y.begin(), y.end(), T(std::numeric_limits<float>::quiet_NaN()));
    auto step = cache_.step(ids, rows);
    layer_(x, step[0], mha::into(y), workspace_);
    at = 0;
    for (std::size_t i = 0; i < who.size(); ++i)
      for (Index n = 0; n < rows[i]; ++n, ++at) {
        const Sequence& s = sequences[who[i]];
        ASSERT_TRUE(same_bits(&y(at, 0), &whole_[s.text](s.done + n, 0)))
            << "row " << s.done + n << " of text " << s.text << ", one of " << rows[i] << " in a step of " << who.size()
            << " sequences";
      }
    if (!commit) return;
    step.commit();
    for (std::size_t i = 0; i < who.size(); ++i) sequences[who[i]].done += rows[i];
  }

  Index left(std::size_t i) const { return texts_[sequences[i].text].extent(0) - sequences[i].done; }
  /// How many sequences read the text of sequence i.
  std::ptrdiff_t readers(std::size_t i) const {
    return std::count_if(sequences.begin(), sequences.end(),
                         [&](const Sequence& s) { return s.text == sequences[i].text; });
  }

 private:
  const Layer& layer_;
  Cache& cache_;
  const std::vector<Tensor<T, 2>>& texts_;
  std::vector<Tensor<T, 2>> whole_;
  typename Layer::Workspace workspace_;
};

/// What happened to the sequences of a run.
struct Events {
  int copies_on_write = 0, beams_taken_twice = 0, large_chunks = 0;

  Events& operator+=(const Events& e) {
    copies_on_write += e.copies_on_write;
    beams_taken_twice += e.beams_taken_twice;
    large_chunks += e.large_chunks;
    return *this;
  }
};

/// How many pages begin at rows [begin, end) of a sequence.
template <class Storage> Index pages_begun(const Storage& storage, Index begin, Index end) {
  if constexpr (std::is_same_v<Storage, Paged>)
    return (end + storage.page - 1) / storage.page - (begin + storage.page - 1) / storage.page;
  else
    return 0;
}
/// Chunks of all sizes beside single rows, dropped steps, and between them rollbacks, forks that are read beside what
/// they were made of, beams in another order, and sequences that were saved and restored: in one cache,
/// which stores F.
template <class F, class Layer, class Storage, class Whole>
Events one_answer(const Layer& layer, const Storage& storage, Index length, unsigned seed, const Whole& whole) {
  using T = typename Layer::Scalar;
  std::mt19937 random(seed);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  const auto texts = random_texts<T>(length, seed);
  auto cache = mha::make_cache<F>(layer, storage, {.sequences = most_sequences});
  poison(cache);
  Run<Layer, decltype(cache)> run(layer, cache, texts, whole);
  auto& all = run.sequences;
  Events events;

  for (int forks_left = 10;;) {
    std::vector<std::size_t> who;
    std::vector<Index> rows;
    bool more = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Index left = run.left(i);
      more = more || left > 0;
      if (left == 0 || below(4) == 0) continue;
      const Index most = std::min<Index>({left, cache.max_rows(), below(4) == 0 ? 400 : 40});
      who.push_back(i);
      rows.push_back(below(2) == 0 ? 1 : 1 + below(most));
      events.large_chunks += rows.back() > 256;
    }
    if (!more) return events;
    if (who.empty()) continue;
    if (below(5) == 0) run.step(who, rows, false);  // dropped, then done again
    Index pages = free_pages(cache);
    for (std::size_t i = 0; i < who.size(); ++i)
      pages -= pages_begun(storage, all[who[i]].done, all[who[i]].done + rows[i]);
    run.step(who, rows);
    if (testing::Test::HasFatalFailure()) return events;
    events.copies_on_write += pages - free_pages(cache);

    const std::size_t one = static_cast<std::size_t>(below(static_cast<Index>(all.size())));
    const Index back = all[one].done - below(std::min<Index>(all[one].done, 9) + 1);
    switch (below(6)) {
      case 0:
        if (!cache.can_truncate(all[one].id, back)) break;
        cache.truncate(all[one].id, back);
        all[one].done = back;
        break;
      case 1:
      case 2: {
        if (forks_left == 0 || !cache.can_truncate(all[one].id, back)) break;
        --forks_left;
        all.push_back({cache.fork(all[one].id, back), all[one].text, back});
        if (static_cast<Index>(all.size()) < cache.max_sequences()) break;
        // The last place stays free for a fork: one that others read too goes, be it the one that was forked.
        std::size_t gone = static_cast<std::size_t>(below(static_cast<Index>(all.size())));
        while (run.readers(gone) == 1) gone = (gone + 1) % all.size();
        cache.remove(all[gone].id);
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(gone));
        break;
      }
      case 3: {
        const auto saved = cache.save(all[one].id);
        cache.remove(all[one].id);
        if constexpr (std::is_same_v<Storage, Paged>)
          all[one].id = cache.restore(saved, all[(one + 1) % all.size()].id);
        else
          all[one].id = cache.restore(saved);
        break;
      }
      case 4: {
        std::vector<SequenceId> beams;
        std::vector<Index> from(all.size());
        for (const auto& s : all) beams.push_back(s.id);
        std::iota(from.begin(), from.end(), Index{0});
        std::shuffle(from.begin(), from.end(), random);
        const std::size_t twice = static_cast<std::size_t>(below(static_cast<Index>(all.size())));
        if (run.readers(static_cast<std::size_t>(from[one])) > 1 && twice != one) {
          from[one] = from[twice];
          ++events.beams_taken_twice;
        }
        cache.reorder(beams, from);
        const auto before = all;
        for (std::size_t i = 0; i < all.size(); ++i) {
          all[i] = before[static_cast<std::size_t>(from[i])];
          all[i].id = beams[i];
        }
        break;
      }
      default:
        break;
    }
  }
}

using Windowed = mha::And<mha::Causal, mha::Or<mha::SlidingWindow, mha::FirstKeys>>;
inline Windowed window(Index left = 37) {
  return {mha::Causal{}, {mha::SlidingWindow{.left = left}, mha::FirstKeys{.count = 3}}};
}

/// What a layer stores as F, in each storage; one with a window in rings, which take few rows a step and many.
template <class F, class Layer, class Whole = ByTheCall>
Events through_every_storage(const Layer& layer, Index length, unsigned seed, const std::vector<Index>& pages,
                             const Whole& whole = {}) {
  Events events = one_answer<F>(layer, Contiguous{.length = in_whole_tiles(length)}, length, seed, whole);
  for (const Index page : pages) {
    SCOPED_TRACE("pages of " + std::to_string(page));
    events += one_answer<F>(layer, pages_of(page, length), length, seed + static_cast<unsigned>(page), whole);
  }
  return events;
}
template <class F, class Layer, class Whole = ByTheCall>
Events through_rings(const Layer& layer, Index length, unsigned seed, const Whole& whole = {}) {
  Events events;
  for (const Index rows : {11, 300}) {
    SCOPED_TRACE("a ring of rows " + std::to_string(rows));
    events += one_answer<F>(layer, Ring{.left = 37, .rows = rows, .first = 3}, length, seed, whole);
  }
  return events;
}

/// A layer of each kind, drawn.
template <class T, class B> auto causal_layer(unsigned seed) {
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<mha::Halves>, mha::QkNorm> layer(config);
  layer.initialize(mha::XavierUniform{.seed = seed});
  return layer;
}
template <class T, class B> auto windowed_layer(unsigned seed) {
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, Windowed, mha::Rotary<mha::Halves>> layer(config, window());
  layer.initialize(mha::XavierUniform{.seed = seed});
  return layer;
}

/// The law for a layer on B whose scalar is T, and that stores F.
template <class T, class B, class F = T, class Whole = ByTheCall>
Events every_storage_and_rings(Index length, unsigned seed, const std::vector<Index>& pages, const Whole& whole = {}) {
  Events events = through_every_storage<F>(causal_layer<T, B>(seed), length, seed, pages, whole);
  return events += through_rings<F>(windowed_layer<T, B>(seed), length, seed, whole);
}

using unit::on_every_unit;
/// f() on each unit, and on the portable one at every instruction-set level, by whose instructions tiles are packed.
template <class F> void on_every_unit_and_isa(F&& f) {
  on_every_unit([&] {
    if (mha::current_unit() == mha::MatrixUnit::portable)
      laws::at_every_isa(f);
    else
      f();
  });
}

}  // namespace laws::cached
