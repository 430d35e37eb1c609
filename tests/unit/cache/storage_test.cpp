// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <mha/cache/storage.hpp>

#include "scratch.hpp"

namespace {

template <class Storage> std::string refusal(const Storage& s, int sequences = 1) {
  try {
    mha::detail::check_storage(s, sequences);
  } catch (const mha::ShapeError& e) {
    return e.what();
  }
  return "";
}

TEST(Storage, TakesWhatFits) {
  EXPECT_EQ(refusal(mha::Contiguous{.length = 1}), "");
  EXPECT_EQ(refusal(mha::Ring{.left = 0}), "");
  EXPECT_EQ(refusal(mha::Ring{.left = 1023, .rows = 256, .first = 4}), "");
  EXPECT_EQ(refusal(mha::Paged{.pages = 1, .length = 1, .page = 16}), "");
}

TEST(Storage, RefusesSizesInOneSentence) {
  EXPECT_EQ(refusal(mha::Contiguous{.length = 0}), "Contiguous: length is 0, it must be at least 1");
  EXPECT_EQ(refusal(mha::Ring{.left = -1}), "Ring: left is -1, it must be at least 0");
  EXPECT_EQ(refusal(mha::Ring{.left = 1, .rows = 0}), "Ring: rows is 0, it must be at least 1");
  EXPECT_EQ(refusal(mha::Ring{.left = 1, .first = -2}), "Ring: first is -2, it must be at least 0");
  EXPECT_EQ(refusal(mha::Paged{.pages = 0, .length = 1}), "Paged: pages is 0, it must be at least 1");
  EXPECT_EQ(refusal(mha::Paged{.pages = 1, .length = 0}), "Paged: length is 0, it must be at least 1");
  for (const int page : {-16, 0, 8, 15, 48})
    EXPECT_EQ(refusal(mha::Paged{.pages = 1, .length = 1, .page = page}),
              "Paged: page is " + std::to_string(page) + ", it must be a power of two, at least 16");
  EXPECT_NE(refusal(mha::Ring{.left = 2147483647}).find("the limit is"), std::string::npos);
  EXPECT_NE(refusal(mha::Contiguous{.length = 2147483647}).find("the limit is"), std::string::npos);
  EXPECT_EQ(refusal(mha::Contiguous{.length = (1 << 30) - 1}), "");
  EXPECT_EQ(refusal(mha::Contiguous{.length = (1 << 30) - 1}, 4),
            "Contiguous: 4 sequences of 1073741823 positions are 4294967292, the limit is 1073741823");
  EXPECT_EQ(refusal(mha::Ring{.left = 1 << 20, .rows = 5, .first = 3}, 1 << 20),
            "Ring: 1048576 sequences of 1048589 positions are 1099525259264, the limit is 1073741823");
  EXPECT_NE(refusal(mha::Paged{.pages = 1 << 30, .length = 1}).find("the limit is"), std::string::npos);
}

TEST(Storage, NamesASizeThatIsNoIndex) {
  constexpr std::int64_t many = std::int64_t{1} << 32;
  const auto said = [](auto make) { return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(make()); }); };
  const std::string largest = " is 4294967296, the largest is 2147483647";
  EXPECT_EQ(said([] { return mha::Contiguous{.length = many}; }), "Contiguous: length" + largest);
  EXPECT_EQ(said([] { return mha::Ring{.left = many}; }), "Ring: left" + largest);
  EXPECT_EQ(said([] { return mha::Paged{.pages = many, .length = 1}; }), "Paged: pages" + largest);
  EXPECT_EQ(said([] { return mha::Paged{.pages = 1, .length = many}; }), "Paged: length" + largest);
}

TEST(Storage, InWords) {
  using mha::detail::in_words;
  EXPECT_EQ(in_words(mha::Contiguous{.length = 9}), "Contiguous, 9 positions a sequence");
  EXPECT_EQ(in_words(mha::Ring{.left = 9, .rows = 2}), "Ring, the last 11 positions a sequence");
  EXPECT_EQ(in_words(mha::Ring{.left = 9, .rows = 2, .first = 4}),
            "Ring, the last 11 positions a sequence and the first 4");
  EXPECT_EQ(in_words(mha::Paged{.pages = 7, .length = 20}), "Paged, 7 pages of 64 positions");
}

}  // namespace
