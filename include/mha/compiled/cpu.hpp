// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "../attention.hpp"
#include "../backend/cpu/cpu.hpp"
#include "../layer/multi_head_attention.hpp"
#include "../version.hpp"

/// What every unit that calls attention or a layer on the processor would compile anew, for each scalar: kernels, whose
/// users' policies have lost their types, the loops around them, and what a layer does without its policies. With
/// -DMHA_COMPILED a unit only declares them; mha/compiled.hpp defines them.

namespace mha::inline MHA_NAMESPACE::detail {

/// Files that take their kernels from another ask it for this function: its name has the version and the sizes of what
/// passes between them, so that the linker refuses revisions that differ in these. Nobody calls it.
template <class Files> void compile_all_files_again() {}
template <int version, std::size_t... sizes> struct FilesOfOneRevision {};
using Revision = FilesOfOneRevision<
    MHA_VERSION, sizeof(Workspace), sizeof(ThreadPool), sizeof(TensorView<float, 4>), sizeof(Config), sizeof(CallShape),
    sizeof(KvSizes), sizeof(CallOptions<float>), sizeof(ContiguousKv<float>), sizeof(Projected<float>),
    sizeof(ParameterViews<float>), sizeof(cpu::AnyCall<float, float>), sizeof(cpu::AnyBackwardCall<float>),
    sizeof(cpu::AnyColumns<float>), sizeof(simd::PanelArgs<float, float>), sizeof(GemmCall<float>),
    sizeof(cpu::PackedWeights<float>), sizeof(NormCall<float>), sizeof(NormBackwardCall<float>),
    sizeof(EpilogueBackwardCall<float, Identity>), sizeof(simd::AnyEpilogue<float>), sizeof(simd::AnyDerivative<float>),
    sizeof(simd::TileKernels<float>), sizeof(simd::FewRowsKernels<float, float>), sizeof(LayerProducts<float, Cpu>),
    sizeof(DenseBackward<float, Cpu>)>;
#if MHA_KERNELS_ELSEWHERE
// Of each file: the linker would keep one of an inline variable, and ask for its function alone.
#if __has_attribute(retain)
__attribute__((retain))  // by --gc-sections too
#endif
__attribute__((used)) static void (*const revision)() = &compile_all_files_again<Revision>;
#endif

}  // namespace mha::inline MHA_NAMESPACE::detail

/// Defined where backend/crew.hpp is included.
#define MHA_POOL_THREADS(Extern) Extern template struct mha::detail::PoolThreads<void>;
#define MHA_REVISION(Extern) Extern template void mha::detail::compile_all_files_again<mha::detail::Revision>();

#define MHA_CPU_DERIVATIVES(Extern, A, Threads)                                                                        \
  Extern template void mha::detail::simd::differentiate(                                                               \
      const mha::detail::simd::AnyDerivative<A>&, const mha::EpilogueBackwardCall<A, mha::Identity>&, const Threads&); \
  Extern template void mha::detail::simd::normalize_backward(const mha::NormBackwardCall<A>&, A*, const Threads&);
#define MHA_CPU_TILES(Extern, A)                                                                                \
  Extern template mha::detail::simd::TileKernels<A> mha::detail::simd::tile_kernels(mha::IsaLevel, mha::Index); \
  Extern template mha::detail::simd::DropKernel<A> mha::detail::simd::drop_kernel<A>(mha::IsaLevel);            \
  MHA_CPU_DERIVATIVES(Extern, A, mha::ThreadPool)                                                               \
  MHA_CPU_DERIVATIVES(Extern, A, mha::Serial)

/// What reads T: keys and values, and weights.
#define MHA_CPU_READERS(Extern, A, T)                                                          \
  Extern template mha::detail::simd::FewRowsKernels<A, T> mha::detail::simd::few_rows_kernels( \
      mha::IsaLevel, mha::Index, mha::Index, mha::Index);                                      \
  Extern template mha::detail::simd::PanelKernel<A, T> mha::detail::simd::panel_kernel<A, T>(mha::IsaLevel);
