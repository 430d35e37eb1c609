// SPDX-License-Identifier: Apache-2.0
// A cache's books through random sequences of its operations, against a plain model.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <type_traits>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/layer/kv_cache.hpp>

#include "far_backend.hpp"
#include "message_of.hpp"

namespace {

using mha::CacheSizes;
using mha::Contiguous;
using mha::Index;
using mha::KvCache;
using mha::KvShape;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::ShapeError;
using mha::Tensor;
using support::message_of;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 2, most_sequences = 5;
constexpr KvShape both{heads, dim, value_dim},
    keys_alone{.heads = heads, .dim = dim, .value_dim = value_dim, .values_in_keys = true};
constexpr CacheSizes sizes{.layers = layers, .sequences = most_sequences};

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// The numbers that stand for position content `n`, of a layer and head.
float key_of(int n, Index layer, Index g, Index d) { return static_cast<float>(((n * 2 + layer) * 2 + g) * 4 + d); }
float value_of(int n, Index layer, Index g, Index d) { return -1 - key_of(n, layer, g, d); }

/// The same numbers in the memory of a backend.
template <class B, int Rank> mha::detail::TensorOf<B, float, Rank> there(const Tensor<float, Rank>& here) {
  return mha::detail::TensorOf<B, float, Rank>(here);
}
/// While it lives, the host reads the backend's memory.
template <class B>
using Reading = std::conditional_t<mha::detail::computes_on_host<B>, std::monostate, support::Kernel>;

/// Which pages sequences have, and which of them they share: the owners of a page hold one pointer.
class PageModel {
 public:
  using Pages = std::vector<std::shared_ptr<int>>;

  PageModel(Index pages, Index page) : pages_(pages), page_(page) {}

  /// The pages of the first `length` positions.
  Pages first(const Pages& pages, Index length) const { return {pages.begin(), pages.begin() + count(length)}; }
  /// Grows to `rows` positions behind `length` ones. Of the owners of a page the last one left writes to it.
  void grow(Pages& pages, Index length, Index rows) const {
    if (rows > 0 && length % page_ > 0 && pages.back().use_count() > 1) pages.back() = std::make_shared<int>();
    while (static_cast<Index>(pages.size()) < count(length + rows)) pages.push_back(std::make_shared<int>());
  }
  template <class Sequences> Index free(const Sequences& sequences) const {
    std::set<const int*> used;
    for (const auto& s : sequences)
      for (const auto& page : s.pages) used.insert(page.get());
    return pages_ - static_cast<Index>(used.size());
  }

 private:
  std::ptrdiff_t count(Index length) const { return (length + page_ - 1) / page_; }

