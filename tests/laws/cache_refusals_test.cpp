// SPDX-License-Identifier: Apache-2.0
// A call that a cache refuses throws one sentence and leaves the cache as it was: of every sequence the same bytes are
// saved, and attention reads the same bits from its rows, pages and tiles.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache_law.hpp"
#include "cache_picture.hpp"
#include "message_of.hpp"

namespace {

using namespace laws::cached;
using support::message_of;
using support::picture;
using support::too_few_pages;

const auto shown = mha::SlidingWindow{.left = 37} || mha::FirstKeys{.count = 3};

/// Sequences a, b, which is a's first 65 positions, and c, of 70, 65 and 20 positions in a cache of 4 sequences.
template <class T, class B, class Storage> class Held {
 public:
  using Layer = decltype(causal_layer<T, B>(0));
  using Cache = decltype(mha::make_cache(std::declval<const Layer&>(), std::declval<const Storage&>()));
  static constexpr bool turns = std::is_same_v<Storage, Ring>, has_pages = std::is_same_v<Storage, Paged>;

  Layer layer = causal_layer<T, B>(1);
  Cache cache, other;
  SequenceId a, b, c, removed, foreign;
  Tensor<T, 2> x;

  Held(const Storage& storage, Index layers)
      : cache(mha::make_cache(layer, storage, {.layers = layers, .sequences = 4})),
        other(mha::make_cache(layer, storage, {.layers = layers, .sequences = 4})),
        q_(1, 1, 4, 12) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    x = random_rows<T>(100, random);
    for (T& e : q_) e = T(normal(random));
    foreign = other.add();
    a = cache.add();
    read(a, 70);
    b = cache.fork(a, 65);
    removed = cache.add();
    cache.remove(removed);
    c = cache.add();  // where the one was that was removed
    read(c, 20);
    look();
  }

  mha::TensorView<const T, 2> rows(Index n) const { return rows_of(x, 0, n); }
  auto step(const std::vector<SequenceId>& ids, const std::vector<Index>& n) { return cache.step(ids, n); }

  /// f() throws the sentence and nothing of the cache has changed.
  template <class F> void refuses(const std::string& sentence, const F& f) {
    EXPECT_EQ(message_of(f), sentence);
    EXPECT_TRUE(picture(cache) == picture_) << "after: " << sentence;
    EXPECT_TRUE(readings() == readings_) << "after: " << sentence;
    look();
  }
  void look() {
    picture_ = picture(cache);
    readings_ = readings();
  }

 private:
  void read(SequenceId id, Index n) {
    for (Index at = 0, end = 0; at < n; at = end) {
      end = std::min<Index>(at + 10, n);
      auto step = cache.step(id, end - at);
      for (Index i = 0; i < cache.layers(); ++i) static_cast<void>(layer(rows_of(x, at, end), step[i], shown));
      step.commit();
    }
  }

  /// What a query behind the last position reads of every sequence in every layer, whether tiles of it are known, and
  /// whether weights that are not the layer's would be refused.
  std::string readings() {
    std::string all;
    const std::vector<SequenceId> ids(cache.ids().begin(), cache.ids().end());
    for (const SequenceId id : ids) {
      const Index length = cache.length(id);
      const auto step = cache.step(id, 0);
      all += " " + std::to_string(length) + ":";
      for (Index i = 0; i < cache.layers() && length > 0; ++i) {
        const auto source = step.source(i);
        const auto out = mha::attention<B>(q_, source, shown, mha::Origin{length});
        all.append(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(T));
        if constexpr (requires { source.value_tiles(0, 0, 0); })
          all += source.value_tiles(0, 0, (length - 1) / 64 * 64).tiles == nullptr ? " unknown" : " known";
        all += message_of([&] { step[i].check(layer.config(), ~std::uint64_t{0}, 1, 0); });
      }
    }
    return all;
  }

  Tensor<T, 4> q_;
  std::string picture_, readings_;
};

