// SPDX-License-Identifier: Apache-2.0
// The models of examples/models on a backend, each on its checkpoint: how far it is from Hugging Face's.
#pragma once

#include <algorithm>
#include <concepts>
#include <filesystem>
#include <vector>

#include "bert.hpp"
#include "expected.hpp"
#include "gemma.hpp"
#include "gpt2.hpp"
#include "llama.hpp"
#include "t5.hpp"
#include "vit.hpp"

namespace models::testing {

inline std::filesystem::path data(const char* name) { return std::filesystem::path(MHA_MODELS_DATA) / name; }

/// With a folder of its own for the model: what it is compared with stays that of the checkpoint of this name.
template <class B> float bert(const char* name, const std::filesystem::path& folder) {
  const Bert<B> model{mha::Bert<float>(folder)};
  const Expected expected(data(name));
  std::vector<int> offsets{0};
  for (const int length : expected.ids("lengths")) offsets.push_back(offsets.back() + length);
  const Rows x = model(expected.ids("ids"), expected.ids("token_types"), offsets);
  return std::max(expected.difference(x, "last_hidden_state"),
                  expected.difference(model.pool(x, offsets), "pooler_output"));
}
/// The model for texts of at most as many tokens, where that matters.
template <class Model, class Weights> Model made_for(const Weights& weights, const std::vector<int>& ids) {
  if constexpr (std::constructible_from<Model, const Weights&, int>)
    return Model(weights, static_cast<int>(ids.size()));
  else
    return Model(weights);
}

/// Of Gpt2<B> or Llama<Norm, B>, with the weights of mha::Gpt2<float> or mha::Llama<float>.
template <class Model, class Weights> float decoder(const char* name, const std::filesystem::path& folder) {
  const Expected expected(data(name));
  const std::vector<int> ids = expected.ids("ids");
  return expected.difference(made_for<Model>(Weights(folder), ids)(ids), "logits");
}
/// Of the Gemma that config.json asks for.
template <class B> float gemma(const char* name, const std::filesystem::path& folder) {
  return with_gemma<B>(mha::Gemma<float>(folder).config(),
                       [&]<class Model>() { return decoder<Model, mha::Gemma<float>>(name, folder); });
}
template <class Model> float t5(const char* name, const std::filesystem::path& folder) {
  const Model model{mha::T5<float>(folder)};
  const Expected expected(data(name));
  const Rows memory = model.encode(expected.ids("ids"));
  return std::max(expected.difference(memory, "encoder_last_hidden_state"),
                  expected.difference(model.decode(expected.ids("decoder_ids"), memory), "logits"));
}
template <class B> float vit(const char* name, const std::filesystem::path& folder) {
  const Vit<B> model{mha::Vit<float>(folder)};
  const Expected expected(data(name));
  return expected.difference(model(expected.pixels()), "logits");
}

using Check = float (*)(const char* name, const std::filesystem::path& folder);
struct Case {
  const char* name;
  Check check;
};
/// Every checkpoint on backend B.
template <class B>
inline constexpr Case cases[]{
    {"bert", bert<B>},
    {"gpt2", decoder<Gpt2<B>, mha::Gpt2<float>>},
    {"llama", decoder<Llama<mha::NoNorm, B>, mha::Llama<float>>},
    {"mistral", decoder<Llama<mha::NoNorm, B>, mha::Llama<float>>},
    {"qwen2", decoder<Llama<mha::NoNorm, B>, mha::Llama<float>>},
    {"qwen3", decoder<Llama<mha::QkNorm, B>, mha::Llama<float>>},
    {"phi3", decoder<Llama<mha::NoNorm, B>, mha::Llama<float>>},
    {"gemma", gemma<B>},
    {"gemma2", gemma<B>},
    {"gemma3", gemma<B>},
    {"t5", t5<T5<mha::Relu, B>>},
    {"t5_v1_1", t5<T5<GatedGelu, B>>},
    {"vit", vit<B>},
};

}  // namespace models::testing