  Index pages_, page_;
};

/// A cache beside a list of what was written to each sequence.
template <class Storage, class B> class Model {
 public:
  Model(const KvShape& shape, const Storage& storage) : cache(shape, storage, sizes), pages(pages_of(storage)) {}

  struct Sequence {
    SequenceId id;
    std::vector<int> content;
    PageModel::Pages pages{};
  };

  KvCache<Storage, float, B> cache;
  PageModel pages;
  std::vector<Sequence> sequences;

  /// Rows for some sequences; the step is committed, with some of its rows if `kept` is not null, or ends by an
  /// exception behind one layer or all.
  void step(const std::vector<std::size_t>& who, const std::vector<Index>& rows, int layers_written, bool commit,
            const std::vector<Index>* kept) {
    std::vector<SequenceId> ids;
    std::vector<int> contents;
    for (std::size_t i = 0; i < who.size(); ++i) {
      ids.push_back(sequences[who[i]].id);
      for (Index n = 0; n < rows[i]; ++n) contents.push_back(++written_);
    }
    const Index needed = pages_needed(ids, rows), free = free_pages();
    auto step = [&] {
      try {
        return cache.step(ids, rows);
      } catch (const mha::CacheFull& full) {
        EXPECT_EQ(full.needed, needed);
        EXPECT_EQ(full.free, free);
        EXPECT_GT(needed, free);
        throw;
      }
    }();
    EXPECT_EQ(free - free_pages(), needed);
    Tensor<float, 3> key(static_cast<Index>(contents.size()), heads, dim),
        value(static_cast<Index>(contents.size()), heads, value_dim);
    for (Index layer = 0; layer < layers_written; ++layer) {
      for (Index i = 0; i < key.extent(0); ++i)
        for (Index g = 0; g < heads; ++g) {
          for (Index d = 0; d < dim; ++d) key(i, g, d) = key_of(contents[at(i)], layer, g, d);
          for (Index d = 0; d < value_dim; ++d) value(i, g, d) = value_of(contents[at(i)], layer, g, d);
        }
      if (cache.shape().values_in_keys)
        step.append(layer, there<B>(key));
      else
        step.append(layer, there<B>(key), there<B>(value));
    }
    if (!commit) return;
    if (kept != nullptr)
      step.commit(*kept);
    else
      step.commit();
    for (std::size_t i = 0; i < who.size(); ++i) {
      Sequence& s = sequences[who[i]];
      if (paged) pages.grow(s.pages, static_cast<Index>(s.content.size()), rows[i]);
    }
    Index n = 0;
    for (std::size_t i = 0; i < who.size(); ++i) {
      Sequence& s = sequences[who[i]];
      for (const Index end = n + rows[i]; n < end; ++n)
        if (kept == nullptr || std::find(kept->begin(), kept->end(), n) != kept->end())
          s.content.push_back(contents[at(n)]);
      if (kept != nullptr) s.pages = first_pages(s, static_cast<Index>(s.content.size()));
    }
  }

  PageModel::Pages first_pages(const Sequence& s, Index length) const {
    return paged ? pages.first(s.pages, length) : PageModel::Pages{};
  }
  /// A sequence of bytes, which stand for a content; it shares pages with one that is like it, if that is given.
  Sequence restored(const std::vector<std::byte>& bytes, const std::vector<int>& content, const Sequence* like) {
    Sequence s{{}, content};
    if constexpr (paged) {
      const Index length = static_cast<Index>(content.size());
      Index same = 0;
      if (like != nullptr) {
        const auto& other = like->content;
        while (same < length && at(same) < other.size() && content[at(same)] == other[at(same)]) ++same;
        s.pages = first_pages(*like, same);
      }
      s.id = like == nullptr ? cache.restore(bytes) : cache.restore(bytes, like->id);
      pages.grow(s.pages, same, length - same);
    } else {
      s.id = cache.restore(bytes);
    }
    return s;
  }

  /// Every position that the cache still has, read by the source that a layer gets.
  void expect_right() {
    if constexpr (paged) {
      ASSERT_EQ(cache.free_pages(), pages.free(sequences));
    }
    std::vector<SequenceId> ids;
    for (const Sequence& s : sequences) ids.push_back(s.id);
    const std::vector<Index> rows(ids.size(), 0);
    const auto step = cache.step(ids, rows);
    for (Index layer = 0; layer < layers; ++layer) {
      const auto source = step.source(layer);
      if constexpr (requires { source.check("test"); }) source.check("test");
      [[maybe_unused]] const Reading<B> reading;
      for (std::size_t b = 0; b < sequences.size(); ++b) {
        const auto& content = sequences[b].content;
        const Index length = static_cast<Index>(content.size()), oldest = cache.oldest(ids[b]);
        ASSERT_EQ(cache.length(ids[b]), length);
        ASSERT_EQ(source.keys(static_cast<Index>(b)), length);
        for (Index p = 0; p < length; ++p) {
          if (p >= first_ && p < oldest) continue;  // a Ring has dropped it
          for (Index g = 0; g < heads; ++g) {
            const auto run = source.run(static_cast<Index>(b), g, p, length);
            for (Index d = 0; d < dim; ++d) ASSERT_EQ(run.key[d], key_of(content[at(p)], layer, g, d));
            for (Index d = 0; d < value_dim; ++d)
              ASSERT_EQ(run.value[d], cache.shape().values_in_keys ? key_of(content[at(p)], layer, g, d)
                                                                   : value_of(content[at(p)], layer, g, d));
          }
        }
      }
    }
  }

  /// Removing these sequences frees what the cache says.
  void remove(const std::vector<std::size_t>& who) {
    std::vector<SequenceId> ids;
    for (const std::size_t i : who) ids.push_back(sequences[i].id);
    Index expected = free_pages();
    if constexpr (paged) expected += cache.pages_freed(ids);
    for (const SequenceId id : ids) {
      cache.remove(id);
      EXPECT_NE(message_of([&] { static_cast<void>(cache.length(id)); }), "");
    }
    EXPECT_EQ(free_pages(), expected);
    const auto gone = [&](const Sequence& s) { return std::find(ids.begin(), ids.end(), s.id) != ids.end(); };
    sequences.erase(std::remove_if(sequences.begin(), sequences.end(), gone), sequences.end());
  }
  /// So does taking positions back.
  void truncate(std::size_t one, Index length) {
    Sequence& s = sequences[one];
    Index expected = free_pages();
    if constexpr (paged) expected += cache.pages_freed(s.id, length);
    cache.truncate(s.id, length);
    EXPECT_EQ(free_pages(), expected);
    s.content.resize(at(length));
    s.pages = first_pages(s, length);
  }

  void set_first(Index first) { first_ = first; }

  static constexpr bool paged = std::is_same_v<Storage, Paged>;

 private:
  Index free_pages() const {
    if constexpr (paged)
      return cache.free_pages();
    else
      return 0;
  }
  /// None where the step itself says what is wrong with it.
  Index pages_needed(const std::vector<SequenceId>& ids, const std::vector<Index>& rows) const {
    if constexpr (paged) {
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (rows[i] > cache.storage().length - cache.length(ids[i])) return 0;
      return cache.pages_needed(ids, rows);
    }
    return 0;
  }
  static PageModel pages_of(const Storage& storage) {
    if constexpr (paged)
      return {storage.pages, storage.page};
    else
      return {0, 1};
  }

  int written_ = 0;
  Index first_ = 0;
};

template <class B, class Storage>
void random_operations_on(const KvShape& shape, const Storage& storage, Index most_rows, Index first, int& refused) {
  std::mt19937 random(42);
  const auto below = [&](std::size_t n) { return static_cast<Index>(random() % n); };
  Model<Storage, B> model(shape, storage);
  model.set_first(first);
  int commits = 0;
  for (int round = 0; round < 1500; ++round) {
    auto& all = model.sequences;
    const std::size_t one = all.empty() ? 0 : at(below(all.size()));
    const Index length = all.empty() ? 0 : static_cast<Index>(all[one].content.size());
    const Index back = length - below(at(std::min<Index>(length, 5)) + 1);
    switch (below(9)) {
      case 0:
        if (all.size() < at(most_sequences)) all.push_back({model.cache.add(), {}});
        break;
      case 1:
        if (!all.empty() && below(3) == 0) {
          std::vector<std::size_t> who{one};
          if (below(4) == 0)
            for (std::size_t i = 0; i < all.size(); ++i)
              if (i != one && below(2) == 0) who.push_back(i);
          model.remove(who);
        }
        break;
      case 2:
        if (!all.empty() && all.size() < at(most_sequences) && model.cache.can_truncate(all[one].id, back))
          all.push_back({model.cache.fork(all[one].id, back),
                         {all[one].content.begin(), all[one].content.begin() + back},
                         model.first_pages(all[one], back)});
        break;
      case 3:
        if (!all.empty() && model.cache.can_truncate(all[one].id, back)) model.truncate(one, back);
        break;
      case 4:
        if (!all.empty() && below(3) == 0) {
          std::vector<SequenceId> beams;
          std::vector<Index> from;
          for (const auto& s : all) {
            beams.push_back(s.id);
            from.push_back(below(all.size()));
          }
          const auto before = all;
          model.cache.reorder(beams, from);
          for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].content = before[at(from[i])].content;
            all[i].pages = before[at(from[i])].pages;
          }
        }
        break;
      case 5:
        if (!all.empty() && all.size() < at(most_sequences)) {
          const auto bytes = model.cache.save(all[one].id);
          const Index before = model.cache.sequences();
          const std::size_t like = at(below(all.size()));
          try {
            all.push_back(model.restored(bytes, all[one].content, below(2) == 0 ? nullptr : &all[like]));
          } catch (const ShapeError&) {
            EXPECT_EQ(model.cache.sequences(), before);
            ++refused;
          }
        }
        break;
      default: {
        std::vector<std::size_t> who;
        std::vector<Index> rows;
        for (std::size_t i = 0; i < all.size(); ++i)
          if (below(3) > 0) {
            who.insert(who.begin() + below(who.size() + 1), i);
            rows.push_back(0);
          }
        for (auto& n : rows) n = below(at(most_rows) + 1);
        const int written = below(3);
        std::vector<Index> kept;
        for (Index row = 0; row < std::accumulate(rows.begin(), rows.end(), Index{0}); ++row)
          if (below(2) == 0) kept.push_back(row);
        try {
          model.step(who, rows, written, written == 2, below(4) == 0 ? &kept : nullptr);
          commits += written == 2;
        } catch (const ShapeError&) {
          ++refused;
        }
      }
    }
    model.expect_right();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(commits, 100);
}

