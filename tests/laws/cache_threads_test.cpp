// SPDX-License-Identifier: Apache-2.0
// Through a cache, a row has the same bits on any number of threads, in each storage, alone or beside a chunk.
#include <cstddef>
#include <string>
#include <vector>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

/// Long keys, which threads share, and few heads.
template <class T, class B> void does_not_depend_on_threads() {
  using Layer = mha::MultiHeadAttention<T, B, mha::MultiQuery, Windowed, mha::Rotary<mha::Halves>>;
  const mha::Config sizes{.d_model = E, .num_heads = 4, .head_dim = 16};
  const Windowed mask = window(2400);
  Layer alone(sizes, mask, B(mha::ThreadPool(1)));
  alone.initialize(mha::XavierUniform{.seed = 8});

  // A long text and two that it is beside of; of all but their last rows there are keys and values already.
  std::mt19937 random(7);
  std::vector<Tensor<T, 2>> texts, whole;
  std::vector<std::vector<std::byte>> saved;
  const std::vector<Index> read{2700, 350, 600};
  for (std::size_t i = 0; i < read.size(); ++i) {
    texts.push_back(random_rows<T>(read[i] + 310, random));
    whole.push_back(alone(texts[i]));
    auto cache = mha::make_cache(alone, Contiguous{.length = read[i]});
    const SequenceId id = cache.add();
    static_cast<void>(alone.prefill(rows_of(texts[i], 0, read[i]), cache));
    saved.push_back(cache.save(id));
  }
  const auto from_one_thread = [&](const Layer&, const Tensor<T, 2>& text) {
    return whole[static_cast<std::size_t>(&text - texts.data())];
  };
  const auto steps = [&](const Layer& layer, const auto& storage) {
    auto cache = mha::make_cache(layer, storage, {.sequences = 3});
    poison(cache);
    Run run(layer, cache, texts, from_one_thread);
    for (std::size_t i = 0; i < read.size(); ++i) {
      cache.remove(run.sequences[i].id);
      run.sequences[i] = {cache.restore(saved[i]), i, read[i]};
    }
    run.step({0}, {1});
    run.step({0, 1, 2}, {1, 300, 1});
    run.step({2, 1, 0}, {1, 1, 1});
    run.step({0, 2}, {290, 2});
    run.step({0, 1, 2}, {3, 5, 1});
  };
  for (const Index threads : {1, 2, 3, 5}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    Layer layer(sizes, mask, B(mha::ThreadPool(threads)));
    layer.borrow(alone);
    steps(layer, Contiguous{.length = 3010});
    steps(layer, Paged{.pages = 70, .length = 3072});
    steps(layer, Ring{.left = 2400, .rows = 300, .first = 3});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Cache, DoesNotDependOnThreadsOnCpu) {
  laws::at_every_isa([] { does_not_depend_on_threads<float, mha::Cpu>(); });
}

TEST(Cache, DoesNotDependOnThreadsOnMatrixUnits) {
  on_every_unit([] {
    does_not_depend_on_threads<float, mha::Systolic<>>();
    does_not_depend_on_threads<mha::bfloat16, mha::Systolic<>>();
  });
}

// One call that threads share over its queries, then rows that they share over their keys.
TEST(Cache, DoesNotDependOnThreadsWhilePromptsAreRead) {
  std::mt19937 random(7);
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::MultiQuery, mha::Causal>;
  Layer one({.d_model = E, .num_heads = 4, .head_dim = 16}, mha::Cpu(mha::ThreadPool(1))),
      three({.d_model = E, .num_heads = 4, .head_dim = 16}, mha::Cpu(mha::ThreadPool(3)));
  one.initialize(mha::XavierUniform{.seed = 8});
  three.borrow(one);
  const auto x = random_rows<float>(9000, random);
  const auto check = [&] {
    auto of_one = mha::make_cache(one, Contiguous{.length = 9000}),
         of_three = mha::make_cache(three, Contiguous{.length = 9000});
    of_one.add();
    of_three.add();
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, 5000}, {5000, 8998}, {8998, 8999}, {8999, 9000}}) {
      const auto a = one.step(rows_of(x, begin, end), of_one), b = three.step(rows_of(x, begin, end), of_three);
      for (Index i = 0; i < end - begin; ++i) ASSERT_TRUE(same_bits(&a(i, 0), &b(i, 0))) << "row " << begin + i;
    }
  };
  laws::at_every_isa(check);
}

}  // namespace
