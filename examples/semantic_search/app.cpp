// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <utf8proc.h>

#include "heatmap.hpp"
#include "model.hpp"
#include "passages.hpp"
#include "progress.hpp"
#include "ranking.hpp"

namespace semantic_search {
namespace {

struct Options {
  std::string model = "build/models/minilm";
  std::string question;
  std::vector<std::string> files;
  std::size_t top = 5;
  std::string by = "paragraph";
  std::size_t tokens = EmbedOptions{}.tokens;
  int threads = 0;  // as many as mha::ThreadPool{} has
  std::string backend = "cpu";
  std::vector<std::string> heatmap;  // LAYER:HEAD, file
  std::string heatmap_text;
};

void describe(CLI::App& app, Options& o) {
  app.add_option("files", o.files, "Text or Markdown files to search");
  app.add_option("--question,-q", o.question, "What to look for");
  app.add_option("--model", o.model, "Folder with config.json, vocab.txt and model.safetensors")
      ->envname("MHA_MINILM_DIR")
      ->capture_default_str();
  app.add_option("--top", o.top, "How many answers to print")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--by", o.by, "What an answer is")->check(CLI::IsMember({"line", "paragraph"}))->capture_default_str();
  app.add_option("--batch-tokens", o.tokens, "Tokens per batch, about: passages are not cut")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Threads; if not given, MHA_NUM_THREADS or one for each processor")
      ->check(CLI::Range(1, 1024));
  app.add_option("--backend", o.backend, "cpu, or systolic: bfloat16 on the processor's matrix unit (AMX)")
      ->check(CLI::IsMember({"cpu", "systolic"}))
      ->capture_default_str();
  app.add_option("--heatmap", o.heatmap, "Draw what a head attends to, counted from 0: LAYER:HEAD FILE.svg")
      ->expected(2);
  app.add_option("--heatmap-text", o.heatmap_text, "The text of the heatmap, if not the question");
}

void check(const Options& o) {
  if (o.question.empty() && !o.files.empty())
    throw std::runtime_error("files to search, but no question: give --question TEXT");
  if (o.question.empty() && o.heatmap.empty())
    throw std::runtime_error("nothing to do: give --question TEXT and files to search, or --heatmap (see --help)");
  if (!o.question.empty() && o.files.empty() && o.heatmap.empty())
    throw std::runtime_error("no files to search: name at least one after the options");
  if (!o.heatmap.empty() && o.question.empty() && o.heatmap_text.empty())
    throw std::runtime_error("--heatmap needs a text: give --heatmap-text TEXT or --question TEXT");
  if (o.heatmap.empty() && !o.heatmap_text.empty())
    throw std::runtime_error("--heatmap-text needs --heatmap LAYER:HEAD FILE.svg");
}

struct Head {
  int layer = 0, head = 0;
};

Head parse_head(const std::string& text) {
  Head found;
  const char* const end = text.data() + text.size();
  const auto layer = std::from_chars(text.data(), end, found.layer);
  if (layer.ec == std::errc() && layer.ptr != end && *layer.ptr == ':')
    if (const auto head = std::from_chars(layer.ptr + 1, end, found.head); head.ec == std::errc() && head.ptr == end)
      return found;
  throw std::runtime_error("--heatmap '" + text + "' is not LAYER:HEAD, such as 0:3");
}

void draw_heatmap(const SentenceModel& model, const Options& o, std::ostream& log) {
  const Head which = parse_head(o.heatmap[0]);
  const Encoding text = model.tokenise(o.heatmap_text.empty() ? o.question : o.heatmap_text);
  const mha::Tensor<float, 4> weights = model.encoder().attention_weights(text, which.layer);  // (1, H, L, L)
  if (which.head < 0 || which.head >= weights.extent(1))
    throw std::runtime_error("there is no head " + std::to_string(which.head) + ": layer " +
                             std::to_string(which.layer) + " has " + std::to_string(weights.extent(1)) +
                             ", counted from 0");
  const int length = weights.extent(2);
  const auto head = mha::view(&weights(0, which.head, 0, 0), length, length);  // (L, L)
  std::ofstream file(o.heatmap[1], std::ios::binary);
  file << heatmap_svg("attention of layer " + std::to_string(which.layer) + ", head " + std::to_string(which.head),
                      text.tokens, head);
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + o.heatmap[1] + "'");
  log << "wrote " << o.heatmap[1] << '\n';
}

/// Text of a file on a terminal: a control character, or a byte that is not UTF-8, is a question mark.
std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    utf8proc_int32_t c = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &c);
    const std::string_view bytes = text.substr(0, read > 0 ? static_cast<std::size_t>(read) : 1);
    shown += read <= 0 || utf8proc_category(c) == UTF8PROC_CATEGORY_CC ? "?" : bytes;
    text.remove_prefix(bytes.size());
  }
  return shown;
}