template <class S, class M> struct On {
  using T = S;
  using B = M;
};
/// On Systolic a cache keeps tiles of values, and if it does not store bfloat16 rows of it for keys.
template <class Setup> class CacheRefusals : public testing::Test {
 public:
  /// f(held) in every storage.
  template <class F> static void in_each_storage(const F& f, Index layers = 2) {
    const auto in = [&](const char* name, const auto& storage) {
      SCOPED_TRACE(name);
      Held<typename Setup::T, typename Setup::B, std::remove_cvref_t<decltype(storage)>> held(storage, layers);
      f(held);
    };
    in("Contiguous", Contiguous{.length = 80});
    in("Ring", Ring{.left = 37, .rows = 11, .first = 3});
    in("Paged", Paged{.pages = 8, .length = 80, .page = 16});  // of which one is free
  }
};
using Setups = testing::Types<On<float, mha::Cpu>, On<mha::bfloat16, mha::Systolic<>>, On<float, mha::Systolic<>>>;
TYPED_TEST_SUITE(CacheRefusals, Setups);

TYPED_TEST(CacheRefusals, OfStepsThatDoNotFit) {
  TestFixture::in_each_storage([](auto& h) {
    using H = std::remove_reference_t<decltype(h)>;
    const auto refuses = [&](const std::string& sentence, const std::vector<SequenceId>& ids,
                             const std::vector<Index>& rows) {
      h.refuses(sentence, [&] { static_cast<void>(h.step(ids, rows)); });
    };
    refuses("step: sequences has size 2 but rows has size 1", {h.a, h.b}, {1});
    refuses("step: sequences 0 and 1 are the same one", {h.a, h.a}, {1, 1});
    refuses("step: sequence 1 was removed, or is of another cache", {h.a, h.removed}, {1, 1});
    refuses("step: sequence 1 was removed, or is of another cache", {h.a, h.foreign}, {1, 1});
    refuses("step: sequence 1 is an empty SequenceId: add() and fork() return one", {h.a, SequenceId{}}, {1, 1});
    refuses("step: sequence 1 has -1 rows, the least is 0", {h.b, h.a}, {2, -1});
    if constexpr (H::turns)
      refuses(
          "step: sequence 1 gets 12 rows, the limit of this Ring is 11: raise Ring::rows, or give the rows in several "
          "steps",
          {h.a, h.c}, {1, 12});
    else
      refuses("step: sequence 1 of length 70 and 11 rows more would be longer than the cache's 80", {h.c, h.a},
              {1, 11});
    if constexpr (H::has_pages) refuses(too_few_pages(2, 1, 8), {h.a, h.b, h.c}, {1, 1, 13});
  });
}

TYPED_TEST(CacheRefusals, OfEverythingElseWhileAStepIsOpen) {
  using T = typename TypeParam::T;
  TestFixture::in_each_storage([](auto& h) {
    const auto saved = h.cache.save(h.a);
    const std::vector<SequenceId> both{h.a, h.b};
    const std::vector<Index> swapped{1, 0};
    const Tensor<T, 3> key(3, 2, 12), value(3, 2, 8);
    const auto refuses = [&](const std::string& call, const auto& f) {
      const auto in_a_step = [&](bool written) {
        const auto step = h.step({h.a, h.b}, {1, 2});
        if (written) {
          static_cast<void>(h.layer(h.rows(3), step[0], shown));
          step.append(1, key, value);
        }
        f();
      };
      h.refuses(call + ": a step is open: commit it or let it end first", [&] { in_a_step(false); });
      h.refuses(call + ": a step is open: commit it or let it end first", [&] { in_a_step(true); });
    };
    refuses("step", [&] { static_cast<void>(h.cache.step(h.c, 1)); });
    refuses("add", [&] { h.cache.add(); });
    refuses("fork", [&] { static_cast<void>(h.cache.fork(h.a)); });
    refuses("remove", [&] { h.cache.remove(h.a); });
    refuses("truncate", [&] { h.cache.truncate(h.a, 69); });
    refuses("reorder", [&] { h.cache.reorder(both, swapped); });
    refuses("save", [&] { static_cast<void>(h.cache.save(h.a)); });
    refuses("restore", [&] { static_cast<void>(h.cache.restore(saved)); });
  });
}

