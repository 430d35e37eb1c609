// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a mask's member tile takes
#include <Eigen/Core>

#include <mha/mha.hpp>

// A tile of four numbers: it would never be asked.
struct Chunked {
  bool operator()(int, int, int q, int k) const { return q / 64 == k / 64; }
#ifdef MHA_FAIL
  mha::TileVisibility tile(int, int, int, int) const { return mha::TileVisibility::partial; }
#else
  mha::TileVisibility tile(int, int, int, int, int, int) const { return mha::TileVisibility::partial; }
#endif
};

auto run(const Eigen::MatrixXf& x) { return mha::attention(x, x, x, Chunked{}); }
