// SPDX-License-Identifier: Apache-2.0
// What a mask says of tiles, checked against what it says of every pair in them.
#pragma once

#include <gtest/gtest.h>

#include <mha/policy/mask.hpp>

namespace mha_test {

enum class Promise { exact, honest };

/// The visibility of a tile by asking the mask for each pair.
template <class M>
mha::TileVisibility visibility(const M& mask, int b, int h, int q_begin, int q_end, int k_begin, int k_end) {
  bool any = false, all = true;
  for (int q = q_begin; q < q_end; ++q)
    for (int k = k_begin; k < k_end; ++k) {
      const bool visible = mask(b, h, q, k);
      any = any || visible;
      all = all && visible;
    }
  return all ? mha::TileVisibility::full : any ? mha::TileVisibility::partial : mha::TileVisibility::none;
}

/// Every tile of every sequence and head of the call: `exact` is the visibility itself, `honest` may say partial
/// instead.
template <class M>::testing::AssertionResult tiles_are(Promise promise, const M& mask, const mha::CallShape& s) {
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0, first = s.origin[b], last = first + s.queries; h < s.heads; ++h)
      for (int q0 = first; q0 < last; ++q0)
        for (int q1 = q0 + 1; q1 <= last; ++q1)
          for (int k0 = 0; k0 < s.keys; ++k0)
            for (int k1 = k0 + 1; k1 <= s.keys; ++k1) {
              const auto said = mha::tile(mask, b, h, q0, q1, k0, k1);
              const auto is = visibility(mask, b, h, q0, q1, k0, k1);
              if (said == is || (promise == Promise::honest && said == mha::TileVisibility::partial)) continue;
              return ::testing::AssertionFailure()
                     << "sequence " << b << ", head " << h << ", queries [" << q0 << ", " << q1 << "), keys [" << k0
                     << ", " << k1 << "): said " << static_cast<int>(said) << ", is " << static_cast<int>(is);
            }
  return ::testing::AssertionSuccess();
}

/// Small calls of every kind: Lq below, at and above Lk, so that the first position is also zero and negative.
template <class F> void for_each_small_call(F&& f) {
  for (int queries = 1; queries <= 6; ++queries)
    for (int keys = 1; keys <= 6; ++keys)
      for (const int origin : {keys - queries, 0, 2, -3, -queries})
        f(mha::CallShape{.batch = 1, .heads = 1, .queries = queries, .keys = keys, .origin = origin});
}

}  // namespace mha_test
