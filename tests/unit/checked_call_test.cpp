// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/checked_call.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/sink.hpp>

#include "scratch.hpp"

namespace {

using mha::CallShape;
using mha::Index;
using mha::Ragged;
using mha_test::message_of;

TEST(Launch, ABatchIsReadWhereItIs) {
  const mha::Tensor<float, 4> batch(2, 3, 4, 5);
  EXPECT_EQ(mha::detail::read_heads(batch).data, batch.data());
}

TEST(Launch, RowsAreReadInPlaceOrPackedOnce) {
  double numbers[24];
  for (int i = 0; i < 24; ++i) numbers[i] = i;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  mha::Tensor<double, 4> copy;
  const mha::TensorView<const double, 4> rows = mha::view_bhld(numbers, 1, 2, 3, 4);
  EXPECT_EQ(mha::detail::unit_rows(rows, frame, copy).data, numbers);
  EXPECT_EQ(workspace.allocations(), 0);
  const mha::TensorView<const double, 4> columns{numbers, {1, 3, 2, 4}, {0, 1, 12, 3}};
  const auto packed = mha::detail::unit_rows(columns, frame, copy);
  EXPECT_NE(packed.data, numbers);
  EXPECT_EQ(packed.stride[3], 1);
  EXPECT_EQ(copy.size(), 0u) << "memory comes from the caller's frame";
  for (int l = 0; l < 3; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 4; ++d) EXPECT_EQ(packed(0, l, h, d), columns(0, l, h, d));
}

std::string offsets_refusal(const mha::Borrowed<Index>& offsets, Index rows) {
  return message_of<mha::ShapeError>([&] { mha::detail::require_offsets("call", "q", offsets, rows); });
}

TEST(Offsets, CutTheRowsIntoSequences) {
  const std::vector<int> good{0, 2, 2, 5}, none{0}, late{1, 5}, falls{0, 4, 3, 5}, is_short{0, 4};
  EXPECT_EQ(offsets_refusal(good, 5), "");
  EXPECT_EQ(offsets_refusal(none, 0), "");
  EXPECT_EQ(offsets_refusal({}, 5), "call: Ragged has 0 offsets for q, expected one more than there are sequences");
  EXPECT_EQ(offsets_refusal({nullptr, 3}, 5),
            "call: Ragged has 3 offsets for q, expected one more than there are sequences");
  EXPECT_EQ(offsets_refusal(late, 5), "call: the first offset of q is 1, it must be 0");
  EXPECT_EQ(offsets_refusal(falls, 5), "call: the offsets of q decrease from 4 to 3 at sequence 1");
  EXPECT_EQ(offsets_refusal(is_short, 5), "call: the last offset of q is 4 but there are 5 rows");
  EXPECT_EQ(offsets_refusal(none, 2), "call: the last offset of q is 0 but there are 2 rows");
  EXPECT_EQ(mha::detail::longest(good), 3);
  EXPECT_EQ(mha::detail::longest(none), 0);
}

/// A frame that counts what is taken from it.
struct CountingFrame {
  int taken = 0;
  std::vector<Index> memory;
  template <class T> T* take_host(std::size_t n) {
    ++taken;
    memory.assign(n, -99);
    return memory.data();
  }
};

/// The shape of a call over tensors with one head of size 1.
CallShape shape_of(Index batch, Index heads, Index queries, Index keys, const std::optional<mha::Origin>& origin,
                   const std::optional<Ragged>& ragged, CountingFrame& frame) {
  static const float one = 1;
  const mha::TensorView<const float, 4> q{&one, {batch, queries, 1, 1}, {}}, k{&one, {batch, keys, 1, 1}, {}};
  const auto kv = mha::detail::kv_of("call", q, k, k, ragged);
  return mha::detail::call_shape("call", batch, heads, queries, mha::detail::kv_sizes(kv), origin, ragged, frame);
}

TEST(CallShape, PutsTheLastQueryAtTheLastKeyUnlessToldOtherwise) {
  CountingFrame frame;
  const CallShape standard = shape_of(2, 3, 4, 9, {}, {}, frame);
  EXPECT_EQ(standard.batch, 2);
  EXPECT_EQ(standard.heads, 3);
  EXPECT_EQ(standard.queries, 4);
  EXPECT_EQ(standard.keys, 9);
  EXPECT_EQ(standard.origin[1], 5);
  EXPECT_EQ(shape_of(2, 3, 9, 4, {}, {}, frame).origin[0], -5);
  EXPECT_EQ(shape_of(2, 3, 4, 9, mha::Origin{7}, {}, frame).origin[1], 7);
  EXPECT_EQ(frame.taken, 0);
}

TEST(CallShape, OfARaggedBatchHasTheLongestLengthsAndAnOriginEach) {
  const std::vector<int> q{0, 2, 2, 5}, k{0, 7, 8, 9};
  CountingFrame frame;
  const CallShape self = shape_of(1, 3, 5, 5, {}, Ragged{q}, frame);
  EXPECT_EQ(self.batch, 3);
  EXPECT_EQ(self.queries, 3);
  EXPECT_EQ(self.keys, 3);
  for (int b = 0; b < 3; ++b) EXPECT_EQ(self.origin[b], 0);
  const CallShape cross = shape_of(1, 3, 5, 9, {}, Ragged{q, k}, frame);
  EXPECT_EQ(cross.keys, 7);
  const int origins[3] = {5, 1, -2};
  for (int b = 0; b < 3; ++b) EXPECT_EQ(cross.origin[b], origins[b]);
  EXPECT_EQ(frame.taken, 2);
  EXPECT_EQ(shape_of(1, 3, 5, 9, mha::Origin{4}, Ragged{q, k}, frame).origin[2], 4);
  EXPECT_EQ(frame.taken, 2) << "one origin for all needs no memory";
}

// Kernels count on whole blocks beyond the last key being numbers still. A stride of 0 needs no memory for so many.
TEST(CallShape, RefusesMoreKeysThanPositions) {
  CountingFrame frame;
  const auto refusal = [&](Index keys) {
    return message_of<mha::ShapeError>([&] { shape_of(1, 1, 1, keys, mha::Origin{0}, {}, frame); });
  };
  EXPECT_EQ(refusal(1073741823), "");
  EXPECT_EQ(refusal(1073741824), "call: k has length 1073741824, the limit is 1073741823");
  EXPECT_EQ(refusal(std::numeric_limits<Index>::max()), "call: k has length 2147483647, the limit is 1073741823");
}

TEST(CallShape, RefusesPackedRowsThatDoNotFit) {
  const std::vector<int> two{0, 1, 3}, three{0, 1, 2, 3};
  CountingFrame frame;
  const auto refusal = [&](Index batch, Index queries, Index keys, const Ragged& ragged) {
    return message_of<mha::ShapeError>([&] { shape_of(batch, 1, queries, keys, {}, ragged, frame); });
  };
  EXPECT_EQ(refusal(1, 3, 3, Ragged{two}), "");
  EXPECT_EQ(refusal(2, 3, 3, Ragged{two}),
            "call: a ragged batch has batch 2, expected 1: offsets tell its sequences apart");
  EXPECT_EQ(refusal(1, 3, 4, Ragged{two}), "call: the last offset of k is 3 but there are 4 rows");
  EXPECT_EQ(refusal(1, 3, 3, Ragged{two, three}), "call: Ragged has 2 query sequences but 3 key sequences");
}

TEST(CallShape, RefusesPositionsThatWouldOverflow) {
  constexpr Index most = std::numeric_limits<Index>::max();
  CountingFrame frame;
  const auto refusal = [&](Index origin) {
    return message_of<mha::ShapeError>([&] { shape_of(1, 1, 8, 8, mha::Origin{origin}, {}, frame); });
  };
  EXPECT_EQ(refusal(most / 2 - 8), "");
  EXPECT_EQ(refusal(most / 2 - 7), "call: the origin 1073741816 puts 8 queries beyond position 1073741823");
  EXPECT_NE(refusal(most), "");
  EXPECT_EQ(refusal(-(most / 2)), "");
  EXPECT_EQ(refusal(-(most / 2) - 1), "call: the origin is -1073741824, the least is -1073741823");
  EXPECT_EQ(refusal(std::numeric_limits<Index>::min()), "call: the origin is -2147483648, the least is -1073741823");
}

TEST(CallShape, TakesAnOriginForEachSequence) {
  const std::vector<int> origins{3, -2, 0}, q{0, 2, 2, 5};
  CountingFrame frame;
  const CallShape apart = shape_of(3, 1, 4, 9, mha::Origin{origins}, {}, frame);
  const CallShape ragged = shape_of(1, 1, 5, 5, mha::Origin{origins}, Ragged{q}, frame);
  for (int b = 0; b < 3; ++b) {
    EXPECT_EQ(apart.origin[b], origins[static_cast<std::size_t>(b)]);
    EXPECT_EQ(ragged.origin[b], origins[static_cast<std::size_t>(b)]);
  }
  EXPECT_EQ(frame.taken, 0) << "they are read where they are";
}

// The rows of each sequence count from its own origin.
TEST(CallShape, TakesAShortSequenceFarAwayBesideALongOne) {
  const std::vector<int> queries{0, 1, 65}, keys{0, 3, 67}, far{1073741822, 0}, too_far{0, 1073741760};
  CountingFrame frame;
  const auto refusal = [&](const std::vector<int>& origins) {
    return message_of<mha::ShapeError>([&] {
      shape_of(1, 1, 65, 67, mha::Origin{origins}, Ragged{queries, keys}, frame);
    });
  };
  EXPECT_EQ(refusal(far), "");
  EXPECT_EQ(refusal(too_far), "call: the origin 1073741760 puts 64 queries beyond position 1073741823");
}

TEST(CallShape, RefusesOriginsThatDoNotFit) {
  const std::vector<int> two{3, -2}, far{0, 1073741820}, none;
  CountingFrame frame;
  const auto refusal = [&](Index batch, const mha::Origin& origin) {
    return message_of<mha::ShapeError>([&] { shape_of(batch, 1, 4, 4, origin, {}, frame); });
  };
  EXPECT_EQ(refusal(2, mha::Origin{two}), "");
  EXPECT_EQ(refusal(3, mha::Origin{two}), "call: Origin has 2 positions for a batch of 3");
  EXPECT_EQ(refusal(1, mha::Origin{two}), "call: Origin has 2 positions for a batch of 1");
  EXPECT_EQ(refusal(2, mha::Origin{none}), "call: Origin has 0 positions for a batch of 2");
  EXPECT_EQ(refusal(2, mha::Origin{far}), "call: the origin 1073741820 puts 4 queries beyond position 1073741823");
  EXPECT_EQ(refusal(2, mha::Origin(mha::Borrowed<Index>(nullptr, 2))),
            "call: the data of Origin's 2 positions is null");
  EXPECT_EQ(refusal(2, mha::Origin(mha::Borrowed<Index>(two.data(), 2, mha::Memory::device))),
            "call: the positions of Origin are in device memory, they are read and checked on the host");
}

struct Absent : mha::Reference {
  static constexpr const char* name = "Absent";
  mha::Support supported() const { return {false, "it has no machine"}; }
};

TEST(Launch, SaysWhyABackendCannotRun) {
  mha::detail::require_supported(mha::Reference{}, "call");
  EXPECT_EQ(message_of<std::runtime_error>([] { mha::detail::require_supported(Absent{}, "call"); }),
            "call: Absent cannot run here: it has no machine");
}

class CheckedCall : public testing::Test {
 protected:
  mha::Tensor<float, 4> q{2, 3, 4, 5}, k{2, 6, 2, 5}, v{2, 6, 2, 7}, out{2, 3, 4, 7};
  mha::Workspace workspace;

