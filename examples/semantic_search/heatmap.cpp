// SPDX-License-Identifier: Apache-2.0
#include "heatmap.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include <utf8proc.h>

namespace semantic_search {
namespace {

constexpr int kCell = 22;    // pixels of a cell
constexpr int kGlyph = 8;    // pixels that a column of 13-pixel monospaced text takes, rounded up
constexpr int kMargin = 16;  // pixels around everything

struct Colour {
  int red, green, blue;
};

// White to dark blue over a middle blue; a monotonous lightness stays readable in print.
Colour colour_of(float fraction) {
  constexpr std::array<Colour, 3> stops{{{255, 255, 255}, {107, 174, 214}, {8, 48, 107}}};
  const float place = std::clamp(fraction, 0.f, 1.f) * 2;
  const auto below = static_cast<std::size_t>(place < 1 ? 0 : 1);
  const float rest = place - static_cast<float>(below);
  const auto mix = [&](int Colour::*channel) {
    const auto low = static_cast<float>(stops[below].*channel), high = static_cast<float>(stops[below + 1].*channel);
    return static_cast<int>(std::lround(low + rest * (high - low)));
  };
  return {mix(&Colour::red), mix(&Colour::green), mix(&Colour::blue)};
}

template <class... Values> std::string format(const char* pattern, Values... values) {
  std::array<char, 256> line;
  const int size = std::snprintf(line.data(), line.size(), pattern, values...);
  return {line.data(), std::min(static_cast<std::size_t>(size), line.size() - 1)};
}

/// Calls use(code point) for each of the text, −1 for a byte that is not UTF-8.
template <class Use> void for_each_rune(std::string_view text, Use use) {
  while (!text.empty()) {
    utf8proc_int32_t rune = -1;
    const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                        static_cast<utf8proc_ssize_t>(text.size()), &rune);
    const std::size_t used = bytes > 0 ? static_cast<std::size_t>(bytes) : 1;
    use(bytes > 0 ? rune : -1, text.substr(0, used));
    text.remove_prefix(used);
  }
}

int columns_of(std::string_view text) {
  int columns = 0;
  for_each_rune(text,
                [&](utf8proc_int32_t rune, std::string_view) { columns += rune < 0 ? 1 : utf8proc_charwidth(rune); });
  return columns;
}

std::string legend(int x, int y, float largest) {
  std::string svg = "<defs><linearGradient id=\"scale\">";
  for (int i = 0; i <= 2; ++i) {
    const Colour c = colour_of(static_cast<float>(i) / 2);
    svg += format("<stop offset=\"%d%%\" stop-color=\"#%02x%02x%02x\"/>", i * 50, c.red, c.green, c.blue);
  }
  svg += "</linearGradient></defs>\n";
  svg += format("<text x=\"%d\" y=\"%d\">0</text>\n", x, y + 11);
  svg +=
      format("<rect x=\"%d\" y=\"%d\" width=\"120\" height=\"12\" fill=\"url(#scale)\" stroke=\"#999\"/>\n", x + 14, y);
  return svg + format("<text x=\"%d\" y=\"%d\">%.2f</text>\n", x + 140, y + 11, static_cast<double>(largest));
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for_each_rune(text, [&](utf8proc_int32_t rune, std::string_view bytes) {
    if (rune == '&')
      escaped += "&amp;";
    else if (rune == '<')
      escaped += "&lt;";
    else if (rune == '>')
      escaped += "&gt;";
    else if (rune == '"')
      escaped += "&quot;";
    else if (rune == '\'')
      escaped += "&apos;";
    else if (rune == '\t' || rune == '\n' || rune == '\r')
      escaped += ' ';
    else if (rune < 0x20 || rune == 0xFFFE || rune == 0xFFFF)
      escaped += "\xEF\xBF\xBD";
    else
      escaped += bytes;
  });
  return escaped;
}

std::string heatmap_svg(const std::string& title, const std::vector<std::string>& tokens,
                        const mha::TensorView<const float, 2>& weights) {
  const int length = static_cast<int>(tokens.size());
  if (weights.extent[0] != length || weights.extent[1] != length)
    throw std::invalid_argument("heatmap: " + std::to_string(length) + " tokens, but weights of shape (" +
                                std::to_string(weights.extent[0]) + ", " + std::to_string(weights.extent[1]) + ")");
  int label = 0;  // pixels of the longest token
  std::vector<std::string> names;
  for (const std::string& token : tokens) {
    label = std::max(label, columns_of(token) * kGlyph);
    names.push_back(escape_xml(token));
  }
  float largest = 0;
  for (int q = 0; q < length; ++q)
    for (int k = 0; k < length; ++k) largest = std::max(largest, weights(q, k));

  const int left = kMargin + 18 + label + 6, top = kMargin + 72 + label + 6;  // of the first cell
  const int grid = kCell * length;
  const int width = std::max({left + grid, kMargin + columns_of(title) * 9, left + 200}) + kMargin;
  const int height = std::max(top + grid, top + 120) + kMargin;
  std::string svg =
      format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" ", width,
             height, width, height);
  svg += "font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#222\">\n";
  svg += format("<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, height);
  svg += format("<text x=\"%d\" y=\"%d\" font-size=\"15\">", kMargin, kMargin + 12) + escape_xml(title) + "</text>\n";
  svg += legend(kMargin, kMargin + 26, largest);
  svg += format("<text x=\"%d\" y=\"%d\" fill=\"#666\">key: attended to</text>\n", left, kMargin + 64);
  svg += format(
      "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"end\" fill=\"#666\">query: attends</text>\n",
      kMargin + 11, top);

  for (int i = 0; i < length; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i)];
    const int middle = i * kCell + kCell / 2 + 4;
    svg += format("<text class=\"key\" transform=\"translate(%d %d) rotate(-90)\">", left + middle, top - 6) + name +
           "</text>\n";
    svg += format("<text class=\"query\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", left - 6, top + middle) + name +
           "</text>\n";
  }
  for (int q = 0; q < length; ++q) {
    for (int k = 0; k < length; ++k) {
      const float weight = weights(q, k);
      const Colour c = colour_of(largest > 0 ? weight / largest : 0);
      svg += format("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#%02x%02x%02x\"><title>",
                    left + k * kCell, top + q * kCell, kCell, kCell, c.red, c.green, c.blue);
      svg += names[static_cast<std::size_t>(q)] + " → " + names[static_cast<std::size_t>(k)] +
             format(": %.4f</title></rect>\n", static_cast<double>(weight));
    }
  }
  svg += format("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#999\"/>\n</svg>\n", left,
                top, grid, grid);
  return svg;
}

}  // namespace semantic_search
