// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// Which standard headers a text needs for what it names, and which it includes for nothing.
namespace structure {

/// Name behind std:: → header. A name that is not here is not checked; nor is std::abs, which several headers have.
inline const std::map<std::string, std::string>& standard_headers() {
  static const std::map<std::string, std::string> names_of_headers{
      {"algorithm",
       "all_of any_of clamp copy copy_n equal fill fill_n find find_if lower_bound max max_element min min_element "
       "sort upper_bound"},
      {"array", "array"},
      {"atomic",
       "atomic atomic_thread_fence memory_order_acquire memory_order_relaxed memory_order_release "
       "memory_order_acq_rel"},
      {"bit", "bit_cast bit_floor bit_width endian has_single_bit popcount countl_zero countr_zero"},
      {"charconv", "from_chars to_chars"},
      {"chrono", "chrono"},
      {"cmath", "copysign cos erf erfc exp exp2 fma isfinite isnan log log2 pow sin sqrt tanh trunc"},
      {"concepts",
       "convertible_to default_initializable derived_from equality_comparable floating_point integral same_as"},
      {"condition_variable", "condition_variable"},
      {"cstddef", "byte nullptr_t ptrdiff_t size_t to_integer"},
      {"cstdint", "int32_t int64_t uint16_t uint32_t uint64_t uint8_t uintmax_t uintptr_t"},
      {"cstdio", "fclose fopen fprintf fread printf snprintf"},
      {"cstdlib", "abort exit getenv"},
      {"cstring", "memcmp memcpy memset strlen"},
      {"exception", "current_exception exception_ptr rethrow_exception"},
      {"filesystem", "filesystem"},
      {"fstream", "ifstream ofstream"},
      {"functional", "function less"},
      {"initializer_list", "initializer_list"},
      {"iomanip", "setprecision setw"},
      {"iostream", "cerr cout"},
      {"iterator", "end size"},
      {"limits", "numeric_limits"},
      {"map", "map"},
      {"memory", "destroy_n make_shared make_unique shared_ptr uninitialized_value_construct_n unique_ptr"},
      {"mutex", "lock_guard mutex try_to_lock unique_lock"},
      {"new", "align_val_t bad_alloc bad_array_new_length"},
      {"numbers", "numbers"},
      {"numeric", "accumulate iota"},
      {"optional", "nullopt optional"},
      {"random", "mt19937 mt19937_64"},
      {"set", "set"},
      {"span", "span"},
      {"sstream", "ostringstream"},
      {"stdexcept", "invalid_argument runtime_error"},
      {"string", "string to_string"},
      {"string_view", "string_view"},
      {"system_error", "errc error_code generic_category system_error"},
      {"thread", "this_thread thread"},
      {"type_traits",
       "conditional_t false_type integral_constant is_arithmetic_v is_class_v is_const_v is_copy_assignable_v "
       "is_empty_v is_final_v is_floating_point_v is_integral_v is_lvalue_reference_v is_move_assignable_v is_same_v "
       "is_signed_v "
       "is_trivially_copyable_v is_trivially_destructible_v is_void_v make_unsigned_t remove_const_t remove_cv_t "
       "remove_cvref_t remove_pointer_t remove_reference_t true_type type_identity type_identity_t"},
      {"utility",
       "as_const declval exchange forward in_range index_sequence integer_sequence make_index_sequence "
       "make_integer_sequence move pair swap"},
      {"vector", "hash vector"},
  };
  static const std::map<std::string, std::string> headers = [] {
    std::map<std::string, std::string> result;
    for (const auto& [header, names] : names_of_headers) {
      std::istringstream words(names);
      for (std::string name; words >> name;) result[name] = header;
    }
    return result;
  }();
  return headers;
}

/// Each `space::name` of the lines, comments left out.
inline std::set<std::pair<std::string, std::string>> qualified_names(const std::vector<std::string>& lines) {
  const auto part_of_a_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::set<std::pair<std::string, std::string>> names;
  for (const std::string& line : lines) {
    const std::string code = line.substr(0, line.find("//"));
    for (std::size_t at = code.find("::"); at != std::string::npos; at = code.find("::", at + 2)) {
      std::size_t begin = at, end = at + 2;
      while (begin > 0 && part_of_a_name(code[begin - 1])) --begin;
      while (end < code.size() && part_of_a_name(code[end])) ++end;
      if (begin < 2 || code[begin - 1] != ':')
        names.insert({code.substr(begin, at - begin), code.substr(at + 2, end - at - 2)});
    }
  }
  return names;
}

inline std::set<std::string> namespaces_named(const std::vector<std::string>& lines) {
  std::set<std::string> spaces;
  for (const auto& [space, name] : qualified_names(lines)) spaces.insert(space);
  return spaces;
}

inline std::set<std::string> missing_headers(const std::vector<std::string>& lines,
                                             const std::set<std::string>& included) {
  std::set<std::string> missing;
  for (const auto& [space, name] : qualified_names(lines)) {
    const auto header = standard_headers().find(name);
    if (space == "std" && header != standard_headers().end() && !included.count(header->second)) {
      missing.insert(header->second);
    }
  }
  return missing;
}

/// Headers of standard_headers() of which nothing is named, <new> excepted, which placement needs without a name.
inline std::set<std::string> unused_headers(const std::vector<std::string>& lines,
                                            const std::set<std::string>& included) {
  std::set<std::string> unused;
  for (const auto& [name, header] : standard_headers())
    if (header != "new" && included.count(header)) unused.insert(header);
  for (const auto& [space, name] : qualified_names(lines)) {
    if (space != "std") continue;
    const auto header = standard_headers().find(name);
    if (header != standard_headers().end()) unused.erase(header->second);
    if (name == "abs") unused.erase("cmath"), unused.erase("cstdlib");
  }
  return unused;
}

}  // namespace structure