TYPED_TEST(CacheRefusals, OfSequencesThatItDoesNotHave) {
  TestFixture::in_each_storage([](auto& h) {
    const std::vector<Index> swapped{1, 0};
    for (const SequenceId id : {h.removed, h.foreign, SequenceId{}}) {
      const std::string what = id == SequenceId{} ? " is an empty SequenceId: add() and fork() return one"
                                                  : " was removed, or is of another cache";
      h.refuses("length: the sequence" + what, [&] { static_cast<void>(h.cache.length(id)); });
      h.refuses("oldest: the sequence" + what, [&] { static_cast<void>(h.cache.oldest(id)); });
      h.refuses("can_truncate: the sequence" + what, [&] { static_cast<void>(h.cache.can_truncate(id, 0)); });
      h.refuses("truncate: the sequence" + what, [&] { h.cache.truncate(id, 0); });
      h.refuses("remove: the sequence" + what, [&] { h.cache.remove(id); });
      h.refuses("save: the sequence" + what, [&] { static_cast<void>(h.cache.save(id)); });
      h.refuses("fork: the sequence" + what, [&] { static_cast<void>(h.cache.fork(id)); });
      h.refuses("fork: the sequence" + what, [&] { static_cast<void>(h.cache.fork(id, 0)); });
      h.refuses("reorder: sequence 1" + what, [&] { h.cache.reorder(std::vector<SequenceId>{h.a, id}, swapped); });
    }
  });
}

TYPED_TEST(CacheRefusals, OfLengthsAndBeamsThatThereAreNot) {
  TestFixture::in_each_storage([](auto& h) {
    using H = std::remove_reference_t<decltype(h)>;
    for (const Index length : {71, -1}) {
      const std::string what = "length " + std::to_string(length) + " is outside [0, 70], the length of the sequence";
      h.refuses("truncate: " + what, [&] { h.cache.truncate(h.a, length); });
      h.refuses("fork: " + what, [&] { static_cast<void>(h.cache.fork(h.a, length)); });
    }
    if constexpr (H::turns) {
      const std::string what =
          "a Ring of rows 11 cannot go back to length 58 of 70: what its window shows has been dropped";
      h.refuses("truncate: " + what, [&] { h.cache.truncate(h.a, 58); });
      h.refuses("fork: " + what, [&] { static_cast<void>(h.cache.fork(h.a, 58)); });
    }
    const auto reorder = [&](const std::string& sentence, const std::vector<SequenceId>& beams,
                             const std::vector<Index>& from) {
      h.refuses("reorder: " + sentence, [&] { h.cache.reorder(beams, from); });
    };
    reorder("beams has size 2 but from has size 1", {h.a, h.c}, {0});
    reorder("source 2 is outside [0, 2), the number of beams", {h.a, h.c}, {1, 2});
    reorder("source -1 is outside [0, 2), the number of beams", {h.a, h.c}, {1, -1});
    reorder("sequences 0 and 1 are the same one", {h.a, h.a}, {1, 0});
  });
}

