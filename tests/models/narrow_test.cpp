// SPDX-License-Identifier: Apache-2.0
// Weights in 16 bits have the bits of the same weights in float, and take half the memory; work that is kept is
// allocated once.
#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "checkpoint_copy.hpp"
#include "checks.hpp"
#include "failing_new.hpp"
#include "stored.hpp"

namespace {

using namespace models;
using models::testing::data;
using Results = std::vector<Rows>;

/// The logits of the text as a whole, then token by token.
template <class Model> Results results_of(const Model& model, const Expected& expected) {
  const std::vector<int> ids = expected.ids("ids");
  Results all{model(ids)};
  auto cache = model.make_cache(mha::Contiguous{.length = static_cast<int>(ids.size())});
  const mha::SequenceId text = cache.add();
  Work work;
  for (const int& id : ids) {
    auto step = cache.step(text, 1);
    all.push_back(model.next(std::span(&id, 1), step, work));
    step.commit();
  }
  return all;
}
template <class B, class W> Results results(const mha::Gpt2<W>& weights, const Expected& expected) {
  return results_of(Gpt2<B>(weights), expected);
}
template <class B, class W> Results results(const mha::Llama<W>& weights, const Expected& expected) {
  return weights.config().qk_norm ? results_of(Llama<mha::QkNorm, B>(weights), expected)
                                  : results_of(Llama<mha::NoNorm, B>(weights), expected);
}
template <class B, class W> Results results(const mha::Gemma<W>& weights, const Expected& expected) {
  return with_gemma<B>(weights.config(), [&]<class Model>() { return results_of(Model(weights), expected); });
}
template <class B, class W> Results results(const mha::Bert<W>& weights, const Expected& expected) {
  std::vector<int> offsets{0};
  for (const int length : expected.ids("lengths")) offsets.push_back(offsets.back() + length);
  const Bert<B> bert(weights);
  const Rows x = bert(expected.ids("ids"), expected.ids("token_types"), offsets);
  return {x, bert.pool(x, offsets)};
}
template <class B, class W> Results results(const mha::T5<W>& weights, const Expected& expected) {
  const auto run = [&](const auto& t5) -> Results {
    const Rows memory = t5.encode(expected.ids("ids"));
    return {memory, t5.decode(expected.ids("decoder_ids"), memory)};
  };
  return weights.config().activation == "relu" ? run(T5<mha::Relu, B>(weights)) : run(T5<GatedGelu, B>(weights));
}
template <class B, class W> Results results(const mha::Vit<W>& weights, const Expected& expected) {
  return {Vit<B>(weights)(expected.pixels())};
}

template <class W, template <class> class Family, class B> void expect_bits_of_float(const char* name) {
  SCOPED_TRACE(name);
  const Expected expected(data(name));
  mha_test::CheckpointCopy narrow(data(name)), wide(data(name));
  const mha::Checkpoint stored(narrow.write_as<W>());
  wide.file = narrow.file;  // rounded
  const Results ours = results<B>(Family<W>(stored), expected),
                theirs = results<B>(Family<float>(wide.write()), expected);
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(ours[i].allFinite());
    if constexpr (std::same_as<B, mha::EigenCpu>)  // its sums depend on how a matrix is stored
      EXPECT_TRUE(ours[i].isApprox(theirs[i], tolerance)) << i;
    else
      EXPECT_EQ(ours[i], theirs[i]) << i;
  }
  const bool rounds = mha::Checkpoint(data(name)).info(stored.names().front()).dtype == "F32";
  if (rounds) {
    EXPECT_NE(ours[0], (results<B>(Family<float>(data(name)), expected)[0])) << "nothing was rounded";
  }
}

template <class W, class B> void expect_bits_of_float_in_every_family() {
  expect_bits_of_float<W, mha::Bert, B>("bert");
  expect_bits_of_float<W, mha::Gpt2, B>("gpt2");
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "phi3"}) expect_bits_of_float<W, mha::Llama, B>(name);
  for (const char* name : {"gemma", "gemma2", "gemma3"}) expect_bits_of_float<W, mha::Gemma, B>(name);
  for (const char* name : {"t5", "t5_v1_1"}) expect_bits_of_float<W, mha::T5, B>(name);
  expect_bits_of_float<W, mha::Vit, B>("vit");
}

TEST(NarrowModels, HaveTheBitsOfTheSameWeightsInFloat) {
  expect_bits_of_float_in_every_family<mha::bfloat16, mha::Cpu>();
  expect_bits_of_float_in_every_family<mha::half, mha::Cpu>();
}

