// SPDX-License-Identifier: Apache-2.0
#include "structure.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

namespace structure {
namespace {

namespace fs = std::filesystem;

const fs::path root = MHA_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Files below root/folder as paths relative to it.
std::set<std::string> files_below(const fs::path& folder) {
  std::set<std::string> files;
  if (!fs::exists(root / folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(root / folder).generic_string());
  }
  return files;
}

Tree headers() {
  Tree tree;
  for (const std::string& path : files_below("include/mha")) tree[path] = read(root / "include/mha" / path);
  return tree;
}

std::string report(const Findings& findings) {
  std::string text;
  for (const std::string& finding : findings) text += "  " + finding + "\n";
  return text;
}

#define EXPECT_NO_FINDINGS(...)                  \
  do {                                           \
    const Findings found = __VA_ARGS__;          \
    EXPECT_TRUE(found.empty()) << report(found); \
  } while (false)

TEST(Headers, IncludeOnlyFromRoomsAbove) { EXPECT_NO_FINDINGS(layer_violations(headers())); }
TEST(Headers, HaveNoIncludeCycles) { EXPECT_NO_FINDINGS(cycles(headers())); }
TEST(Headers, KeepHeavyDependenciesOut) { EXPECT_NO_FINDINGS(foreign_violations(headers())); }
TEST(Headers, FrontDoorsOnlyInclude) { EXPECT_NO_FINDINGS(front_door_violations(headers())); }
/// A program on another machine finds there what one on Cpu finds in mha.hpp.
TEST(Headers, FrontDoorsOfMachinesHaveAllPoliciesAndSources) {
  const Tree tree = headers();
  const auto reached = [&](const std::string& door) {
    std::set<std::string> ours, foreign;
    reach(tree, door, ours, foreign);
    return ours;
  };
  const std::set<std::string> listed = reached("policy/all.hpp");
  for (const auto& [file, text] : tree) {
    const bool policy = file.rfind("policy/mask/", 0) == 0 || file.rfind("policy/score/", 0) == 0;
    EXPECT_TRUE(!policy || file == "policy/mask/bands.hpp" || listed.count(file) > 0) << "policy/all.hpp: " << file;
  }
  for (const std::string door : {"eigen.hpp", "cuda.cuh"}) {
    const std::set<std::string> has = reached(door);
    for (const std::string& file : reached("mha.hpp")) {
      const std::string room = room_of(file);
      const bool shared = room == "policy" || room == "cache" || room == "layer";
      EXPECT_TRUE(!shared || has.count(file) > 0) << door << ": " << file;
    }
  }
}
TEST(Headers, KeepTheHouseRules) { EXPECT_NO_FINDINGS(header_violations(headers())); }
TEST(Headers, IncludeWhatTheyName) { EXPECT_NO_FINDINGS(include_violations(headers())); }
TEST(Headers, HaveUnitTests) { EXPECT_NO_FINDINGS(missing_unit_tests(headers(), files_below("tests/unit"))); }
TEST(UnitTests, HaveHeaders) { EXPECT_NO_FINDINGS(stray_unit_tests(headers(), files_below("tests/unit"))); }

TEST(Programs, IncludeWhatTheyName) {
  Tree programs;
  for (const std::string& path : files_below("examples")) {
    const std::string kind = fs::path(path).extension().string();
    if (kind == ".hpp" || kind == ".cpp" || kind == ".cu") programs[path] = read(root / "examples" / path);
  }
  ASSERT_FALSE(programs.empty());
  EXPECT_NO_FINDINGS(program_violations(programs));
}

TEST(Headers, AreShortAndShallow) {
  const Tree tree = headers();
  ASSERT_FALSE(tree.empty());
  ASSERT_TRUE(cycles(tree).empty());
  std::vector<std::size_t> sizes;
  std::map<std::string, int> depths;
  for (const auto& [path, text] : tree) {
    sizes.push_back(lines_of(text).size());
    if (!is_front_door(path) && room_of(path) != "compiled") {
      EXPECT_LE(include_depth(tree, path, depths), 10) << path;
    }
  }
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2), sizes.end());
  EXPECT_LE(sizes[sizes.size() / 2], 150u) << "median lines of a header";
}

