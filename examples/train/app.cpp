// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <cstdint>
#include <exception>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "checkpoint.hpp"
#include "generation.hpp"
#include "language_model.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "text_stream.hpp"
#include "tokenizer.hpp"
#include "training.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMapped = 24;  // characters of a head's map

struct Options {
  std::string text = TRAIN_DEFAULT_TEXT;
  std::string out = "build/train";
  std::string prompt = "Alice was ";
  int steps = TrainingOptions{}.steps;
  int tokens = 400;
  std::uint64_t seed = 1;
  int threads = 0;  // as many as mha::ThreadPool{} has
};

void describe(CLI::App& app, Options& o) {
  app.add_option("--text", o.text, "The text to learn, of any bytes; its last tenth is held out")
      ->capture_default_str();
  app.add_option("--out", o.out, "Folder for the checkpoint, the loss curve and the page")->capture_default_str();
  app.add_option("--steps", o.steps, "Steps of the optimiser")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--seed", o.seed, "Of the first weights, of the windows of the text and of the text that is generated")
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Threads; if not given, MHA_NUM_THREADS or one for each processor")
      ->check(CLI::Range(1, 1024));
  app.add_option("--prompt,-p", o.prompt, "The text that the trained model goes on from")->capture_default_str();
  app.add_option("--tokens,-n", o.tokens, "How many characters it adds")
      ->check(CLI::Range(0, 4000))
      ->capture_default_str();
  app.footer("The same options make the same model, bit by bit, with any number of threads.");
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) throw std::runtime_error("cannot make the folder '" + folder.string() + "'");
}

/// What made the checkpoint, without what it does not depend on.
std::string command(const Options& o) {
  std::string text = "train --steps " + std::to_string(o.steps) + " --seed " + std::to_string(o.seed);
  if (o.text != TRAIN_DEFAULT_TEXT) text += " --text " + fs::path(o.text).filename().string();
  return text;
}

std::string summary(const Options& o, Model<float>& model, const Text& text, const Course& course) {
  std::ostringstream s;
  s << model.parameter_count() << " parameters, " << o.steps << (o.steps == 1 ? " step" : " steps") << " of "
    << model.config().batch << " windows of " << model.config().context << " characters from "
    << fs::path(o.text).filename().string() << ": the loss on the held-out " << text.held_out.size()
    << " characters fell from " << std::fixed << std::setprecision(3) << course.held_out.front().loss << " to "
    << course.held_out.back().loss << " nats per character";
  return s.str();
}

/// The prompt and what the checkpoint goes on with, by examples/generate: written to `out` as it comes, and returned.
std::string go_on(const Options& o, std::ostream& out) {
  const auto model = generate::open_model(o.out);
  const generate::Tokenizer tokenizer(fs::path(o.out) / "tokenizer.json");
  const std::vector<int> prompt = tokenizer.encode(o.prompt);
  const auto text =
      model->begin({.positions = static_cast<int>(prompt.size()) + o.tokens, .chunk = static_cast<int>(prompt.size())});
  generate::TextStream stream(out);
  std::string all = o.prompt;
  stream.write(o.prompt);
  generate::generate_text(*text, prompt,
                          {.tokens = o.tokens,
                           .chunk = static_cast<int>(prompt.size()),
                           .sampling = {.temperature = 0.8, .seed = o.seed},
                           .known = tokenizer.size()},
                          [&](int token) {
                            stream.write(tokenizer.bytes(token));
                            all += tokenizer.bytes(token);
                          });
  stream.finish();
  out << '\n' << std::flush;
  return all;
}

void train(const Options& o, std::ostream& out, std::ostream& log, bool terminal) {
  const ModelConfig config;
  if (o.prompt.empty()) throw std::runtime_error("the prompt is empty: a model goes on from one character at least");
  if (o.prompt.size() + static_cast<std::size_t>(o.tokens) > kPositions)
    throw std::runtime_error("the prompt has " + std::to_string(o.prompt.size()) + " characters and " +
                             std::to_string(o.tokens) + " shall follow, the model has positions for " +
                             std::to_string(kPositions));
  const Text text = read_text(o.text, config.context);
  make_folder(o.out);  // before the minute that a training takes
  Model<float> model(config, o.seed, o.threads > 0 ? mha::ThreadPool(o.threads) : mha::ThreadPool{});

  Course course;
  {
    Progress progress(log, terminal, o.steps, config.batch * config.context);
    course = train_model(model, text, {.steps = o.steps, .seed = o.seed},
                         [&](int step, double loss) { progress.update(step, loss); });
  }
  const std::string result = summary(o, model, text, course);
  log << result << " in " << std::fixed << std::setprecision(1) << course.seconds << " s (" << model.threads().workers()
      << (model.threads().workers() == 1 ? " thread)\n" : " threads)\n");

  const fs::path folder = o.out;
  write_checkpoint(model, folder, command(o));
  const std::string curve = loss_svg(course);
  write_file(folder / "loss.svg", curve);
  const std::string all = go_on(o, out);
  write_file(folder / "page.html", page_html({.title = "Trained: " + fs::path(o.text).filename().string(),
                                              .summary = result + ".",
                                              .curve = curve,
                                              .prompt = o.prompt,
                                              .continuation = all.substr(o.prompt.size()),
                                              .maps = head_maps(model, all.substr(0, kMapped))}));
  log << "wrote " << o.out << ": config.json, tokenizer.json, model.safetensors, loss.svg, page.html\n";
  if (!out) throw std::runtime_error("the text that the model goes on with could not be written");
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& log, bool terminal) {
  Options options;
  CLI::App app("Trains a small language model on a text, with layers of mha, and lets it write.", "train");
  describe(app, options);
  try {
    app.parse(argc, argv);
    train(options, out, log, terminal);
    return 0;
  } catch (const CLI::Success& help) {
    return app.exit(help, out, log);
  } catch (const std::exception& error) {
    log << "train: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace train