#define MHA_CPU_TABLES(Extern, A, T) \
  MHA_CPU_READERS(Extern, A, T)      \
  Extern template mha::detail::simd::NormKernel<A, T> mha::detail::simd::norm_kernel<A, T>(mha::IsaLevel);

#define MHA_CPU_CALLS(Extern, T, Threads)                                                                              \
  Extern template void mha::detail::cpu::attend(const mha::detail::cpu::AnyCall<T, T>&, mha::IsaLevel,                 \
                                                mha::Workspace&, const Threads&);                                      \
  Extern template void mha::detail::cpu::weights(const mha::detail::cpu::AnyCall<T, T>&, mha::IsaLevel,                \
                                                 const mha::TensorView<mha::Accumulator<T>, 4>&, mha::Workspace&,      \
                                                 const Threads&);                                                      \
  Extern template void mha::detail::cpu::attend_backward(const mha::detail::cpu::AnyBackwardCall<T>&, mha::IsaLevel,   \
                                                         mha::Workspace&, const Threads&);                             \
  Extern template mha::detail::cpu::PackedWeights<T>::PackedWeights(std::span<const mha::DenseWeights<T>>,             \
                                                                    const Threads&);                                   \
  Extern template void mha::detail::cpu::multiply(const mha::TensorView<const T, 2>&,                                  \
                                                  const mha::detail::cpu::AnyColumns<T>&,                              \
                                                  std::span<const mha::TensorView<T, 2>>, mha::Workspace&,             \
                                                  const Threads&, const mha::detail::simd::AnyEpilogue<T>&);           \
  Extern template void mha::detail::cpu::gemm(const mha::GemmCall<T>&, mha::Workspace&, const Threads&);               \
  Extern template class mha::detail::LayerProducts<T, mha::CpuWith<Threads>>;                                          \
  Extern template class mha::detail::DenseBackward<T, mha::CpuWith<Threads>>;                                          \
  Extern template void mha::detail::simd::normalize(const mha::NormCall<T>&, mha::Workspace&, const Threads&);         \
  Extern template void mha::detail::simd::apply_epilogue(                                                              \
      const mha::detail::simd::AnyEpilogue<T>&, const mha::TensorView<const mha::Accumulator<T>, 2>&,                  \
      const mha::TensorView<const mha::Accumulator<T>, 2>&, const mha::TensorView<T, 2>&, mha::IsaLevel,               \
      mha::Workspace&, const Threads&, mha::detail::simd::NarrowKernel<mha::Accumulator<T>, T>);                       \
  Extern template void mha::detail::run_items(const mha::detail::CopyElements<T>&, const Threads&);                    \
  Extern template mha::TensorView<const T, 2> mha::detail::as_rows(                                                    \
      const mha::TensorView<const T, 3>&, mha::Workspace::Frame&, const mha::detail::ItemsOn<mha::CpuWith<Threads>>&); \
  Extern template mha::detail::Projected<T> mha::detail::projected<mha::CpuWith<Threads>>(                             \
      const mha::Config&, const mha::TensorView<const T, 3>&, const mha::detail::MemoryRows<T>&, bool,                 \
      mha::Workspace::Frame&);

#define MHA_CPU_WEIGHT_CALLS(Extern, T, W, Threads)                                                        \
  Extern template void mha::detail::cpu::multiply(const mha::TensorView<const T, 2>&,                      \
                                                  const mha::detail::cpu::AnyColumns<W>&,                  \
                                                  std::span<const mha::TensorView<T, 2>>, mha::Workspace&, \
                                                  const Threads&, const mha::detail::simd::AnyEpilogue<T>&);

