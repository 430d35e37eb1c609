// SPDX-License-Identifier: Apache-2.0
// Kernels of an activation of a user's own, of the maths that policy/activation.hpp says is vector code: check.cmake
// reads what the compiler makes of them.
#include <mha/backend/simd/epilogue.hpp>

namespace vectorised {

struct Wavy {
  template <class S> S operator()(const S& x) const {
    return mha::select(x < S(0), mha::erf(x), mha::tanh(x) + mha::min(x, 2)) +
           mha::exp(-mha::abs(x)) * mha::normal_cdf(x);
  }
};

template <class A>
mha::detail::simd::ActivationKernel<A> kernel(const mha::Epilogue<A, Wavy>& epilogue, mha::IsaLevel level) {
  return mha::detail::simd::AnyEpilogue<A>(epilogue, level).activate;
}
template mha::detail::simd::ActivationKernel<float> kernel(const mha::Epilogue<float, Wavy>&, mha::IsaLevel);
template mha::detail::simd::ActivationKernel<double> kernel(const mha::Epilogue<double, Wavy>&, mha::IsaLevel);

}  // namespace vectorised
