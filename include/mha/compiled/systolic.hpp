// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "../backend/systolic/systolic.hpp"
#include "cpu.hpp"

/// The same as compiled/cpu.hpp for the default Systolic: AmxArray and its products in DefaultPrecision.

#define MHA_SYSTOLIC_UNITS(Extern)                                                                           \
  Extern template mha::detail::systolic::Kernels mha::detail::systolic::kernels_of<mha::AmxArray>(           \
      const mha::detail::systolic::ProductUnit&, mha::IsaLevel);                                             \
  Extern template mha::detail::systolic::ProductUnit mha::detail::systolic::dense_unit<mha::AmxArray>();     \
  Extern template mha::detail::systolic::ProductUnit mha::detail::systolic::attention_unit<mha::AmxArray>(); \
  Extern template mha::detail::systolic::BackwardKernels mha::detail::systolic::backward_kernels_of<mha::AmxArray>();

#define MHA_SYSTOLIC_CALLS(Extern, T, Threads)                                                                       \
  Extern template mha::detail::systolic::PackedWeights<T, mha::DefaultPrecision>::PackedWeights(                     \
      std::span<const mha::DenseWeights<T>>, const Threads&);                                                        \
  Extern template void mha::detail::systolic::multiply<mha::AmxArray, mha::DefaultPrecision>(                        \
      const mha::TensorView<const T, 2>&, std::span<const mha::detail::systolic::WeightTiles>,                       \
      std::span<const mha::TensorView<T, 2>>, mha::Workspace&, const Threads&,                                       \
      const mha::detail::simd::AnyEpilogue<T>&);                                                                     \
  Extern template void mha::detail::systolic::gemm<mha::AmxArray, mha::DefaultPrecision>(                            \
      const mha::GemmCall<T>&, mha::Workspace&, const Threads&);                                                     \
  Extern template void mha::detail::systolic::attend(const mha::detail::systolic::AnyCall<T, T>&,                    \
                                                     const mha::detail::systolic::Kernels&, mha::Workspace&,         \
                                                     const Threads&);                                                \
  Extern template void mha::detail::systolic::weights(                                                               \
      const mha::detail::systolic::AnyCall<T, T>&, const mha::detail::systolic::Kernels&,                            \
      const mha::TensorView<float, 4>&, mha::Workspace&, const Threads&);                                            \
  Extern template void mha::detail::systolic::attend_backward(const mha::detail::simd::AnyBackwardCall<T>&,          \
                                                              const mha::detail::systolic::BackwardKernels&,         \
                                                              mha::Workspace&, const Threads&);                      \
  Extern template class mha::detail::LayerProducts<T, mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>>; \
  Extern template class mha::detail::DenseBackward<T, mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>>;

/// Over caches that store another scalar than T.
#define MHA_SYSTOLIC_STORED(Extern, T, Stored, Threads)                                                      \
  Extern template void mha::detail::systolic::attend(const mha::detail::systolic::AnyCall<T, Stored>&,       \
                                                     const mha::detail::systolic::Kernels&, mha::Workspace&, \
                                                     const Threads&);

#define MHA_SYSTOLIC_SCALAR(Extern, T)           \
  MHA_SYSTOLIC_CALLS(Extern, T, mha::ThreadPool) \
  MHA_SYSTOLIC_CALLS(Extern, T, mha::Serial)
#define MHA_SYSTOLIC_KERNELS(Extern)                                 \
  MHA_SYSTOLIC_UNITS(Extern)                                         \
  MHA_SYSTOLIC_SCALAR(Extern, float)                                 \
  MHA_SYSTOLIC_STORED(Extern, float, mha::bfloat16, mha::ThreadPool) \
  MHA_SYSTOLIC_STORED(Extern, float, mha::bfloat16, mha::Serial)     \
  MHA_SYSTOLIC_STORED(Extern, float, mha::half, mha::ThreadPool)     \
  MHA_SYSTOLIC_STORED(Extern, float, mha::half, mha::Serial)         \
  MHA_SYSTOLIC_SCALAR(Extern, mha::half)                             \
  MHA_SYSTOLIC_SCALAR(Extern, mha::bfloat16)

#if MHA_KERNELS_ELSEWHERE
MHA_SYSTOLIC_KERNELS(extern)
#endif
