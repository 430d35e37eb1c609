// SPDX-License-Identifier: Apache-2.0
// Kernels of an activation of a user's own, of the maths that policy/activation.hpp says is vector code, and of two
// of ours for bfloat16 results: check.cmake reads what the compiler makes of them.
#include <mha/backend/simd/epilogue.hpp>

namespace vectorised {

struct Wavy {
  template <class S> S operator()(const S& x) const {
    return mha::select(x < S(0), mha::erf(x), mha::tanh(x) + mha::min(x, 2)) +
           mha::exp(-mha::abs(x)) * mha::normal_cdf(x);
  }
};

template <class T> using Kernel = mha::detail::simd::ActivationKernel<mha::Accumulator<T>>;
template <class T, class F> Kernel<T> kernel(const mha::Epilogue<T, F>& epilogue, mha::IsaLevel level) {
  return mha::detail::simd::AnyEpilogue<T>(epilogue, level).activate;
}
template Kernel<float> kernel(const mha::Epilogue<float, Wavy>&, mha::IsaLevel);
template Kernel<double> kernel(const mha::Epilogue<double, Wavy>&, mha::IsaLevel);
template Kernel<mha::bfloat16> kernel(const mha::Epilogue<mha::bfloat16, mha::Gelu>&, mha::IsaLevel);
template Kernel<mha::bfloat16> kernel(const mha::Epilogue<mha::bfloat16, mha::GeluTanh>&, mha::IsaLevel);

}  // namespace vectorised
