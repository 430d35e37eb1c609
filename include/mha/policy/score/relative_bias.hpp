// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../core/check.hpp"
#include "../score.hpp"
#include "../shared_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Which of a fixed number of buckets a distance falls into: small distances one each, larger ones logarithmically.
///
/// Formula   n = |k − q| of one direction (bidirectional: half of the buckets each way; else only k ≤ q, others 0);
///           n < exact: n;  else exact + ⌊log(n/exact) / log(max_distance/exact) · (buckets − exact)⌋, at most the last
/// Source    Raffel et al. 2020 (T5), §2.1 and its published code
struct RelativeBuckets {
  Index count = 32;
  Index max_distance = 128;
  bool bidirectional = true;

  Index bucket(Index q, Index k) const {
    Index n = q - k, buckets = count, base = 0;
    if (bidirectional) {
      buckets /= 2;
      if (n < 0) {
        base = buckets;
        n = -n;
      }
    } else if (n < 0) {
      n = 0;
    }
    const Index exact = buckets / 2;
    if (n < exact) return base + n;
    // In float, as the checkpoints were trained: a distance on the edge of a bucket falls where it fell then.
    const float ratio = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(max_distance) / exact));
    const Index far = exact + static_cast<Index>(std::min(ratio, 1.f) * static_cast<float>(buckets - exact));
    return base + (far < buckets - 1 ? far : buckets - 1);
  }
};

/// A learned bias per head and bucket of distance.
///
/// Shapes    table (buckets, Hq), as T5's relative_attention_bias.weight
/// Numerics  the table and its gradient are float in a double call too; an AdditiveBias has a table of any scalar
/// Errors    ShapeError if the table does not have buckets · Hq elements, or the buckets do not fit together
class RelativeBias {
 public:
  static constexpr Role role = Role::score;
  static constexpr const char* name = "RelativeBias";
  static constexpr bool additive = true;
  static constexpr bool trained = true;

  explicit RelativeBias(std::vector<float> table, RelativeBuckets buckets = {})
      : table_(std::move(table)), buckets_(buckets) {}

  const std::vector<float>& table() const { return table_.get(); }
  /// The table, to write; copies of this score keep the one that they have.
  std::span<float> numbers() { return table_.writable(); }
  std::span<const float> numbers() const { return table_.get(); }
  const RelativeBuckets& buckets() const { return buckets_; }