TYPED_TEST(CacheRefusals, OfLayersThatAreNotThoseOfTheStep) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::B;
  TestFixture::in_each_storage([](auto& h) {
    using H = std::remove_reference_t<decltype(h)>;
    const Tensor<T, 3> four(2, 4, E), two(3, 2, E);
    const auto refuses = [&](const std::string& sentence, const auto& l, const auto& x, const std::vector<Index>& rows,
                             Index i, const auto&... masks) {
      h.refuses(sentence, [&] {
        const auto step = h.step({h.a, h.b}, rows);
        static_cast<void>(l(x, step[i], masks...));
      });
    };
    refuses("step: there is no layer 2, the cache has 2", h.layer, h.rows(7), {3, 4}, 2, shown);
    refuses("step: there is no layer -1, the cache has 2", h.layer, h.rows(7), {3, 4}, -1, shown);
    refuses("layer: x has 8 rows, but the step has 7", h.layer, h.rows(8), {3, 4}, 0, shown);
    refuses("layer: x has 4 rows a sequence, but the step has 3 for sequence 1", h.layer, four, {4, 3}, 1, shown);
    refuses("layer: x has batch 3, but the step has 2 sequences", h.layer, two, {4, 2}, 1, shown);

    const auto refuses_layer = [&](const std::string& sentence, auto&& l) {
      l.initialize(mha::XavierUniform{.seed = 3});
      refuses("layer: " + sentence, l, h.rows(7), {3, 4}, 0, shown);
    };
    using Layer = typename H::Layer;
    refuses_layer("the layer has head size 14 but the cache has head size 12",
                  Layer({.d_model = E, .num_heads = 4, .head_dim = 14, .value_dim = 8}));
    refuses_layer("the layer has value head size 9 but the cache has value head size 8",
                  Layer({.d_model = E, .num_heads = 4, .head_dim = 12, .value_dim = 9}));
    refuses_layer("x has width 24 but keys and values are made of rows of width 16",
                  Layer({.d_model = E, .num_heads = 4, .head_dim = 12, .value_dim = 8, .kv_model = 16}));
    refuses_layer("the layer has 1 key/value head but the cache has 2",
                  mha::MultiHeadAttention<T, B, mha::MultiQuery, mha::Causal>(
                      {.d_model = E, .num_heads = 4, .head_dim = 12, .value_dim = 8}));
    refuses_layer(
        "sequence 0 has keys and values of layer 0 that were projected with other weights than the layer has now: "
        "truncate it to 0, or add() a new one",
        Layer(config));
    if constexpr (H::turns)
      refuses(
          "layer: the mask may show positions 3 to 24, which the Ring has dropped, to the queries from position 70 on: "
          "use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a "
          "larger left",
          h.layer, h.rows(7), {3, 4}, 0);
  });
}

TYPED_TEST(CacheRefusals, OfKeysAndValuesThatAreNotThoseOfTheStep) {
  using T = typename TypeParam::T;
  TestFixture::in_each_storage([](auto& h) {
    const Tensor<T, 3> key(3, 2, 12), value(3, 2, 8), four(4, 2, 12), narrow(3, 2, 11), one_head(3, 1, 12);
    const Tensor<T, 4> batch(3, 1, 2, 12), uneven(2, 2, 2, 12);
    const auto refuses = [&](const std::string& sentence, Index i, const auto& k, const auto& v) {
      h.refuses(sentence, [&] {
        const auto step = h.step({h.a, h.b}, {1, 2});
        step.append(i, k, v);
      });
    };
    refuses("append: there is no layer 2, the cache has 2", 2, key, value);
    refuses("append: there is no layer -1, the cache has 2", -1, key, value);
    refuses("append: key has 4 rows, but the step has 3", 0, four, value);
    refuses("append: key has head size 11 but the cache has head size 12", 0, narrow, value);
    refuses("append: key has 1 head but the cache has 2", 0, one_head, value);
    refuses("append: value has head size 12 but the cache has head size 8", 0, key, key);
    refuses("append: key has batch 3, but the step has 2 sequences", 0, batch, value);
    refuses("append: key has 2 rows a sequence, but the step has 1 for sequence 0", 0, uneven, value);
    h.refuses("commit: layer 0 of the cache has not written its keys and values", [&] {
      h.step({h.a, h.b}, {1, 2}).commit();
    });
  });
}

