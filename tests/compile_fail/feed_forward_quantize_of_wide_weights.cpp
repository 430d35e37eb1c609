// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their
#include <mha/block.hpp>
#include <mha/mha.hpp>

void run(mha::FeedForward<float>& feed_forward, [[maybe_unused]] const mha::BorrowedFeedForward<double>& wide,
         [[maybe_unused]] const mha::BorrowedFeedForward<mha::half>& narrow) {
#ifdef MHA_FAIL
  feed_forward.quantize(wide);
#else
  feed_forward.quantize(narrow);
#endif
}
