// SPDX-License-Identifier: Apache-2.0
// expect: is undefined in device code
// Deep inside a composition nvcc would only warn, and run something else: touch() makes it an error.
#include <mha/backend/cuda/launch.cuh>
#include <mha/policy/mask/positional.hpp>

struct Users {
  static constexpr mha::Role role = mha::Role::mask;
#ifdef MHA_FAIL
  bool operator()(int, int, int q, int k) const { return k <= q; }
#else
  MHA_HOST_DEVICE bool operator()(int, int, int q, int k) const { return k <= q; }
#endif
};

template <class M> __global__ void kernel(const __grid_constant__ M mask, bool* to) {
  mha::cuda::touch(mask);
  *to = mask(0, 0, 1, 0);
}

void launch(bool* to) { kernel<<<1, 1>>>(mha::And<mha::Or<mha::Not<Users>, mha::Full>, mha::Causal>{}, to); }
