// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <mha/backend/systolic/unit.hpp>

#include "generation.hpp"
#include "language_model.hpp"
#include "sampler.hpp"
#include "text_stream.hpp"
#include "tokenizer.hpp"

namespace generate {
namespace {

constexpr int kBytes = 256;
constexpr int kTokens = 128;  // unless told otherwise, and as far as there are positions

struct Options {
  std::string model = GENERATE_DEFAULT_MODEL;
  std::string prompt = "Alice was";
  std::optional<int> tokens;
  Sampling sampling{.seed = 1};
  std::string backend = "cpu", weights = "stored", storage = "contiguous", cache = "float";
  int chunk = 256, context = 0;
};

void describe(CLI::App& app, Options& o) {
  app.add_option("--model", o.model,
                 "Folder of GPT-2, LLaMA, Mistral, Qwen 2, Qwen 3, Phi-3 or Gemma (1, 2 and 3, text models) with "
                 "config.json, model.safetensors and tokenizer.json; without the last, tokens are bytes")
      ->capture_default_str();
  app.add_option("--prompt,-p", o.prompt, "The text to go on from")->capture_default_str();
  app.add_option("--tokens,-n", o.tokens, "How many tokens to generate at most (128)")->check(CLI::Range(0, 1 << 24));
  app.add_option("--temperature", o.sampling.temperature, "Divides the logits; 0: always the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "Draw from the k likeliest tokens; 0: from all")->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "Draw from the likeliest that together have this probability")
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "The same seed draws the same text")->capture_default_str();
  app.add_option("--backend", o.backend,
                 "cpu, or systolic: bfloat16 on the processor's matrix unit (AMX), for long prompts")
      ->check(CLI::IsMember({"cpu", "systolic"}))
      ->capture_default_str();
  app.add_option(
         "--weights", o.weights,
         "stored: matrices stay in the 16 bits of a bfloat16 or half checkpoint; float: they are widened, for the "
         "same text; int8, int4: they are rounded to 8 or 4 bits, for 0.51 or 0.28 of the memory of 16 bits and more "
         "tokens per second")
      ->check(CLI::IsMember({"stored", "float", "int8", "int4"}))
      ->capture_default_str();
  app.add_option("--storage", o.storage, "How keys and values are stored; ring: only where the model has a window")
      ->check(CLI::IsMember({"contiguous", "paged", "ring"}))
      ->capture_default_str();
  app.add_option("--cache", o.cache, "What they are stored as")
      ->check(CLI::IsMember({"float", "bfloat16", "int8"}))
      ->capture_default_str();
  app.add_option("--chunk", o.chunk, "Tokens of the prompt that are read at a time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--context", o.context,
                 "The longest text, prompt and all, which positions are made for where the model stretches them by the "
                 "length; longer ones are refused. 0: the prompt and the tokens to generate")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.footer("MHA_NUM_THREADS sets the number of threads.");
}

Tokenizer tokenizer_of(const std::filesystem::path& folder, int vocabulary) {
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    Tokenizer tokenizer(folder / "tokenizer.json", vocabulary);
    if (tokenizer.size() > vocabulary)
      throw std::runtime_error("tokenizer.json has token " + std::to_string(tokenizer.size() - 1) +
                               ", but the model's vocabulary is " + std::to_string(vocabulary));
    return tokenizer;
  }
  if (vocabulary < kBytes)
    throw std::runtime_error("there is no tokenizer.json in '" + folder.string() +
                             "', and bytes cannot be tokens: the vocabulary is " + std::to_string(vocabulary) +
                             ", they are 256");
  return Tokenizer();
}

/// The longest text, and what an error says of it.
struct Limit {
  int tokens = 0;  // 0: none
  std::string words;
};
Limit limit_of(const Options& o, const ModelFacts& facts) {
  if (o.context == 0) {
    if (o.storage == "ring") return {};  // positions turn queries and keys, and the window bounds their distance
    return {facts.positions, ", the model has positions for " + std::to_string(facts.positions)};
  }
  if (o.context > facts.positions && !facts.stretches)
    throw std::runtime_error("the model has positions for " + std::to_string(facts.positions) +
                             " tokens, but the context is " + std::to_string(o.context) +
                             " (--context), and only the rope_type \"dynamic\" goes on");
  return {o.context, ", but the context is " + std::to_string(o.context) + " (--context)"};
}

/// How many tokens there are to generate, which a text has room for.
int tokens_of(const Options& o, std::size_t prompt, const Limit& limit) {
  const int longest = limit.tokens == 0 ? std::numeric_limits<int>::max() : limit.tokens;
  if (prompt > static_cast<std::size_t>(longest))
    throw std::runtime_error("the prompt has " + std::to_string(prompt) + " tokens" + limit.words);
  const int room = longest - static_cast<int>(prompt);
  if (!o.tokens) return std::min(kTokens, room);
  if (*o.tokens > room)
    throw std::runtime_error("the prompt has " + std::to_string(prompt) + " tokens and " + std::to_string(*o.tokens) +
                             " shall follow" + limit.words);
  return *o.tokens;
}

CacheOptions cache_options(const Options& o, std::size_t prompt, int tokens) {
  return {.storage = o.storage == "ring"    ? Storage::ring
                     : o.storage == "paged" ? Storage::paged
                                            : Storage::contiguous,
          .stored = o.cache == "bfloat16" ? Stored::in_bfloat16
                    : o.cache == "int8"   ? Stored::in_int8
                                          : Stored::in_float,
          .positions = std::max(static_cast<int>(prompt) + tokens, 1),
          .chunk = static_cast<int>(std::clamp(prompt, std::size_t{1}, static_cast<std::size_t>(o.chunk)))};
}

void report(std::ostream& log, const Options& o, const GenerationTimes& times, const LanguageModel& model,
            const Text& text) {
  const auto speed = [&](const char* what, std::size_t tokens, double seconds) {
    log << what << ' ' << tokens << (tokens == 1 ? " token" : " tokens");
    if (tokens > 0 && seconds > 0) log << ", " << static_cast<double>(tokens) / seconds << " tokens/s";
    log << "; ";
  };
  log << std::fixed << std::setprecision(0);
  speed("prompt", times.prompt_tokens, times.prompt_seconds);
  speed("generated", times.tokens, times.seconds);
  log << "weights " << model.weight_bytes() << " bytes in " << model.facts().scalar << "; cache " << text.cache_bytes()
      << " bytes";
  if (o.backend == "systolic") log << "; matrix unit " << mha::to_string(mha::current_unit());
  log << '\n';
}

void go_on(const Options& o, std::ostream& out, std::ostream& log, bool terminal) {
  Sampler{o.sampling};  // refuses what it cannot draw by before anything is read
  OpenedModel opened = open_weights(o.model,
                                    o.weights == "float"  ? Weights::as_float
                                    : o.weights == "int8" ? Weights::in_int8
                                    : o.weights == "int4" ? Weights::in_int4
                                                          : Weights::as_stored,
                                    o.backend == "systolic" ? Machine::systolic : Machine::cpu);
  const ModelFacts& facts = opened.facts;
  const Limit limit = limit_of(o, facts);
  const Tokenizer tokenizer = tokenizer_of(o.model, facts.vocabulary);
  if (facts.random_weights)
    log << "generate: the weights of this model are random, it was never trained: its text means nothing\n";

  const std::vector<int> prompt = tokenizer.encode(o.prompt);
  const int tokens = tokens_of(o, prompt.size(), limit);
  const CacheOptions cache = cache_options(o, prompt.size(), tokens);
  const std::unique_ptr<LanguageModel> model = opened.make(o.context == 0 ? cache.positions : o.context);
  opened.make = nullptr;  // the model has what it needs of the weights
  const std::unique_ptr<Text> text = model->begin(cache);

  TextStream stream(out, o.prompt.empty() && tokenizer.strips_blank());
  const auto progress = [&](std::size_t read) {
    const bool all = read == prompt.size();
    if (terminal && prompt.size() > static_cast<std::size_t>(cache.chunk))
      log << "\rreading the prompt, " << read << " of " << prompt.size() << " tokens" << (all ? "\r\033[K" : "")
          << std::flush;
    if (all) stream.write(o.prompt);
  };
  const GenerationTimes times = generate_text(*text, prompt,
                                              {.tokens = tokens,
                                               .chunk = cache.chunk,
                                               .sampling = o.sampling,
                                               .ends = facts.ends,
                                               .known = tokenizer.size(),
                                               .read_so_far = progress},
                                              [&](int token) { stream.write(tokenizer.bytes(token)); });
  stream.finish();
  out << '\n' << std::flush;
  if (!out) throw std::runtime_error("the text could not be written");
  report(log, o, times, *model, *text);
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& log, bool terminal) {
  Options options;
  CLI::App app("Continues a prompt with a language model run by mha.", "generate");
  describe(app, options);
  try {
    app.parse(argc, argv);
    go_on(options, out, log, terminal);
    return 0;
  } catch (const CLI::Success& help) {
    return app.exit(help, out, log);
  } catch (const std::bad_alloc&) {
    log << "generate: there is not enough memory for the model and its cache\n";
    return 1;
  } catch (const std::exception& error) {
    log << "generate: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace generate
