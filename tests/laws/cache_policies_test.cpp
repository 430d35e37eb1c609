// SPDX-License-Identifier: Apache-2.0
// Scores that depend on distances, and sinks, count absolute positions in every storage.
#include <random>
#include <vector>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

std::vector<float> random_numbers(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(n);
  for (float& x : all) x = normal(random);
  return all;
}

template <class B, class Score> void in_each_storage(const Score& score, unsigned seed) {
  SCOPED_TRACE(Score::name);
  mha::MultiHeadAttention<float, B, mha::GroupedQuery<2>, Windowed, Score, mha::Sink> layer(
      config, window(), score, mha::Sink{random_numbers(4, seed)});
  layer.initialize(mha::XavierUniform{.seed = seed});
  one_answer<float>(layer, Contiguous{.length = 200}, 200, seed, ByTheCall{});
  one_answer<float>(layer, pages_of(32, 200), 200, seed, ByTheCall{});
  one_answer<float>(layer, Ring{.left = 37, .rows = 80, .first = 3}, 200, seed, ByTheCall{});
}

template <class B> void of_each_score() {
  in_each_storage<B>(mha::Alibi{}, 1);
  in_each_storage<B>(mha::AlibiSlopes(random_numbers(4, 2)), 2);
  in_each_storage<B>(mha::RelativeBias(random_numbers(32 * 4, 3), {.max_distance = 60, .bidirectional = false}), 3);
}

TEST(Cache, KeepsTheDistancesOfScoresOnCpu) {
  laws::at_every_isa([] { of_each_score<mha::Cpu>(); });
}
TEST(Cache, KeepsTheDistancesOfScoresOnMatrixUnits) {
  on_every_unit_and_isa([] { of_each_score<mha::Systolic<>>(); });
}

}  // namespace
