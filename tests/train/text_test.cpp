// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scratch.hpp"

namespace {

using namespace train;

TEST(TrainText, HoldsOutTheLastTenth) {
  const mha_test::Scratch scratch;
  std::string bytes;
  for (int i = 0; i < 105; ++i) bytes += static_cast<char>(i * 31);  // bytes of any value
  const Text text = read_text(scratch.write("text", bytes), 9);
  ASSERT_EQ(text.learned.size(), 95u);
  ASSERT_EQ(text.held_out.size(), 10u);
  for (int i = 0; i < 95; ++i) EXPECT_EQ(text.learned[static_cast<std::size_t>(i)], i * 31 % 256);
  for (int i = 95; i < 105; ++i) EXPECT_EQ(text.held_out[static_cast<std::size_t>(i - 95)], i * 31 % 256);
}

TEST(TrainText, RefusesWhatIsTooShortOrNotThere) {
  const mha_test::Scratch scratch;
  const auto said = [](auto&& f) { return mha_test::message_of<std::exception>(f); };
  const std::string path = scratch.write("text", std::string(99, 'a')).string();
  EXPECT_EQ(said([&] { read_text(path, 9); }),
            "the text '" + path + "' has 99 bytes, it takes 100 to hold out a tenth of which the model can read 9");
  EXPECT_EQ(said([&] { read_text(scratch.root(), 9); }), "cannot read the text '" + scratch.root().string() + "'");
  EXPECT_EQ(said([] { read_text("/no/such", 9); }), "cannot read the text '/no/such'");
}

TEST(TrainBatches, AreWindowsAndWhatFollows) {
  std::vector<int> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 0);
  Batches batches(tokens, 3, 4, 1), again(tokens, 3, 4, 1), other(tokens, 3, 4, 2);
  std::vector<int> begun(20), drawn, drawn_by_other;
  for (int i = 0; i < 200; ++i) {
    const Batch& batch = batches.next();
    ASSERT_EQ(batch.ids.size(), 12u);
    ASSERT_EQ(batch.targets.size(), 12u);
    for (std::size_t j = 0; j < 12; ++j) {
      EXPECT_EQ(batch.targets[j], batch.ids[j] + 1);
      if (j % 4 != 0) {
        EXPECT_EQ(batch.ids[j], batch.ids[j - 1] + 1);
      }
    }
    for (std::size_t b = 0; b < 3; ++b) ++begun[static_cast<std::size_t>(batch.ids[b * 4])];
    EXPECT_EQ(again.next().ids, batch.ids);
    drawn.push_back(batch.ids[0]);
    drawn_by_other.push_back(other.next().ids[0]);
  }
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(begun[i] > 0, i < 16) << i;  // every place there is
  EXPECT_NE(drawn, drawn_by_other);
}

}  // namespace