// Whatever a step has written before.
TYPED_TEST(CacheRefusals, OfAStepThatHasWritten) {
  using T = typename TypeParam::T;
  TestFixture::in_each_storage([](auto& h) {
    const Tensor<T, 3> key(7, 2, 12), value(7, 2, 8);
    const auto refuses = [&](const std::string& sentence, const auto& f) {
      h.refuses(sentence, [&] {
        auto step = h.step({h.a, h.b}, {3, 4});
        static_cast<void>(h.layer(h.rows(7), step[1], shown));
        f(step);
      });
    };
    refuses("layer: layer 1 of the cache was written in this step already",
            [&](auto& step) { static_cast<void>(h.layer(h.rows(7), step[1], shown)); });
    refuses("append: layer 1 of the cache was written in this step already",
            [&](auto& step) { step.append(1, key, value); });
    refuses("commit: layer 0 of the cache has not written its keys and values", [&](auto& step) { step.commit(); });
    refuses("layer: x has 6 rows, but the step has 7",
            [&](auto& step) { static_cast<void>(h.layer(h.rows(6), step[0], shown)); });
    refuses("append: key has head size 8 but the cache has head size 12",
            [&](auto& step) { step.append(0, value, key); });
    refuses("step: there is no layer 2, the cache has 2",
            [&](auto& step) { static_cast<void>(h.layer(h.rows(7), step[2], shown)); });
  });
}

TYPED_TEST(CacheRefusals, OfSavedSequencesThatDoNotFit) {
  using T = typename TypeParam::T;
  using Other = std::conditional_t<std::is_same_v<T, float>, mha::half, float>;
  TestFixture::in_each_storage([](auto& h) {
    using H = std::remove_reference_t<decltype(h)>;
    const auto refuses = [&](const std::string& sentence, const std::vector<std::byte>& bytes) {
      h.refuses("restore: " + sentence, [&] { static_cast<void>(h.cache.restore(bytes)); });
    };
    const auto saved_by = [](auto&& cache, Index rows) {
      const SequenceId id = cache.add();
      for (Index i = 0; i < rows; ++i) support::write(cache, id, 1, 1);
      return cache.save(id);
    };
    const mha::KvShape shape = h.cache.shape();
    const Contiguous longer{.length = 100};
    const std::string scalar(mha::detail::scalar_name<T>()), foreign(mha::detail::scalar_name<Other>());
    refuses("the sequence was saved in " + foreign + " of " + std::to_string(sizeof(Other)) +
                " bytes, the cache stores " + scalar + " of " + std::to_string(sizeof(T)),
            saved_by(mha::KvCache<Contiguous, Other>(shape, longer, {.layers = 2}), 5));
    refuses("the saved sequence has layers 3 but the cache has layers 2",
            saved_by(mha::KvCache<Contiguous, T>(shape, longer, {.layers = 3}), 5));
    refuses("the saved sequence has 1 head but the cache has 2",
            saved_by(mha::KvCache<Contiguous, T>({1, 12, 8}, longer, {.layers = 2}), 5));
    refuses("the saved sequence has head size 13 but the cache has head size 12",
            saved_by(mha::KvCache<Contiguous, T>({2, 13, 8}, longer, {.layers = 2}), 5));
    refuses("the saved sequence has value head size 7 but the cache has value head size 8",
            saved_by(mha::KvCache<Contiguous, T>({2, 12, 7}, longer, {.layers = 2}), 5));
    const Ring short_ring{.left = 20, .rows = 1};
    const auto without = saved_by(mha::KvCache<Ring, T>(shape, short_ring, {.layers = 2}), 60);
    if constexpr (H::turns) {
      refuses("the saved sequence is without positions 0 to 38, but this Ring keeps the first 3 and those from 23 on",
              without);
    } else {
      refuses("the saved sequence is without positions 0 to 38, but this cache keeps all", without);
      refuses("the saved sequence has length 81, the cache's limit is 80",
              saved_by(mha::KvCache<Contiguous, T>(shape, longer, {.layers = 2}), 81));
    }

    const auto saved = h.cache.save(h.c);
    const auto first = [&](std::size_t n) {
      return std::vector(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(n));
    };
    constexpr std::size_t header = sizeof(mha::detail::SavedHeader);
    const std::string all = std::to_string(saved.size());
    for (const std::size_t n : {std::size_t{0}, header - 1})
      refuses(std::to_string(n) + " bytes, a saved sequence has at least " + std::to_string(header), first(n));
    for (const std::size_t n : {header, saved.size() / 2, saved.size() - 1})
      refuses(std::to_string(n) + " bytes, expected " + all, first(n));
    auto changed = saved;
    changed.push_back(std::byte{0});
    refuses(std::to_string(changed.size()) + " bytes, expected " + all, changed);
    changed = saved;
    changed[7] = std::byte{'2'};
    refuses("the sequence was saved in format 2, expected 1", changed);
    changed[0] = std::byte{'x'};
    refuses("the bytes are not a saved sequence", changed);
    if constexpr (H::has_pages) {
      const auto of_a = h.cache.save(h.a);
      h.refuses(too_few_pages(5, 1, 8, "restore"), [&] { static_cast<void>(h.cache.restore(of_a)); });
    }
  });
}

