// SPDX-License-Identifier: Apache-2.0
// The backward pass of one causal head in float, for kernels of a test's own.
#pragma once

#include <cmath>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/attention_backward.hpp>

#include "backward_case.hpp"

namespace support {

template <class B> struct OneHead {
  BackwardCase<float> c;
  mha::AttentionTape<float, B> tape;
  mha::Tensor<float, 4> out, dq, dk, dv;

  explicit OneHead(const BackwardCase<float>& of)
      : c(of), out(mha::attention<B>(c.q, c.k, c.v, mha::Causal{}, mha::record(tape))), dq(c.q), dk(c.k), dv(c.v) {}

  /// Into dq, dk and dv, which are poisoned.
  auto call() {
    mha::AttendBackwardCall<float, mha::ContiguousKv<float>, mha::Causal, mha::NoScore> call{};
    call.forward.q = c.q.view();
    call.forward.kv.key = c.k.view();
    call.forward.kv.value = c.v.view();
    call.forward.shape = {1, 1, c.q.extent(1), c.k.extent(1), c.k.extent(1) - c.q.extent(1)};
    call.forward.kv_heads = 1;
    call.forward.head_dim = c.q.extent(3);
    call.forward.value_dim = c.v.extent(3);
    call.forward.scale = static_cast<float>(1 / std::sqrt(double(c.q.extent(3))));
    call.out = out.view();
    call.d_out = c.d_out.view();
    call.level = tape.level();
    call.sum = tape.sum();
    call.query = dq;
    call.key = dk;
    call.value = dv;
    for (auto* t : {&dq, &dk, &dv}) poison_all(*t);
    return call;
  }
};

/// A head's backward pass, its pieces in an order of the caller's: order(pieces of queries, of keys, piece).
template <class Head, class Scratch, class Order>
void run_in_pieces(const Head& head, const Scratch& scratch, const Order& order) {
  using mha::Index;
  ASSERT_GE(head.query_pieces(), 2);
  ASSERT_GE(head.key_pieces(), 3);
  for (Index t = 0; t < head.tiles(); ++t) head.prepare_queries(t);
  for (Index m = 0; m < head.key_pieces(); ++m) head.prepare_keys(m);
  order(head.query_pieces(), head.key_pieces(), [&](Index n, Index m) { head.pieces(n, n + 1, m, m + 1, scratch); });
  for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
  for (Index m = 0; m < head.key_pieces(); ++m) head.store_keys(m);
}

/// All queries against one piece of keys after another.
inline constexpr auto by_keys = [](mha::Index rows, mha::Index columns, auto&& piece) {
  for (mha::Index m = 0; m < columns; ++m)
    for (mha::Index n = 0; n < rows; ++n) piece(n, m);
};
/// One anti-diagonal after another.
inline constexpr auto by_waves = [](mha::Index rows, mha::Index columns, auto&& piece) {
  for (mha::Index wave = 0; wave < rows + columns - 1; ++wave)
    for (mha::Index n = rows - 1; n >= 0; --n)
      if (wave >= n && wave - n < columns) piece(n, wave - n);
};

}  // namespace support
