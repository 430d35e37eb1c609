# SPDX-License-Identifier: Apache-2.0
# mha::compiled: mha::mha with its kernels in a static library that is compiled in the build of whoever links it. For the
# source tree and for the installed package, which brings the sources in the folder compiled/ beside this file.

# The number of the namespace (mha/config.hpp) that this directory's flags put a unit in; empty where a unit with them
# does not compile.
function(mha_namespace_number include_dir config result)
  string(TOUPPER "${config}" upper)
  if(config STREQUAL "")
    # try_compile takes Debug for no configuration.
    set(CMAKE_CXX_FLAGS_DEBUG "")
  endif()
  get_directory_property(options COMPILE_OPTIONS)
  if(options MATCHES "\\$<TARGET_(FILE|OBJECTS|PROPERTY:[^<>]*,)")
    # The probe's project does not have the target that is named here.
    set(options "")
  endif()
  file(MD5 "${include_dir}/mha/config.hpp" header)
  string(MD5 key "${CMAKE_CXX_COMPILER}|${CMAKE_CXX_FLAGS}|${CMAKE_CXX_FLAGS_${upper}}|${config}|${options}|${header}")
  if(NOT DEFINED CACHE{mha_namespace_${key}})
    # The options of a target may be generator expressions. With link-time optimization an object has no readable text.
    if(NOT TARGET mha_namespace_flags)
      add_library(mha_namespace_flags INTERFACE IMPORTED)
    endif()
    set_property(TARGET mha_namespace_flags PROPERTY INTERFACE_COMPILE_OPTIONS "${options}" -fno-lto)
    set(CMAKE_TRY_COMPILE_CONFIGURATION "${config}")
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    set(library "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/mha_namespace_number.a")
    try_compile(
      compiled
      SOURCE_FROM_CONTENT
        number.cpp
        "#include <mha/config.hpp>
extern const char mha_namespace_number[];
const char mha_namespace_number[] = \"mha_namespace_number=\" MHA_TEXT_OF(MHA_NAMESPACE_NUMBER);
"
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${include_dir}"
      LINK_LIBRARIES mha_namespace_flags
      COPY_FILE "${library}" COPY_FILE_ERROR not_copied
      CXX_STANDARD 20
      NO_CACHE)
    set(number "")
    if(compiled AND NOT not_copied)
      file(STRINGS "${library}" number REGEX "mha_namespace_number=[0-9(]" LIMIT_COUNT 1)
      file(REMOVE "${library}")
    endif()
    if(number MATCHES "mha_namespace_number=([0-9 ()+]+)")
      math(EXPR number "${CMAKE_MATCH_1}")
      set(mha_namespace_${key} ${number} CACHE INTERNAL "The namespace of mha with these flags")
    endif()
  endif()
  set(${result} "${mha_namespace_${key}}" PARENT_SCOPE)
endfunction()

function(mha_add_compiled include_dir)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/compiled/*.cpp")
  add_library(mha_compiled STATIC EXCLUDE_FROM_ALL ${sources})
  add_library(mha::compiled ALIAS mha_compiled)
  target_link_libraries(mha_compiled PUBLIC mha::mha)
  # It may end up in a shared library.
  set_target_properties(mha_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # Units of the library's namespace find their kernels in it; the others, and nvcc's, compile their own.
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(multi_config)
    foreach(config IN LISTS CMAKE_CONFIGURATION_TYPES)
      mha_namespace_number("${include_dir}" "${config}" number)
      if(number)
        target_compile_definitions(
          mha_compiled PUBLIC "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:${config}>>:MHA_COMPILED=${number}>")
      endif()
    endforeach()
  else()
    mha_namespace_number("${include_dir}" "${CMAKE_BUILD_TYPE}" number)
    if(number)
      target_compile_definitions(mha_compiled PUBLIC "$<$<COMPILE_LANGUAGE:CXX>:MHA_COMPILED=${number}>")
    endif()
  endif()
  # Kernels without optimization are fifteen times slower: a build that asks for none, or for Debug, gets it here.
  if(NOT "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_DEBUG}" MATCHES "(^| )-O")
    target_compile_options(mha_compiled PRIVATE "$<$<OR:$<CONFIG:>,$<CONFIG:Debug>>:-O2>")
  endif()
endfunction()
