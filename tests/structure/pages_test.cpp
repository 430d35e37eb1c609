// SPDX-License-Identifier: Apache-2.0
#include "pages.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace structure {
namespace {

namespace fs = std::filesystem;

const fs::path root = MHA_SOURCE_DIR;

TEST(Pages, LinksLeadSomewhereAndCodeIsOfAFile) {
  Tree pages;
  const auto add = [&](const fs::directory_entry& entry) {
    if (entry.path().extension() != ".md") return;
    std::ifstream file(entry.path(), std::ios::binary);
    pages[entry.path().lexically_relative(root).generic_string()] = {std::istreambuf_iterator<char>(file), {}};
  };
  for (const auto& entry : fs::directory_iterator(root)) add(entry);
  for (const char* folder : {".github", "benchmarks", "cmake", "examples"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) add(entry);
  ASSERT_TRUE(pages.count("README.md"));
  ASSERT_GT(pages.size(), 5u);
  const Findings found = page_violations(pages, [](const std::string& path) { return fs::exists(root / path); });
  std::string text;
  for (const std::string& finding : found) text += "  " + finding + "\n";
  EXPECT_TRUE(found.empty()) << text;
}

// The rules themselves, on small pages that break one each.

Findings violations(const Tree& pages) {
  return page_violations(pages, [](const std::string& path) { return path == "include/mha"; });
}

TEST(PageRules, ALinkIsRelativeToItsPage) {
  EXPECT_EQ(violations({{"README.md", "[a](examples/a.md) [b](include/mha) [c](https://example.org/#x)\n"},
                        {"examples/a.md", "[up](../README.md)\n"}}),
            Findings{});
  EXPECT_EQ(violations({{"examples/a.md", "[a](README.md)\n"}}), Findings{"examples/a.md: no such file: README.md"});
  EXPECT_EQ(violations({{"README.md", "![a](a.svg)\n"}}), Findings{"README.md: no such file: a.svg"});
}

TEST(PageRules, AnAnchorIsAHeading) {
  const std::string text = "# A Layer's `call`, twice\n## Two\n### Two\n";
  EXPECT_EQ(violations({{"a.md", text + "[a](#a-layers-call-twice) [b](#two) [c](#two-1)\n"}}), Findings{});
  EXPECT_EQ(violations({{"a.md", text + "[a](#two-2)\n"}}), Findings{"a.md: no such heading: #two-2"});
  EXPECT_EQ(violations({{"a.md", text}, {"b.md", "[a](a.md#three)\n"}}), Findings{"b.md: no such heading: a.md#three"});
}

TEST(PageRules, CodeIsNoLinkAndNoHeading) {
  EXPECT_EQ(violations({{"a.md", "`[](auto& p)` and `a[i](j)`\n```sh\n# not a heading\nx[1](2)\n```\n"}}), Findings{});
  EXPECT_EQ(violations({{"a.md", "```sh\n# no heading\n```\n[a](#no-heading)\n"}}),
            Findings{"a.md: no such heading: #no-heading"});
}

TEST(PageRules, CodeOfCppNamesItsFile) {
  EXPECT_EQ(violations({{"a.md", "<!-- from examples/a.cpp -->\n```cpp\nint x;\n```\n"}}), Findings{});
  EXPECT_EQ(violations({{"a.md", "text\n```cpp\nint x;\n```\n"}}),
            Findings{"a.md: line 2: C++ that no mark `<!-- from FILE -->` precedes"});
}

}  // namespace
}  // namespace structure
