// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/saved_sequence.hpp>

namespace {

using mha::Index;
using mha::detail::Gone;
using mha::detail::SavedHeader;
using mha::detail::SavedRows;
using mha::detail::SavedSequence;

constexpr mha::KvShape shape{.heads = 2, .dim = 2, .value_dim = 1};
constexpr Index layers = 2;

std::vector<std::byte> saved(Index length, const Gone& gone) {
  SavedSequence<float> to(shape, layers, length, gone);
  float number = 0;
  for (Index layer = 0; layer < layers; ++layer)
    for (Index p = 0; p < length; ++p) {
      if (p >= gone.first && p < gone.oldest) continue;
      const float row[] = {number + 1, number + 2, number + 3, number + 4, -number, -number - 1};
      to.put(row);
      number += 10;
    }
  return std::move(to).bytes();
}

std::string refusal(const std::vector<std::byte>& bytes, const mha::KvShape& s = shape, Index n = layers) {
  try {
    const SavedRows<float> rows(bytes, s, n);
  } catch (const mha::ShapeError& e) {
    return e.what();
  }
  return "";
}

std::vector<std::byte> with(std::vector<std::byte> bytes, Index SavedHeader::*member, Index value) {
  SavedHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.*member = value;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

// All that there is, or less: a Ring that is smaller takes no more than it keeps.
TEST(SavedSequence, ReadsWhatWasWritten) {
  for (const Gone gone : {Gone{}, Gone{1, 4}})
    for (const Gone wanted : {gone, Gone{1, 4}, Gone{0, 4}, Gone{1, 5}, Gone{0, 6}}) {
      const auto bytes = saved(6, gone);
      SavedRows<float> from(bytes, shape, layers);
      EXPECT_EQ(from.length(), 6);
      EXPECT_EQ(from.gone().first, gone.first);
      EXPECT_EQ(from.gone().oldest, gone.oldest);
      int saved_row = 0;
      for (Index layer = 0; layer < layers; ++layer) {
        std::vector<float> rows(mha::detail::kept_positions(6, wanted) * 6);
        from.take(rows, wanted);
        std::size_t at = 0;
        for (Index p = 0; p < 6; ++p) {
          if (p >= gone.first && p < gone.oldest) continue;
          const float number = float(10 * saved_row++);
          if (p >= wanted.first && p < wanted.oldest) continue;
          for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(rows[at + n], number + float(n + 1));
          EXPECT_EQ(rows[at + 4], -number);
          EXPECT_EQ(rows[at + 5], -number - 1);
          at += 6;
        }
        EXPECT_EQ(at, rows.size());
      }
    }
}

/// The rows of each layer.
struct Memory {
  std::vector<std::vector<float>> layers;
  template <class To> void read(const std::vector<Index>& rows, const To& to) const {
    if (rows.empty()) return;
    for (const auto& layer : layers) {
      std::vector<float> some;
      for (const Index row : rows)
        some.insert(some.end(), &layer[std::size_t(row) * 6], &layer[std::size_t(row) * 6] + 6);
      to(std::span<const float>(some));
    }
  }
};

// Rows of two layers, from the bytes themselves, in which one number differs.
TEST(SavedSequence, TellsHowManyPositionsAreTheSame) {
  const auto bytes = saved(5, Gone{});
  SavedRows<float> whole(bytes, shape, layers);
  Memory memory;
  for (Index layer = 0; layer < layers; ++layer) {
    memory.layers.emplace_back(5 * 6);
    whole.take(memory.layers.back(), Gone{});
  }
  const SavedRows<float> from(bytes, shape, layers);
  const std::vector<Index> rows{0, 1, 2, 3, 4};
  EXPECT_EQ(from.same(memory, rows), 5);
  EXPECT_EQ(from.same(memory, {0, 1, 2}), 3) << "the other is shorter";
  EXPECT_EQ(from.same(memory, {0, 1, 2, 3, 4, 0, 1}), 5) << "or longer";
  EXPECT_EQ(from.same(memory, {0, 1, 1, 3}), 2);
  EXPECT_EQ(from.same(memory, {}), 0);
  for (Index row = 0; row < 5; ++row)
    for (std::size_t layer = 0; layer < 2; ++layer) {
      Memory other = memory;
      other.layers[layer][std::size_t(row) * 6 + 5] += 1;
      EXPECT_EQ(from.same(other, rows), row);
    }
  Memory zeros = memory;
  ASSERT_EQ(zeros.layers[0][4], 0.0f);
  zeros.layers[0][4] = std::signbit(zeros.layers[0][4]) ? 0.0f : -0.0f;
  EXPECT_EQ(from.same(zeros, rows), 0) << "bits, not values";
  const auto without = saved(6, Gone{1, 4});
  EXPECT_EQ(SavedRows<float>(without, shape, layers).same(memory, rows), 0);
}

TEST(SavedSequence, HasTheRowsThatAreKeptOfALongText) {
  struct Book {
    Index row(Index slot, Index position) const { return slot + position % 100; }
  };
  constexpr Index length = (Index{1} << 30) - 1;
  EXPECT_EQ(mha::detail::kept_rows(Book{}, 1000, length, Gone{2, length - 3}),
            (std::vector<Index>{1000, 1001, 1020, 1021, 1022}));
  EXPECT_EQ(mha::detail::kept_rows(Book{}, 1000, 3, Gone{}), (std::vector<Index>{1000, 1001, 1002}));
  EXPECT_EQ(mha::detail::kept_rows(Book{}, 1000, 3, Gone{3, 3}), (std::vector<Index>{1000, 1001, 1002}));
}

TEST(SavedSequence, IsOfKeysAloneOrOfBoth) {
  mha::KvShape alone = shape;
  alone.values_in_keys = true;
  SavedSequence<float> to(alone, 1, 1, Gone{});
  const std::vector<float> keys{1, 2, 3, 4};
  to.put(keys);
  const auto bytes = std::move(to).bytes();
  EXPECT_EQ(bytes.size(), sizeof(SavedHeader) + keys.size() * sizeof(float));
  std::vector<float> read(4);
  SavedRows<float>(bytes, alone, 1).take(read, Gone{});
  EXPECT_EQ(read, keys);
  EXPECT_EQ(refusal(bytes, shape, 1),
            "restore: the saved sequence has its values in its keys, the cache stores keys and values");
  EXPECT_EQ(refusal(saved(5, {}), alone),
            "restore: the saved sequence stores keys and values, the cache has its values in its keys");
}

TEST(SavedSequence, HasTheScalesOfRowsInEightBits) {
  using mha::scaled_int8;
  SavedSequence<scaled_int8> to(shape, 1, 3, Gone{});
  std::vector<scaled_int8> rows(3 * 2 * (6 + 5));
  std::memset(static_cast<void*>(rows.data()), 0x5a, rows.size());
  to.put(rows);
  const auto bytes = std::move(to).bytes();
  EXPECT_EQ(bytes.size(), sizeof(SavedHeader) + rows.size());
  std::vector<scaled_int8> read(rows.size());
  SavedRows<scaled_int8>(bytes, shape, 1).take(read, Gone{});
  EXPECT_EQ(std::memcmp(read.data(), rows.data(), rows.size()), 0);
  EXPECT_EQ(refusal(bytes, shape, 1),
            "restore: the sequence was saved in scaled_int8 of 1 bytes, the cache stores float of 4");
  try {
    const SavedRows<scaled_int8> none(saved(5, {}), shape, layers);
    ADD_FAILURE();
  } catch (const mha::ShapeError& e) {
    EXPECT_STREQ(e.what(), "restore: the sequence was saved in float of 4 bytes, the cache stores scaled_int8 of 1");
  }
}

TEST(SavedSequence, RefusesWhatItIsNot) {
  const auto good = saved(5, {});
  EXPECT_EQ(refusal(good), "");
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_NE(refusal({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)}), "") << n << " bytes";
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_NE(refusal(longer), "");
  EXPECT_NE(refusal(good, {3, 2, 1}), "");
  EXPECT_NE(refusal(good, {2, 3, 1}), "");
  EXPECT_NE(refusal(good, {2, 2, 2}), "");
  EXPECT_NE(refusal(good, shape, 3), "");
  for (const Index length : {-1, 4, 6, 2147483647}) EXPECT_NE(refusal(with(good, &SavedHeader::length, length)), "");
  for (const Index gone : {-1, 1, 6, 2147483647}) {
    EXPECT_NE(refusal(with(good, &SavedHeader::oldest, gone)), "");
    EXPECT_NE(refusal(with(good, &SavedHeader::first_gone, gone)), "");
  }
  EXPECT_EQ(refusal(with(good, &SavedHeader::oldest, -2147483647 - 1)),
            "restore: the saved sequence says that positions 0 to -2147483649 are gone of 5");
  EXPECT_EQ(refusal(with(good, &SavedHeader::oldest, 6)),
            "restore: the saved sequence says that positions 0 to 5 are gone of 5");
  EXPECT_EQ(refusal(with(with(good, &SavedHeader::oldest, 3), &SavedHeader::first_gone, 3)),
            "restore: the saved sequence says that positions 3 to 2 are gone of 5");
  EXPECT_NE(refusal(with(good, &SavedHeader::scalar_bytes, 2)), "");
  auto unterminated = good;
  for (std::size_t i = 8; i < 24; ++i) unterminated[i] = std::byte{'f'};
  EXPECT_EQ(refusal(unterminated),
            "restore: the sequence was saved in ffffffffffffffff of 4 bytes, the cache stores float of 4");
}

}  // namespace
