# SPDX-License-Identifier: Apache-2.0
# cmake -D COMPILER=… -D INCLUDES=folder -P check.cmake
# Compiles activation.cpp to assembly of x86-64 and fails if a kernel of AVX2 or AVX-512 computes numbers one by one, or
# calls a function. Values cannot tell: they are the same.

execute_process(COMMAND "${COMPILER}" -std=c++20 -O2 -I "${INCLUDES}" -S "${CMAKE_CURRENT_LIST_DIR}/activation.cpp" -o -
                OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)

string(REGEX REPLACE "[][;]" "." text "${text}") # which would upset CMake's lists
string(REPLACE "\n" ";" lines "${text}")
set(arithmetic "(mul|div|add|sub|min|max|sqrt|fn?m(add|sub)[0-9]+)")
set(kernels 0)
set(name)
foreach(line IN LISTS lines)
  if(line MATCHES "^(_Z[A-Za-z0-9_]*Avx(2|512)[A-Za-z0-9_]*ActivationBody[A-Za-z0-9_]*):")
    set(name "${CMAKE_MATCH_1}")
    set(packed 0)
    math(EXPR kernels "${kernels} + 1")
  elseif(NOT name)
    continue()
  elseif(line MATCHES "^\t(v?${arithmetic}s[sd]|callq?)\t")
    message(FATAL_ERROR "${name} computes one number at a time:\n${line}")
  elseif(line MATCHES "^\tv?${arithmetic}p[sd]\t")
    math(EXPR packed "${packed} + 1")
  elseif(line MATCHES "^\t.cfi_endproc")
    if(packed LESS 20)
      message(FATAL_ERROR "${name} has ${packed} operations on registers, expected 20 at least")
    endif()
    set(name)
  endif()
endforeach()
if(NOT kernels EQUAL 8)
  message(FATAL_ERROR "there are ${kernels} kernels, expected those of float, double and two of bfloat16 for AVX2 and "
                      "AVX-512")
endif()
