// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <string_view>
#include <type_traits>

#include <mha/cuda.cuh>

#include "computed.hpp"
#include "patterns.hpp"

namespace bench::gpu {

namespace {

template <class Mask> class TrainedWith final : public Trained {
 public:
  explicit TrainedWith(const Mask& mask) : mask_(mask) {}
  void forward(const Written& out, const Read& q, const Read& k, const Read& v,
               mha::cuda::Workspace& workspace) override {
    mha::attention_into<mha::Cuda>(out, q, k, v, mask_, mha::record(tape_), workspace);
  }
  void backward(const std::array<Written, 3>& dq_dk_dv, const Read& d_out, const Read& q, const Read& k, const Read& v,
                const Read& out, mha::cuda::Workspace& workspace) const override {
    mha::attention_backward_into({dq_dk_dv[0], dq_dk_dv[1], dq_dk_dv[2]}, d_out, q, k, v, out, tape_, mask_, workspace);
  }

 private:
  Mask mask_;
  mha::AttentionTape<T, mha::Cuda> tape_;
};

}  // namespace

std::unique_ptr<Trained> make_trained(std::string_view pattern) {
  return with_plain_pattern(pattern, [](const auto& mask, const auto&) -> std::unique_ptr<Trained> {
    return std::make_unique<TrainedWith<std::remove_cvref_t<decltype(mask)>>>(mask);
  });
}

}  // namespace bench::gpu
