// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/layer/stages.hpp>
#include <mha/policy/concat.hpp>
#include <mha/policy/mask/first_keys.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/position.hpp>
#include <mha/policy/qk_norm.hpp>
#include <mha/policy/score/alibi_slopes.hpp>

#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Reference;
using mha::TensorView;
using mha::detail::HeadSizes;
using mha::detail::MemoryRows;

struct Beside : Reference {
  static constexpr bool side_by_side = true;
};

TEST(Stages, BuffersLieOneAfterAnotherOrSideBySide) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const HeadSizes sizes[] = {{3, 4}, {1, 4}, {1, 2}};
  const auto apart = mha::detail::head_buffers<float, false>(frame, 2, 5, sizes);
  EXPECT_EQ(apart[1].data, apart[0].data + 2 * 5 * 12);
  EXPECT_EQ(apart[2].data, apart[1].data + 2 * 5 * 4);
  for (const auto& v : apart) EXPECT_TRUE(mha::is_contiguous(v));

  const auto beside = mha::detail::head_buffers<float, true>(frame, 2, 5, sizes);
  EXPECT_EQ(beside[1].data, beside[0].data + 12);
  EXPECT_EQ(beside[2].data, beside[0].data + 16);
  for (const auto& v : beside) {
    EXPECT_EQ(v.stride[1], 18);
    EXPECT_EQ(v.stride[0], 5 * 18);
    const auto rows = mha::detail::rows_of(v);
    EXPECT_EQ(&rows(5 + 3, v.dim() - 1), &v(1, 3, 0, v.dim() - 1));
  }
}

TEST(Stages, KeysAndValuesLieApartFromQueriesOfOtherRows) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  float numbers[24] = {};
  const TensorView<const float, 3> x = mha::view(numbers, 1, 3, 4), memory = mha::view(numbers, 1, 6, 4);
  const mha::Config config{.d_model = 4, .num_heads = 2, .num_kv_heads = 1, .head_dim = 3, .value_dim = 5};
  const auto self = mha::detail::projected<Reference>(config, x, MemoryRows<float>{x, x}, true, frame);
  EXPECT_EQ(self.q.length(), 3);
  EXPECT_EQ(self.to_value.dim(), 5);
  const auto cross = mha::detail::projected<Reference>(config, x, MemoryRows<float>{memory, memory}, false, frame);
  EXPECT_EQ(cross.key.length(), 6);
  EXPECT_EQ(cross.to_value.data, nullptr);
}

/// Side by side lies what one product makes: parts of neighbours that are made from the same rows.
TEST(Stages, KeysAndValuesOfDifferentRowsLieApart) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const float numbers[24] = {};
  const TensorView<const float, 3> x = mha::view(numbers, 1, 3, 4), a = mha::view(numbers, 1, 6, 4),
                                   b = mha::view(numbers + 1, 1, 6, 3);
  const mha::Config config{.d_model = 4, .num_heads = 2, .num_kv_heads = 1, .head_dim = 3, .value_dim = 5};
  const auto rows = [&](const TensorView<const float, 3>& keys, const TensorView<const float, 3>& values) {
    const auto made = mha::detail::projected<Beside>(config, x, MemoryRows<float>{keys, values}, true, frame);
    EXPECT_EQ(made.to_key.length(), keys.extent[1]);
    EXPECT_EQ(made.to_value.length(), values.extent[1]);
    return std::vector<std::ptrdiff_t>{made.q.stride[1], made.to_key.stride[1], made.to_value.stride[1]};
  };
  EXPECT_EQ(rows(x, x), (std::vector<std::ptrdiff_t>{14, 14, 14}));
  EXPECT_EQ(rows(a, a), (std::vector<std::ptrdiff_t>{6, 8, 8}));
  EXPECT_EQ(rows(a, b), (std::vector<std::ptrdiff_t>{6, 3, 5}));
  EXPECT_EQ(rows(x, b), (std::vector<std::ptrdiff_t>{9, 9, 5}));
  EXPECT_EQ(rows(a, x), (std::vector<std::ptrdiff_t>{6, 3, 5}));
}

