// SPDX-License-Identifier: Apache-2.0
// What a test of key/value caches compares before and after.
#pragma once

#include <algorithm>
#include <string>

#include <mha/core/tensor.hpp>
#include <mha/layer/kv_cache.hpp>

namespace support {

/// All that a user can see of a cache, as text: of every sequence its length, how far it can go back, and all that is
/// stored of it.
template <class Cache> std::string picture(const Cache& cache) {
  std::string all = std::to_string(cache.sequences()) + " of " + std::to_string(cache.bytes()) + " bytes";
  if constexpr (requires { cache.free_pages(); }) all += " free " + std::to_string(cache.free_pages());
  for (const mha::SequenceId& id : cache.ids()) {
    const auto bytes = cache.save(id);
    mha::Index back = cache.length(id);
    while (cache.can_truncate(id, back - 1)) --back;
    all += " [" + std::to_string(cache.length(id)) + "," + std::to_string(cache.oldest(id)) + "," +
           std::to_string(back) + "]" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

/// That a step or another call wants more pages of 16 positions than are free.
inline std::string too_few_pages(int wanted, int free, int all, const std::string& call = "step") {
  return call + ": " + std::to_string(wanted) + " pages of 16 positions are needed, " + std::to_string(free) + " of " +
         std::to_string(all) + " are free: remove() or truncate() sequences, or make the cache with more pages";
}

/// A committed step of a sequence whose keys and values are all one number.
template <class Storage, class F, class B>
void write(mha::KvCache<Storage, F, B>& cache, mha::SequenceId id, mha::Index rows, float number) {
  auto step = cache.step(id, rows);
  mha::Tensor<F, 3> key(rows, cache.shape().heads, cache.shape().dim),
      value(rows, cache.shape().heads, cache.shape().value_dim);
  std::fill(key.begin(), key.end(), F(number));
  std::fill(value.begin(), value.end(), F(number));
  const mha::detail::TensorOf<B, F, 3> key_there(key), value_there(value);
  for (mha::Index layer = 0; layer < cache.layers(); ++layer) step.append(layer, key_there, value_there);
  step.commit();
}

}  // namespace support
