// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "heatmap.hpp"

namespace train {
namespace {

using semantic_search::escape_xml;

template <class... Values> std::string format(const char* pattern, Values... values) {
  std::array<char, 256> line;
  const int size = std::snprintf(line.data(), line.size(), pattern, values...);
  return {line.data(), std::min(static_cast<std::size_t>(size), line.size() - 1)};
}

/// The frame of the curve, and where a step and a loss lie in it.
struct Axes {
  static constexpr int width = 720, height = 360, left = 50, right = 20, top = 30, bottom = 40;
  int steps;
  double largest;

  double x(double step) const { return left + step / steps * (width - left - right); }
  double y(double loss) const { return top + (1 - loss / largest) * (height - top - bottom); }
};

std::string polyline(const std::string& points, const char* colour) {
  return "<polyline points=\"" + points + format("\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", colour);
}

std::string grid(const Axes& at) {
  std::string svg;
  for (int loss = 0; loss <= static_cast<int>(at.largest); ++loss) {
    svg += format("<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", Axes::left, at.y(loss),
                  Axes::width - Axes::right, at.y(loss));
    svg += format("<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n", Axes::left - 6, at.y(loss) + 4, loss);
  }
  for (int i = 0; i <= 5; ++i) {
    const int step = static_cast<int>(static_cast<long long>(at.steps) * i / 5);
    svg += format("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", at.x(step), Axes::height - 22, step);
  }
  svg += format("<text x=\"%d\" y=\"18\" fill=\"#666\">nats per character</text>\n", Axes::left);
  return svg + format("<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#666\">steps</text>\n",
                      Axes::width - Axes::right, Axes::height - 6);
}

/// Text in HTML that keeps its line breaks.
std::string escape_lines(std::string_view text) {
  std::string html;
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    html += escape_xml(text.substr(0, end)) + '\n';
  return html + escape_xml(text);
}

constexpr const char* kLearned = "#6baed6";
constexpr const char* kHeldOut = "#08306b";

}  // namespace

std::string loss_svg(const Course& course) {
  const auto steps = static_cast<int>(course.losses.size());
  Axes at{.steps = std::max(steps, 1), .largest = 1};
  for (const double loss : course.losses) at.largest = std::max(at.largest, std::ceil(loss));
  for (const Point& p : course.held_out) at.largest = std::max(at.largest, std::ceil(p.loss));

  std::string learned, held_out;
  const int stride = std::max(1, steps / 300);  // steps of a point, which is their mean
  for (int first = 0; first < steps; first += stride) {
    const int last = std::min(first + stride, steps);
    double sum = 0;
    for (int i = first; i < last; ++i) sum += course.losses[static_cast<std::size_t>(i)];
    learned += format("%.1f,%.1f ", at.x(0.5 * (first + last)), at.y(sum / (last - first)));
  }
  std::string dots;
  for (const Point& p : course.held_out) {
    held_out += format("%.1f,%.1f ", at.x(p.step), at.y(p.loss));
    dots += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>step %d: %.3f</title></circle>\n",
                   at.x(p.step), at.y(p.loss), kHeldOut, p.step, p.loss);
  }
  std::string svg =
      format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" ", Axes::width,
             Axes::height, Axes::width, Axes::height);
  svg += "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n";
  svg += format("<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", Axes::width, Axes::height);
  svg += grid(at) + polyline(learned, kLearned) + polyline(held_out, kHeldOut) + dots;
  svg += format("<text x=\"%d\" y=\"18\" fill=\"%s\">text it learns from</text>\n", Axes::width - 290, kLearned);
  svg += format("<text x=\"%d\" y=\"18\" fill=\"%s\">held-out text</text>\n", Axes::width - 130, kHeldOut);
  return svg + "</svg>\n";
}

std::vector<std::vector<std::string>> head_maps(Model<float>& model, std::string_view text) {
  std::vector<int> ids;
  std::vector<std::string> names;
  for (const char c : text.substr(0, static_cast<std::size_t>(model.config().context))) {
    ids.push_back(static_cast<unsigned char>(c));
    names.push_back(c == '\n' ? "\u21b5" : c == ' ' ? "\u2423" : std::string(1, c));
  }
  model.forward(ids, 1);
  std::vector<std::vector<std::string>> maps;
  for (int i = 0; i < model.config().layers; ++i) {
    const mha::Tensor<float, 4> weights = model.attention_weights(i);  // (1, H, L, L)
    const int length = weights.extent(2);
    maps.emplace_back();
    for (int h = 0; h < weights.extent(1); ++h)
      maps.back().push_back(semantic_search::heatmap_svg("layer " + std::to_string(i) + ", head " + std::to_string(h),
                                                         names, mha::view(&weights(0, h, 0, 0), length, length)));
  }
  return maps;
}

std::string page_html(const Page& page) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>" +
                     escape_xml(page.title) + "</title>\n";
  html +=
      "<style>\n"
      "body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 sans-serif; color: #222 }\n"
      "pre { background: #f5f7fa; padding: 1rem; white-space: pre-wrap }\n"
      "pre b { color: #08306b }\n"
      ".heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem }\n"
      "svg { max-width: 100%; height: auto }\n"
      "</style>\n</head>\n<body>\n";
  html += "<h1>" + escape_xml(page.title) + "</h1>\n<p>" + escape_xml(page.summary) + "</p>\n";
  html += page.curve;
  html += "<h2>It goes on from a prompt</h2>\n<pre><b>" + escape_lines(page.prompt) + "</b>" +
          escape_lines(page.continuation) + "</pre>\n";
  html +=
      "<h2>What its heads attend to</h2>\n<p>A row for each character that attends, a column for each attended to, "
      "from the first on; darker is more, and a cell tells its number when pointed at. Nobody told the heads what "
      "to do: look for lines beside the diagonal, which look a fixed number of characters back, and for columns, "
      "which wait for a blank or a quote.</p>\n";
  for (std::size_t i = 0; i < page.maps.size(); ++i) {
    html += "<h3>Layer " + std::to_string(i) + "</h3>\n<div class=\"heads\">\n";
    for (const std::string& map : page.maps[i]) html += map;
    html += "</div>\n";
  }
  return html + "</body>\n</html>\n";
}

}  // namespace train
