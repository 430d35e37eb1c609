// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

namespace {

int count_of(const std::string& text, const std::string& what) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++count;
  return count;
}

TEST(TrainReport, DrawsBothCurves) {
  train::Course course{.losses = {5.0, 3.0, 2.0, 2.0}, .held_out = {{0, 5.5}, {4, 2.5}}};
  const std::string svg = train::loss_svg(course);
  // 6 nats and 4 steps to 290 and 650 pixels: a step's loss is drawn in its middle.
  EXPECT_NE(svg.find("points=\"131.2,78.3 293.8,175.0 456.2,223.3 618.8,223.3 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"50.0,54.2 700.0,199.2 \""), std::string::npos) << svg;
  EXPECT_EQ(count_of(svg, "<circle"), 2);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(TrainReport, AveragesManySteps) {
  train::Course course;
  for (int i = 0; i < 3000; ++i) course.losses.push_back(i % 2 == 0 ? 1 : 2);
  const std::string svg = train::loss_svg(course);
  EXPECT_EQ(count_of(svg, ",102.5 "), 300);  // 1.5 of 2 nats
}

TEST(TrainReport, MapsEveryHead) {
  train::Model<float> model({.width = 8, .hidden = 8, .heads = 2, .layers = 3, .context = 4, .batch = 1}, 1);
  const auto maps = train::head_maps(model, "a\nbcdef");  // as far as the context
  ASSERT_EQ(maps.size(), 3u);
  for (const auto& layer : maps) {
    ASSERT_EQ(layer.size(), 2u);
    for (const std::string& map : layer) EXPECT_EQ(count_of(map, "<title>"), 16);
  }
  EXPECT_NE(maps[2][1].find("layer 2, head 1"), std::string::npos);
  EXPECT_NE(maps[0][0].find("\u21b5 \u2192 a: "), std::string::npos);
}

TEST(TrainReport, PageHasAllOfItAndNoMarkupOfTheText) {
  const std::string html = train::page_html({.title = "T & t",
                                             .summary = "so it went",
                                             .curve = "<svg>curve</svg>",
                                             .prompt = "a <b>",
                                             .continuation = "one\ntwo \xff",
                                             .maps = {{"<svg>00</svg>", "<svg>01</svg>"}, {"<svg>10</svg>"}}});
  EXPECT_NE(html.find("<h1>T &amp; t</h1>"), std::string::npos);
  EXPECT_NE(html.find("<b>a &lt;b&gt;</b>one\ntwo "), std::string::npos) << html;
  for (const char* piece : {"so it went", "<svg>curve</svg>", "<svg>00</svg><svg>01</svg>", "<h3>Layer 1</h3>"})
    EXPECT_NE(html.find(piece), std::string::npos) << piece;
  EXPECT_EQ(html.find("http"), std::string::npos);  // nothing from elsewhere
}

}  // namespace
