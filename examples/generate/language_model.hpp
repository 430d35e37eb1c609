// SPDX-License-Identifier: Apache-2.0
// A checkpoint of any family that examples/models can continue, behind one type.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "machine.hpp"

namespace generate {

enum class Storage { contiguous, paged, ring };

/// The scalar of the weights' matrices: bfloat16 or half where the checkpoint's tensors are all that, else float; float
/// in any case, with the same numbers and so the same bits of what is computed; or rounded to mha::scaled_int8 or
/// mha::scaled_int4.
enum class Weights { as_stored, as_float, in_int8, in_int4 };

using models::Machine;

/// What keys and values are stored as: int8 stands for mha::scaled_int8, which has a scale for each row.
enum class Stored { in_float, in_bfloat16, in_int8 };

struct CacheOptions {
  Storage storage = Storage::contiguous;
  Stored stored = Stored::in_float;
  int positions = 0;  ///< the longest text; a ring goes on for ever
  int chunk = 0;      ///< the most tokens of one read()
};

/// A text that a model reads; what it has read is in a key/value cache.
class Text {
 public:
  virtual ~Text() = default;
  /// Reads the tokens that follow. Returns the logits (V) of the next one, valid until the next call.
  virtual std::span<const float> read(std::span<const int> ids) = 0;
  virtual std::size_t cache_bytes() const = 0;
};

/// What config.json says about using a model.
struct ModelFacts {
  int vocabulary = 0, positions = 0;
  int window = 0;          ///< how many tokens every layer looks back at most, its own among them; 0: at all
  bool stretches = false;  ///< positions go on beyond those, made for a longer text
  bool random_weights = false;
  std::vector<int> ends;         ///< tokens that end a text
  const char* scalar = "float";  ///< of the matrices
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  const ModelFacts& facts() const { return facts_; }
  /// The memory of the packed matrices: what the step of one token reads.
  virtual std::size_t weight_bytes() const = 0;
  /// A text without tokens. The model must outlive it.
  ///
  /// Errors    std::runtime_error if it should be a ring and a layer sees everything; std::bad_alloc
  virtual std::unique_ptr<Text> begin(const CacheOptions& options) const = 0;

 protected:
  explicit LanguageModel(ModelFacts facts) : facts_(std::move(facts)) {}

 private:
  ModelFacts facts_;
};

/// What a folder has, of which a model is made for a longest text.
struct OpenedModel {
  ModelFacts facts;
  /// For texts of at most `length` tokens, where positions depend on it; 0 is as many as the model has positions.
  std::function<std::unique_ptr<LanguageModel>(int length)> make;
};

/// The weights of a folder with config.json and model.safetensors, or its shards, as Hugging Face stores GPT-2, LLaMA,
/// Mistral, Qwen 2, Qwen 3, Phi-3, Gemma, Gemma 2 and Gemma 3's text model.
///
/// Errors    std::runtime_error, one sentence, if there is no such folder, the model is of another family, a tensor is
///           not as config.json says, or there is no matrix unit and MHA_MATRIX_UNIT does not name one
OpenedModel open_weights(const std::filesystem::path& folder, Weights weights = Weights::as_stored,
                         Machine machine = Machine::cpu);

/// The model of such a folder.
std::unique_ptr<LanguageModel> open_model(const std::filesystem::path& folder, Weights weights = Weights::as_stored,
                                          int length = 0, Machine machine = Machine::cpu);

}  // namespace generate
