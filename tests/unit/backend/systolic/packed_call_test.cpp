// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/packed_call.hpp>
#include <mha/cache/paged_kv.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/call.hpp>
#include <mha/core/tensor.hpp>

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

/// The memory of a call over a source, head size 32, value size 16.
template <class Source> class Packed {
  using T = typename Source::Scalar;
  using Call = mha::AttendCall<float, Source, mha::Full, mha::NoScore>;

 public:
  explicit Packed(const Source& source, bool one_at_a_time = false)
      : call_(call_of(source)),
        any_(mha::detail::simd::any_call(call_, mha::current_isa())),
        frame_(workspace_),
        held_(any_, frame_),
        packed_(any_, held_, true, one_at_a_time) {
    packed_.take(any_, frame_);
    mha::Workspace measured;  // after its frame one block of all that was taken
    {
      auto frame = measured.frame();
      systolic::PackedCall(any_, held_, true, one_at_a_time).take(any_, frame);
    }
    bytes_ = measured.bytes();
  }

  std::size_t bytes() const { return bytes_; }
  std::size_t room(bool one_at_a_time = false) const { return packed_.room(call_.shape.batch, one_at_a_time); }
  /// Keys of a head, 64 at a time, that are to be packed.
  std::vector<Index> packed_keys(Index b, Index g) const {
    std::vector<Index> keys;
    for (Index i = 0; i < held_.count(b); ++i)
      for (Index j = 0; j < 4; ++j)
        if (const Index k = held_.key(b, i) + 64 * j, end = std::min(k + 64, any_.keys(b));
            k < end && any_.kv.held(b, k, end) < end && packed_.keys_at(b, g, i, j) != nullptr)
          keys.push_back(k);
    return keys;
  }
  systolic::PackedCall& packed() { return packed_; }
  const auto& call() const { return any_; }

 private:
  static Call call_of(const Source& source) {
    Call call{};
    call.kv = source;
    Index longest = 0;
    for (Index b = 0; b < source.batch(); ++b) longest = std::max(longest, source.keys(b));
    call.shape = {source.batch(), source.heads(), 1, longest, 0};
    call.kv_heads = source.heads();
    call.head_dim = source.dim();
    call.value_dim = source.value_dim();
    return call;
  }

  const Call call_;
  const mha::detail::simd::AnyCall<float, T> any_;
  mha::Workspace workspace_;
  mha::Workspace::Frame frame_;
  const systolic::HeldBlocks held_;
  systolic::PackedCall packed_;
  std::size_t bytes_;
};

/// Rows (B, n, heads, 32) that lie as a cache's, head after head, and values of 16 over the same memory.
template <class T> struct Rows {
  mha::Tensor<T, 4> memory;
  mha::TensorView<const T, 4> key, value;
  Rows(Index blocks, Index n, Index heads) : memory(blocks, heads, n, 32) {
    const auto v = memory.view();
    key = value = {v.data, {blocks, n, heads, 32}, {v.stride[0], v.stride[2], v.stride[1], 1}};
    value.extent[3] = 16;
  }
};
using Keys = std::vector<Index>;

TEST(PackedCall, TakesKeysFromTheirPlace) {
  const Rows<bfloat16> rows(2, 700, 2);
  const std::vector<Index> lengths{600, 128};
  const mha::ContiguousKv<bfloat16> source{rows.key, rows.value, {}, lengths};
  const Packed<mha::ContiguousKv<bfloat16>> all(source);
  for (const Index g : {0, 1}) {
    EXPECT_EQ(all.packed_keys(0, g), Keys{576});
    EXPECT_EQ(all.packed_keys(1, g), Keys{});
  }
  // 64 keys for each head of the first sequence, values of four blocks a head.
  EXPECT_LT(all.bytes(), 2u * (64 * 32 * 2 + 4 * 256 * 16 * 2) + 4096);
}

TEST(PackedCall, PacksKeysOfOtherScalars) {
  const Rows<float> rows(1, 300, 1);
  const std::vector<Index> lengths{200};
  const Packed<mha::ContiguousKv<float>> all({rows.key, rows.value, {}, lengths});
  EXPECT_EQ(all.packed_keys(0, 0), (Keys{0, 64, 128, 192}));
  EXPECT_GE(all.bytes(), 256u * (32 + 16) * 2);
}

