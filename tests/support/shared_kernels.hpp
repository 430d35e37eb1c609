// SPDX-License-Identifier: Apache-2.0
// What every test of attention would compile anew: the kernels, and the loops around them. tests/CMakeLists.txt puts it
// in front of every source and compiles the kernels once, in shared_kernels.cpp; without it a source compiles its own,
// to the same code.
#pragma once

#include <span>

#include <mha/mha.hpp>

#define MHA_SHARED_KERNELS_OF(Extern, A, T)                                                    \
  Extern template mha::detail::simd::FewRowsKernels<A, T> mha::detail::simd::few_rows_kernels( \
      mha::IsaLevel, mha::Index, mha::Index, mha::Index);                                      \
  Extern template mha::detail::simd::PanelKernel<A, T> mha::detail::simd::panel_kernel<A, T>(mha::IsaLevel);

#define MHA_SHARED_CALLS_OF(Extern, T, Threads)                                                                 \
  Extern template void mha::detail::cpu::attend(const mha::detail::cpu::AnyCall<T, mha::ContiguousKv<T>>&,      \
                                                mha::IsaLevel, mha::Workspace&, const Threads&);                \
  Extern template void mha::detail::cpu::weights(const mha::detail::cpu::AnyCall<T, mha::ContiguousKv<T>>&,     \
                                                 mha::IsaLevel, const mha::TensorView<mha::Accumulator<T>, 4>&, \
                                                 mha::Workspace&, const Threads&);                              \
  Extern template mha::detail::cpu::PackedWeights<T>::PackedWeights(std::span<const mha::DenseWeights<T>>,      \
                                                                    const Threads&);                            \
  Extern template void mha::detail::cpu::multiply(                                                              \
      const mha::TensorView<const T, 2>&, const mha::detail::cpu::PackedColumns<T>&,                            \
      std::span<const mha::TensorView<T, 2>>, mha::Workspace&, const Threads&);                                 \
  Extern template void mha::detail::cpu::multiply(                                                              \
      const mha::TensorView<const T, 2>&, const mha::detail::cpu::LooseColumns<T>&,                             \
      std::span<const mha::TensorView<T, 2>>, mha::Workspace&, const Threads&);

#define MHA_SHARED_SCALAR(Extern, A, T)           \
  MHA_SHARED_KERNELS_OF(Extern, A, T)             \
  MHA_SHARED_CALLS_OF(Extern, T, mha::ThreadPool) \
  MHA_SHARED_CALLS_OF(Extern, T, mha::Serial)

#define MHA_SHARED_KERNELS(Extern)                                                                                   \
  Extern template mha::detail::simd::TileKernels<float> mha::detail::simd::tile_kernels(mha::IsaLevel, mha::Index);  \
  Extern template mha::detail::simd::TileKernels<double> mha::detail::simd::tile_kernels(mha::IsaLevel, mha::Index); \
  MHA_SHARED_SCALAR(Extern, float, float)                                                                            \
  MHA_SHARED_SCALAR(Extern, double, double)                                                                          \
  MHA_SHARED_SCALAR(Extern, float, mha::half)                                                                        \
  MHA_SHARED_SCALAR(Extern, float, mha::bfloat16)

MHA_SHARED_KERNELS(extern)
