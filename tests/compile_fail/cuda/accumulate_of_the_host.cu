// SPDX-License-Identifier: Apache-2.0
// expect: is undefined in device code
#include <span>

#include <mha/backend/cuda/device_machine.cuh>
#include <mha/backend/cuda/score_gradient_body.hpp>

struct Users {
  static constexpr mha::Role role = mha::Role::score;
  float number;
  std::span<const float> numbers() const { return {&number, 1}; }
  template <class S> MHA_HOST_DEVICE S operator()(S s, int, int, int, int) const { return s + number; }
#ifdef MHA_FAIL
  template <class G, class S> void accumulate(G to, S dt, S, int, int, int, int) const { to[0] += dt; }
#else
  template <class G, class S> MHA_HOST_DEVICE void accumulate(G to, S dt, S, int, int, int, int) const { to[0] += dt; }
#endif
};

using Call = mha::AttendCall<float, mha::ContiguousKv<float>, mha::Full, Users>;
using Wanted = mha::detail::WantedScoreGradients<false, true>;

__global__ void kernel(const __grid_constant__ mha::cuda::ScoreGradientParams<Call> params) {
  mha::cuda::DeviceMachine machine;
  mha::cuda::OwnGradientBlock<mha::cuda::DeviceMachine, Wanted, 0, Call>::run(machine, params);
}