TEST(Sources, BeginWithTheLicence) {
  static const std::set<std::string> kinds{".hpp",   ".cuh", ".cpp", ".cu",  ".cxx",
                                           ".cmake", ".sh",  ".py",  ".txt", ".in"};
  int seen = 0;
  for (const char* folder : {"include", "tests", "examples", "benchmarks", "cmake"}) {
    for (const std::string& path : files_below(folder)) {
      const fs::path file(path);
      if (!kinds.count(file.extension().string())) continue;
      if (file.extension() == ".txt" && file.filename() != "CMakeLists.txt") continue;
      ++seen;
      EXPECT_TRUE(has_spdx_first(read(root / folder / path))) << folder << '/' << path;
    }
  }
  EXPECT_TRUE(has_spdx_first(read(root / "CMakeLists.txt")));
  EXPECT_GT(seen, 0);
}

// The rules themselves, on small trees that break one each.

TEST(Rules, ALowerRoomIsNotIncluded) {
  EXPECT_EQ(layer_violations({{"core/view.hpp", "#include <mha/policy/mask.hpp>\n"}, {"policy/mask.hpp", ""}}).size(),
            1u);
  EXPECT_EQ(layer_violations({{"policy/mask.hpp", "#include \"../core/view.hpp\"\n"}, {"core/view.hpp", ""}}).size(),
            0u);
  EXPECT_EQ(layer_violations({{"policy/mask/full.hpp", "#include \"../mask.hpp\"\n"}, {"policy/mask.hpp", ""}}).size(),
            0u);
  EXPECT_EQ(layer_violations({{"policy/mask.hpp", "#include <mha/mha.hpp>\n"}, {"mha.hpp", ""}}).size(), 1u);
}

TEST(Rules, NeighboursDoNotKnowEachOther) {
  EXPECT_EQ(
      layer_violations({{"backend/cpu/a.hpp", "#include \"../reference/b.hpp\"\n"}, {"backend/reference/b.hpp", ""}})
          .size(),
      1u);
  EXPECT_EQ(
      layer_violations({{"backend/cpu/a.hpp", "#include \"../simd/b.hpp\"\n"}, {"backend/simd/b.hpp", ""}}).size(), 0u);
  EXPECT_EQ(
      layer_violations({{"policy/a.hpp", "#include <mha/interop/eigen.hpp>\n"}, {"interop/eigen.hpp", ""}}).size(), 1u);
  EXPECT_EQ(layer_violations({{"interop/eigen.hpp", "#include \"../policy/a.hpp\"\n"}, {"policy/a.hpp", ""}}).size(),
            1u);
}

TEST(Rules, TheFaceLiesBetweenBackendsAndLayer) {
  const Tree tree{{"attention.hpp", "#include \"call.hpp\"\n"},
                  {"call.hpp", "#include \"backend/backend.hpp\"\n"},
                  {"backend/backend.hpp", ""},
                  {"layer/a.hpp", "#include <mha/attention.hpp>\n"}};
  EXPECT_EQ(layer_violations(tree).size(), 0u);
  EXPECT_EQ(layer_violations({{"backend/backend.hpp", "#include \"../call.hpp\"\n"}, {"call.hpp", ""}}).size(), 1u);
  EXPECT_EQ(layer_violations({{"call.hpp", "#include \"layer/a.hpp\"\n"}, {"layer/a.hpp", ""}}).size(), 1u);
}

TEST(Rules, AnIncludeAndARoomMustExist) {
  EXPECT_EQ(layer_violations({{"core/view.hpp", "#include \"gone.hpp\"\n"}}).size(), 1u);
  EXPECT_EQ(layer_violations({{"cellar/view.hpp", ""}}).size(), 1u);
}

