// SPDX-License-Identifier: Apache-2.0
#include "heatmap.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace {

using semantic_search::escape_xml;
using semantic_search::heatmap_svg;

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++found;
  return found;
}

/// Empty if the text is well-formed XML of elements, quoted attributes and the five entities; else what is wrong.
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  bool root_closed = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '&') {
      const std::size_t end = std::min(text.find(';', i), text.size());
      const std::string_view entity = text.substr(i + 1, end - i - 1);
      if (entity != "amp" && entity != "lt" && entity != "gt" && entity != "quot" && entity != "apos")
        return "entity " + std::string(entity);
      i = end + 1;
    } else if (text[i] == '<') {
      const std::size_t end = text.find('>', i);
      if (end == std::string_view::npos) return "a tag that does not end";
      const std::string_view tag = text.substr(i + 1, end - i - 1);
      const std::string name(tag.substr(0, tag.find_first_of(" \n/", 1)));
      if (tag.find('<') != std::string_view::npos) return "< inside a tag";
      if (tag.starts_with('/')) {
        if (open.empty() || "/" + open.back() != tag) return "closing " + std::string(tag);
        open.pop_back();
        root_closed = open.empty();
      } else {
        if (root_closed) return "a second root";
        if (count(tag, "\"") % 2 != 0 || count(tag, "=\"") * 2 != count(tag, "\""))
          return "quotes in " + std::string(tag);
        if (!tag.ends_with('/')) open.push_back(name);
      }
      i = end + 1;
    } else {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(text[i]))) return "text outside the root";
      if (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\n') return "a control character";
      ++i;
    }
  }
  return open.empty() && root_closed ? "" : "an element that does not end";
}

TEST(Heatmap, XmlFaultFindsFaults) {
  EXPECT_EQ(xml_fault("<a x=\"1\"><b/>t &amp; u</a>\n"), "");
  for (const char* bad :
       {"<a>", "<a></b>", "<a>&</a>", "<a>&foo;</a>", "<a><</a>", "<a x=\"></a>", "<a/>", "<a></a>x", "<a>\x01</a>"})
    EXPECT_NE(xml_fault(bad), "") << bad;
}

TEST(Heatmap, IsWellFormedWithTokensOnBothAxes) {
  const std::vector<std::string> tokens{"[CLS]", "<b>", "a&b", "\"'", "東京", "bad\xff\x01"};
  std::vector<float> weights(36);
  for (int i = 0; i < 36; ++i) weights[static_cast<std::size_t>(i)] = static_cast<float>(i) / 36;
  const std::string svg = heatmap_svg("layer <0> & head", tokens, mha::view(std::as_const(weights).data(), 6, 6));
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(count(svg, "href"), 0u);  // self-contained
  EXPECT_NE(svg.find(">layer &lt;0&gt; &amp; head</text>"), std::string::npos);
  for (const std::string& token : tokens) {
    const std::string name = ">" + escape_xml(token) + "</text>";
    EXPECT_EQ(count(svg, name), 2u) << token;
  }
  EXPECT_EQ(count(svg, "class=\"key\""), 6u);
  EXPECT_EQ(count(svg, "class=\"query\""), 6u);
  EXPECT_EQ(count(svg, "</title></rect>"), 36u);
  // Row 0 is the query [CLS], column 1 the key <b>.
  EXPECT_NE(svg.find("<title>[CLS] → &lt;b&gt;: 0.0278</title>"), std::string::npos);
  EXPECT_NE(svg.find("fill=\"#ffffff\"><title>[CLS] → [CLS]: 0.0000"), std::string::npos);
  EXPECT_EQ(count(svg, "fill=\"#08306b\"><title>"), 1u);  // the largest weight has the darkest cell
}

TEST(Heatmap, EscapesWhatXmlCannotHold) {
  EXPECT_EQ(escape_xml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&apos;c");
  EXPECT_EQ(escape_xml("é東\n"), "é東 ");
  EXPECT_EQ(escape_xml(std::string("\x01\xff\0", 3)), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Heatmap, ShapesMustFit) {
  const std::vector<float> weights(6);
  try {
    heatmap_svg("t", {"a", "b"}, mha::view(weights.data(), 2, 3));
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "heatmap: 2 tokens, but weights of shape (2, 3)");
  }
}

}  // namespace