#define MHA_CPU_NARROW_CALLS(Extern, T, W, Threads)                                                               \
  Extern template void mha::detail::cpu::attend(const mha::detail::cpu::AnyCall<T, W>&, mha::IsaLevel,            \
                                                mha::Workspace&, const Threads&);                                 \
  Extern template void mha::detail::cpu::weights(const mha::detail::cpu::AnyCall<T, W>&, mha::IsaLevel,           \
                                                 const mha::TensorView<mha::Accumulator<T>, 4>&, mha::Workspace&, \
                                                 const Threads&);                                                 \
  MHA_CPU_WEIGHT_CALLS(Extern, T, W, Threads)

#define MHA_LAYER_PARTS(Extern, T)                                                                               \
  Extern template void mha::XavierUniform::operator()(const mha::ParameterViews<T>&) const;                      \
  Extern template mha::CallShape mha::detail::checked_shape(                                                     \
      const mha::detail::CallNames&, const mha::TensorView<const T, 4>&, const mha::detail::KvSizes&,            \
      const mha::detail::CallOptions<mha::Accumulator<T>>&, mha::Workspace::Frame&);                             \
  Extern template void mha::detail::require_fitting(const mha::detail::CallNames&, const mha::TensorView<T, 4>&, \
                                                    const mha::TensorView<const T, 4>&, mha::Index,              \
                                                    const mha::detail::CallOptions<mha::Accumulator<T>>&);       \
  Extern template mha::ContiguousKv<T> mha::detail::kv_of(                                                       \
      const mha::detail::CallNames&, const mha::TensorView<const T, 4>&, const mha::TensorView<const T, 4>&,     \
      const mha::TensorView<const T, 4>&, const std::optional<mha::Ragged>&);

#define MHA_CPU_SCALAR(Extern, A, T)        \
  MHA_CPU_TABLES(Extern, A, T)              \
  MHA_CPU_CALLS(Extern, T, mha::ThreadPool) \
  MHA_CPU_CALLS(Extern, T, mha::Serial)     \
  MHA_LAYER_PARTS(Extern, T)

/// Weights, and keys and values, of W under activations and queries of T.
#define MHA_CPU_NARROW(Extern, T, W)                  \
  MHA_CPU_NARROW_CALLS(Extern, T, W, mha::ThreadPool) \
  MHA_CPU_NARROW_CALLS(Extern, T, W, mha::Serial)

/// The same of a W that no activations are of.
#define MHA_CPU_STORED(Extern, T, W)              \
  MHA_CPU_READERS(Extern, mha::Accumulator<T>, W) \
  MHA_CPU_NARROW(Extern, T, W)

/// Weights alone, of W under activations of T.
#define MHA_CPU_WEIGHTS(Extern, T, W)                                         \
  Extern template mha::detail::simd::PanelKernel<mha::Accumulator<T>, W>      \
      mha::detail::simd::panel_kernel<mha::Accumulator<T>, W>(mha::IsaLevel); \
  MHA_CPU_WEIGHT_CALLS(Extern, T, W, mha::ThreadPool)                         \
  MHA_CPU_WEIGHT_CALLS(Extern, T, W, mha::Serial)

#define MHA_CPU_KERNELS(Extern)                   \
  MHA_POOL_THREADS(Extern)                        \
  MHA_REVISION(Extern)                            \
  MHA_CPU_TILES(Extern, float)                    \
  MHA_CPU_TILES(Extern, double)                   \
  MHA_CPU_SCALAR(Extern, float, float)            \
  MHA_CPU_SCALAR(Extern, double, double)          \
  MHA_CPU_SCALAR(Extern, float, mha::half)        \
  MHA_CPU_SCALAR(Extern, float, mha::bfloat16)    \
  MHA_CPU_NARROW(Extern, float, mha::half)        \
  MHA_CPU_NARROW(Extern, float, mha::bfloat16)    \
  MHA_CPU_STORED(Extern, float, mha::scaled_int8) \
  MHA_CPU_WEIGHTS(Extern, float, mha::scaled_int4)

#if MHA_KERNELS_ELSEWHERE
MHA_CPU_KERNELS(extern)
#endif