TYPED_TEST(CacheRefusals, OfSequencesBeyondItsLimit) {
  TestFixture::in_each_storage([](auto& h) {
    const auto saved = h.cache.save(h.c);
    h.cache.add();
    h.look();
    const std::string what =
        ": the cache has 4 sequences, the limit is 4: remove one first, or make the cache with "
        "CacheSizes{.sequences = more}";
    h.refuses("add" + what, [&] { h.cache.add(); });
    h.refuses("fork" + what, [&] { static_cast<void>(h.cache.fork(h.a)); });
    h.refuses("restore" + what, [&] { static_cast<void>(h.cache.restore(saved)); });
  });
}

// All of a prompt is checked before its first piece.
TYPED_TEST(CacheRefusals, OfPromptsThatDoNotFit) {
  using T = typename TypeParam::T;
  const auto alone = [](auto& h) {  // a cache of one sequence more than 70 long
    h.cache.remove(h.b);
    h.cache.remove(h.c);
    h.look();
  };
  TestFixture::in_each_storage(
      [&](auto& h) {
        using H = std::remove_reference_t<decltype(h)>;
        const auto refuses = [&](const std::string& sentence, const auto& x, const auto&... extra) {
          h.refuses(sentence, [&] { static_cast<void>(h.layer.prefill(x, h.cache, extra...)); });
        };
        refuses(
            "layer: 8 rows are no multiple of the cache's 3 sequences: a step of different rows is made by "
            "cache.step()",
            h.rows(8), shown);
        alone(h);
        Tensor<T, 2> y(99, E);
        for (const Index n : {19, 21})
          h.refuses("layer: x has length 20 but the result has length " + std::to_string(n),
                    [&] { h.layer.prefill(h.rows(20), h.cache, shown, mha::into(mha::view(y.data(), n, E))); });
        if constexpr (H::turns) {
          refuses(
              "layer: the mask may show positions 3 to 32, which the Ring has dropped, to the queries from position 70 "
              "on: use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring "
              "with a larger left",
              h.rows(20));
          refuses(
              "layer: the mask may show positions 3 to 43, which the Ring has dropped, to the queries from position 81 "
              "on: use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring "
              "with a larger left",
              h.rows(22), shown || (mha::FirstKeys{.count = 40} && !mha::FirstKeys{.count = 33}));
          h.refuses(
              "prefill: the result overlaps x and is not x itself: an earlier piece would be written over rows still "
              "to be read",
              [&] { h.layer.prefill(rows_of(h.x, 1, 21), h.cache, shown, mha::into(mha::view(h.x.data(), 20, E))); });
        } else {
          refuses("step: sequence 0 of length 70 and 11 rows more would be longer than the cache's 80", h.rows(11),
                  shown);
          refuses("prefill: sequence 0 of length 70 and 81 rows more would be longer than the cache's 80", h.rows(81),
                  shown);
        }
      },
      1);
  TestFixture::in_each_storage([](auto& h) {
    const std::string what =
        ": the cache has 2 layers, expected 1: make a step of it, cache.step(…), and call each layer with its part, "
        "layer(x, step[i])";
    h.refuses("prefill" + what, [&] { static_cast<void>(h.layer.prefill(h.rows(3), h.cache, shown)); });
    h.refuses("step" + what, [&] { static_cast<void>(h.layer.step(h.rows(3), h.cache, shown)); });
  });
}

}  // namespace
