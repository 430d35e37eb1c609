// SPDX-License-Identifier: Apache-2.0
#include "language_model.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "gemma.hpp"
#include "gpt2.hpp"
#include "llama.hpp"
#include "stored.hpp"

namespace generate {
namespace {

namespace fs = std::filesystem;

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
  mha::KvCache<S, F> cache_;
  mha::SequenceId id_;
  models::Work work_;
};

template <class Model> class OfFamily final : public LanguageModel {
 public:
  template <class Weights, class... Length>
  OfFamily(const Weights& weights, ModelFacts facts, Length... length)
      : LanguageModel(std::move(facts)), model_(weights, length...) {}

  std::size_t weight_bytes() const override { return model_.packed_bytes(); }

  std::unique_ptr<Text> begin(const CacheOptions& options) const override {
    return options.bfloat16 ? stored_as<mha::bfloat16>(options) : stored_as<float>(options);
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

/// The tokens of a number, or of a list of numbers.
std::vector<int> tokens_of(const mha::ConfigFile& file, const char* key) {
  std::vector<int> tokens;
  if (const auto* const value = file.find(key)) {
    for (const auto& token : value->is_array() ? *value : mha::ConfigFile::Json::array({*value}))
      tokens.push_back(file.positive_of(token, key, 0));
  }
  return tokens;
}

/// generation_config.json knows better than config.json what ends a text, if it is there and says so.
std::vector<int> ends_of(const fs::path& folder, const mha::ConfigFile& config) {
  if (const fs::path path = folder / "generation_config.json"; fs::exists(path))
    if (auto ends = tokens_of(mha::ConfigFile(path), "eos_token_id"); !ends.empty()) return ends;
  return tokens_of(config, "eos_token_id");
}

/// The longest window of all layers; 0 if one has none.
int window_of(const mha::DecoderConfig& config) {
  const auto [shortest, longest] = std::minmax_element(config.windows.begin(), config.windows.end());
  return *shortest == 0 ? 0 : *longest;
}

const char* scalar_of(const mha::TensorView<const float, 2>&) { return "float"; }
const char* scalar_of(const mha::TensorView<const mha::bfloat16, 2>&) { return "bfloat16"; }
const char* scalar_of(const mha::TensorView<const mha::half, 2>&) { return "half"; }

/// f(weights) of a family.
template <template <class> class Family, class F>
auto with_weights(const mha::Checkpoint& checkpoint, Weights scalar, const F& f) {
  return scalar == Weights::as_float ? f(Family<float>(checkpoint)) : models::with_stored<Family>(checkpoint, f);
}

}  // namespace

OpenedModel open_weights(const fs::path& folder, Weights scalar) {
  if (!fs::is_regular_file(folder / "config.json"))
    throw std::runtime_error("there is no model in '" + folder.string() +
                             "': it should be a folder with config.json and model.safetensors");
  const mha::ConfigFile config(folder / "config.json");
  ModelFacts facts{.random_weights = config.flag_or("mha_random_weights", false), .ends = ends_of(folder, config)};
  const std::string family = config.text("model_type");
  const auto opened = [&](const auto& weights, const auto& make) -> OpenedModel {
    if (!weights.has_output())
      config.fail("the checkpoint has no lm_head and 'tie_word_embeddings' is false, so it cannot name a next token");
    facts.vocabulary = weights.config().vocabulary;
    facts.positions = weights.config().positions;
    facts.scalar = scalar_of(weights.token_embeddings());
    return {facts, [facts, weights, make](int length) { return make(weights, facts, length); }};
  };
  const auto gpt2 = [&](const auto& weights) {
    return opened(weights, [](const auto& w, const ModelFacts& f, int) -> std::unique_ptr<LanguageModel> {
      return std::make_unique<OfFamily<models::Gpt2<>>>(w, f);
    });
  };
  const auto decoder = [&](const auto& weights, const auto& make) {
    facts.window = window_of(weights.config());
    facts.stretches = weights.config().rope.type == "dynamic";
    return opened(weights, make);
  };
  const auto llama = [&](const auto& weights) {
    return decoder(weights, [](const auto& w, const ModelFacts& f, int length) -> std::unique_ptr<LanguageModel> {
      if (w.config().qk_norm) return std::make_unique<OfFamily<models::Llama<mha::QkNorm>>>(w, f, length);
      return std::make_unique<OfFamily<models::Llama<>>>(w, f, length);
    });
  };
  const auto gemma = [&](const auto& weights) {
    return decoder(weights, [](const auto& w, const ModelFacts& f, int length) {
      return models::with_gemma(w.config(), [&]<class Model>() -> std::unique_ptr<LanguageModel> {
        return std::make_unique<OfFamily<Model>>(w, f, length);
      });
    });
  };
  if (family == "gpt2") return with_weights<mha::Gpt2>(mha::Checkpoint(folder), scalar, gpt2);
  if (family.starts_with("gemma")) return with_weights<mha::Gemma>(mha::Checkpoint(folder), scalar, gemma);
  if (family != "llama" && family != "mistral" && family != "qwen2" && family != "qwen3" && family != "phi3")
    config.refuse("model_type", family, "gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 or gemma3_text");
  return with_weights<mha::Llama>(mha::Checkpoint(folder), scalar, llama);
}

std::unique_ptr<LanguageModel> open_model(const fs::path& folder, Weights scalar, int length) {
  return open_weights(folder, scalar).make(length);
}

}  // namespace generate
