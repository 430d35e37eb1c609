// SPDX-License-Identifier: Apache-2.0
// expect only: mha: borrow() takes weights of the layer's scalar, or half and bfloat16 ones under float or double
#include <mha/block.hpp>
#include <mha/mha.hpp>

void run(mha::FeedForward<float>& feed_forward, [[maybe_unused]] const mha::BorrowedFeedForward<double>& wide,
         [[maybe_unused]] const mha::BorrowedFeedForward<mha::half>& narrow) {
#ifdef MHA_FAIL
  feed_forward.borrow(wide);
#else
  feed_forward.borrow(narrow);
#endif
}
