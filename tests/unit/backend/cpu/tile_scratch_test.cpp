// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/tile_scratch.hpp>

namespace {

using mha::Index;
using mha::detail::cpu::key_block;
using mha::detail::cpu::TileScratch;

TEST(TileScratch, PartsDoNotOverlapAndAreCounted) {
  constexpr Index lanes = 16, head_dim = 24, value_dim = 40;
  for (const bool widens : {false, true}) {
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const TileScratch<float> at(frame, lanes, head_dim, value_dim, widens);
    std::vector<std::pair<float*, Index>> parts{{at.q, head_dim * lanes},
                                                {at.row_q, lanes * head_dim},
                                                {at.s, key_block * lanes},
                                                {at.visible, key_block * lanes},
                                                {at.rescale, lanes},
                                                {at.wide_keys, (widens ? key_block : lanes) * head_dim},
                                                {at.lane_out, value_dim * lanes},
                                                {at.part.max, lanes},
                                                {at.part.sum, lanes},
                                                {at.part.out, value_dim * lanes},
                                                {at.total.max, lanes},
                                                {at.total.sum, lanes},
                                                {at.total.out, value_dim * lanes}};
    if (widens) parts.emplace_back(at.wide_values, key_block * value_dim);
    std::size_t all = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::fill_n(parts[i].first, parts[i].second, static_cast<float>(i));
      all += static_cast<std::size_t>(parts[i].second) * sizeof(float);
    }
    for (std::size_t i = 0; i < parts.size(); ++i)
      EXPECT_EQ(std::count(parts[i].first, parts[i].first + parts[i].second, static_cast<float>(i)), parts[i].second)
          << "part " << i;
    EXPECT_EQ(TileScratch<float>::bytes(lanes, head_dim, value_dim, widens), all);
  }
}

}  // namespace
