// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "structure.hpp"

/// The rules of the documentation, as functions from its pages to the list of what breaks them.
namespace structure {

/// A page without its fenced blocks of code; `unmarked` are the lines of blocks of C++ that no mark names a source for.
struct Page {
  std::string text;
  std::vector<std::size_t> unmarked;
};

/// The block under `<!-- from FILE -->` is compared with FILE by examples/check_pages.cmake.
inline Page parsed_page(const std::string& markdown) {
  Page page;
  bool in_block = false, marked = false;
  std::size_t number = 0;
  for (const std::string& line : lines_of(markdown)) {
    ++number;
    if (starts_with(line, "```")) {
      if (!in_block && starts_with(line, "```cpp") && !marked) page.unmarked.push_back(number);
      in_block = !in_block;
    } else if (!in_block) {
      page.text += line + "\n";
    }
    marked = starts_with(line, "<!-- from ");
  }
  return page;
}

/// The anchor that GitHub makes of a heading: letters in lower case, blanks as hyphens, no other signs.
inline std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_') anchor += static_cast<char>(std::tolower(byte));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

/// Anchors of a page's headings; of equal ones the second ends in -1, the third in -2.
inline std::set<std::string> anchors_of(const Page& page) {
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const std::string& line : lines_of(page.text)) {
    const std::size_t level = line.find_first_not_of('#');
    if (level == 0 || level == std::string::npos || line[level] != ' ') continue;
    const std::string anchor = anchor_of(line.substr(level + 1));
    const int repeated = seen[anchor]++;
    anchors.insert(repeated == 0 ? anchor : anchor + "-" + std::to_string(repeated));
  }
  return anchors;
}

/// Targets of a page's links and pictures: [text](target).
inline std::vector<std::string> links_of(const Page& page) {
  static const std::regex code(R"(`[^`]*`)"), link(R"(\]\(([^()\s]+)\))");
  const std::string text = std::regex_replace(page.text, code, "");
  std::vector<std::string> links;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), link); at != std::sregex_iterator(); ++at)
    links.push_back((*at)[1]);
  return links;
}

/// `pages` by path from the top of the repository; `exists` tells whether there is a file or a folder of such a path.
inline Findings page_violations(const Tree& pages, const std::function<bool(const std::string&)>& exists) {
  std::map<std::string, std::set<std::string>> anchors;
  for (const auto& [path, text] : pages) anchors[path] = anchors_of(parsed_page(text));
  Findings findings;
  for (const auto& [path, text] : pages) {
    const Page page = parsed_page(text);
    for (const std::size_t line : page.unmarked)
      findings.push_back(path + ": line " + std::to_string(line) + ": C++ that no mark `<!-- from FILE -->` precedes");
    for (const std::string& link : links_of(page)) {
      if (link.find("://") != std::string::npos) continue;
      const std::size_t hash = link.find('#');
      const std::string file = link.substr(0, hash);
      const std::string folder = path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
      const std::string target = file.empty() ? path : normalised(folder + file);
      if (!pages.count(target) && !exists(target)) {
        findings.push_back(path + ": no such file: " + link);
      } else if (hash != std::string::npos && pages.count(target) && !anchors[target].count(link.substr(hash + 1))) {
        findings.push_back(path + ": no such heading: " + link);
      }
    }
  }
  return findings;
}

}  // namespace structure
