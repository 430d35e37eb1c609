// SPDX-License-Identifier: Apache-2.0
// The kernels of calls whose policies have lost their types, on the host model: each is compiled once for the program,
// by kernels_*.cpp, and with some optimization, because most of the tests' time passes in them.
#pragma once

#include "any_source.hpp"
#include "gpu_model/backward_model.hpp"

namespace support::gpu {

using mha::cuda::GradientOf;
using mha::cuda::GradientParams;

template <class T> using Plain = mha::AttendCall<T, mha::ContiguousKv<T>, AnyMask, mha::NoScore>;
template <class T> using Scored = mha::AttendCall<T, mha::ContiguousKv<T>, AnyMask, AnyScore<mha::Accumulator<T>>>;
template <class T> using OverSource = mha::AttendCall<T, AnySource<T>, AnyMask, AnyScore<mha::Accumulator<T>>>;
template <class T> using Sloped = mha::AttendCall<T, mha::ContiguousKv<T>, AnyMask, AnySlope<mha::Accumulator<T>>>;
template <class A, int Values, GradientOf Of>
using OfFma = mha::cuda::FmaGradientKernel<mha::cuda::FmaShape<A, Values>, Of>;
template <int Dim, int Keys, bool ByQuery>
using OfMma = mha::cuda::MmaGradientKernel<mha::cuda::MmaGradientShape<Dim, Keys>, ByQuery>;

}  // namespace support::gpu

// Each is told `template` or `extern template`.
#define MHA_MODEL_RUN(TEMPLATE, RUN, ...) TEMPLATE void support::SimulatedCuda::RUN(const __VA_ARGS__&, mha::Workspace&)
#define MHA_MODEL_KERNEL(TEMPLATE, PARAMS, ...)                                                     \
  TEMPLATE support::gpu::Counters support::gpu::run_kernel<support::gpu::HostMachine, __VA_ARGS__>( \
      support::gpu::BlockIndex, support::gpu::Shared, const PARAMS&, support::gpu::Order)
#define MHA_MODEL_FMA_GRADIENTS(TEMPLATE, CALL, ...)                                \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>,                       \
                   support::gpu::OfFma<__VA_ARGS__, mha::cuda::GradientOf::query>); \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>,                       \
                   support::gpu::OfFma<__VA_ARGS__, mha::cuda::GradientOf::key>);   \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>,                       \
                   support::gpu::OfFma<__VA_ARGS__, mha::cuda::GradientOf::value>)
#define MHA_MODEL_GRADIENTS(TEMPLATE, CALL)                                               \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, mha::cuda::RowFactsKernel); \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, mha::cuda::SinkSumKernel);  \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::SharedGradientParams<CALL>, mha::cuda::SharedGradientKernel)
#define MHA_MODEL_MMA_GRADIENTS(TEMPLATE, CALL)                                                    \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, support::gpu::OfMma<64, 64, true>);  \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, support::gpu::OfMma<64, 64, false>); \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, support::gpu::OfMma<128, 32, true>); \
  MHA_MODEL_KERNEL(TEMPLATE, mha::cuda::GradientParams<CALL>, support::gpu::OfMma<128, 32, false>)

#define MHA_MODEL_FLOAT32(TEMPLATE)                                          \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Plain<float>);                  \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Scored<float>);                 \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::OverSource<float>);             \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::Plain<float>);         \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::Scored<float>);        \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::OverSource<float>);    \
  MHA_MODEL_GRADIENTS(TEMPLATE, support::gpu::Plain<float>);                 \
  MHA_MODEL_GRADIENTS(TEMPLATE, support::gpu::Sloped<float>);                \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Plain<float>, float, 64);  \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Plain<float>, float, 128); \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Sloped<float>, float, 64); \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Sloped<float>, float, 128)
#define MHA_MODEL_FLOAT64(TEMPLATE)                                    \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Plain<double>);           \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Scored<double>);          \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::OverSource<double>);      \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::Scored<double>); \
  MHA_MODEL_GRADIENTS(TEMPLATE, support::gpu::Sloped<double>);         \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Sloped<double>, double, 64)
#define MHA_MODEL_HALF(TEMPLATE)                                 \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Scored<mha::half>); \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::OverSource<mha::half>)
#define MHA_MODEL_BFLOAT16(TEMPLATE)                                 \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Plain<mha::bfloat16>);  \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::Scored<mha::bfloat16>); \
  MHA_MODEL_RUN(TEMPLATE, run, support::gpu::OverSource<mha::bfloat16>)
#define MHA_MODEL_RECORDED_BFLOAT16(TEMPLATE)                                        \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::Plain<mha::bfloat16>);         \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::Scored<mha::bfloat16>);        \
  MHA_MODEL_RUN(TEMPLATE, run_recorded, support::gpu::OverSource<mha::bfloat16>);    \
  MHA_MODEL_GRADIENTS(TEMPLATE, support::gpu::Plain<mha::bfloat16>);                 \
  MHA_MODEL_GRADIENTS(TEMPLATE, support::gpu::Sloped<mha::bfloat16>);                \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Plain<mha::bfloat16>, float, 64);  \
  MHA_MODEL_FMA_GRADIENTS(TEMPLATE, support::gpu::Sloped<mha::bfloat16>, float, 64); \
  MHA_MODEL_MMA_GRADIENTS(TEMPLATE, support::gpu::Plain<mha::bfloat16>);             \
  MHA_MODEL_MMA_GRADIENTS(TEMPLATE, support::gpu::Sloped<mha::bfloat16>)

#if !defined(LAWS_ALONE)  // as tests/mutation compiles a test: from its own source alone
MHA_MODEL_FLOAT32(extern template);
MHA_MODEL_FLOAT64(extern template);
MHA_MODEL_HALF(extern template);
MHA_MODEL_BFLOAT16(extern template);
MHA_MODEL_RECORDED_BFLOAT16(extern template);
#endif
