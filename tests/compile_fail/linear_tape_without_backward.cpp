// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this backend has no backward pass: train on Cpu, EigenCpu, Systolic or Reference
#include <mha/block.hpp>

// A backend with what the contract asks for and no more.
struct Minimal {
  static constexpr const char* name = "Minimal";
  using Workspace = mha::Workspace;
  mha::Support supported() const { return {}; }
  template <class T> void gemm(const mha::GemmCall<T>&, Workspace&) const {}
  template <class Call> void attend(const Call&, Workspace&) const {}
  template <class T> const char* explain(const mha::AttendPlan&) const { return name; }
};

void use(const mha::Linear<float, Minimal>& linear) {
#ifdef MHA_FAIL
  static_cast<void>(linear.tape());
#else
  static_cast<void>(linear.parameters());
#endif
}
