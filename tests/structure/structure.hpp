// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "standard_names.hpp"

/// The house rules of include/mha as functions from a tree to the list of what breaks them.
namespace structure {

/// Path below include/mha → text.
using Tree = std::map<std::string, std::string>;
using Findings = std::vector<std::string>;

inline bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// "backend/cpu" for backend/cpu/attend.hpp, "policy" for policy/mask/causal.hpp, "" for a file beside the rooms.
inline std::string room_of(const std::string& path) {
  const std::size_t slash = path.find('/');
  if (slash == std::string::npos) return "";
  const std::string room = path.substr(0, slash);
  if (room != "backend") return room;
  const std::size_t machine = path.find('/', slash + 1);
  return machine == std::string::npos ? room : path.substr(0, machine);
}

inline bool is_front_door(const std::string& path) {
  static const std::set<std::string> doors{"mha.hpp",    "block.hpp", "compiled.hpp", "eigen.hpp",
                                           "openmp.hpp", "io.hpp",    "systolic.hpp", "cuda.cuh"};
  return doors.count(path) > 0;
}

/// What front doors begin and end with: read as often as there are doors.
inline bool is_bracket(const std::string& path) { return path == "macros_begin.hpp" || path == "macros_end.hpp"; }

/// How far down the house a file lies: it includes files of its own room and of smaller numbers only. -1: no such room.
inline int floor_of(const std::string& path) {
  static const std::map<std::string, int> floors{{"core", 1},
                                                 {"interop", 2},
                                                 {"policy", 2},
                                                 {"cache", 3},
                                                 {"backend", 4},
                                                 {"backend/simd", 5},
                                                 {"backend/cpu", 6},
                                                 {"backend/eigen", 6},
                                                 {"backend/reference", 6},
                                                 {"backend/systolic", 6},
                                                 {"backend/cuda", 6},
                                                 {"block", 8},
                                                 {"layer", 9},
                                                 {"compiled", 10},
                                                 {"io", 10},
                                                 {"analysis", 10},
                                                 {"distributed", 10}};
  if (path == "config.hpp" || path == "version.hpp" || is_bracket(path)) return 0;
  if (is_front_door(path)) return 11;
  if (room_of(path).empty()) return 7;  // attention.hpp and what it is made of
  const auto found = floors.find(room_of(path));
  return found == floors.end() ? -1 : found->second;
}

struct Include {
  std::string name;  ///< as written, without quotes or brackets
  std::string path;  ///< below include/mha, empty for a file that is not ours
};

/// "policy/mask/../role.hpp" → "policy/role.hpp"
inline std::string normalised(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == ".." && !parts.empty()) {
      parts.pop_back();
    } else if (part != ".") {
      parts.push_back(part);
    }
    begin = end + 1;
  }
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : "/") + part;
  return joined;
}

inline std::vector<Include> includes_of(const std::string& path, const std::string& text) {
  static const std::regex directive(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> includes;
  for (const std::string& line : lines_of(text)) {
    std::smatch match;
    if (line.find('#') == std::string::npos || !std::regex_search(line, match, directive)) continue;
    const std::string name = match[2];
    if (starts_with(name, "mha/")) {
      includes.push_back({name, normalised(name.substr(4))});
    } else if (match[1] == "\"") {
      const std::size_t slash = path.rfind('/');
      includes.push_back({name, normalised((slash == std::string::npos ? "" : path.substr(0, slash + 1)) + name)});
    } else {
      includes.push_back({name, ""});
    }
  }
  return includes;
}

/// A file includes only from rooms above it; an include of ours names a file that exists.
inline Findings layer_violations(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    if (floor_of(path) < 0) findings.push_back(path + ": its folder is not a room of the design");
    for (const Include& include : includes_of(path, text)) {
      if (include.path.empty()) continue;
      if (!tree.count(include.path)) {
        findings.push_back(path + ": includes " + include.name + ", which is not there");
      } else if (room_of(path) != room_of(include.path) || floor_of(path) != floor_of(include.path)) {
        if (floor_of(include.path) >= floor_of(path)) findings.push_back(path + ": must not include " + include.path);
      }
    }
  }
  return findings;
}

