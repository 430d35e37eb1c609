# SPDX-License-Identifier: Apache-2.0
# What our own tests, examples and benchmarks are compiled with; nothing of it reaches a consumer.
set(CMAKE_CXX_EXTENSIONS OFF)
option(MHA_WARNINGS_AS_ERRORS "Treat warnings in mha's own code as errors" OFF)
option(MHA_SPILLS_AS_ERRORS "Registers that kernels of the tests spill are errors" OFF)
option(MHA_QUICK_PROGRAMS "Compile examples, benchmarks and the host's half of CUDA sources without optimization: to check them, not to measure" OFF)
option(MHA_COMPILED_DEMO "Build semantic_search over mha::compiled: sooner where that is built anyway" OFF)
option(MHA_MACHINE_LEVELS "Compile no kernels above this machine's instruction set: where what cannot run is of no interest" OFF)
set(mha_isa_max 2)
if(MHA_MACHINE_LEVELS AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo avx512 REGEX "^flags.* avx512vl( |$)" LIMIT_COUNT 1)
  if(NOT avx512)
    set(mha_isa_max 1)
  endif()
  add_compile_definitions(MHA_ISA_MAX=${mha_isa_max})
endif()

add_library(mha_development INTERFACE)
target_link_libraries(mha_development INTERFACE mha::mha)
set(mha_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                 $<$<BOOL:${MHA_WARNINGS_AS_ERRORS}>:-Werror>)
set(mha_cuda_warnings -Xcompiler=-Wall,-Wextra,-Wshadow
                      $<$<BOOL:${MHA_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>)
target_compile_options(mha_development INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${mha_warnings}>"
                                                 "$<$<COMPILE_LANGUAGE:CUDA>:${mha_cuda_warnings}>")
target_link_libraries(mha_compiled PRIVATE mha_development)
# g++ collects garbage for an eighth of its time unless it may use memory.
set(mha_memory_options)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(mha_memory_options --param=ggc-min-expand=400 --param=ggc-min-heapsize=2000000)
endif()
target_compile_options(mha_development INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${mha_memory_options}>")
# What is compiled for an answer and not for speed.
set(mha_quick_options ${mha_memory_options})
if(NOT MSVC)
  list(APPEND mha_quick_options -O0)
endif()
# mha_quick_program(TARGET [KERNELS]): it may be compiled without optimization. Unless it has kernels of its own, it is over
# mha::compiled and then compiled behind our header, which is compiled once; that programs include what they use is checked
# by tests/structure.
if(MHA_QUICK_PROGRAMS)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/program_headers.cpp" CONTENT "")
  add_library(program_headers OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/program_headers.cpp")
  target_link_libraries(program_headers PRIVATE mha_development mha::compiled)
  set(mha_program_options ${mha_quick_options})
  if(NOT MSVC)
    list(APPEND mha_program_options -fPIC) # as some are in shared libraries; a program's -fPIE is another header's
  endif()
  target_compile_options(program_headers PRIVATE ${mha_program_options})
  target_precompile_headers(program_headers PRIVATE <mha/mha.hpp>)
endif()
function(mha_quick_program target)
  if(MHA_QUICK_PROGRAMS)
    target_compile_options(${target} PRIVATE ${mha_program_options})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "STATIC_LIBRARY") # of a program's sources: at once in half of the compiler's time
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    endif()
    if(NOT "KERNELS" IN_LIST ARGN)
      target_precompile_headers(${target} REUSE_FROM program_headers)
    endif()
  endif()
endfunction()
# Where the sanitizer's checks of pointer arithmetic and of calls through pointers to functions are off for the compiler's
# time, the kernels of one scalar on Cpu have them: those of its other scalars come from the same templates.
if(CMAKE_CXX_FLAGS MATCHES "-fno-sanitize=pointer-overflow")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/cmake/compiled/cpu_float.cpp" TARGET_DIRECTORY mha_compiled
                              PROPERTIES COMPILE_OPTIONS -fsanitize=pointer-overflow,function)
endif()
# Tests without optimization are a hundred megabytes, which the default linker takes seconds for.
if(MHA_QUICK_PROGRAMS AND NOT MSVC)
  include(CheckLinkerFlag)
  foreach(linker IN ITEMS lld gold)
    check_linker_flag(CXX -fuse-ld=${linker} MHA_LINKS_WITH_${linker})
    if(MHA_LINKS_WITH_${linker})
      add_link_options("$<$<LINK_LANGUAGE:CXX>:-fuse-ld=${linker}>")
      break()
    endif()
  endforeach()
endif()

# Programs for the GPU are compiled where nvcc is; without a GPU they still link, run and say what they could not do.
if(TARGET mha::cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80) # with its PTX, which the driver compiles for newer cards
    endif()
    enable_language(CUDA)
    if(MHA_QUICK_PROGRAMS AND mha_quick_options)
      # These are of the host's half alone; a second -O would be a warning.
      list(JOIN mha_quick_options "," mha_host_options)
      string(REGEX REPLACE "(^| )-O[1-3]( |$)" " " CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
      string(APPEND CMAKE_CUDA_FLAGS_RELEASE " -Xcompiler=${mha_host_options}")
    endif()
  endif()
  # For programs whose kernels others compile for every architecture: of several the first, whose PTX the driver compiles
  # for newer cards; "-virtual" behind the target's name: nothing but the PTX, for any card.
  function(mha_first_cuda_architecture target)
    list(LENGTH CMAKE_CUDA_ARCHITECTURES count)
    if(count GREATER 1)
      list(GET CMAKE_CUDA_ARCHITECTURES 0 first)
      string(REGEX MATCH "^[0-9]+[a-z]?" first "${first}")
      set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${first}${ARGN}")
    endif()
  endfunction()
  # Several architectures from the PTX of the first: no kernel asks for which it is compiled, and the PTX takes a third to a
  # half of nvcc's time.
  function(mha_one_ptx target)
    if(CMAKE_CUDA_ARCHITECTURES MATCHES "^([0-9]+)-real;")
      set(first ${CMAKE_MATCH_1})
      string(REGEX REPLACE "([0-9]+[a-z]?)-real" "sm_\\1" codes "${CMAKE_CUDA_ARCHITECTURES}")
      list(JOIN codes "," codes)
      set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
      target_compile_options(
        ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_${first},code=[${codes}]>")
    endif()
  endfunction()
else()
  # An earlier configuration of this tree may have left it in the cache.
  set(CMAKE_CUDA_COMPILER "")
endif()

# The typed suites take a gigabyte or two per compiler process.
set(MHA_HEAVY_JOBS 2 CACHE STRING "How many of the heaviest translation units compile at once (Ninja)")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS mha_heavy=${MHA_HEAVY_JOBS})

set(MHA_MINILM_DIR "${PROJECT_SOURCE_DIR}/build/models/minilm"
    CACHE PATH "Folder with config.json, vocab.txt and model.safetensors of MiniLM; cmake/fetch_minilm.sh fills it")
set(MHA_ONNX_DIR "${PROJECT_SOURCE_DIR}/build/onnx"
    CACHE PATH "Folder with the Attention cases of the package onnx as text; tests/onnx/fetch.sh fills it")
