# SPDX-License-Identifier: Apache-2.0
# cmake -D CASE=… -D COMPILER=… -D COMPILER_ID=… -D INCLUDES=a|b [-D PRECOMPILED=header] -P check.cmake
# Without a CASE it precompiles the header, which cases given it then begin with: most of them spend their time reading
# the same headers.

# Without quoted source lines the sentence can only come from the diagnostic itself.
if(COMPILER_ID MATCHES "Clang")
  set(quiet -fno-caret-diagnostics)
else()
  set(quiet -fno-diagnostics-show-caret)
endif()
string(REPLACE "|" ";" directories "${INCLUDES}")
list(TRANSFORM directories PREPEND "-I")
set(command "${COMPILER}" -std=c++20 ${quiet} -fdiagnostics-color=never ${directories})
set(no_output -fsyntax-only)
if(COMPILER_ID STREQUAL "NVIDIA")
  set(command "${COMPILER}" -std=c++20 -arch=sm_80 ${directories})
  set(no_output --ptx -o /dev/null)
endif()
if(NOT CASE)
  file(WRITE "${PRECOMPILED}" "#include <mha/mha.hpp>\n")
  execute_process(COMMAND ${command} -x c++-header "${PRECOMPILED}" -o "${PRECOMPILED}.gch" COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()
list(APPEND command ${no_output})
if(PRECOMPILED)
  list(APPEND command -include "${PRECOMPILED}")
endif()

file(READ "${CASE}" text)
cmake_path(GET CASE FILENAME name)

# The rules for a case: one `// expect: sentence` (a substring, or else a regular expression), one `#ifdef MHA_FAIL` pair
# whose branches are one line each.
if(NOT text MATCHES "\n// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${name} has no `// expect: …` line")
endif()
set(sentence "${CMAKE_MATCH_1}")
if(NOT text MATCHES "\n#ifdef MHA_FAIL\n[^\n]+\n#else\n[^\n]+\n#endif\n")
  message(FATAL_ERROR "${name}: the two variants must differ in one line between #ifdef MHA_FAIL, #else and #endif")
endif()
string(REGEX MATCHALL "MHA_FAIL" uses "${text}")
list(LENGTH uses count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "${name}: the two variants must differ in one line, but MHA_FAIL occurs ${count} times")
endif()

execute_process(COMMAND ${command} "${CASE}" RESULT_VARIABLE failed ERROR_VARIABLE output)
if(failed)
  message("${output}")
  message(FATAL_ERROR "${name} must compile without MHA_FAIL")
endif()

execute_process(COMMAND ${command} -DMHA_FAIL "${CASE}" RESULT_VARIABLE failed ERROR_VARIABLE output)
if(NOT failed)
  message(FATAL_ERROR "${name} compiles with MHA_FAIL, but must not")
endif()
# Only error lines count; a bracket or semicolon would upset CMake's lists.
string(REGEX REPLACE "[][;]" "." lines "${output}")
string(REGEX REPLACE "[][;]" "." sentence_line "${sentence}")
string(REGEX MATCHALL "[^\n]*error:[^\n]*" errors "${lines}")
foreach(error IN LISTS errors)
  string(FIND "${error}" "${sentence_line}" at)
  if(NOT at EQUAL -1 OR error MATCHES "${sentence}")
    return()
  endif()
endforeach()
message("${output}")
message(FATAL_ERROR "${name} fails without the sentence\n  ${sentence}")
