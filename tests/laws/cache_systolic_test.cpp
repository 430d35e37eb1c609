// SPDX-License-Identifier: Apache-2.0
// One row, one answer, on each matrix unit of the machine.
#include <stdexcept>
#include <utility>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

using Unit = mha::Systolic<>;

TEST(Cache, GivesTheBitsOfTheWholeCallOnMatrixUnits) {
  on_every_unit_and_isa([] {
    Events events = every_storage_and_rings<float, Unit>(330, 1, {16, 64});
    events += every_storage_and_rings<mha::bfloat16, Unit>(330, 2, {16, 64});
    events += every_storage_and_rings<mha::half, Unit>(330, 3, {32, 64});
    EXPECT_GT(events.copies_on_write, 0);
  });
}

// The unit rounds keys and values to bfloat16, whoever stores them so: a layer of float or half has the bits of
// layer(x).
TEST(Cache, InBfloat16GivesTheBitsOfTheWholeCallOnMatrixUnits) {
  on_every_unit_and_isa([] {
    every_storage_and_rings<float, Unit, mha::bfloat16>(330, 4, {16, 64});
    every_storage_and_rings<mha::half, Unit, mha::bfloat16>(200, 7, {64});
  });
}

TEST(Cache, GivesOneAnswerFromOtherScalarsOnMatrixUnits) {
  on_every_unit_and_isa([] {
    every_storage_and_rings<float, Unit, mha::half>(200, 5, {16, 64}, InOneStep<mha::half>{});
    every_storage_and_rings<mha::bfloat16, Unit, float>(200, 6, {32, 128}, InOneStep<float>{});
    every_storage_and_rings<float, Unit, mha::scaled_int8>(200, 8, {16, 64}, InOneStep<mha::scaled_int8>{});
    every_storage_and_rings<mha::bfloat16, Unit, mha::scaled_int8>(200, 9, {64}, InOneStep<mha::scaled_int8>{});
  });
}

// Values in whole tiles and not, over several blocks of tiles, which a cache in bfloat16 keeps as the unit reads them.
template <class Mask> auto layer_of_tiles(Index value_dim, const Mask& mask) {
  mha::MultiHeadAttention<mha::bfloat16, Unit, mha::GroupedQuery<2>, Mask> layer(
      {.d_model = E, .num_heads = 4, .head_dim = 32, .value_dim = value_dim}, mask);
  layer.initialize(mha::XavierUniform{.seed = 11});
  return layer;
}

TEST(Cache, GivesTheBitsOfTheWholeCallFromTiles) {
  on_every_unit_and_isa([] {
    Events events;
    for (const Index value_dim : {16, 33, 48}) {
      SCOPED_TRACE(value_dim);
      events += through_every_storage<mha::bfloat16>(layer_of_tiles(value_dim, mha::Causal{}), 560, 12,
                                                     {16, 32, 64, 128, 256});
    }
    EXPECT_GT(events.copies_on_write, 0);
  });
}

TEST(Cache, GivesTheBitsOfTheWholeCallFromTilesOfARing) {
  on_every_unit_and_isa([] {
    for (const Index value_dim : {16, 33}) {
      SCOPED_TRACE(value_dim);
      through_rings<mha::bfloat16>(layer_of_tiles(value_dim, window()), 900, 13);
    }
  });
}

/// An executor whose run number `fails` throws when its tasks are done.
class Failing {
 public:
  static constexpr const char* name = "Failing";
  explicit Failing(int& fails) : fails_(&fails) {}
  Index workers() const { return 2; }
  template <class F> void run(Index tasks, F&& f) const {
    mha::Serial{}.run(tasks, f);
    if ((*fails_)-- == 0) throw std::runtime_error("the executor failed");
  }

 private:
  int* fails_;
};

// Whichever of a step's runs fails: what the cache says that it holds afterwards it does hold.
TEST(Cache, OfARingHoldsWhatItSaysAfterAStepThatFailed) {
  using On = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Failing>;
  int fails = -1;
  const mha::SlidingWindow window{.left = 299};
  const auto make = [&](auto backend) {
    mha::MultiHeadAttention<mha::bfloat16, decltype(backend), mha::SlidingWindow> layer(
        {.d_model = 128, .num_heads = 2, .value_dim = 160}, backend, window);
    layer.initialize(mha::XavierUniform{.seed = 21});
    return layer;
  };
  const auto layer = make(On(Failing(fails)));
  const auto whole = make(mha::Systolic<>{});
  support::Random random("a ring after a failure");
  mha::Tensor<mha::bfloat16, 2> x(712, 128), y(1, 128);
  random.fill(x);
  const auto expected = whole(x);
  int steps = 0, went_back = 0;
  for (bool failed = true; failed; ++steps) {
    fails = -1;
    auto cache = mha::make_cache(layer, mha::Ring{.left = 299, .rows = 256});
    const mha::SequenceId id = cache.add();
    const auto rows = [&](Index from, Index count) { return mha::view(&std::as_const(x)(from, 0), count, 128); };
    static_cast<void>(layer.prefill(rows(0, 256), cache));
    static_cast<void>(layer.prefill(rows(256, 256), cache));
    fails = steps;
    failed = false;
    try {
      auto step = cache.step(id, 200);  // over the first positions
      static_cast<void>(layer(rows(512, 200), step[0]));
    } catch (const std::runtime_error&) {
      failed = true;
    }
    fails = -1;
    for (Index back = 512; back-- > 0 && cache.can_truncate(id, back);) {
      cache.truncate(id, back);
      auto step = cache.step(id, 1);
      layer(rows(back, 1), step[0], mha::into(y));
      for (Index e = 0; e < 128; ++e) ASSERT_EQ(support::bits(y(0, e)), support::bits(expected(back, e))) << back;
      ++went_back;
    }
  }
  EXPECT_GT(steps, 3) << "nothing failed";
  EXPECT_GT(went_back, 0);
}

}  // namespace