TEST(Stages, APolicyIsCheckedForTheLayersHeads) {
  EXPECT_EQ(mha::detail::checked_policy(mha::SlidingWindow{.left = 3}, 2).left.value, 3);
  EXPECT_EQ(support::message_of([] { mha::detail::checked_policy(mha::FirstKeys{.count = -3}, 2); }),
            "FirstKeys: count is -3, it must be at least 0");
  const mha::AlibiSlopes slopes({1, 2});
  EXPECT_EQ(mha::detail::checked_policy(slopes, 2).per_head().size(), 2u);
  EXPECT_EQ(support::message_of([&] { mha::detail::checked_policy(slopes, 3); }), "AlibiSlopes: 2 slopes for 3 heads");
}

/// A position of the user's: the row's position is added.
struct Shift {
  static constexpr mha::Role role = mha::Role::position;
  template <class T> void apply(const TensorView<T, 4>& x, const mha::Origins& first) const {
    for (Index b = 0; b < x.batch(); ++b)
      for (Index l = 0; l < x.length(); ++l) x(b, l, 0, 0) += T(first[b] + l);
  }
};

static_assert(mha::Position<Shift>);

TEST(Stages, APositionOfTheUsersRunsSequenceBySequence) {
  std::vector<float> rows(6, 100);
  const Index offsets[] = {0, 2, 2, 6}, first[] = {10, 20, 30};
  mha::Workspace workspace;
  const Reference backend;
  const mha::detail::ItemsOn<Reference> items{backend, workspace};
  const auto x = mha::view_blhd(rows.data(), 1, 6, 1, 1);
  mha::detail::run_position<Reference, float>(Shift{}, x, {mha::Origins(first), offsets, 3, 4}, items);
  EXPECT_EQ(rows, (std::vector<float>{110, 111, 130, 131, 132, 133}));
  mha::detail::run_position<Reference, float>(Shift{}, x, {mha::Origins(5)}, items);
  EXPECT_EQ(rows, (std::vector<float>{115, 117, 137, 139, 141, 143}));
  mha::detail::run_position<Reference, float>(mha::NoPosition{}, x, {mha::Origins(5)}, items);
  EXPECT_EQ(rows[0], 115);
}

TEST(Stages, NoNormAndNoGatesLeaveRowsAsTheyAre) {
  float number = 8;
  mha::Workspace workspace;
  const Reference backend;
  const mha::detail::ItemsOn<Reference> items{backend, workspace};
  const auto x = mha::view_blhd(&number, 1, 1, 1, 1);
  mha::detail::run_norm<Reference, float>(mha::NoNorm{}, x, {}, items);
  mha::detail::run_gates<Reference, mha::ConcatHeads, float>(x, {}, items);
  EXPECT_EQ(number, 8);
}

TEST(Stages, ABackendOfTheHostKeepsPoliciesAsTheyAre) {
  const mha::detail::Kept<Reference, mha::Origins> kept(mha::Origins(7), Reference{});
  EXPECT_EQ(&kept.own(), &kept.there());
  EXPECT_EQ(kept.own().all, 7);
}

TEST(GatedRows, LeaveTheHeadsAsTheyAre) {
  mha::Tensor<float, 4> heads(2, 3, 2, 4);
  support::Random("gated rows").fill(heads);
  mha::Tensor<float, 1> gate(2);
  gate(0) = 2;
  gate(1) = -1;
  const mha::Reference backend;
  mha::Workspace workspace;
  const mha::detail::ItemsOn<mha::Reference> items{backend, workspace};
  auto frame = workspace.frame();
  const auto view = std::as_const(heads).view();
  const auto gates = std::as_const(gate).view();
  const auto before = heads;
  const auto rows = mha::detail::gated_rows<mha::Reference, mha::GatedHeads>(view, gates, frame, items);
  const auto plain = mha::detail::gated_rows<mha::Reference, mha::ConcatHeads>(view, gates, frame, items);
  EXPECT_EQ(plain.data, heads.data());
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 8; ++j) {
      EXPECT_EQ(plain(i, j), before(i / 3, i % 3, j / 4, j % 4));
      EXPECT_EQ(rows(i, j), gate(j / 4) * before(i / 3, i % 3, j / 4, j % 4));
    }
}

}  // namespace
