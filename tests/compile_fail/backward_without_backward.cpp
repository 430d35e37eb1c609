// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this backend has no backward pass: it has no member attend_backward(call, workspace)
#include <mha/mha.hpp>

// A backend with what the contract asks for and no more.
struct Minimal {
  static constexpr const char* name = "Minimal";
  using Workspace = mha::Workspace;
  mha::Support supported() const { return {}; }
  template <class T> void gemm(const mha::GemmCall<T>&, Workspace&) const {}
  template <class Call> void attend(const Call&, Workspace&) const {}
  template <class T> const char* explain(const mha::AttendPlan&) const { return name; }
};

auto result(const mha::Tensor<float, 4>& x, [[maybe_unused]] const mha::AttentionTape<float, Minimal>& tape) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape);
#else
  return mha::attention<Minimal>(x, x, x);
#endif
}
