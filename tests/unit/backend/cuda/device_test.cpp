// SPDX-License-Identifier: Apache-2.0
// Which device a thread has, on the imitation of tests/gpu_memory, which has two.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/attention_backward.hpp>
#include <mha/backend/cuda/device.hpp>
#include <mha/block.hpp>
#include <mha/mha.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/alibi_slopes.hpp>
#include <mha/policy/sink.hpp>

#include "../../../gpu_memory/far_cuda.hpp"
#include "device_checks.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::cuda::DeviceGuard;
using support::FarCuda;
using support::message_of;

constexpr FarCuda second{.device = 1};

int current() { return mha::cuda::current_device(); }
template <class T> int device_of(const T& tensor) { return mha::cuda::device_of(tensor.data()); }

TEST(DeviceGuard, MakesADeviceCurrentWhileItLives) {
  {
    const DeviceGuard outer(1);
    EXPECT_EQ(current(), 1);
    const DeviceGuard inner(0);
    EXPECT_EQ(current(), 0);
  }
  EXPECT_EQ(current(), 0);
  try {
    const DeviceGuard guard(1, [] { throw std::logic_error("of the call"); });
    FAIL();
  } catch (const std::logic_error&) {
  }
  EXPECT_EQ(current(), 0);
}

TEST(DeviceGuard, AsksNothingOfCudaForAnyDeviceOrTheCurrentOne) {
  const int switches = support::FarStream::switches();
  const DeviceGuard any(mha::cuda::any_device), current_one(0);
  EXPECT_EQ(support::FarStream::switches(), switches);
}

TEST(DeviceGuard, NamesADeviceThatIsMissingAndHowManyThereAre) {
  for (const int missing : {2, 7, -3}) {
    const auto said = message_of<std::runtime_error>([&] { const DeviceGuard guard(missing); });
    EXPECT_EQ(said, "Cuda: there is no device " + std::to_string(missing) + ", the number of devices is 2");
    EXPECT_EQ(current(), 0);
    EXPECT_FALSE(mha::cuda::device_exists(missing).ok);
  }
  for (const int there : {mha::cuda::any_device, 0, 1}) EXPECT_TRUE(mha::cuda::device_exists(there).ok);
}

TEST(Devices, TensorsGoToTheOneThatTheBackendNames) {
  support::Random random("devices tensors");
  mha::Tensor<float, 2> x(3, 5);
  random.fill(x);
  for (const bool by_guard : {false, true}) {
    const auto there = by_guard ? [&] {
      const auto held = second.enter();
      return mha::to_device(x);
    }() : mha::to_device(x, second);
    EXPECT_EQ(device_of(there), 1);
    EXPECT_EQ(current(), 0);
    const auto back = mha::to_host(there);
    EXPECT_TRUE(std::equal(x.begin(), x.end(), back.begin()));
  }
  EXPECT_EQ(device_of(mha::to_device(x)), 0);
}

struct Attention {
  const device_checks::Inputs<float> in;
  explicit Attention(support::Random& random) : in({2, 2, 5, 2, 1, 8, 8}, random) {}
};

template <class A, class B> void expect_same(const A& a, const B& b) {
  EXPECT_EQ(support::differing(mha::to_host(a), mha::to_host(b)), 0u);
}

TEST(Devices, AttentionAndItsBackwardPassRunOnTheOneThatIsNamed) {
  support::Random random("devices attention");
  const Attention a(random);
  const std::vector<Index> lengths{5, 3};
  mha::Tensor<float, 4> d(2, 2, 2, 8);
  random.fill(d);
  const auto run = [&](const FarCuda& cuda) {
    const auto q = mha::to_device(a.in.q, cuda), k = mha::to_device(a.in.k, cuda), v = mha::to_device(a.in.v, cuda),
               d_out = mha::to_device(d, cuda);
    const auto mask = mha::on_device(mha::Padding{lengths}, cuda);
    const auto sink = mha::on_device(mha::Sink({0.5f, -1}), cuda);
    mha::AttentionTape<float, FarCuda> tape;
    FarCuda::Workspace workspace;
    auto out = mha::attention(q, k, v, mask, sink, mha::record(tape), cuda, workspace);
    auto g = mha::attention_backward(d_out, q, k, v, out, tape, mask, sink, cuda);
    auto weights = mha::attention_weights(q, k, mask, sink, cuda);
    EXPECT_EQ(current(), 0);
    const int expected = cuda.device == 1 ? 1 : 0;
    for (const int device : {device_of(out), device_of(g.query), device_of(g.sink), device_of(weights)})
      EXPECT_EQ(device, expected);
    return std::tuple(std::move(out), std::move(g), std::move(weights));
  };
  const auto first = run(FarCuda{}), other = run(second);
  expect_same(std::get<0>(first), std::get<0>(other));
  expect_same(std::get<1>(first).query, std::get<1>(other).query);
  expect_same(std::get<1>(first).key, std::get<1>(other).key);
  expect_same(std::get<1>(first).value, std::get<1>(other).value);
  expect_same(std::get<1>(first).sink, std::get<1>(other).sink);
  expect_same(std::get<2>(first), std::get<2>(other));
}

