// SPDX-License-Identifier: Apache-2.0
// The models of all families on one backend, for families_cpu.cpp and families_systolic.cpp: two units, because each
// compiles every family.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "gemma.hpp"
#include "gpt2.hpp"
#include "language_model.hpp"
#include "llama.hpp"
#include "open_family.hpp"
#include "source.hpp"
#include "stored.hpp"

namespace generate {
namespace families {

/// A cache, the one sequence in it, and the memory that steps work in.
template <class Model, class F, class S> class CachedText final : public Text {
 public:
  CachedText(const Model& model, const S& storage)
      : model_(model), cache_(model.template make_cache<F>(storage)), id_(cache_.add()) {}

  std::span<const float> read(std::span<const int> ids) override {
    auto step = cache_.step(id_, static_cast<int>(ids.size()));
    const models::Rows& logits = model_.next(ids, step, work_);  // (1, V)
    step.commit();
    return {logits.data(), static_cast<std::size_t>(logits.size())};
  }
  std::size_t cache_bytes() const override { return cache_.bytes(); }

 private:
  const Model& model_;
  decltype(std::declval<const Model&>().template make_cache<F>(std::declval<const S&>())) cache_;
  mha::SequenceId id_;
  models::Work work_;
};

template <class Model> class OfFamily final : public LanguageModel {
 public:
  /// Options   of the model: the length where positions depend on it, and how it keeps its matrices
  template <class Weights, class... Options>
  OfFamily(const Weights& weights, ModelFacts facts, Options... options)
      : LanguageModel(std::move(facts)), model_(weights, options...) {}

  std::size_t weight_bytes() const override { return model_.packed_bytes(); }

  std::unique_ptr<Text> begin(const CacheOptions& options) const override {
    switch (options.stored) {
      case Stored::in_bfloat16:
        return stored_as<mha::bfloat16>(options);
      case Stored::in_int8:
        return stored_as<mha::scaled_int8>(options);
      default:
        return stored_as<float>(options);
    }
  }

 private:
  template <class F> std::unique_ptr<Text> stored_as(const CacheOptions& o) const {
    if (o.storage == Storage::contiguous) return text<F>(mha::Contiguous{.length = o.positions});
    if (o.storage == Storage::paged) {
      constexpr int page = 64;
      return text<F>(mha::Paged{.pages = (o.positions - 1) / page + 1, .length = o.positions, .page = page});
    }
    if (facts().window == 0)
      throw std::runtime_error("a ring keeps the last tokens alone, but a layer of this model looks back at all");
    return text<F>(mha::Ring{.left = facts().window - 1, .rows = o.chunk});
  }

  template <class F, class S> std::unique_ptr<Text> text(const S& storage) const {
    return std::make_unique<CachedText<Model, F, S>>(model_, storage);
  }

  Model model_;
};

/// The longest window of all layers; 0 if one has none.
inline int window_of(const mha::DecoderConfig& config) {
  const auto [shortest, longest] = std::minmax_element(config.windows.begin(), config.windows.end());
  return *shortest == 0 ? 0 : *longest;
}

inline models::Matrices matrices_of(Weights scalar) {
  return scalar == Weights::in_int8   ? models::Matrices::in_8_bits
         : scalar == Weights::in_int4 ? models::Matrices::in_4_bits
                                      : models::Matrices::as_stored;
}

/// The scalar of matrices, whose checkpoint has these numbers.
inline const char* scalar_of(models::Matrices matrices, const models::Table& stored) {
  if (matrices == models::Matrices::in_8_bits) return "scaled_int8";
  if (matrices == models::Matrices::in_4_bits) return "scaled_int4";
  constexpr const char* names[] = {"float", "bfloat16", "half"};  // as Table lists them
  return names[stored.index()];
}

/// f(weights) of a family.
template <template <class> class Family, class F>
auto with_weights(const mha::Checkpoint& checkpoint, Weights scalar, const F& f) {
  return scalar == Weights::as_float ? f(Family<float>(checkpoint)) : models::with_stored<Family>(checkpoint, f);
}

}  // namespace families

template <mha::Backend B>
OpenedModel open_family(const std::filesystem::path& folder, const mha::ConfigFile& config, ModelFacts facts,
                        Weights scalar) {
  using namespace families;
  const std::string family = config.text("model_type");
  const models::Matrices matrices = matrices_of(scalar);
  const auto opened = [&](const auto& weights, const auto& make) -> OpenedModel {
    if (!weights.has_output())
      config.fail("the checkpoint has no lm_head and 'tie_word_embeddings' is false, so it cannot name a next token");
    facts.vocabulary = weights.config().vocabulary;
    facts.positions = weights.config().positions;
    facts.scalar = scalar_of(matrices, weights.token_embeddings());
    return {facts, [facts, weights, make](int length) { return make(weights, facts, length); }};
  };
  const auto gpt2 = [&](const auto& weights) {
    return opened(weights, [matrices](const auto& w, const ModelFacts& f, int) -> std::unique_ptr<LanguageModel> {
      return std::make_unique<OfFamily<models::Gpt2<B>>>(w, f, matrices);
    });
  };
  const auto decoder = [&](const auto& weights, const auto& make) {
    facts.window = window_of(weights.config());
    facts.stretches = weights.config().rope.type == "dynamic";
    return opened(weights, make);
  };
  const auto llama = [&](const auto& weights) {
    return decoder(weights,
                   [matrices](const auto& w, const ModelFacts& f, int length) -> std::unique_ptr<LanguageModel> {
                     if (w.config().qk_norm)
                       return std::make_unique<OfFamily<models::Llama<mha::QkNorm, B>>>(w, f, length, matrices);
                     return std::make_unique<OfFamily<models::Llama<mha::NoNorm, B>>>(w, f, length, matrices);
                   });
  };
  const auto gemma = [&](const auto& weights) {
    return decoder(weights, [matrices](const auto& w, const ModelFacts& f, int length) {
      return models::with_gemma<B>(w.config(), [&]<class Model>() -> std::unique_ptr<LanguageModel> {
        return std::make_unique<OfFamily<Model>>(w, f, length, matrices);
      });
    });
  };
  if (family == "gpt2") return with_weights<mha::Gpt2>(mha::Checkpoint(folder), scalar, gpt2);
  if (family.starts_with("gemma")) return with_weights<mha::Gemma>(mha::Checkpoint(folder), scalar, gemma);
  if (family != "llama" && family != "mistral" && family != "qwen2" && family != "qwen3" && family != "phi3")
    config.refuse("model_type", family, "gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 or gemma3_text");
  return with_weights<mha::Llama>(mha::Checkpoint(folder), scalar, llama);
}

}  // namespace generate