/// Wrapped at blanks.
void print_wrapped(std::ostream& out, std::string_view text, std::size_t width, const std::string& indent) {
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (column > 0 && column + 1 + end > width) column = 0;
    out << (column > 0 ? std::string(" ") : "\n" + indent);
    out << text.substr(0, end);
    column += (column > 0 ? 1 : 0) + end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  out << '\n';
}

void search(const SentenceModel& model, const Options& o, std::ostream& out, std::ostream& log, bool terminal) {
  const Split by = o.by == "line" ? Split::line : Split::paragraph;
  std::vector<Passage> passages;
  for (const std::string& file : o.files)
    for (Passage& p : read_passages(file, by)) passages.push_back(std::move(p));
  if (passages.empty()) throw std::runtime_error("the files hold no " + o.by + " with a word in it");

  const auto start = std::chrono::steady_clock::now();
  std::vector<Encoding> texts;
  std::size_t tokens = 0, full = 0;
  for (const Passage& p : passages) {
    texts.push_back(model.tokenise(p.searchable()));
    tokens += texts.back().ids.size();
    full += static_cast<int>(texts.back().ids.size()) == model.max_tokens();
  }
  Matrix vectors;  // (N, E)
  {
    Progress progress(log, terminal, texts.size());
    vectors = model.embed(texts, {.tokens = o.tokens, .progress = [&](std::size_t done) { progress.update(done); }});
  }
  const Matrix question = model.embed({model.tokenise(o.question)});  // (1, E)
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  int place = 0;
  for (const Hit& hit : rank(question.row(0), vectors, o.top)) {
    const Passage& p = passages[hit.index];
    out << ++place << ". " << std::fixed << std::setprecision(3) << hit.score << "  " << p.file << ':' << p.line;
    if (!p.heading.empty()) out << "  (" << printable(p.heading) << ')';
    print_wrapped(out, printable(p.text), 100, "   ");
  }
  out << std::flush;
  if (!out) throw std::runtime_error("the answers could not be written");
  if (full > 0)
    log << full << " of " << texts.size() << " passages fill the model's " << model.max_tokens()
        << " tokens; what is beyond was not read\n";
  log << "embedded " << texts.size() << " passages, " << tokens << " tokens in " << std::fixed << std::setprecision(2)
      << seconds << " s (" << std::setprecision(0) << static_cast<double>(tokens) / seconds << " tokens/s, "
      << model.threads() << (model.threads() == 1 ? " thread" : " threads");
  if (o.backend == "systolic") log << ", matrix unit " << mha::to_string(mha::current_unit());
  log << ")\n";
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& log, bool terminal) {
  Options options;
  CLI::App app("Finds the passages of text files that answer a question, with a sentence model run by mha.",
               "semantic_search");
  describe(app, options);
  try {
    app.parse(argc, argv);
    check(options);
    const SentenceModel model(options.model,
                              {.machine = options.backend == "systolic" ? Machine::systolic : Machine::cpu,
                               .threads = options.threads > 0 ? mha::ThreadPool(options.threads) : mha::ThreadPool{}});
    if (!options.heatmap.empty()) draw_heatmap(model, options, log);
    if (!options.files.empty()) search(model, options, out, log, terminal);
    return 0;
  } catch (const CLI::Success& help) {
    return app.exit(help, out, log);
  } catch (const std::exception& error) {
    log << "semantic_search: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace semantic_search