TEST(Rules, ACycleIsFound) {
  EXPECT_EQ(cycles({{"core/a.hpp", "#include \"b.hpp\"\n"}, {"core/b.hpp", "#include <mha/core/a.hpp>\n"}}).size(), 2u);
  EXPECT_EQ(cycles({{"core/a.hpp", "#include \"b.hpp\"\n"}, {"core/b.hpp", ""}}).size(), 0u);
}

TEST(Rules, DepthCountsTheLongestChain) {
  const Tree tree{{"mha.hpp", "#include \"config.hpp\"\n#include \"core/a.hpp\"\n"},
                  {"core/a.hpp", "#include \"../config.hpp\"\n"},
                  {"config.hpp", "#include <cstddef>\n"}};
  std::map<std::string, int> known;
  EXPECT_EQ(include_depth(tree, "mha.hpp", known), 3);
}

TEST(Rules, EigenIsFoundThroughAChain) {
  const Tree tree{{"policy/a.hpp", "#include \"../core/b.hpp\"\n"}, {"core/b.hpp", "#include <Eigen/Core>\n"}};
  EXPECT_EQ(foreign_violations(tree).size(), 2u);
  EXPECT_EQ(foreign_violations({{"interop/eigen.hpp", "#include <Eigen/Core>\n"}}).size(), 1u);
  EXPECT_EQ(foreign_violations({{"backend/eigen/a.hpp", "#include <Eigen/Core>\n"}}).size(), 0u);
  EXPECT_EQ(foreign_violations({{"core/a.hpp", "#include <functional>\n"}}).size(), 1u);
}

TEST(Rules, ComponentsStayOutOfTheMainDoor) {
  EXPECT_EQ(foreign_violations({{"mha.hpp", "#include \"io/a.hpp\"\n"}, {"io/a.hpp", ""}}).size(), 1u);
  EXPECT_EQ(foreign_violations({{"layer/a.hpp", "#include <nlohmann/json.hpp>\n"}}).size(), 1u);
}

TEST(Rules, AFrontDoorOnlyIncludes) {
  const auto found = [](const std::string& text) {
    return front_door_violations(
               {{"mha.hpp", "#include \"macros_begin.hpp\"\n" + text + "#include \"macros_end.hpp\"\n"}})
        .size();
  };
  EXPECT_EQ(found("// all\n#pragma once\n\n#include <mha/config.hpp>\n"), 0u);
  EXPECT_EQ(found("inline int x;\n"), 1u);
  EXPECT_EQ(found("#if MHA_KERNELS_ELSEWHERE\n#include \"a.hpp\"\n#endif\n"), 0u);
  EXPECT_EQ(found("#if MHA_EXCEPTIONS\n#include \"a.hpp\"\n#endif\n"), 1u);
  for (const char* const text : {"#include \"macros_begin.hpp\"\n", "#include \"macros_end.hpp\"\n", ""})
    EXPECT_EQ(front_door_violations({{"compiled.hpp", text}}).size(), 1u) << text;
  EXPECT_EQ(front_door_violations({{"attention.hpp", "inline int x;\n"}}).size(), 0u);
}

TEST(Rules, AHeaderDependsOnNoFlag) {
  const auto findings_in = [](const std::string& path, const std::string& line) {
    return header_violations({{path, "#pragma once\n" + line + "\n"}}).size();
  };
  EXPECT_EQ(findings_in("core/a.hpp", "#ifdef _OPENMP"), 1u);
  EXPECT_EQ(findings_in("backend/openmp.hpp", "#ifdef _OPENMP"), 1u);
  EXPECT_EQ(findings_in("backend/openmp.hpp", "#if !defined(_OPENMP)"), 0u);
  EXPECT_EQ(findings_in("core/a.hpp", "#if defined(__GNUC__) && 1"), 1u);
  EXPECT_EQ(findings_in("config.hpp", "#if defined(__GNUC__)"), 0u);
  EXPECT_EQ(findings_in("core/a.hpp", "namespace {"), 1u);
  EXPECT_EQ(findings_in("core/a.hpp", "namespace mha {"), 0u);
}

