// SPDX-License-Identifier: Apache-2.0
// Policies on the GPU: those with data through on_device(), functors of the user's, ragged batches, hidden NaN.
#include <string>
#include <vector>

#include <mha/policy/mask/document.hpp>

#include "gradient_checks.hpp"
#include "some_of_cuda.cuh"

namespace {

using mha::on_device;
using on_gpu::expect_right;
using on_gpu::expect_right_with;
using on_gpu::Index;
using on_gpu::Inputs;
using on_gpu::SomeOfCuda;
using on_gpu::SomeOfGpu;
using on_gpu::Tensor;

struct Strided {
  MHA_HOST_DEVICE bool operator()(Index, Index, Index q, Index k) const { return k <= q && (q - k) % 4 == 0; }
};
struct Distance {
  float slope;
  template <class T> MHA_HOST_DEVICE T operator()(T s, Index, Index, Index q, Index k) const {
    return s - slope * float(mha::abs(q - k));
  }
};

template <class T> void expect_policies(const char* name) {
  support::Random random(name);
  for (const Index queries : {2, 150}) {
    const Inputs<T> in({2, queries, 200, 4, 2, 64, 64}, random);
    const std::vector<Index> lengths{200, 77};
    Tensor<float, 3> bias(4, queries, 200);
    random.fill(bias);
    const mha::RelativeBias relative(std::vector<float>(32 * 4, 0.25f));
    const mha::Sink sink({0.5f, -1, 3, 0});
    const auto with = [&](const auto& pass) {
      return [&](const auto& call) {
        return call(pass(mha::And{mha::Padding{lengths}, mha::Or{Strided{}, mha::SlidingWindow{.left = 30}}}),
                    pass(mha::Chain{mha::SoftCap{20.f}, mha::Chain{Distance{0.01f}, relative}}),
                    pass(mha::AdditiveBias(bias)), pass(sink), mha::Scale{0.2});
      };
    };
    expect_right<SomeOfGpu>(in, with([](const auto& p) { return on_device(p); }),
                            with([](const auto& p) { return p; }));
  }
}

TEST(CudaPolicies, OfTensorCores) {
  MHA_NEEDS_GPU();
  expect_policies<mha::bfloat16>("cuda policies bfloat16");
}
TEST(CudaPolicies, OfMultiplyAdds) {
  MHA_NEEDS_GPU();
  expect_policies<float>("cuda policies float");
}

TEST(CudaPolicies, RaggedBatches) {
  MHA_NEEDS_GPU();
  support::Random random("cuda ragged");
  const std::vector<Index> q_offsets{0, 3, 3, 80, 81, 200}, k_offsets{0, 70, 75, 200, 201, 400};
  Inputs<mha::bfloat16> in({1, 200, 400, 4, 2, 64, 64}, random);
  const mha::Ragged ragged{q_offsets, k_offsets};
  expect_right_with<SomeOfGpu>(in, ragged, mha::CausalTopLeft{});
}

TEST(CudaPolicies, NaNBehindTheMaskIsNotSeen) {
  MHA_NEEDS_GPU();
  support::Random random("cuda hidden");
  for (const Index queries : {1, 100}) {
    Inputs<mha::bfloat16> in({1, queries, 300, 2, 1, 64, 64}, random);
    Tensor<bool, 2> visible(queries, 300);
    for (Index k = 0; k < 300; ++k) {
      const bool hidden = random.chance(0.3);
      for (Index q = 0; q < queries; ++q) visible(q, k) = !hidden && random.chance(0.9);
      if (!hidden) continue;
      for (Index d = 0; d < 64; ++d) in.k(0, k, 0, d) = in.v(0, k, 0, d) = support::poison<mha::bfloat16>();
    }
    const mha::Dense dense(visible);
    expect_right<SomeOfGpu>(
        in, [&](const auto& call) { return call(on_device(dense)); }, [&](const auto& call) { return call(dense); });
  }
}

TEST(CudaPolicies, DataOfTheHostIsRefused) {
  MHA_NEEDS_GPU();
  support::Random random("cuda refusal");
  const Inputs<mha::bfloat16> in({1, 4, 4, 1, 1, 64, 64}, random);
  const auto q = mha::to_device(in.q), k = mha::to_device(in.k), v = mha::to_device(in.v);
  const Tensor<bool, 2> visible(4, 4);
  try {
    static_cast<void>(mha::attention<SomeOfCuda>(q, k, v, mha::Dense(visible)));
    ADD_FAILURE() << "accepted";
  } catch (const mha::ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("mha::on_device(policy)"), std::string::npos) << e.what();
  }
  if (support::reads_host_memory()) return;
  try {
    static_cast<void>(mha::attention<SomeOfCuda>(q.view(), in.k.view(), v.view()));
    ADD_FAILURE() << "accepted";
  } catch (const mha::ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("k is in host memory"), std::string::npos) << e.what();
  }
}

TEST(CudaPolicies, GradientsOfAScoreAndASink) {
  MHA_NEEDS_GPU();
  for (const int dim : {5, 40, 130})
    for (const int queries : {1, 65, 333})
      gradient_checks::expect_right<mha::Cuda, float>("cuda backward float", {2, queries, 200, 4, 2, dim, dim},
                                                      mha::Causal{}, mha::SoftCap{2.f},
                                                      mha::Sink({0.5f, -2.f, 3.f, 1.f}));
}

}  // namespace
