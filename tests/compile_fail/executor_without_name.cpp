// SPDX-License-Identifier: Apache-2.0
// expect only: mha: an executor has `static constexpr const char* name`
#include <mha/mha.hpp>

namespace {

struct Caller {
#ifdef MHA_FAIL
  static constexpr int number = 0;
#else
  static constexpr const char* name = "Caller";
#endif
  int workers() const { return 1; }
  template <class F> void run(int tasks, F&& f) const {
    for (int t = 0; t < tasks; ++t) f(t, 0);
  }
};

}  // namespace

auto result(const mha::Tensor<float, 2>& x) {
  return mha::MultiHeadAttention<float, mha::CpuWith<Caller>>({.d_model = 8, .num_heads = 2})(x);
}