TEST(Devices, WhatIsOnAnotherIsRefusedByNameBeforeAnythingIsComputed) {
  support::Random random("devices refused");
  const Attention a(random);
  const auto q = mha::to_device(a.in.q, second), k = mha::to_device(a.in.k, second), v = mha::to_device(a.in.v, second),
             k_first = mha::to_device(a.in.k);
  const std::vector<Index> lengths{5, 3};
  const int launches = FarCuda::launches;
  const auto said_of = [&](const auto& keys, const auto&... more) {
    const auto said =
        message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention<FarCuda>(q, keys, v, more...)); });
    EXPECT_EQ(current(), 0);
    EXPECT_EQ(FarCuda::launches, launches);
    return said;
  };
  EXPECT_EQ(said_of(k_first, second), "attention: k is on device 0, but the call computes on device 1");
  EXPECT_EQ(said_of(k), "attention: q is on device 1, but the call computes on device 0");
  EXPECT_EQ(said_of(k, second, mha::on_device(mha::Padding{lengths})),
            "attention: the data of a mask or score is on device 0, but the call computes on device 1");
  EXPECT_EQ(said_of(k, second, mha::on_device(mha::Sink({0, 1}))),
            "attention: a Sink is on device 0, but the call computes on device 1");
  EXPECT_EQ(message_of<std::runtime_error>([&] { static_cast<void>(mha::attention(q, k, v, FarCuda{.device = 2})); }),
            "Cuda: there is no device 2, the number of devices is 2");
  EXPECT_EQ(current(), 0);
}

// Of a call that names no device too: the data of a policy on another is memory that its kernels may not read.
TEST(Devices, PoliciesOfAnotherAreRefusedWhereNoneIsNamed) {
  support::Random random("devices policies");
  const Attention a(random);
  const auto q = mha::to_device(a.in.q), k = mha::to_device(a.in.k), v = mha::to_device(a.in.v);
  const std::vector<Index> lengths{5, 3};
  const auto said_of = [&](const auto& policy) {
    return message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention<FarCuda>(q, k, v, policy)); });
  };
  EXPECT_EQ(said_of(mha::on_device(mha::Padding{lengths}, second)),
            "attention: the data of a mask or score is on device 1, but the call computes on device 0");
  EXPECT_EQ(said_of(mha::on_device(mha::AlibiSlopes({1, 2}), second)),
            "attention: the data of a mask or score is on device 1, but the call computes on device 0");
  EXPECT_EQ(said_of(mha::on_device(mha::Sink({0, 1}), second)),
            "attention: a Sink is on device 1, but the call computes on device 0");
  EXPECT_EQ(said_of(mha::on_device(mha::Padding{lengths})), "");
}

/// A block of each device and the tensors of its calls there.
template <class Block> struct OnDevice {
  const FarCuda cuda;
  Block block;
  mha::DeviceTensor<float, 3> x, dy;

  template <class Sizes>
  OnDevice(int device, const Sizes& sizes, const mha::Tensor<float, 3>& rows)
      : cuda{device}, block(sizes, cuda), x(mha::to_device(rows, cuda)), dy(mha::to_device(rows, cuda)) {
    block.update([](auto& p) {
      for (float& w : p.flat()) w = 0.5f;
    });
  }
};

/// One tape, and gradients, for blocks of two devices: both are refused by name, and the block of the other device goes
/// on with its own.
template <class Block, class Sizes>
void expect_tapes_stay(const char* call, const Sizes& sizes, bool keeps, support::Random& random) {
  SCOPED_TRACE(call);
  mha::Tensor<float, 3> rows(1, 6, 8);
  random.fill(rows);
  const OnDevice<Block> first(0, sizes, rows), other(1, sizes, rows);
  auto tape = first.block.tape();
  auto gradients = first.block.gradients(), of_other = other.block.gradients();
  EXPECT_EQ(mha::cuda::device_of(std::as_const(of_other).memory().data), 1);
  static_cast<void>(first.block(first.x, tape));
  if (keeps) {
    EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(other.block(other.x, tape)); }),
              std::string(call) + ": the tape is on device 0, but the call computes on device 1");
  }
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(first.block.backward(first.dy, tape, of_other)); }),
            "backward: the memory of the gradients is on device 1, but the call computes on device 0");
  EXPECT_EQ(message_of<mha::ShapeError>(
                [&] { static_cast<void>(first.block.backward(other.dy, tape, gradients, other.cuda)); }),
            keeps ? "backward: the tape is on device 0, but the call computes on device 1"
                  : "backward: x is on device 0, but the call computes on device 1");
  EXPECT_EQ(current(), 0);
  EXPECT_NO_THROW(static_cast<void>(first.block.backward(first.dy, tape, gradients)));
  auto own = other.block.tape();
  static_cast<void>(other.block(other.x, own));
  static_cast<void>(other.block.backward(other.dy, own, of_other));
  const auto here = gradients.to_host().memory(), there = of_other.to_host().memory();
  EXPECT_TRUE(std::equal(here.data, here.data + here.extent[0], there.data));
  EXPECT_EQ(current(), 0);
}