  /// One head's bias by distance; beyond the ends of the table it is that of an end.
  struct OfHead {
    static constexpr Role role = Role::score;
    static constexpr bool adds_table = true;
    const float* by_distance;  ///< of k − q = 0
    Index least, most;
    template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index, Index, Index q, Index k) const {
      const Index distance = k - q;
      return s + by_distance[distance < least ? least : distance > most ? most : distance];
    }
  };

  /// The bias of all heads by distance, made once per call: as far as the distances of its pairs, or the last bucket,
  /// so that a step of a long sequence does not pay for its length.
  class Prepared {
   public:
    static constexpr Role role = Role::score;
    static constexpr bool additive = true;
    Prepared(const float* by_distance, std::shared_ptr<const void> owner, Index least, Index most)
        : by_distance_(by_distance), owner_(std::move(owner)), least_(least), most_(most) {}
    OfHead at_head(Index, Index h) const {
      return {by_distance_ + h * (std::ptrdiff_t{most_} - least_ + 1) - least_, least_, most_};
    }
    template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
      return at_head(b, h)(s, b, h, q, k);
    }

   private:
    const float* by_distance_;           // (Hq, distances), of k − q = least, …, most
    std::shared_ptr<const void> owner_;  // of that memory; null for a call's frame
    Index least_, most_;
  };

  template <class T> T operator()(T s, Index, Index h, Index q, Index k) const {
    const std::size_t heads = table().size() / static_cast<std::size_t>(buckets_.count);
    return s + table()[static_cast<std::size_t>(buckets_.bucket(q, k)) * heads + static_cast<std::size_t>(h)];
  }

  /// How many heads the table is for.
  Index heads() const {
    check_buckets();
    return static_cast<Index>(table().size() / static_cast<std::size_t>(buckets_.count));
  }
  /// Checks the table and the buckets for a call with this many heads.
  void check(Index heads) const {
    check_buckets();
    const std::size_t wanted = static_cast<std::size_t>(buckets_.count) * static_cast<std::size_t>(heads);
    detail::require(table().size() == wanted, "RelativeBias: the table has ", table().size(), " elements, expected ",
                    wanted, ": ", buckets_.count, " buckets x ", heads, " heads");
  }

  /// Distances k − q: the least, and how many there are from it on.
  struct Distances {
    Index least;
    std::ptrdiff_t count;
  };
  /// Those of a call's pairs.
  static Distances distances_of(const CallShape& s) {
    if (s.batch == 0) return {0, 1};
    constexpr Index end = std::numeric_limits<Index>::max();
    Index least = end, most = -end;
    for (Index b = 0; b < s.batch; ++b) {
      least = std::min(least, -(s.origin[b] + s.queries - 1));
      most = std::max(most, s.keys - 1 - s.origin[b]);
    }
    return {least, std::max<std::ptrdiff_t>(std::ptrdiff_t{most} - least + 1, 1)};
  }
  /// The same, of which the first and the last one stand for all beyond: beyond max_distance all are in one bucket.
  Distances told_apart(const CallShape& s) const {
    const auto [first, count] = distances_of(s);
    const std::ptrdiff_t reach = buckets_.max_distance, least = std::clamp<std::ptrdiff_t>(first, -reach, reach),
                         most = std::clamp<std::ptrdiff_t>(first + count - 1, -reach, reach);
    return {static_cast<Index>(least), most - least + 1};
  }

  /// The table of a call, in memory of its frame if it is given one.
  template <class... Frame> Prepared prepared(const CallShape& s, Frame&... frame) const {
    check(s.heads);
    const auto [least, count] = told_apart(s);
    const std::size_t heads = static_cast<std::size_t>(s.heads), distances = static_cast<std::size_t>(count);
    std::shared_ptr<float[]> owner;
    float* by_distance = nullptr;
    if constexpr (sizeof...(Frame) == 0) {
      owner = std::make_shared<float[]>(heads * distances);
      by_distance = owner.get();
    } else {
      // As much as a longer sequence may need, so that a step takes no more than the one before.
      const auto all = std::min(2 * std::ptrdiff_t{buckets_.max_distance} + 1, std::ptrdiff_t{4096});
      by_distance = (frame.template take_host<float>(heads * std::max(distances, static_cast<std::size_t>(all))), ...);
    }
    for (std::size_t i = 0; i < distances; ++i) {  // a logarithm for each distance, not for each head
      const auto bucket = static_cast<std::size_t>(buckets_.bucket(0, least + static_cast<Index>(i)));
      for (std::size_t h = 0; h < heads; ++h) by_distance[h * distances + i] = table()[bucket * heads + h];
    }
    return Prepared(by_distance, std::move(owner), least, static_cast<Index>(least + count - 1));
  }

  /// Of a gradient: += the sums over pairs, which a table has by sequence, head and distance; its first and last one
  /// stand for all beyond that are in their buckets.
  template <class Sums> void add(const Sums& sums, int&, int& table) {
    const auto& by_distance = sums.tables[table++];
    const std::ptrdiff_t count = by_distance.count;
    const std::span<float> to = numbers();
    const Index own = static_cast<Index>(to.size() / static_cast<std::size_t>(buckets_.count));
    const auto at = [first = by_distance.least](std::ptrdiff_t i) { return first + static_cast<Index>(i); };
    for (Index h = 0; h < std::min(own, sums.shape.heads); ++h)
      for (std::ptrdiff_t i = 0; i < count;) {  // the distances of a bucket are beside each other
        const Index bucket = buckets_.bucket(0, at(i));
        std::remove_cvref_t<decltype(*by_distance.sums)> sum(0);
        for (; i < count && buckets_.bucket(0, at(i)) == bucket; ++i)
          for (Index b = 0; b < sums.shape.batch; ++b) sum += by_distance.sums[by_distance.at(b, h, 0, at(i))];
        to[static_cast<std::size_t>(bucket * own + h)] += static_cast<float>(sum);
      }
  }

 private:
  void check_buckets() const {
    const Index exact = (buckets_.bidirectional ? buckets_.count / 2 : buckets_.count) / 2;
    detail::require(exact >= 1, "RelativeBias: ", buckets_.count, " buckets are too few, expected at least ",
                    buckets_.bidirectional ? 4 : 2);
    detail::require(buckets_.max_distance > exact, "RelativeBias: max_distance ", buckets_.max_distance,
                    " is not above ", exact, ", the distances with a bucket each");
  }

  detail::SharedNumbers table_;
  RelativeBuckets buckets_;
};

}  // namespace mha::inline MHA_NAMESPACE