TEST(PackedCall, PacksOfPagesTheLastKeysAlone) {
  const Rows<bfloat16> rows(8, 64, 2), short_rows(20, 16, 2);
  const std::vector<Index> table{5, 1, 3, 0}, lengths{200}, short_table{3, 1, 19, 0, 7, 6, 11, 2, 8, 9, 10, 5, 12};
  const Packed<mha::PagedKv<bfloat16>> pages({rows.key, rows.value, table, lengths});
  EXPECT_EQ(pages.packed_keys(0, 1), Keys{192});
  Packed<mha::PagedKv<bfloat16>> short_pages({short_rows.key, short_rows.value, short_table, lengths});
  EXPECT_EQ(short_pages.packed_keys(0, 1), Keys{192});
  const systolic::KeyRows& at = short_pages.packed().at(0, 1).key_rows[1];
  for (Index t = 0; t < 4; ++t)
    EXPECT_EQ(at.tile[t], short_rows.key.pointer(short_table[static_cast<std::size_t>(4 + t)], 0, 1, 0));
}

TEST(PackedCall, PacksOfARingWhereItTurnsAndAtItsEnds) {
  const Rows<bfloat16> rows(1, 600, 1);
  const std::vector<Index> lengths{100000};
  const Packed<mha::RingKv<bfloat16>> ring({rows.key, rows.value, lengths, 5});
  // Position p is in row 5 + (p − 5) mod 595, so that 99965 is in row 5 again; 99405 is the oldest.
  EXPECT_EQ(ring.packed_keys(0, 0), (Keys{0, 99392, 99904, 99968}));
  EXPECT_LT(ring.bytes(), 4u * 64 * 32 * 2 + 4 * 256 * 16 * 2 + 4096);
}

TEST(PackedCall, TakesKeysOfARingFromTheirPlaceHoweverLongItHasBeen) {
  const mha::Tensor<bfloat16, 4> rows(1, 600, 2, 32);  // positions of all heads side by side
  for (const Index length : {500, 100000}) {
    const std::vector<Index> lengths{length};
    const Packed<mha::RingKv<bfloat16>> ring({rows.view(), rows.view(), lengths});
    EXPECT_LE(ring.packed_keys(0, 1).size(), 3u) << length;
  }
}

/// One that keeps the values of some keys in tiles.
struct Tiled : mha::ContiguousKv<bfloat16> {
  const bfloat16* tiles = nullptr;
  Index without = 0;  ///< the 64 of this key are not kept
  mha::KvRun<bfloat16> run(Index b, Index g, Index begin, Index end) const {
    return ContiguousKv::run(b, g, begin, std::min(end, key.extent[1]));
  }
  mha::detail::ValueTiles value_tiles(Index, Index g, Index k) const {
    if (k / 64 == without / 64) return {};
    return {tiles + g * 10000 + k * 16, 1024, k == 128};
  }
};

TEST(PackedCall, PacksTheValuesThatAreNotKept) {
  const Rows<bfloat16> rows(1, 1000, 2);
  const mha::Tensor<bfloat16, 1> tiles(40000);
  const std::vector<Index> lengths{990};
  for (const bool one : {false, true}) {
    Tiled source{{rows.key, rows.value, {}, lengths}, tiles.data(), 2000};
    Packed<Tiled> all(source, one);
    source.without = 320;
    Packed<Tiled> most(source, one);
    const auto turn_to = [&](Index g) {
      if (!one) return;
      all.packed().turn_to(all.call(), 0, g);
      most.packed().turn_to(most.call(), 0, g);
    };
    for (const Index g : {0, 1}) {
      turn_to(g);
      const systolic::KvTiles at = all.packed().at(0, g), mixed = most.packed().at(0, g);
      for (Index k = 0; k < 990; k += 64) {
        const auto& values = at.values[k / 64];
        EXPECT_EQ(values.tiles, tiles.data() + g * 10000 + k * 16);
        EXPECT_EQ(values.stride, 1024);
        EXPECT_EQ(values.non_finite, k == 128);
        EXPECT_EQ(all.packed().values_at(0, g, k / 256, k % 256 / 64).tiles, nullptr);
        const systolic::PackedValues packed = most.packed().values_at(0, g, k / 256, k % 256 / 64);
        EXPECT_EQ(packed.tiles != nullptr, k == 320) << k;
        EXPECT_EQ(packed.non_finite, &mixed.values[k / 64].non_finite);
        if (k == 320) {
          EXPECT_EQ(packed.tiles, mixed.values[k / 64].tiles);
        } else {
          EXPECT_EQ(mixed.values[k / 64].tiles, values.tiles);
        }
      }
    }
    // Of a block of 256 values for each head, or for one.
    EXPECT_GE(most.bytes(), all.bytes() + (one ? 1 : 2) * 256 * 16 * 2);
    EXPECT_LT(most.bytes(), all.bytes() + (one ? 1 : 2) * 256 * 16 * 2 + 256);
    EXPECT_GE(all.room(one), most.bytes());
    EXPECT_LT(all.room(one), Packed<mha::ContiguousKv<bfloat16>>(source, one).room(one));
  }
}