/// The files that path reaches, itself included, and every foreign header met on the way.
inline void reach(const Tree& tree, const std::string& path, std::set<std::string>& ours,
                  std::set<std::string>& foreign) {
  const auto file = tree.find(path);
  if (file == tree.end() || !ours.insert(path).second) return;
  for (const Include& include : includes_of(path, file->second)) {
    if (include.path.empty()) {
      foreign.insert(include.name);
    } else {
      reach(tree, include.path, ours, foreign);
    }
  }
}

inline Findings cycles(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    for (const Include& include : includes_of(path, text)) {
      std::set<std::string> ours, foreign;
      reach(tree, include.path, ours, foreign);
      if (ours.count(path)) findings.push_back(path + ": includes itself through " + include.path);
    }
  }
  return findings;
}

/// Longest chain of our own files that starts at path; call it on a tree without cycles.
inline int include_depth(const Tree& tree, const std::string& path, std::map<std::string, int>& known) {
  const auto file = tree.find(path);
  if (file == tree.end()) return 0;
  if (const auto found = known.find(path); found != known.end()) return found->second;
  int depth = 0;
  for (const Include& include : includes_of(path, file->second)) {
    if (!include.path.empty()) depth = std::max(depth, include_depth(tree, include.path, known));
  }
  return known[path] = depth + 1;
}

/// What a room must not pull in, however far down the chain of includes.
inline Findings foreign_violations(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    std::set<std::string> ours, foreign;
    reach(tree, path, ours, foreign);
    const std::string room = room_of(path);
    for (const std::string& name : foreign) {
      const bool eigen = starts_with(name, "Eigen/") || starts_with(name, "unsupported/Eigen/");
      const bool slow_to_parse = name == "iostream" || name == "functional" || name == "ranges";
      const bool json = starts_with(name, "nlohmann/");
      const bool light = room == "core" || room == "policy" || floor_of(path) == 0;
      const bool of_eigen = room == "backend/eigen" || path == "eigen.hpp";
      if ((light && slow_to_parse) || (eigen && !of_eigen)) findings.push_back(path + ": reaches <" + name + ">");
      if (json && room != "io" && path != "io.hpp") findings.push_back(path + ": reaches <" + name + ">");
    }
    if (path == "mha.hpp") {
      for (const std::string& file : ours) {
        if (room_of(file) == "io" || file == "backend/openmp.hpp") findings.push_back("mha.hpp: reaches " + file);
      }
    }
  }
  return findings;
}

/// A front door only includes, between the brackets that put others' macros aside: nothing is left of it but comments,
/// blank lines and directives. That kernels are compiled elsewhere is all that it may ask.
inline Findings front_door_violations(const Tree& tree) {
  static const std::regex allowed(R"(^\s*(//.*|#\s*(pragma once|include\b.*|if MHA_KERNELS_ELSEWHERE|endif))?$)");
  Findings findings;
  for (const auto& [path, text] : tree) {
    if (!is_front_door(path)) continue;
    const std::vector<Include> includes = includes_of(path, text);
    if (includes.empty() || includes.front().name != "macros_begin.hpp" || includes.back().name != "macros_end.hpp")
      findings.push_back(path + ": a front door begins with macros_begin.hpp and ends with macros_end.hpp");
    if (path == "compiled.hpp") continue;  // that one defines what others declare
    for (const std::string& line : lines_of(text)) {
      if (!std::regex_match(line, allowed)) findings.push_back(path + ": a front door only includes, but has: " + line);
    }
  }
  return findings;
}

/// Lines per header, and one definition whatever a translation unit was compiled with.
inline Findings header_violations(const Tree& tree) {
  static const std::regex compiler(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b(__GNUC__|__clang__|_MSC_VER|__CUDACC__)\b)");
  static const std::regex flags(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b(_OPENMP|NDEBUG|__AVX\w*|__FMA__|__SSE\w*)\b)");
  static const std::regex unnamed(R"(^\s*(inline\s+)?namespace\s*\{)");
  Findings findings;
  for (const auto& [path, text] : tree) {
    const std::vector<std::string> lines = lines_of(text);
    const std::size_t limit = starts_with(room_of(path), "backend/") ? 500 : 400;
    if (lines.size() > limit) {
      findings.push_back(path + ": " + std::to_string(lines.size()) + " lines, the limit is " + std::to_string(limit));
    }
    if (!is_bracket(path) && std::find(lines.begin(), lines.end(), "#pragma once") == lines.end())
      findings.push_back(path + ": no #pragma once");
    for (const std::string& line : lines) {
      if (path != "config.hpp" && std::regex_search(line, compiler)) {
        findings.push_back(path + ": only config.hpp asks for the compiler: " + line);
      }
      const bool tells_openmp = path == "backend/openmp.hpp" && line == "#if !defined(_OPENMP)";  // before its #error
      const bool names_namespace = path == "config.hpp" && line.find("__AVX") != std::string::npos;
      const bool guard = tells_openmp || names_namespace;
      if (!guard && std::regex_search(line, flags)) findings.push_back(path + ": depends on compiler flags: " + line);
      if (std::regex_search(line, unnamed)) findings.push_back(path + ": unnamed namespace in a header");
    }
  }
  return findings;
}

