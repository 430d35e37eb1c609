// SPDX-License-Identifier: Apache-2.0
// What caches on the host say; tests/gpu_memory/cache_test.cpp replays.
#include <span>
#include <string>

#include <gtest/gtest.h>

#include <mha/layer/kv_cache.hpp>
#include <mha/layer/recorded_step.hpp>

#include "message_of.hpp"

namespace {

using support::message_of;

TEST(RecordedStep, IsOfNothingAtFirst) {
  mha::KvCache<mha::Contiguous, float> cache({.heads = 1, .dim = 2, .value_dim = 2}, {.length = 4});
  const auto id = cache.add();
  const mha::RecordedStep none;
  EXPECT_TRUE(none.rows().empty());
  EXPECT_NE(message_of([&] {
              static_cast<void>(cache.step(none, std::span(&id, 1)));
            }).find("step: the RecordedStep is of no step"),
            std::string::npos);
  auto step = cache.step(1);  // and leaves the cache as it was
  EXPECT_EQ(message_of([&] { static_cast<void>(step.recorded()); }),
            "recorded: make the cache with CacheSizes{.recordable = true}");
}

TEST(RecordedStep, IsForBackendsThatRecord) {
  using Cache = mha::KvCache<mha::Contiguous, float>;
  EXPECT_NE(message_of([] {
              Cache({.heads = 1, .dim = 2, .value_dim = 2}, {.length = 4}, {.recordable = true});
            }).find("KvCache: recordable is for steps on a backend whose launches are recorded"),
            std::string::npos);
}

TEST(RecordedStep, SerialsAreOfOneCacheEach) { EXPECT_NE(mha::detail::next_serial(), mha::detail::next_serial()); }

}  // namespace