// The last keys of a sequence are read where they are too, if there is memory for whole tiles of 16.
TEST(PackedCall, TakesTheLastKeysFromTheirPlaceToo) {
  const Rows<bfloat16> rows(1, 1000, 2);
  const mha::Tensor<bfloat16, 1> tiles(40000);
  for (const auto& [length, packed] : {std::pair<Index, Keys>{1, {}}, {200, {}}, {992, {}}, {993, {960}}}) {
    const std::vector<Index> lengths{length};
    Packed<Tiled> all(Tiled{{rows.key, rows.value, {}, lengths}, tiles.data(), 2000});
    EXPECT_EQ(all.packed_keys(0, 1), packed) << length;
    EXPECT_EQ(all.packed().at(0, 1).key_rows[0].tile[0], rows.key.pointer(0, 0, 1, 0));
  }
}

TEST(PackedCall, PacksOneHeadInThePlaceOfTheLast) {
  const Rows<float> rows(1, 300, 4);
  const std::vector<Index> lengths{300};
  const mha::ContiguousKv<float> source{rows.key, rows.value, {}, lengths};
  Packed<mha::ContiguousKv<float>> one(source, true);
  one.packed().turn_to(one.call(), 0, 0);
  const bfloat16* const first = one.packed().keys_at(0, 0, 1, 0);
  one.packed().turn_to(one.call(), 0, 3);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(one.packed().keys_at(0, 3, 1, 0), first);
  EXPECT_LT(one.bytes(), Packed<mha::ContiguousKv<float>>(source).bytes() / 2);
}

TEST(PackedCall, KnowsTheRoomOfLaterCalls) {
  const Rows<float> rows(2, 1000, 2);
  for (const bool one : {false, true}) {
    const std::vector<Index> few{1, 2}, all{1000, 1000};
    const Packed<mha::ContiguousKv<float>> now({rows.key, rows.value, {}, few}, one);
    const Packed<mha::ContiguousKv<float>> later({rows.key, rows.value, {}, all}, one);
    EXPECT_LT(now.bytes(), later.bytes());
    EXPECT_GE(now.room(one), later.bytes());
    EXPECT_EQ(now.room(one), later.room(one));
  }
}

// Whether keys stay where they are depends on how far apart rows are and on how many there will be, not on those there
// are now.
TEST(PackedCall, KnowsWhichKeysStayInPlace) {
  const auto room_is_enough = [](int heads, int dim, const std::vector<Index>& lengths) {
    const mha::Tensor<bfloat16, 4> rows(1, 8192, heads, dim);  // heads side by side
    for (const bool one : {false, true}) {
      const std::vector<Index> all{8192};
      const Packed<mha::ContiguousKv<bfloat16>> later({rows.view(), rows.view(), {}, all}, one);
      for (const Index length : lengths) {
        const std::vector<Index> now{length};
        const Packed<mha::ContiguousKv<bfloat16>> early({rows.view(), rows.view(), {}, now}, one);
        EXPECT_GE(early.room(one), std::max(early.bytes(), later.bytes())) << heads << ", " << dim << ", " << length;
      }
    }
  };
  room_is_enough(8, 64, {1, 200, 300});      // further apart than keys read in place
  room_is_enough(2, 64, {200, 4096, 4097});  // too far apart from some length on
  room_is_enough(1, 288, {200, 256, 257});
  room_is_enough(1, 64, {1, 63, 64, 300, 8192});
}

}  // namespace
