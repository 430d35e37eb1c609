# SPDX-License-Identifier: Apache-2.0
# cmake -D CONSUMER=… -D SOURCE=… -D BINARY=… -D WORK=… -D GENERATOR=… -D COMPILER=… -D EIGEN=a|b -P consume.cmake
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(must_fail sentence)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT failed OR NOT output MATCHES "${sentence}")
    message("${output}")
    message(FATAL_ERROR "expected a command that fails with: ${sentence}")
  endif()
endfunction()

# How a unit with this flag aligns Eigen's memory, and its namespace.
function(compiled_for flag alignment namespace)
  file(WRITE "${WORK}/probe.cpp" "#include <mha/interop/eigen.hpp>\nalignment EIGEN_DEFAULT_ALIGN_BYTES, namespace_name MHA_NAMESPACE,")
  execute_process(COMMAND "${COMPILER}" -std=c++20 ${flag} ${includes} -E -P "${WORK}/probe.cpp" OUTPUT_VARIABLE text
                          COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "alignment ([0-9]+), namespace_name ([a-z0-9_]+),")
    message(FATAL_ERROR "no alignment and namespace in the preprocessed probe")
  endif()
  set(${alignment} ${CMAKE_MATCH_1} PARENT_SCOPE)
  set(${namespace} ${CMAKE_MATCH_2} PARENT_SCOPE)
endfunction()

# That CMake knows which units of this build take their kernels from mha::compiled.
function(number_was_found build)
  file(STRINGS "${build}/CMakeCache.txt" numbers REGEX "^mha_namespace_[0-9a-f]+:INTERNAL=[1-8]$")
  if(numbers STREQUAL "")
    message(FATAL_ERROR "${build}: no number of mha's namespace was found")
  endif()
endfunction()