/// Every header but the front doors has its unit test at the same path.
inline Findings missing_unit_tests(const Tree& tree, const std::set<std::string>& unit_tests) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    if (is_front_door(path)) continue;
    const std::string stem = path.substr(0, path.rfind('.')) + "_test";
    if (!unit_tests.count(stem + ".cpp") && !unit_tests.count(stem + ".cu")) {
      findings.push_back(path + ": no tests/unit/" + stem + ".cpp");
    }
  }
  return findings;
}

/// A unit test without its header tests nothing that is there; `_test.cpp` is the only name that is built.
inline Findings stray_unit_tests(const Tree& tree, const std::set<std::string>& unit_tests) {
  Findings findings;
  for (const std::string& path : unit_tests) {
    const std::size_t dot = path.rfind('.');
    if (path.substr(dot) != ".cpp" && path.substr(dot) != ".cu") continue;  // helpers and data
    const std::size_t suffix = path.rfind("_test.");
    const std::string stem = suffix == std::string::npos ? "" : path.substr(0, suffix);
    if (!tree.count(stem + ".hpp") && !tree.count(stem + ".cuh")) {
      findings.push_back("tests/unit/" + path + ": no such header");
    }
  }
  return findings;
}

/// A header includes the standard headers of what it names, and no others, and reaches the libraries' of what it names
/// of theirs, or declares it: others stand in front of it where it is compiled alone.
inline Findings include_violations(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    std::set<std::string> included;
    for (const Include& include : includes_of(path, text)) included.insert(include.name);
    for (const std::string& header : missing_headers(lines_of(text), included)) {
      findings.push_back(path + ": does not include <" + header + ">");
    }
    for (const std::string& header : unused_headers(lines_of(text), included)) {
      findings.push_back(path + ": includes <" + header + "> and names nothing of it");
    }
    const std::set<std::string> spaces = namespaces_named(lines_of(text));
    std::set<std::string> ours, foreign;
    reach(tree, path, ours, foreign);
    for (const auto& [space, header] : {std::pair{"Eigen", "Eigen/Core"}, std::pair{"nlohmann", "nlohmann/json.hpp"}}) {
      const bool declared = text.find("\nnamespace " + std::string(space) + " {") != std::string::npos;
      if (spaces.count(space) && !foreign.count(header) && !declared)
        findings.push_back(path + ": does not reach <" + header + ">");
    }
  }
  return findings;
}

/// A program includes what it names, itself or in the header beside it: ours stands in front of it where it is
/// compiled.
inline Findings program_violations(const Tree& programs) {
  Findings findings;
  for (const auto& [path, text] : programs) {
    const auto beside = programs.find(path.substr(0, path.rfind('.')) + ".hpp");
    std::set<std::string> included{"cstddef", "utility"};  // they come with every container
    bool ours = false;
    for (const Include& include : includes_of(path, text + (beside == programs.end() ? "" : "\n" + beside->second))) {
      included.insert(include.name);
      ours = ours || !include.path.empty();
    }
    for (const std::string& header : missing_headers(lines_of(text), included)) {
      findings.push_back(path + ": does not include <" + header + ">");
    }
    if (!ours && namespaces_named(lines_of(text)).count("mha")) findings.push_back(path + ": does not include mha");
  }
  return findings;
}

inline bool has_spdx_first(const std::string& text) {
  static const std::string id = "SPDX-License-Identifier: Apache-2.0";
  const std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) return false;
  const bool script = starts_with(lines[0], "#!");
  return (script && lines.size() > 1 && lines[1] == "# " + id) || lines[0] == "// " + id || lines[0] == "# " + id;
}

}  // namespace structure