TEST(Devices, ATapeAndGradientsStayOnThatOfTheirBlock) {
  support::Random random("devices tapes");
  const mha::LinearConfig linear{.inputs = 8, .outputs = 8};
  expect_tapes_stay<mha::Linear<float, FarCuda>>("linear", linear, false, random);
  expect_tapes_stay<mha::Linear<float, FarCuda, mha::Gelu>>("linear", linear, true, random);
  expect_tapes_stay<mha::LayerNorm<float, FarCuda>>("LayerNorm", mha::NormConfig{.width = 8}, true, random);
  expect_tapes_stay<mha::MultiHeadAttention<float, FarCuda>>("layer", mha::Config{.d_model = 8, .num_heads = 2}, true,
                                                             random);
}

TEST(Devices, WeightsOfAnotherAreRefusedInABackwardPass) {
  support::Random random("devices weights");
  mha::Tensor<float, 3> rows(1, 6, 8);
  random.fill(rows);
  using Linear = mha::Linear<float, FarCuda>;
  const mha::LinearConfig sizes{.inputs = 8, .outputs = 8};
  const OnDevice<Linear> first(0, sizes, rows);
  const mha::detail::LinearProduct<float, FarCuda, mha::Identity> product(FarCuda{.device = 1},
                                                                          first.block.parameters());
  FarCuda::Workspace workspace;
  auto frame = workspace.frame();
  EXPECT_EQ(message_of<mha::ShapeError>(
                [&] { static_cast<void>(product.readable(FarCuda{}, first.block.parameters(), false, sizes, frame)); }),
            "Cuda: the weights were packed on device 1, but the call computes on device 0");
}

TEST(Devices, AnAttentionTapeStaysOnThatOfItsCall) {
  support::Random random("devices attention tape");
  const Attention a(random);
  const auto q = mha::to_device(a.in.q), k = mha::to_device(a.in.k), v = mha::to_device(a.in.v);
  const auto q1 = mha::to_device(a.in.q, second), k1 = mha::to_device(a.in.k, second),
             v1 = mha::to_device(a.in.v, second);
  mha::AttentionTape<float, FarCuda> tape;
  const auto out = mha::attention<FarCuda>(q, k, v, mha::record(tape));
  const auto out1 = mha::attention(q1, k1, v1, second);
  const std::string names = ": the tape is on device 0, but the call computes on device 1";
  EXPECT_EQ(message_of<mha::ShapeError>(
                [&] { static_cast<void>(mha::attention_backward(out1, q1, k1, v1, out1, tape, second)); }),
            "attention_backward" + names);
  EXPECT_EQ(
      message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention(q1, k1, v1, second, mha::record(tape))); }),
      "attention" + names);
  EXPECT_NO_THROW(static_cast<void>(mha::attention_backward(out, q, k, v, out, tape)));
  EXPECT_EQ(current(), 0);
}

// A longer sequence than the last makes the cache's workspace grow, on the device of the cache.
TEST(Devices, ACacheRestoresOnThatOfItsLayer) {
  support::Random random("devices restore");
  mha::MultiHeadAttention<float, FarCuda> layer({.d_model = 8, .num_heads = 2}, second);
  layer.initialize(mha::XavierUniform{.seed = 1});
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 1024}, {.sequences = 3});
  for (const Index rows : {3, 900, 1000}) {
    const auto id = cache.add();
    mha::Tensor<float, 3> key(rows, 2, 4), value(rows, 2, 4);
    random.fill(key);
    random.fill(value);
    auto step = cache.step(id, rows);
    step.append(0, mha::to_device(key, second), mha::to_device(value, second));
    step.commit();
  }
  auto other = mha::make_cache(layer, mha::Contiguous{.length = 1024}, {.sequences = 3});
  for (const auto id : cache.ids()) {
    const auto bytes = cache.save(id);
    EXPECT_EQ(other.save(other.restore(bytes)), bytes);
    EXPECT_EQ(current(), 0);
  }
}

TEST(Devices, AWorkspaceStaysOnThatOfItsFirstCall) {
  support::Random random("devices workspace");
  const Attention a(random);
  const auto q = mha::to_device(a.in.q), k = mha::to_device(a.in.k), v = mha::to_device(a.in.v);
  const auto q1 = mha::to_device(a.in.q, second), k1 = mha::to_device(a.in.k, second),
             v1 = mha::to_device(a.in.v, second);
  FarCuda::Workspace workspace;
  static_cast<void>(mha::attention<FarCuda>(q, k, v, workspace));
  const int allocations = workspace.allocations();
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention(q1, k1, v1, second, workspace)); }),
            "Cuda: the workspace is of device 0, where its first call was, but this call is on device 1: each device "
            "needs a workspace of its own");
  EXPECT_EQ(current(), 0);
  EXPECT_EQ(workspace.allocations(), allocations);
  EXPECT_NO_THROW(static_cast<void>(mha::attention(q, k, v, FarCuda{.device = 0}, workspace)));
}

}  // namespace