# The one command that compiles mha::compiled's file for floats, for this configuration, must match an expression.
function(must_be_compiled_with build config expression)
  if(config)
    set(config "DCMAKE_INTDIR=[^ ]*${config}")
  endif()
  file(STRINGS "${build}/compile_commands.json" commands REGEX "\"command\":.*${config}.* [^ ]*/cpu_float\\.cpp\"")
  list(LENGTH commands count)
  if(NOT count EQUAL 1 OR NOT commands MATCHES "${expression}")
    message(FATAL_ERROR "${build} ${config}: expected one command with ${expression}: ${commands}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
set(here "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK}/prefix")
string(REPLACE "|" ";" includes "${SOURCE}/include|${EIGEN}")
list(TRANSFORM includes PREPEND "-I")
# Where nothing is asked about instruction sets, the kernels of one do.
set(baseline -DMHA_ISA_MAX=0)

if(CONSUMER STREQUAL "include_path")
  run("${COMPILER}" -std=c++20 ${includes} "${here}/main.cpp" -pthread -o "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

if(CONSUMER STREQUAL "eigen_door")
  execute_process(COMMAND "${COMPILER}" -std=c++20 ${includes} -M "${here}/eigen_door.cpp" OUTPUT_VARIABLE read
                  COMMAND_ERROR_IS_FATAL ANY)
  if(read MATCHES "mha/backend/(simd|cpu|systolic)/[a-z0-9_]+")
    message(FATAL_ERROR "mha/eigen.hpp includes ${CMAKE_MATCH_0}")
  endif()
  run("${COMPILER}" -std=c++20 ${includes} "${here}/eigen_door.cpp" -pthread -o "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

if(CONSUMER STREQUAL "two_units")
  run("${COMPILER}" -std=c++20 ${includes} "${here}/two_units/main.cpp" "${here}/two_units/other.cpp" -pthread -o
      "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

if(CONSUMER STREQUAL "two_flags")
  foreach(unit IN ITEMS main other)
    run("${COMPILER}" -std=c++20 -O2 -DMHA_ISA_MAX=1 ${includes} -c "${here}/two_flags/${unit}.cpp" -o "${WORK}/${unit}_plain.o")
    run("${COMPILER}" -std=c++20 -O2 -march=native -DMHA_ISA_MAX=1 ${includes} -c
        "${here}/two_flags/${unit}.cpp" -o "${WORK}/${unit}_native.o")
  endforeach()
  foreach(main IN ITEMS plain native)
    foreach(other IN ITEMS plain native)
      run("${COMPILER}" "${WORK}/main_${main}.o" "${WORK}/other_${other}.o" -pthread -o "${WORK}/consumer")
      run("${WORK}/consumer" "${WORK}/${main}_${other}.bits")
      run("${CMAKE_COMMAND}" -E compare_files "${WORK}/plain_plain.bits" "${WORK}/${main}_${other}.bits")
    endforeach()
  endforeach()

  # No function of the library has one name in both: the linker has nothing to choose from.
  function(functions_of object result)
    execute_process(COMMAND "${NM}" -P --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^ \n]*3mha[^ \n]* [WVu] " symbols "${symbols}")
    set(${result} "${symbols}" PARENT_SCOPE)
  endfunction()
  functions_of("${WORK}/other_plain.o" plain_symbols)
  functions_of("${WORK}/other_native.o" native_symbols)
  list(LENGTH plain_symbols count)
  if(count LESS 50)
    message(FATAL_ERROR "only ${count} weak functions of the library were found")
  endif()
  compiled_for("" plain_alignment plain_namespace)
  compiled_for("-march=native" native_alignment native_namespace)
  if(NOT plain_namespace STREQUAL native_namespace)
    foreach(symbol IN LISTS native_symbols)
      list(FIND plain_symbols "${symbol}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "both units define ${symbol}")
      endif()
    endforeach()
  endif()

  # Eigen's own functions do share their names: units that hand over its objects are refused unless they align its memory
  # alike. -DEIGEN_MAX_ALIGN_BYTES=64 in both is the cure.
  foreach(align IN ITEMS "" "-DEIGEN_MAX_ALIGN_BYTES=64")
    foreach(unit IN ITEMS main other)
      run("${COMPILER}" -std=c++20 ${align} ${includes} -c "${here}/two_flags/eigen_${unit}.cpp" -o
          "${WORK}/eigen_${unit}_plain.o")
      run("${COMPILER}" -std=c++20 ${align} -march=native ${includes} -c "${here}/two_flags/eigen_${unit}.cpp" -o
          "${WORK}/eigen_${unit}_native.o")
    endforeach()
    foreach(main IN ITEMS plain native)
      foreach(other IN ITEMS plain native)
        set(link "${COMPILER}" "${WORK}/eigen_main_${main}.o" "${WORK}/eigen_other_${other}.o" -pthread -o "${WORK}/consumer")
        if(align STREQUAL "" AND NOT "${${main}_alignment}" STREQUAL "${${other}_alignment}")
          must_fail("multiple definition of .mha_all_units_with_Eigen_need_one_march_or_EIGEN_MAX_ALIGN_BYTES" ${link})
        else()
          run(${link})
          run("${WORK}/consumer")
        endif()
      endforeach()
    endforeach()
  endforeach()
  return()
endif()

if(CONSUMER STREQUAL "compiled")
  # A unit that takes its kernels from elsewhere is small and has none of its own.
  run("${COMPILER}" -std=c++20 -O2 ${baseline} ${includes} -DMHA_COMPILED -c "${here}/main.cpp" -o "${WORK}/small.o")
  run("${COMPILER}" -std=c++20 ${baseline} ${includes} -c "${here}/compiled/bfloat16.cpp" -o "${WORK}/bfloat16.o")
  run("${COMPILER}" -std=c++20 -march=native ${baseline} ${includes} -DMHA_COMPILED -c "${here}/compiled/matrix_unit.cpp" -o
      "${WORK}/matrix_unit.o")
  # A program of units with kernels from elsewhere, with kernels of its own, and of another instruction set.
  run("${COMPILER}" -std=c++20 ${baseline} ${includes} -DMHA_COMPILED -c "${here}/compiled/main.cpp" -o "${WORK}/main.o")
  run("${COMPILER}" -std=c++20 ${baseline} ${includes} -DMHA_COMPILED -c "${here}/compiled/kernels.cpp" -o "${WORK}/kernels.o")
  run("${COMPILER}" "${WORK}/small.o" "${WORK}/kernels.o" -pthread -o "${WORK}/consumer")
  run("${WORK}/consumer")
  # A unit for other levels than the library's is no part of the program.
  run("${COMPILER}" -std=c++20 ${includes} -DMHA_COMPILED -c "${here}/main.cpp" -o "${WORK}/all_levels.o")
  must_fail("undefined reference to .*mha::v0_1::" "${COMPILER}" "${WORK}/all_levels.o" "${WORK}/kernels.o" -pthread -o
            "${WORK}/consumer")
  must_fail("MHA_ISA_MAX is 0 for the baseline, 1 for AVX2 or 2 for AVX-512" "${COMPILER}" -std=c++20 ${includes}
            -DMHA_ISA_MAX=3 -fsyntax-only "${here}/main.cpp")
  foreach(order IN ITEMS "main;bfloat16;matrix_unit;kernels" "kernels;matrix_unit;bfloat16;main")
    list(TRANSFORM order REPLACE "(.+)" "${WORK}/\\1.o")
    run("${COMPILER}" ${order} -pthread -o "${WORK}/mixed")
    run("${WORK}/mixed")
  endforeach()
  if(NOT SIZE_PROGRAM)
    message(FATAL_ERROR "this test needs the program size (binutils) or llvm-size")
  endif()
  execute_process(COMMAND "${SIZE_PROGRAM}" "${WORK}/small.o" OUTPUT_VARIABLE sizes COMMAND_ERROR_IS_FATAL ANY)
  if(NOT sizes MATCHES "\n *([1-9][0-9]*)")
    message(FATAL_ERROR "no size of text in: ${sizes}")
  elseif(CMAKE_MATCH_1 GREATER 60000)
    message(FATAL_ERROR "a unit with one layer has ${CMAKE_MATCH_1} bytes of text, the most is 60000")
  endif()
  must_fail("has another n than this file" "${COMPILER}" -std=c++20 ${includes} -DMHA_COMPILED=9 -fsyntax-only
            "${here}/compiled/kernels.cpp")
  # Its preprocessor, with the macro that nvcc defines.
  must_fail("mha/compiled.hpp is compiled by nvcc" "${COMPILER}" -std=c++20 ${includes} -DMHA_COMPILED -D__CUDACC__ -E
            "${here}/compiled/kernels.cpp")
  return()
endif()

if(CONSUMER STREQUAL "cuda_off")
  # The cache of a tree that was configured with the component mha::cuda, and then without it.
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
      -DCMAKE_CUDA_COMPILER=nvcc -DMHA_WITH_CUDA=OFF -DMHA_BUILD_BENCHMARKS=OFF)
  return()
endif()

if(CONSUMER STREQUAL "absolute_include")
  # The headers have a folder of their own, and the package's files one that is not share/.
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/mha" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
      -DMHA_BUILD_TESTS=OFF -DMHA_BUILD_BENCHMARKS=OFF -DMHA_BUILD_EXAMPLES=OFF -DMHA_WITH_CUDA=OFF -DMHA_WITH_IO=OFF
      -DMHA_WITH_OPENMP=OFF "-DCMAKE_INSTALL_INCLUDEDIR=${WORK}/headers" -DCMAKE_INSTALL_DATADIR=lib/data
      "-DCMAKE_INSTALL_PREFIX=${prefix}")
  run("${CMAKE_COMMAND}" --install "${WORK}/mha")
  file(RENAME "${prefix}" "${WORK}/moved")
  run("${CMAKE_COMMAND}" -S "${here}/find_package" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
      "-DCMAKE_PREFIX_PATH=${WORK}/moved/lib/data/cmake")
  number_was_found("${WORK}/build")
  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} "${WORK}/moved/lib/data/pkgconfig:$ENV{PKG_CONFIG_PATH}")
    foreach(variable IN ITEMS prefix includedir)
      execute_process(COMMAND "${PKG_CONFIG}" --variable=${variable} mha OUTPUT_VARIABLE ${variable}
                      OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
    file(REAL_PATH "${prefix}" prefix)
    file(REAL_PATH "${WORK}/moved" moved)
    if(NOT prefix STREQUAL moved OR NOT includedir STREQUAL "${WORK}/headers")
      message(FATAL_ERROR "mha.pc has the prefix ${prefix} and the headers in ${includedir}")
    endif()
  endif()
  return()
endif()

if(CONSUMER MATCHES "find_package|pkg_config")
  run("${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${prefix}")
  # A user moves the prefix: no path of the source tree and of the build may be left in it.
  file(RENAME "${prefix}" "${WORK}/moved")
  set(prefix "${WORK}/moved")
  file(GLOB_RECURSE texts "${prefix}/share/*")
  if(NOT texts MATCHES "/mhaConfig\\.cmake" OR NOT texts MATCHES "/mha\\.pc")
    message(FATAL_ERROR "the package's files are not under share/: ${texts}")
  endif()
  foreach(text IN LISTS texts)
    file(READ "${text}" content)
    foreach(tree IN ITEMS "${SOURCE}" "${BINARY}")
      string(FIND "${content}" "${tree}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${text} names ${tree}")
      endif()
    endforeach()
  endforeach()
endif()

if(CONSUMER STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs mha OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run("${COMPILER}" -std=c++20 ${baseline} "${here}/main.cpp" ${flags} -o "${WORK}/consumer")
  run("${WORK}/consumer")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs mha-compiled OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  # A unit without kernels; `compiled` makes programs of such units and the one that has them.
  run("${COMPILER}" -std=c++20 ${baseline} "${here}/main.cpp" ${flags} -c -o "${WORK}/main.o")
  must_fail("undefined reference to .*mha::v0_1" "${COMPILER}" "${WORK}/main.o" -pthread -o "${WORK}/compiled")
  return()
endif()

set(configure "${CMAKE_COMMAND}" -S "${here}/${CONSUMER}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
              "-DCMAKE_PREFIX_PATH=${prefix}")
if(EIGEN_TREE)
  list(APPEND configure "-DFETCHCONTENT_SOURCE_DIR_EIGEN3=${EIGEN_TREE}")
endif()

if(CONSUMER MATCHES "_cuda$")
  # All units of a program have one MHA_ISA_MAX, those of nvcc too.
  list(APPEND configure -DCMAKE_CXX_FLAGS=-O0 "-DCMAKE_CUDA_COMPILER=${CUDA_COMPILER}" -DCMAKE_CUDA_ARCHITECTURES=80)
else()
  list(APPEND configure "-DCMAKE_CXX_FLAGS=-O0 ${baseline}")
endif()

if(CONSUMER STREQUAL "add_subdirectory")
  list(APPEND configure "-DMHA_SOURCE=${SOURCE}" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
  # Kernels are optimized where nothing is asked, and not against a user's wish.
  run(${configure} -DCMAKE_CXX_FLAGS= -DCMAKE_BUILD_TYPE= -B "${WORK}/no_flags")
  must_be_compiled_with("${WORK}/no_flags" "" " -O2 ")
  run(${configure} -B "${WORK}/no_optimization")
  must_be_compiled_with("${WORK}/no_optimization" "" " -O0 ")
  file(STRINGS "${WORK}/no_optimization/compile_commands.json" optimized REGEX " -O2 ")
  if(optimized)
    message(FATAL_ERROR "optimized against the user's wish: ${optimized}")
  endif()
  if(GENERATOR MATCHES "^Ninja")
    # Each configuration has a number of its own.
    run(${configure} -DCMAKE_CXX_FLAGS= -G "Ninja Multi-Config" "-DOPTIONS=$<$<CONFIG:Release>:-fno-exceptions>" -B
        "${WORK}/multi_config")
    must_be_compiled_with("${WORK}/multi_config" Debug " -DMHA_COMPILED=[1-4] .* -O2 ")
    must_be_compiled_with("${WORK}/multi_config" Release " -DMHA_COMPILED=[5-8] ")
  endif()
elseif(CONSUMER MATCHES "^fetch_content")
  # The work tree as it is now, committed to a repository of its own.
  file(COPY "${SOURCE}/include" "${SOURCE}/cmake" "${SOURCE}/CMakeLists.txt" DESTINATION "${WORK}/origin")
  set(git git -C "${WORK}/origin" -c user.name=consumer -c user.email=consumer@localhost)
  run(${git} init -q -b main)
  run(${git} add -A)
  run(${git} commit -q -m snapshot)
  list(APPEND configure "-DMHA_REPOSITORY=file://${WORK}/origin")
elseif(CONSUMER STREQUAL "find_package")
  # Neither OpenMP nor nlohmann_json: the main target does without.
  list(APPEND configure -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
  must_fail("component io: nlohmann_json was not found" ${configure} -B "${WORK}/io" -DCOMPONENTS=io)
  must_fail("component openmp: the compiler has no OpenMP" ${configure} -B "${WORK}/openmp" -DCOMPONENTS=openmp)
  must_fail("component cellar: this installation of mha was made without it" ${configure} -B "${WORK}/cellar"
                     -DCOMPONENTS=cellar)
endif()

run(${configure} -B "${WORK}/build")
if(CONSUMER MATCHES "^(add_subdirectory|fetch_content|find_package)$")
  number_was_found("${WORK}/build")
endif()
if(CONSUMER STREQUAL "add_subdirectory")
  # The targets are those of fetch_content, which builds mha::compiled and a program over it too.
  run("${CMAKE_COMMAND}" --build "${WORK}/build" --target consumer)
else()
  run("${CMAKE_COMMAND}" --build "${WORK}/build")
endif()
run("${WORK}/build/consumer")
if(EXISTS "${WORK}/build/compiled")
  run("${WORK}/build/compiled")
elseif(CONSUMER MATCHES "^(fetch_content|find_package)$")
  message(FATAL_ERROR "the program on mha::compiled was not built")
endif()