  template <class M = mha::Full, class Sink = mha::NoSink>
  auto make(const M& mask = {}, const mha::detail::CallOptions<float>& options = {}, const Sink& sink = {}) {
    auto frame = workspace.frame();
    const mha::TensorView<const float, 4> of_q = q.view(), of_k = k.view(), of_v = v.view();
    const auto kv = mha::detail::kv_of("call", of_q, of_k, of_v, options.ragged);
    return mha::detail::attend_call<float>("call", out.view(), of_q, kv, mask, mha::NoScore{}, sink, options, frame);
  }
  template <class... Options> std::string refusal(const Options&... options) {
    return message_of<mha::ShapeError>([&] { make(options...); });
  }
};

TEST_F(CheckedCall, CarriesSizesDefaultsAndViews) {
  const auto call = make();
  EXPECT_EQ(call.kv_heads, 2);
  EXPECT_EQ(call.head_dim, 5);
  EXPECT_EQ(call.value_dim, 7);
  EXPECT_FLOAT_EQ(call.scale, static_cast<float>(1 / std::sqrt(5.0)));
  EXPECT_EQ(call.shape.origin[0], 3);
  EXPECT_EQ(call.out.data, out.data());
  EXPECT_EQ(call.kv.value.data, v.data());
  EXPECT_EQ(call.log_sum_exp.data, nullptr);
  EXPECT_EQ(call.sink.size, 0);
  EXPECT_EQ(call.q_offsets, nullptr);
  const mha::Sink sink({1, 2, 3, 4});
  EXPECT_EQ(make(mha::Full{}, {}, sink).sink[3], 4);
}

TEST_F(CheckedCall, PreparesItsPolicies) {
  const std::vector<int> lengths{1, 6}, wrong{1, 7};
  EXPECT_EQ(refusal(mha::Padding{lengths}), "");
  EXPECT_EQ(refusal(mha::Padding{wrong}), "Padding: length 7 of sequence 1 is outside [0, 6], the number of keys");
  EXPECT_EQ(refusal(mha::Padding{mha::Borrowed<Index>(lengths.data(), 2, mha::Memory::device)}),
            "call: a policy borrows device memory, but the backend computes on the host");
  EXPECT_EQ(refusal(mha::Full{}, mha::detail::CallOptions<float>{}, mha::Sink({1, 2})), "Sink: 2 logits for 4 heads");
}

TEST_F(CheckedCall, RefusesWhatDoesNotFit) {
  mha::detail::CallOptions<float> options;
  options.scale = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal(mha::Full{}, options), "call: the scale is inf, not finite");
  k = mha::Tensor<float, 4>(2, 6, 3, 5);
  v = mha::Tensor<float, 4>(2, 6, 3, 7);
  EXPECT_EQ(refusal(), "call: k has 3 heads, which does not divide q's 4");
  k = mha::Tensor<float, 4>(2, 2, 6, 5);  // (B, Hkv, Lk, D)
  v = mha::Tensor<float, 4>(2, 2, 6, 7);
  EXPECT_EQ(
      refusal(),
      "call: k has 6 heads, which does not divide q's 4: axes are (B, L, H, D), memory in the order (B, H, L, D) is "
      "read by mha::view_bhld");
  k = mha::Tensor<float, 4>(2, 6, 2, 4);
  v = mha::Tensor<float, 4>(2, 6, 2, 7);
  EXPECT_EQ(refusal(), "call: q has head size 5 but k has head size 4");
  k = mha::Tensor<float, 4>(2, 5, 2, 5);
  EXPECT_EQ(refusal(), "call: k has length 5 but v has length 6");
}

