# SPDX-License-Identifier: Apache-2.0
# cmake -D CONSUMER=… -D SOURCE=… -D BINARY=… -D WORK=… -D GENERATOR=… -D COMPILER=… -D EIGEN=a|b -P consume.cmake
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(must_not_configure sentence)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT failed OR NOT output MATCHES "${sentence}")
    message("${output}")
    message(FATAL_ERROR "expected a configuration that fails with: ${sentence}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
set(here "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK}/prefix")
string(REPLACE "|" ";" includes "${SOURCE}/include|${EIGEN}")
list(TRANSFORM includes PREPEND "-I")

if(CONSUMER STREQUAL "include_path")
  run("${COMPILER}" -std=c++20 ${includes} "${here}/main.cpp" -pthread -o "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

if(CONSUMER STREQUAL "two_units")
  run("${COMPILER}" -std=c++20 ${includes} "${here}/two_units/main.cpp" "${here}/two_units/other.cpp" -pthread -o
      "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

if(CONSUMER MATCHES "find_package|pkg_config")
  run("${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${prefix}")
  # A user moves the prefix: no path of the build may be left in it.
  file(RENAME "${prefix}" "${WORK}/moved")
  set(prefix "${WORK}/moved")
  file(GLOB_RECURSE texts "${prefix}/share/*")
  foreach(text IN LISTS texts)
    file(READ "${text}" content)
    string(FIND "${content}" "${SOURCE}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${text} names the source tree")
    endif()
  endforeach()
endif()

if(CONSUMER STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs mha OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run("${COMPILER}" -std=c++20 "${here}/main.cpp" ${flags} -o "${WORK}/consumer")
  run("${WORK}/consumer")
  return()
endif()

set(configure "${CMAKE_COMMAND}" -S "${here}/${CONSUMER}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
              "-DCMAKE_PREFIX_PATH=${prefix}")
if(EIGEN_TREE)
  list(APPEND configure "-DFETCHCONTENT_SOURCE_DIR_EIGEN3=${EIGEN_TREE}")
endif()

if(CONSUMER STREQUAL "add_subdirectory")
  list(APPEND configure "-DMHA_SOURCE=${SOURCE}")
elseif(CONSUMER STREQUAL "fetch_content")
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
  must_not_configure("component io: nlohmann_json was not found" ${configure} -B "${WORK}/io" -DCOMPONENTS=io)
  must_not_configure("component openmp: the compiler has no OpenMP" ${configure} -B "${WORK}/openmp" -DCOMPONENTS=openmp)
  must_not_configure("component cellar: this installation of mha was made without it" ${configure} -B "${WORK}/cellar"
                     -DCOMPONENTS=cellar)
endif()

run(${configure} -B "${WORK}/build")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")