/// In the host's memory, and in one that the host does not reach, with values beside the keys and in them.
template <class Storage> void random_operations(const Storage& storage, Index most_rows, Index first, int& refused) {
  random_operations_on<mha::OnHost>(both, storage, most_rows, first, refused);
  const int on_host = refused;
  random_operations_on<support::Far>(both, storage, most_rows, first, refused);
  random_operations_on<mha::OnHost>(keys_alone, storage, most_rows, first, refused);
  random_operations_on<support::Far>(keys_alone, storage, most_rows, first, refused);
  EXPECT_EQ(refused, 4 * on_host);
}

TEST(KvCache, ContiguousKeepsEveryPosition) {
  int refused = 0;
  random_operations(Contiguous{.length = 30}, 6, 0, refused);
  EXPECT_GT(refused, 0) << "no sequence reached the limit";
}

TEST(KvCache, ARingKeepsTheFirstAndTheWindow) {
  int refused = 0;
  random_operations(Ring{.left = 6, .rows = 4, .first = 2}, 4, 2, refused);
  EXPECT_EQ(refused, 0);
}

TEST(KvCache, PagesKeepEveryPosition) {
  int refused = 0;
  random_operations(Paged{.pages = 24, .length = 200, .page = 16}, 20, 0, refused);
  EXPECT_GT(refused, 10) << "the pages were always enough";
}

}  // namespace