TEST(Rules, LongHeadersAreFound) {
  const auto lines = [](int count) {
    std::string text = "#pragma once\n";
    for (int i = 1; i < count; ++i) text += "\n";
    return text;
  };
  EXPECT_EQ(header_violations({{"core/a.hpp", lines(400)}}).size(), 0u);
  EXPECT_EQ(header_violations({{"core/a.hpp", lines(401)}}).size(), 1u);
  EXPECT_EQ(header_violations({{"backend/cpu/a.hpp", lines(500)}}).size(), 0u);
  EXPECT_EQ(header_violations({{"backend/cpu/a.hpp", lines(501)}}).size(), 1u);
  EXPECT_EQ(header_violations({{"core/a.hpp", "\n"}}).size(), 1u);
}

TEST(Rules, TestsMirrorHeaders) {
  const Tree tree{{"policy/mask/full.hpp", ""}, {"mha.hpp", ""}};
  EXPECT_EQ(missing_unit_tests(tree, {}).size(), 1u);
  EXPECT_EQ(missing_unit_tests(tree, {"policy/mask/full_test.cpp"}).size(), 0u);
  EXPECT_EQ(
      stray_unit_tests(tree, {"policy/mask/full_test.cpp", "policy/full_test.cpp", "policy/mask/full.cpp"}).size(), 2u);
}

TEST(Rules, AProgramIncludesWhatItNames) {
  EXPECT_EQ(program_violations({{"a.cpp", "#include <mha/mha.hpp>\nstd::vector<int> v; mha::Cpu c; // std::map\n"}}),
            Findings{"a.cpp: does not include <vector>"});
  EXPECT_EQ(program_violations({{"a.cpp", "#include <vector>\nstd::vector<mha::Cpu> v;\n"}}),
            Findings{"a.cpp: does not include mha"});
  EXPECT_EQ(program_violations({{"a.cpp", "#include \"a.hpp\"\nstd::vector<mha::Cpu> v;\n"},
                                {"a.hpp", "#include <vector>\n#include <mha/mha.hpp>\n"}}),
            Findings{});
}

TEST(Rules, AHeaderIncludesWhatItNames) {
  EXPECT_EQ(include_violations({{"core/a.hpp", "#include <map>\nstd::map<int, std::string> m;\n"}}),
            Findings{"core/a.hpp: does not include <string>"});
  EXPECT_EQ(include_violations({{"core/a.hpp", "#include <map>\n#include <new>\nint m;  // std::map\n"}}),
            Findings{"core/a.hpp: includes <map> and names nothing of it"});
  EXPECT_EQ(include_violations({{"core/a.hpp", "Eigen::Index i; // nlohmann::json\n"}}),
            Findings{"core/a.hpp: does not reach <Eigen/Core>"});
  EXPECT_EQ(include_violations(
                {{"core/a.hpp", "#include \"b.hpp\"\nEigen::Index i;\n"}, {"core/b.hpp", "#include <Eigen/Core>\n"}}),
            Findings{});
  EXPECT_EQ(include_violations({{"core/a.hpp", "\nnamespace Eigen {\nstruct half;\n}\nEigen::half* p;\n"}}),
            Findings{});
}

TEST(Rules, TheLicenceIsTheFirstLine) {
  EXPECT_TRUE(has_spdx_first("// SPDX-License-Identifier: Apache-2.0\n"));
  EXPECT_TRUE(has_spdx_first("#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"));
  EXPECT_FALSE(has_spdx_first("\n// SPDX-License-Identifier: Apache-2.0\n"));
  EXPECT_FALSE(has_spdx_first(""));
}

}  // namespace
}  // namespace structure