TEST(NarrowModels, HaveThemOnOtherBackends) {
  expect_bits_of_float<mha::bfloat16, mha::Llama, mha::Reference>("qwen2");
  expect_bits_of_float<mha::half, mha::Gpt2, mha::EigenCpu>("gpt2");
  expect_bits_of_float<mha::bfloat16, mha::Llama, mha::Systolic<>>("qwen3");
}

/// Two layers of LLaMA, 770,000 weights.
struct LargeLlama : mha_test::ModelFolder<float> {
  static constexpr int E = 144, H = 528, V = 1008;  // columns that are packed without padding
  static constexpr std::size_t in_products = 2 * (std::size_t{4} * E * E + 3 * E * H) + E * V,
                               in_all = in_products + 5 * E;

  LargeLlama() {
    config = {{"model_type", "llama"},       {"num_hidden_layers", 2}, {"hidden_size", E},
              {"num_attention_heads", 8},    {"intermediate_size", H}, {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", true}, {"vocab_size", V},        {"max_position_embeddings", 32}};
    add("embed_tokens.weight", {V, E});
    for (const std::string at : {"layers.0.", "layers.1."}) {
      for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"})
        add_linear(at + "self_attn." + part, E, E, false);
      for (const char* part : {"gate_proj", "up_proj"}) add_linear(at + "mlp." + part, H, E, false);
      add_linear(at + "mlp.down_proj", E, H, false);
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add_norm(at + norm, E, false);
    }
    add_norm("norm", E, false);
  }
};

TEST(NarrowModels, AreNeverWidened) {
  constexpr std::size_t weights = LargeLlama::in_products, smallest = std::size_t{4} * LargeLlama::E * LargeLlama::E;
  LargeLlama folder;
  const auto allocated = [&](const auto& open) {
    const mha::Checkpoint checkpoint(folder.scratch.root());
    support::all_allocations = 0;
    const Llama<> model = open(checkpoint);
    const std::size_t bytes = support::all_allocations;
    EXPECT_EQ(model(std::vector<int>{1, 2, 3}).cols(), LargeLlama::V);
    return std::pair(model.packed_bytes(), bytes);
  };
  const auto as_float = [](const mha::Checkpoint& c) { return Llama<>(mha::Llama<float>(c)); };
  const auto as_stored = [](const mha::Checkpoint& c) {
    return with_stored<mha::Llama>(c, [](const auto& w) { return Llama<>(w); });
  };
  const auto expect_half = [&] {
    const auto [packed, all] = allocated(as_stored);
    EXPECT_EQ(packed, 2 * weights);
    EXPECT_LT(all, 2 * weights + smallest) << "no matrix was widened";
    const auto [packed_wide, all_wide] = allocated(as_float);
    EXPECT_EQ(packed_wide, 4 * weights);
    EXPECT_GT(all_wide, 4 * weights + 4 * LargeLlama::in_all) << "the reader's copies too";
  };
  folder.write_as<mha::bfloat16>();
  expect_half();
  folder.write_as<mha::half>();
  expect_half();
  folder.write();
  const auto [packed, all] = allocated(as_stored);
  EXPECT_EQ(packed, 4 * weights);
  EXPECT_LT(all, 4 * weights + smallest);
}

// A byte for a number, and a scale for each output in every 256 inputs.
TEST(NarrowModels, AreNeverWidenedToBeRounded) {
  constexpr std::size_t e = LargeLlama::E, h = LargeLlama::H, v = LargeLlama::V;
  constexpr std::size_t scales = 2 * (4 * e + 2 * h + 3 * e) + v, bytes = LargeLlama::in_products + 4 * scales;
  LargeLlama folder;
  const auto expect_bytes = [&] {
    const mha::Checkpoint checkpoint(folder.scratch.root());
    support::all_allocations = 0;
    const auto model = with_stored<mha::Llama>(
        checkpoint, [](const auto& weights) { return Llama<>(weights, 0, Matrices::in_8_bits); });
    EXPECT_LT(support::all_allocations, bytes + 4 * e * e) << "no matrix was widened";
    EXPECT_EQ(model.packed_bytes(), bytes);
    EXPECT_EQ(model(std::vector<int>{1, 2, 3}).cols(), LargeLlama::V);
  };
  folder.write();
  expect_bytes();
  folder.write_as<mha::bfloat16>();
  expect_bytes();
}

// Nobody but the model holds the file that its tables are in.
TEST(NarrowModels, KeepTheirTables) {
  const Expected expected(data("qwen3"));
  const auto ids = expected.ids("ids");
  const auto model = with_stored<mha::Llama>(mha::Checkpoint(data("qwen3")),
                                             [](const auto& weights) { return Llama<mha::QkNorm>(weights); });
  EXPECT_LT(expected.difference(model(ids), "logits"), tolerance);
  const Llama<mha::QkNorm> copy = model;
  EXPECT_EQ(copy(ids), model(ids));
}

/// call() for the second time allocates nothing, and reads nothing that the first left in the works.
template <class Call, class... Works> void expect_kept(const Rows& fresh, const Call& call, Works&... works) {
  call();
  for (Work* const work : {static_cast<Work*>(&works)...})
    for (Rows* const rows : {&work->x, &work->h, &work->r, &work->logits}) rows->setConstant(std::nanf(""));
  support::all_allocations = 0;
  const Rows& again = call();
  EXPECT_EQ(support::all_allocations, 0u);
  EXPECT_EQ(again, fresh);
}

// Those that go through a cache: cached_test.cpp.
TEST(ModelsWork, IsAllocatedOnce) {
  const auto expect_whole_text_kept = [](const auto& model, const char* name) {
    const auto ids = Expected(data(name)).ids("ids");
    Work work;
    expect_kept(
        model(ids), [&]() -> const Rows& { return model(ids, work); }, work);
  };
  expect_whole_text_kept(Gpt2<>(mha::Gpt2<float>(data("gpt2"))), "gpt2");
  expect_whole_text_kept(Llama<>(mha::Llama<float>(data("mistral"))), "mistral");
  expect_whole_text_kept(Llama<>(mha::Llama<float>(data("phi3"))), "phi3");
  expect_whole_text_kept(Gemma<mha::NoNorm, mha::SoftCap>(mha::Gemma<float>(data("gemma2"))), "gemma2");
  {
    const Expected expected(data("bert"));
    const Bert<> bert(mha::Bert<float>(data("bert")));
    const auto ids = expected.ids("ids"), types = expected.ids("token_types");
    const std::vector<int> offsets{0, 2, static_cast<int>(ids.size())};
    Work work;
    expect_kept(
        bert(ids, types, offsets), [&]() -> const Rows& { return bert(ids, types, offsets, work); }, work);
    expect_kept(
        bert.pool(bert(ids, types, offsets), offsets),
        [&]() -> const Rows& { return bert.pool(bert(ids, types, offsets, work), offsets, work); }, work);
  }
  {
    const Expected expected(data("t5"));
    const T5<> t5(mha::T5<float>(data("t5")));
    const auto source = expected.ids("ids"), target = expected.ids("decoder_ids");
    Work encoder, decoder;
    const auto call = [&]() -> const Rows& { return t5.decode(target, t5.encode(source, encoder), decoder); };
    expect_kept(t5.decode(target, t5.encode(source)), call, encoder, decoder);
    EXPECT_THROW(t5.decode(target, encoder.x, encoder), std::invalid_argument);
  }
  const Expected expected(data("vit"));
  const Vit<> vit(mha::Vit<float>(data("vit")));
  VitWork work;
  expect_kept(
      vit(expected.pixels()), [&]() -> const Rows& { return vit(expected.pixels(), work); }, work);
}

TEST(StoredWeights, AreOfTheScalarOfTheFile) {
  const auto scalar = [](const mha::Checkpoint& c) {
    return with_stored<mha::Gpt2>(
        c, []<class W>(const mha::Gpt2<W>&) { return std::string_view(mha::detail::safetensors_dtype<W>()); });
  };
  mha_test::CheckpointCopy folder(data("gpt2"));
  EXPECT_EQ(scalar(mha::Checkpoint(data("gpt2"))), "F32");
  EXPECT_EQ(scalar(mha::Checkpoint(folder.write_as<mha::half>())), "F16");
  EXPECT_EQ(scalar(mha::Checkpoint(folder.write_as<mha::bfloat16>())), "BF16");
}

// What the reader of float says, if none can be opened.
TEST(StoredWeights, ThatDoNotFitAreOneSentence) {
  mha_test::CheckpointCopy folder(data("gpt2"));
  folder.config["n_positions"] = 15;
  const mha::Checkpoint checkpoint(folder.write_as<mha::bfloat16>());
  EXPECT_EQ(
      mha_test::message_of<mha::SafetensorsError>([&] { with_stored<mha::Gpt2>(checkpoint, [](const auto&) {}); }),
      mha_test::message_of<mha::SafetensorsError>([&] { mha::Gpt2<float>{checkpoint}; }));
  EXPECT_THROW(mha::Gpt2<float>{checkpoint}, mha::SafetensorsError);
}

}  // namespace
