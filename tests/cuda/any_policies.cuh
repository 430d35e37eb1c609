// SPDX-License-Identifier: Apache-2.0
// The GPU with every mask and score behind one type, so that its kernels are compiled once for all of them; and how
// tests bring it their numbers.
#pragma once

#include <type_traits>

#include <mha/cuda.cuh>

#include "any_policies.hpp"
#include "cuda_memory.hpp"
#include "gpu.hpp"
#include "transport.hpp"

namespace on_gpu {

/// Where the device keeps the code of a policy for calls in T: every scalar has a source file of its own, that is a
/// module of the device, whose kernels are given registers and stack for the code of this module and no other.
template <class T, class Any, class P> __global__ void tell_entries(typename Any::Entries* to) {
  *to = Any::template entries<P>();
}
template <class T, class Any, class P> typename Any::Entries entries_on_device() {
  using Entries = typename Any::Entries;
  mha::cuda::DeviceArray<Entries> there(1);
  tell_entries<T, Any, P><<<1, 1>>>(there.data());
  mha::cuda::check(cudaGetLastError(), "tell_entries");
  Entries here{};
  mha::cuda::check(cudaMemcpy(&here, there.data(), sizeof(Entries), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return here;
}

struct CudaOfAny;

}  // namespace on_gpu

template <> struct support::EntriesOf<on_gpu::CudaOfAny> {
  template <class T, class Any, class P> static typename Any::Entries get() {
    static_assert(std::is_trivially_copyable_v<P>, "a kernel's parameters are bytes");
    static const typename Any::Entries code = on_gpu::entries_on_device<T, Any, P>();
    return code;
  }
};

namespace on_gpu {

/// mha::Cuda, whose kernels get the policies of a call as AnyMask and AnyScore. The calls through addresses cost it
/// registers; everything else is its own.
struct CudaOfAny : mha::Cuda {
  static constexpr bool weights_in_storage = true;  // tensor cores multiply values by weights in 16 bits

  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    support::with_any_policies(call, any<T>, [&](const auto& same) { mha::Cuda::attend(same, workspace); });
  }
  template <class T, class Source, class M, class S>
  void weights(const mha::AttendCall<T, Source, M, S>& call, const mha::TensorView<mha::Accumulator<T>, 4>& to,
               Workspace& workspace) const {
    support::with_any_policies(call, any<T>, [&](const auto& same) { mha::Cuda::weights(same, to, workspace); });
  }

 private:
  template <class T>
  static constexpr auto any = [](const auto& policy) {
    using P = std::remove_cvref_t<decltype(policy)>;
    using Any = support::AnyOf<P, mha::Accumulator<T>>;
    if constexpr (std::is_same_v<P, Any>)
      return policy;
    else
      return Any(policy, support::EntriesOf<CudaOfAny>::get<T, Any, P>());
  };
};

}  // namespace on_gpu

template <> struct support::MemoryOf<on_gpu::CudaOfAny> : support::CudaMemory {};