struct CountingAttend : mha::Reference {
  static inline int calls = 0;
  template <class Call> void attend(const Call&, Workspace&) const { ++calls; }
};

TEST_F(CheckedCall, ReachesTheBackendOnlyWhenThereAreQueries) {
  CountingAttend::calls = 0;
  mha::detail::run(CountingAttend{}, make(), workspace);
  EXPECT_EQ(CountingAttend::calls, 1);
  q = mha::Tensor<float, 4>(2, 0, 4, 5);
  out = mha::Tensor<float, 4>(2, 0, 4, 7);
  mha::detail::run(CountingAttend{}, make(), workspace);
  EXPECT_EQ(CountingAttend::calls, 1);
}

TEST(CheckedScale, BeyondTheAccumulatorIsRefused) {
  mha::Tensor<float, 2> x(2, 4), y(2, 4);
  EXPECT_NE(message_of<mha::ShapeError>([&] {
              mha::detail::CallOptions<float> options;
              options.scale = 1e39;
              mha::Workspace workspace;
              auto frame = workspace.frame();
              const mha::TensorView<const float, 4> q = mha::view(x.data(), 1, 2, 1, 4);
              const mha::ContiguousKv<float> kv{q, q};
              mha::detail::checked_call<float>("attention", q, kv, mha::Full{}, mha::NoScore{}, mha::NoSink{}, options,
                                               frame);
            }).find("beyond the largest number"),
            std::string::npos);
}

}  // namespace
