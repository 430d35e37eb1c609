// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/io/checkpoint.hpp>
#include <mha/io/safetensors.hpp>
#include <mha/io/safetensors_writer.hpp>
#include <mha/io/saved_weights.hpp>
#include <mha/mha.hpp>
#include <mha/policy/score/alibi_slopes.hpp>

#include "far_backend.hpp"
#include "random.hpp"
#include "scratch.hpp"
#include "trained_scores.hpp"

namespace {

namespace fs = std::filesystem;
using mha::load_weights;
using mha::Reference;
using mha::SafetensorsError;
using mha::SafetensorsWriter;
using mha::save_weights;
using mha_test::message_of;
using mha_test::Scratch;

template <class Part> void randomize(Part& part) {
  support::Random random("saved weights");
  part.update([&](auto& p) {
    mha::detail::each_saved(p, [&](const char*, const auto& v, int) {
      if (v.data == nullptr) return;
      const auto all = mha::detail::five_axes(v);
      mha::detail::each_row(all, [&](auto* row) {
        for (int i = 0; i < all.extent[4]; ++i)
          row[i * all.stride[4]] = support::Random::rounded<std::remove_pointer_t<decltype(row)>>(random.normal());
      });
    });
  });
}
/// f(name, view, rank) for the tensors of a part, to read.
template <class Part, class F> void each_saved_of(const Part& part, const F& f) {
  mha::detail::each_saved(part.parameters(), f);
  if constexpr (mha::detail::HasScoreAndSink<Part>)
    mha::detail::each_saved<mha::detail::trains_its_score<Part>()>(part.score(), part.sink(), f);
}
/// All numbers of a part's weights, in the order in which they are saved.
template <class Part> std::vector<double> numbers(const Part& part) {
  std::vector<double> all;
  each_saved_of(part, [&](const char*, const auto& v, int) {
    if (v.data == nullptr) return;
    const auto five = mha::detail::five_axes(v);
    mha::detail::each_row(five, [&](const auto* row) {
      for (int i = 0; i < five.extent[4]; ++i) all.push_back(static_cast<double>(row[i * five.stride[4]]));
    });
  });
  return all;
}

template <class Part> fs::path saved(const Scratch& scratch, const Part& part, const std::string& name = "part") {
  SafetensorsWriter file;
  save_weights(file, name, part);
  file.write(scratch.root() / "model.safetensors");
  return scratch.root() / "model.safetensors";
}
/// `other` is `part` once it is loaded, and has all its numbers.
template <class Part> void check_round_trip(Part part, Part other, std::size_t extra = 0) {
  const Scratch scratch;
  randomize(part);
  const mha::Safetensors file(saved(scratch, part));
  load_weights(file, "part", other);
  EXPECT_EQ(numbers(other), numbers(part));
  EXPECT_EQ(numbers(part).size(), static_cast<std::size_t>(part.parameter_count()) + extra);
  load_weights(mha::Checkpoint(scratch.root()), "part", other);  // over weights of its own
  EXPECT_EQ(numbers(other), numbers(part));
}
template <class Part, class... Config> void check_part(const Config&... config) {
  check_round_trip(Part(config...), Part(config...));
}

TEST(SavedWeights, AreThoseThatAreLoaded) {
  using mha::Cpu;
  check_part<mha::Linear<float>>(mha::LinearConfig{.inputs = 3, .outputs = 5});
  check_part<mha::Linear<double, Cpu, mha::SwiGlu>>(mha::LinearConfig{.inputs = 3, .outputs = 5});
  check_part<mha::Linear<mha::half, Reference>>(mha::LinearConfig{.inputs = 3, .outputs = 5, .bias = false});
  check_part<mha::FeedForward<float>>(mha::FeedForwardConfig{.d_model = 3, .d_hidden = 5});
  check_part<mha::FeedForward<mha::bfloat16, Cpu, mha::SwiGlu>>(
      mha::FeedForwardConfig{.d_model = 3, .d_hidden = 5, .bias = false});
  check_part<mha::LayerNorm<float>>(mha::NormConfig{.width = 7});
  check_part<mha::RmsNorm<double>>(mha::NormConfig{.width = 7});
  const mha::Config c{.d_model = 12, .num_heads = 4, .value_dim = 5, .kv_model = 7, .bias = true};
  check_part<mha::MultiHeadAttention<float>>(c);
  check_part<mha::MultiHeadAttention<double, Reference, mha::GroupedQuery<2>, mha::PerHeadProjection, mha::QkNorm>>(c);
  check_part<mha::MultiHeadAttention<float, Cpu, mha::GatedHeads, mha::MultiQuery>>(
      mha::Config{.d_model = 12, .num_heads = 4});
  check_part<mha::MultiHeadAttention<float, Reference, mha::NoOutput>>(mha::Config{.d_model = 12, .num_heads = 4});
}

TEST(SavedWeights, HaveAScoreAndASink) {
  const mha::Config c{.d_model = 8, .num_heads = 2};
  using Bent = support::BentScore<float>;
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, Bent, mha::Sink>;
  check_round_trip(Layer(c, Bent{.slope = 0.5f, .bend = 2}, mha::Sink({3, 4})),
                   Layer(c, Bent{.slope = 0, .bend = 0}, mha::Sink({0, 0})), 4);
  using Table = support::TableScore<3>;
  using Two = mha::Chain<mha::Chain<mha::Alibi, Table>, Bent>;
  const auto two = [](double x) {
    return Two{{mha::Alibi{}, Table{{x, 2 * x, 3}}}, Bent{.slope = float(x), .bend = 1}};
  };
  using Chained = mha::MultiHeadAttention<double, Reference, Two>;
  check_round_trip(Chained(c, two(1)), Chained(c, two(0)), 5);
  // The score as it was when it was saved, also in a file of another scalar.
  const Scratch scratch;
  Layer layer(c, Bent{.slope = 0.5f, .bend = 2}, mha::Sink({3, 4}));
  randomize(layer);
  SafetensorsWriter file;
  save_weights<mha::bfloat16>(file, "a", layer);
  file.write(scratch.root() / "m");
  Layer other(c, Bent{.slope = 0, .bend = 0}, mha::Sink({0, 0}));
  load_weights(mha::Safetensors(scratch.root() / "m"), "a", other);
  EXPECT_EQ(other.score().slope, 0.5f);
  EXPECT_EQ(other.sink().per_head(), (std::vector<float>{3, 4}));
}

/// A backend that sums the gradients of a score in memory of its own.
struct FarTrainer : support::Far {
  static constexpr bool sums_scores = true;
};
TEST(SavedWeights, HaveAScoreAndASinkOnADevice) {
  const mha::Config c{.d_model = 8, .num_heads = 2};
  using Layer = mha::MultiHeadAttention<float, FarTrainer, mha::AlibiSlopes, mha::Sink>;
  check_round_trip(Layer(c, mha::AlibiSlopes({0.5f, 2}), mha::Sink({3, 4})),
                   Layer(c, mha::AlibiSlopes({0, 0}), mha::Sink({0, 0})), 4);
}

TEST(SavedWeights, HaveNamesAndShapesOfOthers) {
  const Scratch scratch;
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::QkNorm> layer(
      {.d_model = 12, .num_heads = 6, .value_dim = 3, .kv_model = 5, .bias = true});
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> feed_forward({.d_model = 12, .d_hidden = 5, .bias = false});
  randomize(layer), randomize(feed_forward);
  SafetensorsWriter writer;
  save_weights(writer, "self_attn", layer);
  save_weights(writer, "", feed_forward);
  writer.write(scratch.root() / "m");
  const mha::Safetensors file(scratch.root() / "m");
  EXPECT_EQ(file.names(),
            (std::vector<std::string>{"down_proj.weight", "gate_proj.weight", "self_attn.k_norm.weight",
                                      "self_attn.k_proj.bias", "self_attn.k_proj.weight", "self_attn.o_proj.bias",
                                      "self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.q_proj.bias",
                                      "self_attn.q_proj.weight", "self_attn.v_proj.bias", "self_attn.v_proj.weight",
                                      "up_proj.weight"}));
  const auto is = [&](const char* name, const mha::TensorView<const float, 2>& in_out) {
    const auto stored = file.view<float, 2>(name);  // (out, in)
    ASSERT_EQ(stored.extent[0], in_out.extent[1]) << name;
    ASSERT_EQ(stored.extent[1], in_out.extent[0]) << name;
    for (int i = 0; i < in_out.extent[0]; ++i)
      for (int j = 0; j < in_out.extent[1]; ++j) EXPECT_EQ(stored(j, i), in_out(i, j)) << name;
  };
  const auto p = layer.parameters();
  is("self_attn.q_proj.weight", p.query.matrix());
  is("self_attn.k_proj.weight", p.key.matrix());
  is("self_attn.v_proj.weight", p.value.matrix());
  is("self_attn.o_proj.weight", p.output.weight);
  for (int i = 0; i < 6; ++i) EXPECT_EQ((file.view<float, 1>("self_attn.v_proj.bias")(i)), p.value.bias_row()(i));
  is("gate_proj.weight", feed_forward.parameters().up.gate);
  is("up_proj.weight", feed_forward.parameters().up.weight);
  is("down_proj.weight", feed_forward.parameters().down.weight);
}

TEST(SavedWeights, AreReadFromNarrowerScalars) {
  const Scratch scratch;
  mha::Linear<float, Reference> part({.inputs = 3, .outputs = 2});
  randomize(part);
  SafetensorsWriter writer;
  save_weights(writer, "float", part);
  save_weights<mha::bfloat16>(writer, "bfloat16", part);
  save_weights<mha::half>(writer, "half", part);
  save_weights<double>(writer, "double", part);
  const char odd = 0;
  writer.add("odd", mha::view(&odd, 1));
  writer.write(scratch.root() / "m");
  const mha::Safetensors file(scratch.root() / "m");
  const auto first = [&]<class T>(T, const char* name) {
    mha::Linear<T, Reference> to({.inputs = 3, .outputs = 2});
    load_weights(file, name, to);
    return static_cast<double>(to.parameters().weight(2, 1));
  };
  const float w = part.parameters().weight(2, 1);
  EXPECT_EQ(first(float{}, "bfloat16"), double(mha::bfloat16(w)));
  EXPECT_EQ(first(float{}, "half"), double(mha::half(w)));
  EXPECT_EQ(first(double{}, "float"), double(w));
  EXPECT_EQ(first(double{}, "bfloat16"), double(mha::bfloat16(w)));
  EXPECT_EQ(first(mha::half{}, "half"), double(mha::half(w)));
  const auto refused = [&](auto scalar, const char* name) {
    return message_of<SafetensorsError>([&] { first(scalar, name); });
  };
  const std::string at = (scratch.root() / "m").string() + ": tensor '";
  EXPECT_EQ(refused(float{}, "double"), at + "double.weight' has dtype F64, expected F32 or a narrower one");
  EXPECT_EQ(refused(mha::half{}, "float"), at + "float.weight' has dtype F32, expected F16");
  EXPECT_EQ(refused(mha::bfloat16{}, "half"), at + "half.weight' has dtype F16, expected BF16");
}

/// Whoever has written a file may have put its tensors at any byte.
TEST(SavedWeights, AreReadFromAnyPlace) {
  const Scratch scratch;
  const float numbers[] = {1, 2, 3, 4};
  const std::string json =
      R"({"n.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"n.bias":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  for (std::size_t shift = 0; shift < 4; ++shift) {
    const auto path = scratch.write(
        "m", mha_test::safetensors_bytes(json + std::string(shift, ' '),
                                         std::string(reinterpret_cast<const char*>(numbers), sizeof numbers)));
    mha::LayerNorm<float> norm({.width = 2});
    load_weights(mha::Safetensors(path), "n", norm);
    EXPECT_EQ(norm.parameters().weight(1), 2.f);
    EXPECT_EQ(norm.parameters().bias(0), 3.f);
  }
}

TEST(SavedWeights, RefusedOnesChangeNothing) {
  const Scratch scratch;
  using Linear = mha::Linear<float, Reference>;
  Linear part({.inputs = 3, .outputs = 2});
  randomize(part);
  const mha::Safetensors file(saved(scratch, part));
  const std::string at = file.path() + ": ";
  const auto refused = [&](auto to, const char* name = "part") {
    const std::string fresh = message_of<SafetensorsError>([&] { load_weights(file, name, to); });
    EXPECT_EQ(mha::detail::saved_count(to.parameters()), 0);
    randomize(to);
    const auto before = numbers(to);
    EXPECT_EQ(message_of<SafetensorsError>([&] { load_weights(file, name, to); }), fresh);
    EXPECT_EQ(numbers(to), before);
    return fresh;
  };
  EXPECT_EQ(refused(part = Linear({.inputs = 3, .outputs = 2}), "no"),
            at + "there is no tensor 'no.weight' among the 2 of this file");
  EXPECT_EQ(refused(Linear({.inputs = 2, .outputs = 3})),
            at + "tensor 'part.weight' has shape (2, 3), expected (3, 2)");
  EXPECT_EQ(refused(Linear({.inputs = 3, .outputs = 2, .bias = false})),
            at + "tensor 'part.bias' is there, but the part has none");
  EXPECT_EQ(refused(mha::Linear<float, Reference, mha::SwiGlu>({.inputs = 3, .outputs = 2})),
            at + "there is no tensor 'part.gate.weight' among the 2 of this file");

  // And what is packed of them.
  mha::Linear<float> packed({.inputs = 2, .outputs = 3});
  randomize(packed);
  const std::size_t bytes = packed.packed_bytes();
  EXPECT_GT(bytes, 0u);
  EXPECT_NE(message_of<SafetensorsError>([&] { load_weights(file, "part", packed); }), "");
  EXPECT_EQ(packed.packed_bytes(), bytes);

  // Those of a score and a Sink too, before the weights are written.
  using Sinking = mha::MultiHeadAttention<float, Reference, mha::Sink>;
  const auto with_sink = [](float x) { return Sinking({.d_model = 4, .num_heads = 2}, mha::Sink({x, x})); };
  auto sinking = with_sink(1);
  randomize(sinking);
  const mha::Safetensors of_sink(saved(scratch, sinking));
  mha::MultiHeadAttention<float, Reference> without({.d_model = 4, .num_heads = 2});
  EXPECT_EQ(message_of<SafetensorsError>([&] { load_weights(of_sink, "part", without); }),
            at + "tensor 'part.sinks' is there, but the part has none");
  EXPECT_EQ(mha::detail::saved_count(without.parameters()), 0);
  using Scored = mha::MultiHeadAttention<float, Reference, support::BentScore<float>>;
  Scored scored({.d_model = 4, .num_heads = 2}, support::BentScore<float>{.slope = 1, .bend = 1});
  randomize(scored);
  const mha::Safetensors of_score(saved(scratch, scored));
  EXPECT_EQ(message_of<SafetensorsError>([&] { load_weights(of_score, "part", without); }),
            at + "tensor 'part.score.0' is there, but the part has none");
}

/// What a policy refuses is refused before the weights are written, and those that are packed stay so.
TEST(SavedWeights, WithNumbersThatAPolicyRefusesChangeNothing) {
  const Scratch scratch;
  const mha::Config c{.d_model = 4, .num_heads = 2};
  mha::MultiHeadAttention<float> without_policy(c);
  randomize(without_policy);
  const std::vector<float> wrong{0.25f, std::numeric_limits<float>::infinity()};
  const auto refused = [&](auto to, const char* name) {
    SafetensorsWriter writer;
    save_weights(writer, "part", without_policy);
    writer.add(name, mha::view(wrong.data(), 2));
    writer.write(scratch.root() / "m");
    const mha::Safetensors file(scratch.root() / "m");
    const std::string fresh = message_of<mha::ShapeError>([&] { load_weights(file, "part", to); });
    EXPECT_EQ(mha::detail::saved_count(to.parameters()), 0);
    to.initialize(mha::XavierUniform{.seed = 1});
    const auto before = numbers(to);
    const std::size_t packed = to.packed_bytes();
    EXPECT_GT(packed, 0u);
    EXPECT_EQ(message_of<mha::ShapeError>([&] { load_weights(file, "part", to); }), fresh);
    EXPECT_EQ(numbers(to), before);
    EXPECT_EQ(to.packed_bytes(), packed);
    return fresh;
  };
  EXPECT_EQ(refused(mha::MultiHeadAttention<float, mha::Cpu, mha::Sink>(c, mha::Sink({1, 2})), "part.sinks"),
            "Sink: the logit of head 1 is inf, it must be below infinity");
  EXPECT_EQ(
      refused(mha::MultiHeadAttention<float, mha::Cpu, mha::AlibiSlopes>(c, mha::AlibiSlopes({1, 2})), "part.score.0"),
      "AlibiSlopes: the slope of head 1 is inf, not finite");
}

TEST(SavedWeights, MustBeThere) {
  SafetensorsWriter file;
  mha::Linear<float> linear({.inputs = 3, .outputs = 2});
  const auto refused = [&] { return message_of<mha::ShapeError>([&] { save_weights(file, "up", linear); }); };
  const std::string rest =
      " weights: call initialize, update or borrow first; drop_unpacked() and quantize() keep packed ones alone";
  EXPECT_EQ(refused(), "save_weights: 'up' has 0 of its 8" + rest);
  randomize(linear);
  EXPECT_EQ(refused(), "");
  linear.drop_unpacked();
  EXPECT_EQ(refused(), "save_weights: 'up' has 0 of its 8" + rest);
  mha::FeedForward<float> half_made({.d_model = 3, .d_hidden = 2});
  randomize(half_made.up());
  EXPECT_EQ(message_of<mha::ShapeError>([&] { save_weights(file, "mlp", half_made); }),
            "save_weights: 'mlp' has 8 of its 17" + rest);
  // Loading makes it whole.
  const Scratch scratch;
  mha::FeedForward<float> whole({.d_model = 3, .d_hidden = 2});
  randomize(whole);
  load_weights(mha::Safetensors(saved(scratch, whole)), "part", half_made);
  EXPECT_EQ(numbers(half_made), numbers(whole));
}

TEST(SavedWeights, AreNotReadIntoBorrowedOnes) {
  const Scratch scratch;
  mha::RmsNorm<float> norm({.width = 3}), borrower({.width = 3});
  borrower.borrow(norm.parameters());
  const mha::Safetensors file(saved(scratch, norm));
  EXPECT_NE(message_of<mha::ShapeError>([&] { load_weights(file, "part", borrower); }), "");
}

}  // namespace
