// SPDX-License-Identifier: Apache-2.0
// Decoders whose matrices are rounded to 8 or 4 bits.
#include <cstddef>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/systolic.hpp>

#include "checkpoint_copy.hpp"
#include "checks.hpp"

namespace {

using namespace models;
using models::testing::data;

/// f(model, name) with every decoder on B, of weights of W in a folder of its checkpoint.
template <class B, class W, class Folder, class F> void each_decoder(const Folder& folder, Matrices matrices, F f) {
  f(Gpt2<B>(mha::Gpt2<W>(folder("gpt2")), matrices), "gpt2");
  for (const char* name : {"llama", "mistral", "qwen2", "phi3"})
    f(Llama<mha::NoNorm, B>(mha::Llama<W>(folder(name)), 0, matrices), name);
  f(Llama<mha::QkNorm, B>(mha::Llama<W>(folder("qwen3")), 0, matrices), "qwen3");
  for (const char* name : {"gemma", "gemma2", "gemma3"}) {
    const mha::Gemma<W> weights(folder(name));
    with_gemma<B>(weights.config(), [&]<class Model>() { f(Model(weights, 0, matrices), name); });
  }
}

/// The logits of every decoder's text.
template <class B, class W, class Folder> std::vector<Rows> logits(const Folder& folder, Matrices matrices) {
  std::vector<Rows> all;
  each_decoder<B, W>(folder, matrices, [&](const auto& model, const char* name) {
    all.push_back(model(Expected(data(name)).ids("ids")));
  });
  return all;
}

float difference(const Rows& a, const Rows& b) {
  return (a - b).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() / b.cwiseAbs().maxCoeff();
}

/// How matrices are rounded, and how far that moves the logits of these small models at least and at most.
struct Rounding {
  Matrices matrices;
  float least, most;
};
class RoundedModels : public ::testing::TestWithParam<Rounding> {};

INSTANTIATE_TEST_SUITE_P(To, RoundedModels,
                         ::testing::Values(Rounding{Matrices::in_8_bits, tolerance, 0.05f},
                                           Rounding{Matrices::in_4_bits, 0.05f, 1.0f}),
                         [](const auto& to) {
                           return to.param.matrices == Matrices::in_8_bits ? "EightBits" : "FourBits";
                         });

// Logits of a text at once and token by token have the same bits, and are close to those of exact weights.
TEST_P(RoundedModels, AreCloseToTheirCheckpoint) {
  each_decoder<mha::Cpu, float>(data, GetParam().matrices, [](const auto& model, const char* name) {
    SCOPED_TRACE(name);
    const Expected expected(data(name));
    const std::vector<int> ids = expected.ids("ids");
    const Rows whole = model(ids);
    EXPECT_LT(expected.difference(whole, "logits"), GetParam().most);
    EXPECT_GT(expected.difference(whole, "logits"), GetParam().least) << "nothing was rounded, or to more bits";
    auto cache = model.make_cache(mha::Contiguous{.length = static_cast<int>(ids.size())});
    const mha::SequenceId text = cache.add();
    Work work;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto step = cache.step(text, 1);
      EXPECT_EQ(model.next(std::span(&ids[i], 1), step, work), whole.row(static_cast<Eigen::Index>(i))) << i;
      step.commit();
    }
  });
}

TEST_P(RoundedModels, HaveTheBitsOfTheSameCheckpointInAWiderScalar) {
  std::list<mha_test::CheckpointCopy> copies;
  const auto folder = [&](const char* name) { return copies.emplace_back(data(name)).write_as<mha::bfloat16>(); };
  const auto narrow = logits<mha::Cpu, mha::bfloat16>(folder, GetParam().matrices),
             wide = logits<mha::Cpu, float>(folder, GetParam().matrices);
  ASSERT_EQ(narrow.size(), wide.size());
  for (std::size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(narrow[i], wide[i]) << i;
}

// The rounded numbers are the same, in few bits or not.
TEST_P(RoundedModels, AreRoundedOnOtherBackends) {
  const Matrices matrices = GetParam().matrices;
  const auto cpu = logits<mha::Cpu, float>(data, matrices), reference = logits<mha::Reference, float>(data, matrices),
             systolic = logits<mha::Systolic<>, float>(data, matrices);
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_LT(difference(reference[i], cpu[i]), tolerance) << i;
    EXPECT_LT(difference(systolic[i], cpu[i]), 0.05f) << i;
  }
}

}  // namespace
